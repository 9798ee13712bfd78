"""What the table of leases is made of: sessions, what they hold, what is asked back, who waits."""

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from fscommon.layout.attributes import LEASE_CHILDREN, LEASE_EXCLUSIVE_ALL
from fscommon.types import Ino, SessionId
from fscommon.wire.leases import RecallItem

_LOOK_MAX: Final = 8  # leases that stay where they are, passed over at a time
_STAYING: Final = LEASE_EXCLUSIVE_ALL | LEASE_CHILDREN


class Need(NamedTuple):
    ino: Ino
    flags: int


@dataclass(slots=True, eq=False)
class Held:
    """One session's lease on one inode. granted_by: the request that granted it last."""

    session: SessionId
    flags: int
    granted_by: int


@dataclass(slots=True, eq=False)
class Claim:
    """An op that waits. seq: claims run, and are granted leases, in this order."""

    seq: int
    session: SessionId
    needs: Sequence[Need] = ()
    waits: set[int] = field(default_factory=set)  # numbers of recalls
    told: set[tuple[Ino, SessionId]] = field(default_factory=set)  # size and mtime are committed


@dataclass(slots=True, eq=False)
class Recall:
    number: int
    ino: Ino
    held: Held
    flags: int  # 0: only tell
    limit: int
    began_s: float
    deadline_s: float
    is_trim: bool
    claims: list[Claim] = field(default_factory=list)

    def item(self) -> RecallItem:
        return RecallItem(self.number, self.ino, self.flags, self.held.granted_by, self.limit)


@dataclass(slots=True)
class Holder:
    """One session. leases: oldest first (what a plain dict deletes at its front stands in the way
    of each later look there). A ghost was evicted and is not fenced everywhere yet."""

    leases: OrderedDict[Ino, Held] = field(default_factory=OrderedDict)
    recalls: dict[int, Recall] = field(default_factory=dict)  # by number, not ended
    recalled: dict[Ino, list[Recall]] = field(default_factory=dict)  # the same, by inode
    is_cached: bool = False  # it has a recall connection
    trimming: int = 0
    is_ghost: bool = False
    is_fenced: bool = False
    until_s: float = 0.0  # of a ghost: until then it may believe in its leases

    def lease_on(self, ino: Ino, session: SessionId) -> Held:
        """What it holds on an inode; session: its own, of a lease on nothing."""
        return self.leases.get(ino) or Held(session, 0, 0)

    def recalled_flags(self, ino: Ino) -> int:
        """The bits of its lease on ino that recalls, not ended yet, ask for."""
        flags = 0
        for recall in self.recalled.get(ino, ()):
            flags |= recall.flags
        return flags

    def take_oldest(self, count: int) -> list[tuple[Ino, Held]]:
        """Up to `count` of the oldest leases that may be asked back. Files being written and
        directories that stand for their files may not: they are young for a while again."""
        oldest: list[tuple[Ino, Held]] = []
        staying: list[Ino] = []
        for ino, held in itertools.islice(self.leases.items(), _LOOK_MAX + self.trimming + count):
            if held.flags & _STAYING:
                staying.append(ino)
            elif not self.recalled_flags(ino):
                oldest.append((ino, held))
                if len(oldest) == count:
                    break
        for ino in staying:
            self.leases.move_to_end(ino)
        return oldest
