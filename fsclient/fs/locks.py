"""Locks of this client's processes: flock(2) and fcntl(2), held at the metaserver.

A request that must wait gets a ticket. One LOCK_EVENTS request at a time is in flight; the
metaserver answers it when a ticket was granted, which wakes the waiter. An interrupted wait is
cancelled at the metaserver first: if the lock was granted meanwhile, the caller has it. A lock that
is free, and an unlock, do not wait, so no signal ends them. Held locks are noted here as well, to
be reported to a restarted metaserver, and to know what to drop when a file is closed:
- fcntl locks of an owner (a process's file table) are dropped when it closes any descriptor of the
  file (FLUSH), before close(2) returns;
- flock and OFD locks are dropped with their open file description (RELEASE);
- descriptors for reading that were opened before the first lock of the file are closed without a
  FLUSH. /proc shows that they are closed. It is read before a lock of this client refuses another
  request (the metaserver demands it if that is another client's), before the file is opened again,
  at each RELEASE, and every LOOK_S.

The kernel sends RELEASE after close(2) has returned, perhaps to another lane than the next request:
a refusal because of a lock of this client is tried again after the lanes have handled what they had
read. Without leases, bytes written under a lock are at the targets, and their size is committed,
before the lock is released; who gets a lock sees what was committed before. Touched by the trio
thread only.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, NamedTuple

import trio

from fscommon.errors import FsError, Status
from fscommon.layout.lock_ranges import LOCK_END, LockedRanges, LockType
from fscommon.wire.codec import decode
from fscommon.wire.locks import (
    HeldLock,
    LockCancel,
    LockDone,
    LockEvents,
    LockFound,
    LockGet,
    LockGranted,
    LockRestore,
    LockSet,
)
from fscommon.wire.ops import Op

from ..leases.holder import Leases
from . import descriptors
from .files import Files
from .inodes import Inodes
from .ports import Lanes, Metadata

CANCEL_TIMEOUT_S: Final = 2.0
LEAVE_TIMEOUT_S: Final = 5.0
RESTORE_COUNT: Final = 4096  # locks of one message
LOOK_S: Final = 0.05  # period of reading /proc for descriptors whose close sends no FLUSH
WATCHED_MAX: Final = 4096
SCANNED_MAX: Final = 128  # no copies are searched in a process with more descriptors
UNKNOWN_HANDLE: Final = 0  # of a killed process: its locks are dropped with the last handle


class LockOwner(NamedTuple):
    """Who holds locks of one file. is_flock: by flock(2), else by fcntl(2), OFD locks included."""

    ino: int
    is_flock: bool
    id: int


class LockRequest(NamedTuple):
    owner: LockOwner
    fh: int
    start: int
    end: int
    type: LockType
    pid: int


class _Attempt:
    """One request for a lock, from sending it until it is granted, refused or abandoned."""

    __slots__ = ("abandoned", "answered", "error", "granted", "request", "settled", "ticket")

    def __init__(self, request: LockRequest, ticket: int) -> None:
        self.request = request
        self.ticket = ticket  # 0: the request does not wait
        self.granted = False
        self.answered = trio.Event()  # the lock was granted or refused, or the request waits now
        self.abandoned = False
        self.error: FsError | None = None
        self.settled = trio.Event()

    def settle(self, error: FsError | None) -> None:
        self.granted = error is None
        self.error = error
        self.settled.set()


class Locks:
    def __init__(
        self,
        meta: Metadata,
        lanes: Lanes,
        leases: Leases,
        files: Files,
        inodes: Inodes,
        log: Callable[[str], None],
    ) -> None:
        self._meta = meta
        self._lanes = lanes
        self._files = files
        self._inodes = inodes
        self._leases = leases
        self._drains = files.drains
        self._log = log
        self._held: dict[LockOwner, LockedRanges] = {}
        self._owners: dict[int, set[LockOwner]] = {}  # of inodes that have or had locks
        self._last_fh: dict[LockOwner, int] = {}
        self._unflushed: set[int] = set()  # inodes with handles that close without a FLUSH
        self._watched: dict[LockOwner, tuple[int, frozenset[int]]] = {}  # process, descriptors
        self._watches = trio.Event()
        self._dropping: Counter[int] = Counter()  # drops by inode that are not answered yet
        self._dropped = trio.Event()
        self._waiting: dict[int, _Attempt] = {}
        self.ticket = 0
        self._acknowledged: list[int] = []
        self._is_polling = False

    # ---- requests -----------------------------------------------------------------------------

    async def find_conflict(self, request: LockRequest) -> LockFound:
        """F_GETLK."""
        owner = request.owner
        message = LockGet(
            owner.ino, owner.is_flock, owner.id, request.start, request.end, request.type
        )
        others_held = self._others_hold(owner)  # they may unlock before the answer
        found = await self._meta.call(Op.LOCK_GET, message, LockFound)
        if found.type == LockType.NONE or not (others_held or self._others_hold(owner)):
            return found
        await self._hear_closes(owner.ino)
        return await self._meta.call(Op.LOCK_GET, message, LockFound)

    async def set(self, request: LockRequest, *, wait: bool) -> None:
        """Locks or unlocks. Raises EAGAIN, EDEADLK, ENOLCK."""
        if request.type is LockType.NONE:
            with _not_interrupted() as scope:
                await self._unlock(request)
            if scope.cancelled_caught:
                await self._unlock(request)
            return
        self._watch(request.owner.ino)
        others_held = self._others_hold(request.owner)  # they may unlock before a refusal
        if request.owner in self._watched or (wait and others_held):
            self.look(request.owner.ino)
        try:
            await self._acquire(request, wait=wait)
        except FsError as error:
            others_held = others_held or self._others_hold(request.owner)
            if error.status is not Status.EAGAIN or not others_held:
                raise
            await self._hear_closes(request.owner.ino)
            await self._acquire(request, wait=wait)
        if not self._leases.is_on:
            with _not_interrupted():
                await self._files.refresh(request.owner.ino)

    async def closed(self, ino: int, owner_id: int) -> None:
        """FLUSH: this owner closes a descriptor of the file."""
        owner = LockOwner(ino, False, owner_id)
        if owner in self._held:
            await self._meta.call(Op.LOCK_SET, _all_of(owner), LockDone)
            self._forget(owner)

    def released(self, ino: int, fh: int) -> None:
        """RELEASE: the last descriptor of an open file description was closed."""
        for owner in list(self._owners.get(ino, ())):
            if self._last_fh.get(owner) == fh:
                self._drop(owner)
        self.look(ino)

    def handle_gone(self, ino: int) -> None:
        """After a handle was removed: drops the locks of an inode that is not open any more."""
        if ino in self._owners and not self._inodes.is_open(ino):
            for owner in list(self._owners[ino]):
                if self._last_fh.get(owner) == UNKNOWN_HANDLE:
                    self._drop(owner)
                self._forget(owner)
            del self._owners[ino]
            self._unflushed.discard(ino)
            self._lanes.inodes.locked(ino, False)

    # ---- the session --------------------------------------------------------------------------

    def restore(self) -> Iterator[LockRestore]:
        """The held locks, for a restarted metaserver before it serves anybody."""
        rows = (
            HeldLock(*owner, one.start, one.end, one.type, one.pid)
            for owner, ranges in self._held.items()
            for one in ranges
        )
        while batch := tuple(islice(rows, RESTORE_COUNT)):
            yield LockRestore(batch)

    def reconnected(self) -> None:
        """Sends waiting requests again, with their tickets: the metaserver may not know them."""
        for attempt in list(self._waiting.values()):
            if attempt.answered.is_set():
                self._send(attempt)

    @property
    def waiting_count(self) -> int:
        """How many requests wait for a lock."""
        return len(self._waiting)

    def rows(self) -> list[tuple[HeldLock, int]]:
        """The held locks, each with the handle by which it was last taken."""
        return [
            (HeldLock(*owner, one.start, one.end, one.type, one.pid), self._last_fh.get(owner, 0))
            for owner, ranges in self._held.items()
            for one in ranges
        ]

    def take_back(self, lock: HeldLock, fh: int) -> None:
        """Takes over a lock that the former process held, for the same session."""
        owner = LockOwner(lock.ino, lock.is_flock, lock.owner)
        self._watch(lock.ino)
        ranges = self._held.setdefault(owner, LockedRanges())
        ranges.set(lock.start, lock.end, LockType(lock.type), lock.pid)
        self._owners[lock.ino].add(owner)
        self._last_fh[owner] = fh
        self._note_descriptors(owner, lock.pid)

    async def leave(self) -> None:
        """Ends all waits for locks, and unlocks what was granted meanwhile. The kernel sends the
        requests that wait to the next process."""
        waiting = list(self._waiting.values())
        for attempt in waiting:
            attempt.abandoned = True
            cancel = LockCancel(attempt.ticket)
            self._meta.post(Op.LOCK_CANCEL, cancel, self._cancelled(attempt))
        with trio.move_on_after(LEAVE_TIMEOUT_S):
            for attempt in waiting:
                await attempt.settled.wait()

    def lost(self) -> None:
        """The session was evicted: other sessions may have its locks."""
        for owner in list(self._held):
            self._log(f"the lock of inode {owner.ino} was lost with the session")
            self._forget(owner)

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    # ---- acquiring ----------------------------------------------------------------------------

    async def _acquire(self, request: LockRequest, *, wait: bool) -> None:
        if wait:
            self.ticket += 1
        attempt = _Attempt(request, self.ticket if wait else 0)
        if wait:
            self._waiting[attempt.ticket] = attempt
        self._send(attempt)
        try:
            with _not_interrupted():
                await attempt.answered.wait()
            if not attempt.settled.is_set():
                await attempt.settled.wait()
        except trio.Cancelled:
            if not await self._cancel(attempt):
                raise
        finally:
            self._waiting.pop(attempt.ticket, None)
        if attempt.error is not None:
            raise attempt.error

    def _send(self, attempt: _Attempt) -> None:
        owner, _, start, end, kind, pid = attempt.request
        is_loose = not owner.is_flock and owner.ino in self._unflushed
        message = LockSet(*owner, start, end, kind, pid, attempt.ticket, is_loose)

        def deliver(error: FsError | None, body: bytes) -> None:
            attempt.answered.set()
            if error is not None:
                attempt.settle(error)
            elif decode(LockDone, body).granted:
                self._granted(attempt)
            else:
                self._poll()

        self._meta.post(Op.LOCK_SET, message, deliver)

    def _granted(self, attempt: _Attempt) -> None:
        if attempt.settled.is_set():
            return
        owner, fh, start, end, kind, pid = attempt.request
        if attempt.abandoned:
            message = LockSet(*owner, start, end, LockType.NONE, pid, 0, False)
            self._meta.post(Op.LOCK_SET, message, _ignore)
            attempt.settle(FsError(Status.EINTR))
            return
        if owner.is_flock:
            self._held.pop(owner, None)
        self._held.setdefault(owner, LockedRanges()).set(start, end, kind, pid)
        self._owners.setdefault(owner.ino, set()).add(owner)
        self._last_fh[owner] = fh
        self._note_descriptors(owner, pid)
        attempt.settle(None)

    async def _cancel(self, attempt: _Attempt) -> bool:
        """The caller was interrupted. True: the lock was granted all the same."""
        if attempt.ticket:
            self._meta.post(Op.LOCK_CANCEL, LockCancel(attempt.ticket), self._cancelled(attempt))
        with trio.CancelScope(shield=True), trio.move_on_after(CANCEL_TIMEOUT_S):
            await attempt.settled.wait()
        if not attempt.settled.is_set():
            attempt.abandoned = True
        return attempt.granted

    def _cancelled(self, attempt: _Attempt) -> Callable[[FsError | None, bytes], None]:
        def deliver(error: FsError | None, body: bytes) -> None:
            if error is None and decode(LockDone, body).granted:
                self._granted(attempt)
            elif not attempt.settled.is_set():
                attempt.settle(FsError(Status.EINTR))

        return deliver

    def _poll(self) -> None:
        """Requests the next grants, if anybody waits and no such request is in flight."""
        if self._is_polling or not self._waiting:
            return
        self._is_polling = True
        acknowledged = tuple(self._acknowledged)
        self._acknowledged.clear()
        self._meta.post_patiently(Op.LOCK_EVENTS, LockEvents(acknowledged), self._polled)

    def _polled(self, error: FsError | None, body: bytes) -> None:
        self._is_polling = False
        if error is not None:
            self._log(f"waiting for locks failed: {error}")
        else:
            for ticket in decode(LockGranted, body).tickets:
                self._acknowledged.append(ticket)
                if ticket in self._waiting:
                    self._granted(self._waiting[ticket])
        self._poll_again()

    def _poll_again(self) -> None:
        if any(not attempt.settled.is_set() for attempt in self._waiting.values()):
            self._poll()

    # ---- unlocking ----------------------------------------------------------------------------

    async def _unlock(self, request: LockRequest) -> None:
        owner = request.owner
        ranges = self._held.get(owner)
        if ranges is None:
            return
        if not self._leases.is_on:
            await self._files.publish(owner.ino)
        none = LockType.NONE
        message = LockSet(*owner, request.start, request.end, none, request.pid, 0, False)
        await self._meta.call(Op.LOCK_SET, message, LockDone)
        ranges.set(request.start, request.end, LockType.NONE, request.pid)
        if not ranges:
            self._forget(owner)

    def _watch(self, ino: int) -> None:
        """From now on lanes report closes of this inode here."""
        if ino not in self._owners:
            self._owners[ino] = set()
            self._inodes.unkeep(ino)  # each close must be seen from now on
            self._lanes.inodes.locked(ino, True)
            if (inode := self._inodes.get(ino)) is not None and inode.had_readers:
                self._unflushed.add(ino)

    # ---- closes without a FLUSH ---------------------------------------------------------------

    def _note_descriptors(self, owner: LockOwner, pid: int) -> None:
        if owner.is_flock or owner.ino not in self._unflushed or owner in self._watched:
            return
        numbers = descriptors.reading(pid, owner.ino)
        if numbers and len(self._watched) < WATCHED_MAX:
            self._watched[owner] = pid, numbers
            self._watches.set()

    def look(self, ino: int) -> None:
        """Drops the fcntl locks of processes that have closed a watched descriptor of this file."""
        for owner in list(self._owners.get(ino, ())):
            if self._let_go(owner):
                self._drop(owner)

    def _let_go(self, owner: LockOwner) -> bool:
        """Whether the owner's process has closed a watched descriptor."""
        pid, numbers = self._watched.get(owner, (0, frozenset()))
        return bool(numbers) and not descriptors.are_there(pid, owner.ino, numbers)

    def _note_copies(self, owner: LockOwner) -> None:
        """Watches copies that were made of the owner's descriptors."""
        pid, numbers = self._watched[owner]
        if descriptors.count(pid) <= SCANNED_MAX:
            self._watched[owner] = pid, numbers | descriptors.reading(pid, owner.ino)

    async def tell_closes(self, ino: int) -> None:
        """Another client wants a lock: the metaserver knows all drops when this returns."""
        if ino in self._owners:
            await self._hear_closes(ino)
        while self._dropping[ino]:
            await self._dropped.wait()

    async def _hear_closes(self, ino: int) -> None:
        """Drops locks for all that this client's processes have closed so far."""
        with _not_interrupted():
            await self._drains.barrier()  # a RELEASE may not be handled yet
        self.look(ino)

    async def watch_descriptors(self) -> None:
        while True:
            await self._watches.wait()
            await trio.sleep(LOOK_S)
            for owner in tuple(self._watched):
                if self._let_go(owner):
                    self._drop(owner)
                elif owner in self._watched:
                    self._note_copies(owner)
            if not self._watched:
                self._watches = trio.Event()

    def _drop(self, owner: LockOwner) -> None:
        """Drops all locks of the owner; the metaserver handles later requests after that."""
        self._forget(owner)
        self._dropping[owner.ino] += 1

        def dropped(_error: FsError | None, _body: bytes) -> None:
            self._dropping[owner.ino] -= 1
            if not self._dropping[owner.ino]:
                del self._dropping[owner.ino]
            self._dropped.set()
            self._dropped = trio.Event()

        self._meta.post(Op.LOCK_SET, _all_of(owner), dropped)

    def _others_hold(self, owner: LockOwner) -> bool:
        return any(
            other.is_flock == owner.is_flock and other != owner and other in self._held
            for other in self._owners.get(owner.ino, ())
        )

    def _forget(self, owner: LockOwner) -> None:
        self._held.pop(owner, None)
        self._last_fh.pop(owner, None)
        self._watched.pop(owner, None)
        self._owners.get(owner.ino, set()).discard(owner)


def _not_interrupted() -> trio.CancelScope:
    """For requests that do not wait for a lock: signals do not end them, unless nobody answers."""
    return trio.CancelScope(shield=True, deadline=trio.current_time() + CANCEL_TIMEOUT_S)


def _all_of(owner: LockOwner) -> LockSet:
    """The request to unlock everything that the owner has locked on the file."""
    return LockSet(*owner, 0, LOCK_END, LockType.NONE, 0, 0, False)


def _ignore(_error: FsError | None, _body: bytes) -> None:
    """Ignores the answer: the session repeats the request, and an evicted session has no locks."""
