"""The parts of the table of leases: holders, what they hold, recalls, and claims that wait."""

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from fscommon.layout.attributes import LEASE_CHILDREN, LEASE_EXCLUSIVE_ALL
from fscommon.types import Ino, SessionId
from fscommon.wire.leases import HeldLease, RecallItem

_LOOK_MAX: Final = 8  # take_oldest passes over so many leases that must stay
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
    """An op that waits. Claims run, and are granted leases, in the order of seq."""

    seq: int
    session: SessionId
    needs: Sequence[Need] = ()
    waits: set[int] = field(default_factory=set)  # numbers of the recalls that it waits for
    # Sessions that have committed what they know of size and mtime of these inodes.
    reported: set[tuple[Ino, SessionId]] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class Recall:
    number: int
    ino: Ino
    held: Held
    flags: int  # LEASE_* bits to give up; 0: the holder must only report what it knows
    limit: int
    began_s: float
    deadline_s: float
    is_trim: bool
    claims: list[Claim] = field(default_factory=list)

    def item(self) -> RecallItem:
        return RecallItem(self.number, self.ino, self.flags, self.held.granted_by, self.limit)


@dataclass(slots=True)
class Holder:
    """One session. leases has the oldest first. (An OrderedDict: deletions at the front of a plain
    dict make every later look there slow.) A ghost was evicted and is not fenced everywhere yet."""

    leases: OrderedDict[Ino, Held] = field(default_factory=OrderedDict)
    recalls: dict[int, Recall] = field(default_factory=dict)  # open ones, by number
    recalled: dict[Ino, list[Recall]] = field(default_factory=dict)  # the same, by inode
    is_cached: bool = False  # it has a recall connection
    trimming: int = 0
    is_ghost: bool = False
    is_fenced: bool = False
    until_s: float = 0.0  # a ghost may believe in its leases until then
    # Of the metaserver itself: for how long it keeps the lease on an inode when it is recalled.
    kept_s: dict[Ino, float] = field(default_factory=dict)

    def kept_until_s(self, ino: Ino, now_s: float) -> float:
        """Until when it may keep its lease on the inode that is recalled now, if it is not the
        lease of a session."""
        return max(self.until_s, now_s + self.kept_s.get(ino, 0.0))

    def let_go(self, ino: Ino) -> None:
        del self.leases[ino]
        self.kept_s.pop(ino, None)

    def keep(self, ino: Ino, seconds: float, now_s: float) -> None:
        self.kept_s[ino] = seconds
        for recall in self.recalled.get(ino, ()):
            recall.deadline_s = now_s + seconds

    def lease_on(self, ino: Ino, session: SessionId) -> Held:
        """Returns its lease on the inode, or an empty lease of this session."""
        return self.leases.get(ino) or Held(session, 0, 0)

    def recalled_flags(self, ino: Ino) -> int:
        """Returns the bits of its lease on ino that open recalls ask for."""
        flags = 0
        for recall in self.recalled.get(ino, ()):
            flags |= recall.flags
        return flags

    def sums(self) -> tuple[int, int, int, bool]:
        """See Leases.sums."""
        exclusive = sum(1 for held in self.leases.values() if held.flags & LEASE_EXCLUSIVE_ALL)
        return len(self.leases), exclusive, len(self.recalls), self.is_cached

    def report(self) -> list[HeldLease]:
        """Returns its leases, in order of ino."""
        return [
            HeldLease(ino, held.flags, self.recalled_flags(ino))
            for ino, held in sorted(self.leases.items())
        ]

    def take_oldest(self, count: int) -> list[tuple[Ino, Held]]:
        """Returns up to `count` of the oldest leases that may be recalled. Leases on files being
        written, and on directories that stand for their files, must stay: they move to the young
        end."""
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
