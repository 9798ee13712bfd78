"""Names for the numbers that BraidFS programs exchange.

Every id is a NewType over int, so that mypy distinguishes an inode from a session. Nothing here has
behaviour; encoders are in fscommon.wire, limits in fscommon.limits.
"""

from typing import NewType

Ino = NewType("Ino", int)  # inode number, never reused; 1 is the root of the filesystem
# Identifies the objects of one inode; changes when the file is truncated to zero.
FileId = NewType("FileId", int)
SessionId = NewType("SessionId", int)  # one mounted client; random 64 bits, 0 means none
RequestId = NewType("RequestId", int)  # per session; rises by one with every request
Txn = NewType("Txn", int)  # number of a metaserver transaction; rises by one per mutation
NodeId = NewType("NodeId", int)  # one storage server process
TargetId = NewType("TargetId", int)  # one target directory, unique in the cluster, 1..2**32-1
LaneIndex = NewType("LaneIndex", int)
# Of a target; changes when unsynced bytes were lost.
Incarnation = NewType("Incarnation", int)

ROOT_INO = Ino(1)
