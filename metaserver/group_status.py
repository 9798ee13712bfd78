"""What the active metaserver knows of its group: for STATUS, for metrics and for a hand-over.

Threads that ask the journal put what they have seen here (`saw_members`, `saw_engine`,
`appended`); the event loop makes STATUS of it and asks nobody. Times are passed in, or come from
the clocks of the active metaserver. A standby says how far it is every REPORT_S, and is
looked at every LOOK_S: so a standby that keeps up may seem some seconds behind, and no more.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

import trio

from fscommon.errors import FsError, Status
from fscommon.observe.health import SILENT_STANDBY_S
from fscommon.observe.words import duration
from fscommon.wire.group import EngineServer, GroupStatus, JournalStatus, MetaserverStatus
from metaserver.store.journal import EngineHealth, EngineMember, Head, Journal, Member
from metaserver.store.terms import ActiveLease

LOOK_S: Final = 2.0  # between two looks at the members
ASK_S: Final = 5.0  # between two questions to the servers of the engine
FORGET_S: Final = 60.0  # who has reported since then is not forgotten
NEAR_ENTRIES: Final = 2000  # a standby that lacks more is not handed over to
APPENDS_S: Final = 60.0
_APPENDS_MAX: Final = 4096
_PLACES_MAX: Final = 400


@runtime_checkable
class HealthSource(Protocol):
    """A journal whose engine has servers."""

    def health(self) -> EngineHealth:
        """Blocks for the time of one call at most."""
        ...


@dataclass(frozen=True, slots=True)
class _Seen:
    """A member as it was when it was looked at last. is_alive: its reports have counted up since
    this metaserver is active. late_since_s: when the journal had an entry, for the first time, that
    the member lacks."""

    member: Member
    heard_s: float
    is_alive: bool
    behind: int
    late_since_s: float | None


class AppendTimes:
    """How long appends took of late. Any thread may call."""

    def __init__(self) -> None:
        self._times: deque[tuple[float, float]] = deque(maxlen=_APPENDS_MAX)
        self._lock = threading.Lock()

    def add(self, now_s: float, seconds: float) -> None:
        with self._lock:
            self._times.append((now_s, seconds))

    def quantiles(self, now_s: float) -> tuple[float, float]:
        """The median and the 99th percentile of the last APPENDS_S; zeros without appends. Of fewer
        than 100, two are left out: one that met a restart of the engine says nothing."""
        with self._lock:
            recent = sorted(took for at_s, took in self._times if now_s - at_s <= APPENDS_S)
        if not recent:
            return 0.0, 0.0
        count = len(recent)
        worst = count * 99 // 100 if count >= 100 else max(0, count - 3)
        return recent[count // 2], recent[worst]


class GroupView:
    """One term of this metaserver. head: of the journal, as its store has it now. switching: set
    when an administrator has asked it to hand over. kept: where it keeps a damaged store."""

    def __init__(
        self,
        own: Member,
        *,
        engine: str,
        head: Callable[[], Head],
        lease: ActiveLease,
        clock: Callable[[], float],
        lease_clock: Callable[[], float] | None = None,
    ) -> None:
        self.switching = trio.Event()
        self.appends = AppendTimes()
        self.kept = own.kept
        self._own = own
        self._engine = engine
        self._head = head
        self._lease = lease
        self._clock = clock
        self._lease_clock = lease_clock or clock
        self._seen: dict[str, _Seen] = {}
        self._forgetting: list[str] = []
        self._places: deque[tuple[float, int]] = deque(maxlen=_PLACES_MAX)
        self._servers: tuple[EngineServer, ...] = ()

    # ---- from threads that ask the journal -----------------------------------------------------

    def saw_members(self, members: Iterable[Member], head: Head) -> None:
        """head: as it was before these were asked for."""
        now_s = self._clock()
        self._places.append((now_s, head.index))
        seen = {}
        for member in members:
            if member.name != self._own.name:
                seen[member.name] = self._look(member, head, now_s)
        self._seen = seen  # readers have the former one, or this one

    def _look(self, member: Member, head: Head, now_s: float) -> _Seen:
        before = self._seen.get(member.name)
        is_new = before is None or before.member.reports != member.reports
        applied = member.applied if member.log == head.log else 0
        return _Seen(
            member,
            heard_s=now_s if before is None or is_new else before.heard_s,
            is_alive=before is not None and (is_new or before.is_alive),
            behind=max(0, head.index - applied),
            late_since_s=next((at_s for at_s, index in self._places if index > applied), None),
        )

    def to_forget(self) -> list[str]:
        """Names of members that are to be removed from the journal: `forgot` follows."""
        return list(self._forgetting)

    def forgot(self, name: str) -> None:
        self._forgetting.remove(name)

    def saw_engine(self, health: EngineHealth | None) -> None:
        """None: it could not be asked."""
        self._servers = tuple(map(_server, health.members)) if health is not None else ()

    def appended(self, seconds: float) -> None:
        self.appends.add(self._clock(), seconds)

    # ---- from the event loop -------------------------------------------------------------------

    def status(self) -> GroupStatus:
        now_s, head = self._clock(), self._head()
        own = MetaserverStatus(
            self._own.name, self._own.address, True, head.index, 0, 0.0, 0.0, self.kept
        )
        median, worst = self.appends.quantiles(now_s)
        return GroupStatus(
            (own, *(_row(one, head, now_s) for one in self._seen.values())),
            JournalStatus(
                self._engine, head.term, head.index, median, worst, self.silence_s, self._servers
            ),
        )

    @property
    def silence_s(self) -> float:
        """Since the last change of the journal that has succeeded was sent."""
        return max(0.0, self._lease_clock() - self._lease.proven_s)

    @property
    def head(self) -> Head:
        return self._head()

    @property
    def servers(self) -> tuple[EngineServer, ...]:
        return self._servers

    def standbys(self) -> int:
        """How many could take over soon."""
        now_s, head = self._clock(), self._head()
        return sum(not _why_not(one, head, now_s) for one in self._seen.values())

    def switch(self) -> tuple[str, int]:
        """Begins a hand-over. Returns who hands over, and in which term. Raises EBUSY, which says
        why nobody could take over now."""
        now_s, head = self._clock(), self._head()
        reasons = [_why_not(one, head, now_s) for one in self._seen.values()]
        if all(reasons):
            why = "; ".join(reasons) or "no other metaserver has reported"
            raise FsError(Status.EBUSY, f"no standby could take over now: {why}")
        self.switching.set()
        return self._own.name, head.term

    def forget(self, name: str) -> tuple[str, float]:
        """Has a member removed that is gone for good. Returns its address, and for how long it has
        not reported. Raises ENOENT; EBUSY, which says why it is not forgotten."""
        if name == self._own.name:
            raise FsError(Status.EBUSY, f"{name} is active: nobody else can forget it now")
        seen = self._seen.get(name)
        if seen is None:
            names = ", ".join(self._seen) or "none"
            raise FsError(
                Status.ENOENT, f"the journal has no metaserver {name}; beside the active: {names}"
            )
        silent_s = max(0.0, self._clock() - seen.heard_s)
        if silent_s < FORGET_S:
            raise FsError(
                Status.EBUSY,
                f"{name} has been heard of {duration(silent_s)} ago, or this metaserver is active "
                f"only since then: stop {name}, and try again after {duration(FORGET_S)}",
            )
        if name not in self._forgetting:
            self._forgetting.append(name)
        return seen.member.address, silent_s


def health_of(door: Journal) -> EngineHealth | None:
    """None: the engine has no servers to tell of. Raises JournalError."""
    return door.health() if isinstance(door, HealthSource) else None


def _server(member: EngineMember) -> EngineServer:
    return EngineServer(
        member.endpoint,
        member.is_reachable,
        member.is_leader,
        member.bytes_used,
        member.bytes_max or 0,
        tuple(member.alarms),
    )


def _row(seen: _Seen, head: Head, now_s: float) -> MetaserverStatus:
    member, late_since_s = seen.member, seen.late_since_s
    return MetaserverStatus(
        member.name,
        member.address,
        is_active=False,
        applied=member.applied if member.log == head.log else 0,
        behind=seen.behind,
        behind_s=0.0 if late_since_s is None else max(0.0, now_s - late_since_s),
        seconds_since_report=max(0.0, now_s - seen.heard_s),
        kept=member.kept,
    )


def _why_not(seen: _Seen, head: Head, now_s: float) -> str:
    """Why this standby is not handed over to; "": it may be."""
    member = seen.member
    silent_s = now_s - seen.heard_s
    if not seen.is_alive:
        return f"{member.name} has not reported yet since the last take-over"
    if silent_s > SILENT_STANDBY_S:
        return f"{member.name} has not reported for {duration(silent_s)}"
    if member.log != head.log:
        return f"{member.name} has followed another journal"
    if seen.behind > NEAR_ENTRIES:
        return f"{member.name} is {seen.behind:,} entries behind"
    return ""
