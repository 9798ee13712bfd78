"""Bodies of the ops about replicas of files (docs/decisions/0063-mirrors.md).

DROP_REPLICAS is no mutation with a stored reply: a repeat is answered by looking at the layout.
"""

from dataclasses import dataclass

from fscommon.ranges import U32, U64, U32s, U64s

DROPS_MAX = 512  # replicas of one DROP_REPLICAS


@dataclass(frozen=True, slots=True)
class DropReplicas:
    """A writer cannot reach these replicas of the layout that it has: row i of the columns is the
    object with that number (stripe index and generation) on that target. The reply is the present
    layout, once nobody gets an answer from a replica that is not in it."""

    ino: U64
    file_id: U64
    truncate_epoch: U32
    objects: U32s
    targets: U32s


@dataclass(frozen=True, slots=True)
class Synced:
    """Of these files all replicas have made durable what was written before the Close with the
    serial number beside it. One-way."""

    inos: U64s
    serials: U64s
