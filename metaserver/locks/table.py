"""Advisory locks of all clients: who holds which range of which file, and who waits for it.

fcntl(2) and flock(2) locks of a file are two spaces that do not meet. An owner is one process's
file table (fcntl) or one open file description (flock, OFD) of one session; its own ranges never
conflict, they replace each other.

A request waits for locks that are held and for nothing else, as in Linux: whatever is free is had
at once, also past others that wait (a queue that holds up what is free closes circles that no
program made). After every release those that wait are looked through in order of arrival.
EDEADLK: an fcntl request that would wait, through owners that wait for ranges that are held, for
its own owner. flock(2) changes a lock by dropping it first.

Whoever waited learns of the grant by `take_events`, repeated until acknowledged.
Pure: no I/O, no clock. Bounded per session. Touched by the event loop's thread only.
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
    """is_flock: which of the two spaces it belongs to."""

    session: SessionId
    is_flock: bool
    id: int


class Wanted(NamedTuple):
    """is_loose: once it is had, its session is to be asked whether it is there still."""

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
    """What a session has in the table."""

    spaces: dict[tuple[Ino, bool], set[Owner]] = field(default_factory=dict)
    waiting: dict[int, Waiter] = field(default_factory=dict)
    granted: set[int] = field(default_factory=set)  # tickets, until acknowledged
    range_count: int = 0


class LockTable:
    def __init__(self) -> None:
        self._spaces: dict[tuple[Ino, bool], _Space] = {}
        self._clients: dict[SessionId, _Client] = {}
        self._waiters_of: dict[Owner, list[Waiter]] = {}
        self.fresh: set[SessionId] = set()  # sessions that have events they were not told of

    # ---- requests -----------------------------------------------------------------------------

    def find_conflict(self, wanted: Wanted) -> Holder | None:
        """Who holds what `wanted` contradicts: what F_GETLK asks."""
        space = self._spaces.get(wanted.space)
        return next(self._conflicts(space, wanted), None) if space else None

    def loose_holders(self, wanted: Wanted) -> set[SessionId]:
        """Others whose locks `wanted` contradicts, and who may have let go of them."""
        space = self._spaces.get(wanted.space)
        if space is None or not space.loose or wanted.type is LockType.NONE:
            return set()
        found = {holder.owner for holder in self._conflicts(space, wanted)} & space.loose
        return {owner.session for owner in found} - {wanted.owner.session}

    def ask(self, wanted: Wanted, ticket: int = 0) -> bool:
        """Lock or unlock. True: done. False: it waits under `ticket` (0: it must not wait).

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
        """A client says after a restart what it held. False: another one has it."""
        if wanted.type is LockType.NONE or self.find_conflict(wanted) is not None:
            return False
        self._clients.setdefault(wanted.owner.session, _Client())
        self._apply(wanted)
        return True

    def cancel(self, session: SessionId, ticket: int) -> bool:
        """Wait no longer. True: it was granted before."""
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
        """Nobody of the session waits any more, or wants to hear of grants."""
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
        """The session is gone, and nothing of it can reach a target any more."""
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
        """Tickets that were granted and not acknowledged."""
        client = self._clients.get(session)
        if client is None:
            return ()
        client.granted.difference_update(acknowledged)
        self.fresh.discard(session)
        return tuple(sorted(client.granted))

    def listing(self) -> Iterator[tuple[Ino, Owner, LockedRange, bool]]:
        """Every held range, and every one waited for (True)."""
        for (ino, _), space in sorted(self._spaces.items()):
            for owner, ranges in space.held.items():
                for held in ranges:
                    yield ino, owner, held, False
            for waiter in space.waiting.values():
                want = waiter.wanted
                wanted = LockedRange(want.start, want.end, want.type, want.pid)
                yield ino, want.owner, wanted, True

    def __len__(self) -> int:
        """Ranges held."""
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
        """flock(2): a lock that is changed is dropped first; others may have it meanwhile."""
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
        """Let go on who can, in order of arrival."""
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
        """Does one who holds what `wanted` contradicts wait, directly or through others, for it?"""
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
