"""Names for the numbers that BraidFS programs exchange.

Every id is a NewType over int, so that mypy tells an inode from a session. Nothing here has
behaviour; encoders are in fscommon.wire, limits in fscommon.limits.
"""

from typing import NewType

Ino = NewType("Ino", int)  # inode number, 1 is the root of the file system; never reused
FileId = NewType("FileId", int)  # names the objects of one inode; changes at truncate to zero
SessionId = NewType("SessionId", int)  # one mounted client, random 64 bit, 0 is "none"
RequestId = NewType("RequestId", int)  # per session, rises by one with every request
Txn = NewType("Txn", int)  # metaserver transaction number, rises by one per mutation
NodeId = NewType("NodeId", int)  # one storage server process
TargetId = NewType("TargetId", int)  # one target directory, unique in the cluster, 1..2**32-1
LaneIndex = NewType("LaneIndex", int)
Incarnation = NewType("Incarnation", int)  # of a target; changes when unsynced bytes were lost

ROOT_INO = Ino(1)
