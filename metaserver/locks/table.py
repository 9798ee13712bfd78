"""Advisory locks of all clients: who holds which range of which file, and who waits for it.

fcntl(2) and flock(2) locks of a file are two spaces that never conflict with each other. An owner
is one process's file table (fcntl) or one open file description (flock, OFD) of one session. Ranges
of one owner never conflict: they replace each other.

As in Linux, a request waits only for locks that are held. It gets what is free at once, even if
others have waited for longer: a fair queue could make deadlocks that no program has. After every
release, the requests that wait are tried again in order of arrival. EDEADLK is for an fcntl request
that would wait for its own owner, through other owners that wait. flock(2) changes a lock by
dropping it first.

A session that has waited learns of the grant by `take_events`, which repeats it until the session
acknowledges it. Pure: no I/O, no clock. Bounded per session. Only the event loop's thread calls.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from fscommon.errors import FsError, Status
from fscommon.layout.lock_ranges import LOCK_END, LockedRange, LockedRanges, LockType
from fscommon.types import Ino, SessionId

RANGES_PER_SESSION_MAX: Final = 1 << 17
WAITERS_PER_SESSION_MAX: Final = 1 << 14


class Owner(NamedTuple):
    """An owner of locks. is_flock says to which of the two spaces it belongs."""

    session: SessionId
    is_flock: bool
    id: int


class Wanted(NamedTuple):
    """A lock that a request asks for. is_loose: its session may drop the lock without saying so at
    once, so others that want it ask the session first."""

    ino: Ino
    owner: Owner
    start: int
    end: int
    type: LockType
    pid: int
    is_loose: bool = False

    @property
    def space(self) -> tuple[Ino, bool]:
        return self.ino, self.owner.is_flock


class Holder(NamedTuple):
    owner: Owner
    range: LockedRange


class Waiter(NamedTuple):
    ticket: int
    wanted: Wanted


@dataclass(slots=True)
class _Space:
    """The locks of one kind on one file."""

    held: dict[Owner, LockedRanges] = field(default_factory=dict)
    loose: set[Owner] = field(default_factory=set)
    waiting: dict[tuple[SessionId, int], Waiter] = field(default_factory=dict)  # by arrival


@dataclass(slots=True)
class _Client:
    """What the table keeps for one session."""

    spaces: dict[tuple[Ino, bool], set[Owner]] = field(default_factory=dict)
    waiting: dict[int, Waiter] = field(default_factory=dict)
    granted: set[int] = field(default_factory=set)  # tickets that are not acknowledged yet
    range_count: int = 0


class LockTable:
    def __init__(self) -> None:
        self._spaces: dict[tuple[Ino, bool], _Space] = {}
        self._clients: dict[SessionId, _Client] = {}
        self._waiters_of: dict[Owner, list[Waiter]] = {}
        self.fresh: set[SessionId] = set()  # sessions with events that were not sent yet

    # ---- requests -----------------------------------------------------------------------------

    def find_conflict(self, wanted: Wanted) -> Holder | None:
        """Returns a holder whose lock conflicts with `wanted`: the answer to F_GETLK."""
        space = self._spaces.get(wanted.space)
        return next(self._conflicts(space, wanted), None) if space else None

    def loose_holders(self, wanted: Wanted) -> set[SessionId]:
        """Returns other sessions whose locks conflict with `wanted`, if they may have dropped these
        already."""
        space = self._spaces.get(wanted.space)
        if space is None or not space.loose or wanted.type is LockType.NONE:
            return set()
        found = {holder.owner for holder in self._conflicts(space, wanted)} & space.loose
        return {owner.session for owner in found} - {wanted.owner.session}

    def ask(self, wanted: Wanted, ticket: int = 0) -> bool:
        """Locks or unlocks. Returns True if this is done, False if it waits under `ticket`. With
        ticket 0 it must not wait.

        Raises EAGAIN, EDEADLK, ENOLCK."""
        client = self._clients.setdefault(wanted.owner.session, _Client())
        if ticket and (ticket in client.waiting or ticket in client.granted):
            return ticket in client.granted
        if wanted.type is LockType.NONE:
            self._apply(wanted)
            self._grant(wanted.space)
            return True
        if client.range_count >= RANGES_PER_SESSION_MAX:
            raise FsError(Status.ENOLCK, "this client has too many locks")
        if wanted.owner.is_flock:
            self._drop_changed(wanted)
        if self.find_conflict(wanted) is None:
            self._apply(wanted)
            self._grant(wanted.space)  # a weaker lock may let others in
            return True
        return self._queue(client, Waiter(ticket, wanted))

    def restore(self, wanted: Wanted) -> bool:
        """Takes a lock that a client held before the restart. Returns False if another owner has
        it."""
        if wanted.type is LockType.NONE or self.find_conflict(wanted) is not None:
            return False
        self._clients.setdefault(wanted.owner.session, _Client())
        self._apply(wanted)
        return True

    def cancel(self, session: SessionId, ticket: int) -> bool:
        """Ends the wait under this ticket. Returns True if the lock was granted before."""
        client = self._clients.get(session)
        if client is None:
            return False
        was_granted = ticket in client.granted
        client.granted.discard(ticket)
        waiter = client.waiting.get(ticket)
        if waiter is not None:
            self._leave(waiter)
            self._grant(waiter.wanted.space)
        return was_granted

    def stop_waiting(self, session: SessionId) -> None:
        """Ends all waits of the session, and drops its events."""
        client = self._clients.get(session)
        if client is None:
            return
        self.fresh.discard(session)
        client.granted.clear()
        for waiter in list(client.waiting.values()):
            self._leave(waiter)
            self._grant(waiter.wanted.space)

    def held_by(self, session: SessionId) -> Iterator[tuple[Ino, Owner, LockedRange]]:
        client = self._clients.get(session)
        for space, owners in client.spaces.items() if client else ():
            for owner in owners:
                for held in self._spaces[space].held[owner]:
                    yield space[0], owner, held

    def drop_session(self, session: SessionId) -> None:
        """Frees all locks of the session: nothing of it can reach a target any more."""
        client = self._clients.pop(session, None)
        self.fresh.discard(session)
        if client is None:
            return
        spaces = set(client.spaces) | {w.wanted.space for w in client.waiting.values()}
        for waiter in list(client.waiting.values()):
            self._unlink(waiter)
        for space, owners in client.spaces.items():
            for owner in owners:
                self._spaces[space].held.pop(owner, None)
                self._spaces[space].loose.discard(owner)
        for space in spaces:
            self._grant(space)

    def take_events(self, session: SessionId, acknowledged: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the tickets that were granted and are not acknowledged."""
        client = self._clients.get(session)
        if client is None:
            return ()
        client.granted.difference_update(acknowledged)
        self.fresh.discard(session)
        return tuple(sorted(client.granted))

    def listing(self) -> Iterator[tuple[Ino, Owner, LockedRange, bool]]:
        """Yields every range that is held (False), and every one that is waited for (True)."""
        for (ino, _), space in sorted(self._spaces.items()):
            for owner, ranges in space.held.items():
                for held in ranges:
                    yield ino, owner, held, False
            for waiter in space.waiting.values():
                want = waiter.wanted
                wanted = LockedRange(want.start, want.end, want.type, want.pid)
                yield ino, want.owner, wanted, True

    def __len__(self) -> int:
        """The number of ranges that are held."""
        return sum(client.range_count for client in self._clients.values())

    @property
    def waiting_count(self) -> int:
        return sum(len(client.waiting) for client in self._clients.values())

    # ---- holding ------------------------------------------------------------------------------

    def _conflicts(self, space: _Space, wanted: Wanted) -> Iterator[Holder]:
        for owner, ranges in space.held.items():
            if owner == wanted.owner:
                continue
            found = ranges.conflict(wanted.start, wanted.end, wanted.type)
            if found is not None:
                yield Holder(owner, found)

    def _apply(self, wanted: Wanted) -> None:
        space = self._spaces.setdefault(wanted.space, _Space())
        ranges = space.held.setdefault(wanted.owner, LockedRanges())
        client = self._clients[wanted.owner.session]
        if wanted.is_loose:
            space.loose.add(wanted.owner)
        before = len(ranges)
        ranges.set(wanted.start, wanted.end, wanted.type, wanted.pid)
        client.range_count += len(ranges) - before
        owners = client.spaces.setdefault(wanted.space, set())
        owners.add(wanted.owner)
        if not ranges:
            del space.held[wanted.owner]
            space.loose.discard(wanted.owner)
            owners.discard(wanted.owner)
            if not owners:
                del client.spaces[wanted.space]
        self._tidy(wanted.space)

    def _tidy(self, key: tuple[Ino, bool]) -> None:
        space = self._spaces.get(key)
        if space is not None and not space.held and not space.waiting:
            del self._spaces[key]

    def _drop_changed(self, wanted: Wanted) -> None:
        """Drops a flock(2) lock that is about to change: others may get it meanwhile."""
        space = self._spaces.get(wanted.space)
        held = space.held.get(wanted.owner) if space else None
        if held is None or all(r.type is wanted.type for r in held):
            return
        self._apply(wanted._replace(type=LockType.NONE, start=0, end=LOCK_END))
        if self.find_conflict(wanted) is not None:
            self._grant(wanted.space)

    # ---- waiting ------------------------------------------------------------------------------

    def _queue(self, client: _Client, waiter: Waiter) -> bool:
        wanted = waiter.wanted
        if not waiter.ticket:
            raise FsError(Status.EAGAIN, "somebody else holds it")
        if len(client.waiting) >= WAITERS_PER_SESSION_MAX:
            raise FsError(Status.ENOLCK, "too many requests of this client wait for locks")
        if not wanted.owner.is_flock and self._is_deadlock(wanted):
            raise FsError(Status.EDEADLK, "its holder waits for the requester")
        space = self._spaces.setdefault(wanted.space, _Space())
        space.waiting[wanted.owner.session, waiter.ticket] = waiter
        client.waiting[waiter.ticket] = waiter
        self._waiters_of.setdefault(wanted.owner, []).append(waiter)
        return False

    def _leave(self, waiter: Waiter) -> None:
        del self._clients[waiter.wanted.owner.session].waiting[waiter.ticket]
        self._unlink(waiter)

    def _unlink(self, waiter: Waiter) -> None:
        wanted = waiter.wanted
        del self._spaces[wanted.space].waiting[wanted.owner.session, waiter.ticket]
        others = self._waiters_of[wanted.owner]
        others.remove(waiter)
        if not others:
            del self._waiters_of[wanted.owner]

    def _grant(self, key: tuple[Ino, bool]) -> None:
        """Grants the waiting requests that have no conflict now, in order of arrival."""
        space = self._spaces.get(key)
        for waiter in list(space.waiting.values()) if space else ():
            if self.find_conflict(waiter.wanted) is not None:
                continue
            self._leave(waiter)
            self._apply(waiter.wanted)
            session = waiter.wanted.owner.session
            self._clients[session].granted.add(waiter.ticket)
            self.fresh.add(session)
        self._tidy(key)

    def _is_deadlock(self, wanted: Wanted) -> bool:
        """Whether a holder that conflicts with `wanted` waits for its owner, directly or through
        others."""
        seen: set[Owner] = set()
        todo = [wanted]
        while todo:
            one = todo.pop()
            for holder in self._conflicts(self._spaces[one.space], one):
                if holder.owner == wanted.owner:
                    return True
                if holder.owner not in seen:
                    seen.add(holder.owner)
                    todo += [waiter.wanted for waiter in self._waiters_of.get(holder.owner, ())]
        return False
