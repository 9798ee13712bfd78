"""A standby metaserver: follows the journal, and becomes the active one when nobody else is.

It answers no requests: whoever has proved itself is told which metaserver is active, and tries the
next address. `until_claimed` returns when this process has claimed the journal; its store then has
all that the log has. Blocking calls run in a thread, one at a time.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

import trio

from fscommon.errors import ConfigError
from fscommon.observe.log import Log, RateLimit
from fscommon.tasks import open_tasks
from fscommon.wire.group import CANNOT_FOLLOW, STANDS_BY
from metaserver.owners import Owner
from metaserver.records import SCHEMA_KEY, SCHEMA_VERSION, unpack_number
from metaserver.store.follower import Follower, ForeignStateError, NeedsCopyError, Schema
from metaserver.store.journal import (
    FencedError,
    Head,
    Journal,
    JournalError,
    JournalFullError,
    LaterReleaseError,
    Sighting,
)
from metaserver.store.journaled import Mark
from metaserver.store.lmdb import DamagedStoreError
from metaserver.store.terms import ActiveLease, TakeOverWatch
from metaserver.store.waist import Store, StoreFullError

STEP_S: Final = 0.1  # between two looks at the journal
REPORT_S: Final = 2.0
COPY_RETRY_S: Final = 1.0
SCHEMA: Final = Schema(SCHEMA_KEY, SCHEMA_VERSION, unpack_number)
_LOG_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Claimed:
    head: Head
    lease: ActiveLease


class Own(Protocol):
    """The metaserver's own store, and what may come in its place."""

    async def copy(self, address: str) -> Store:
        """Takes a copy of the state from the active metaserver at the address. Raises
        UnreachableError, ForeignStateError, StoreError."""
        ...

    def discard(self, damage: str) -> Store:
        """Keeps the damaged store aside, and returns an empty one. Raises ConfigError,
        StoreError."""
        ...

    def saw(self, head: Head) -> None:
        """Keeps what the journal's head was just now."""
        ...

    @property
    def lost(self) -> str:
        """Why the store is empty although there were names; "": it may begin a name space."""
        ...

    @property
    def kept(self) -> str:
        """Where a damaged store is kept aside; "" if there is none."""
        ...


class Standby:
    """clock: seconds that also count while the machine is suspended. claims_from_s: before that
    time on the clock it claims nothing, so that another one does. asked_s: when the journal has
    answered last."""

    def __init__(
        self,
        store: Store,
        door: Journal,
        owner: Owner,
        *,
        clock: Callable[[], float],
        own: Own,
        log: Log,
        claims_from_s: float = 0.0,
    ) -> None:
        self.store = store
        self.seen: Sighting | None = None
        self.asked_s = clock()
        self.lease_clock = clock  # of the lease that a claim begins
        self._claims_from_s = claims_from_s
        self._door = door
        self._owner = owner
        self._clock = clock
        self._own = own
        self._log = log
        self._follower = self._follower_of(store)
        self._watch = TakeOverWatch()
        self._silences = RateLimit(_LOG_S)
        self._claiming: tuple[Sighting, float] | None = None
        self._reported_s = -REPORT_S
        self._reports = 0
        self._hindrance = ""  # why it cannot follow the journal, although that answers
        self._copies = RateLimit(_LOG_S)

    @property
    def applied(self) -> int:
        """Index of the newest entry of the journal that the store has."""
        mark = self._follower.mark
        return mark.index if mark is not None else 0

    def active(self) -> Owner | None:
        """The metaserver that was active when this one looked last."""
        return Owner.of(self.seen.head.owner) if self.seen is not None else None

    def why_not(self) -> str:
        """What a peer is told."""
        active = self.active()
        where = (
            f"the active metaserver is {active.name} at {active.address}"
            if active
            else "no metaserver is active at the moment"
        )
        lost = f". It has no names: {self._own.lost}" if self._own.lost else ""
        cannot = f". {CANNOT_FOLLOW}: {self._hindrance}" if self._hindrance else ""
        return f"{STANDS_BY}: {where}{lost}{cannot}"

    async def until_claimed(self, followed: Callable[[], None]) -> Claimed:
        """followed: called when the journal has been read for the first time. Raises ConfigError
        when an administrator must decide."""
        while True:
            try:
                claimed = await trio.to_thread.run_sync(self._step)
                self._hindrance = ""
                followed()
                if claimed is not None:
                    return claimed
            except NeedsCopyError as error:
                followed()
                await self._take_copy(error)
            except DamagedStoreError as error:
                self._use(self._own.discard(str(error)))
            except ForeignStateError as error:
                raise ConfigError(str(error)) from error
            except (LaterReleaseError, StoreFullError) as error:
                # It stands by without a report: entries are not kept for it for long, and it is
                # told of as silent. It goes on when it is upgraded, or has room.
                followed()
                self._watch.failed()
                self._hindrance = str(error)
                suppressed = self._silences.permit()
                if suppressed is not None:
                    self._log.error(CANNOT_FOLLOW, error=error, suppressed=suppressed)
            except JournalError as error:
                self._watch.failed()
                suppressed = self._silences.permit()
                if suppressed is not None:
                    self._log.warning("no journal", error=error, suppressed=suppressed)
            await trio.sleep(STEP_S)

    def _use(self, store: Store) -> None:
        self.store = store
        self._follower = self._follower_of(store)

    def _follower_of(self, store: Store) -> Follower:
        return Follower(store, self._door, lost=self._own.lost, schema=SCHEMA)

    def _step(self) -> Claimed | None:
        self.seen = sighting = self._door.sighting()
        self.asked_s = self._clock()
        self._watch.saw(sighting, self.asked_s)
        is_at_end = self._follow(sighting.head)
        self._report(is_at_end=is_at_end)
        now_s = self._clock()
        may_claim = now_s >= self._claims_from_s and self._watch.may_claim(now_s)
        if self._claiming is None and is_at_end and may_claim:
            self._claiming = sighting, self.lease_clock()
        return self._claim(*self._claiming) if self._claiming is not None else None

    def _follow(self, head: Head) -> bool:
        """Returns whether the store is at `head`. Who lacks much reports in between: who follows
        is not silent, and what it has needs not be kept for it."""
        until_s = self._clock() + REPORT_S
        while not (is_at_end := self._follower.follow(head)):
            mark = self._follower.mark
            if mark is None or mark.index >= head.index or self._clock() >= until_s:
                break
        return is_at_end

    def _claim(self, seen: Sighting, sent_s: float) -> Claimed | None:
        """sent_s: when the first attempt was sent, by the clock of the lease; its outcome may be
        unknown."""
        try:
            head = self._door.claim(seen, str(self._owner))
        except FencedError:
            self._claiming = None
            return None
        lease = ActiveLease()
        lease.proven(sent_s)
        return Claimed(head, lease)

    def _report(self, *, is_at_end: bool) -> None:
        if self._clock() - self._reported_s < REPORT_S:
            return
        self._reported_s = self._clock()
        assert self.seen is not None
        self._own.saw(self.seen.head)
        if self._follower.mark is None:
            return
        try:
            self._report_at(self._follower.mark)
        except JournalFullError:
            if is_at_end:  # it needs no entry, but what it reported before holds some back
                self._door.forget(self._owner.name)
            raise

    def _report_at(self, mark: Mark) -> None:
        self._reports += 1
        self._door.report(self._owner.member(mark, self._reports, self._own.kept))

    async def _take_copy(self, why: NeedsCopyError) -> None:
        active = self.active()
        suppressed = self._silences.permit()
        if suppressed is not None:
            self._log.warning(
                "this metaserver needs a copy of the state",
                error=why,
                active=active.address if active else None,
                suppressed=suppressed,
            )
        if active is not None:
            try:
                self._use(await self._copy_from(active.address))
                return
            except ForeignStateError as error:
                raise ConfigError(str(error)) from error
            except DamagedStoreError as error:
                self._use(self._own.discard(str(error)))
            except JournalError as error:
                suppressed = self._copies.permit()
                if suppressed is not None:
                    self._log.warning(
                        "the copy of the state failed", error=error, suppressed=suppressed
                    )
        await trio.sleep(COPY_RETRY_S)

    async def _copy_from(self, address: str) -> Store:
        """Reports before the copy is taken, and as long as it lasts, so that what comes behind it
        is not trimmed: the copy has the newest entry that was seen, or the active is about to apply
        it."""
        assert self.seen is not None
        head = self.seen.head
        held = Mark(head.log, max(0, head.index - 1), head.nonce)
        await trio.to_thread.run_sync(self._report_at, held)
        async with open_tasks() as tasks:
            tasks.start_soon(self._report_on, held)
            store = await self._own.copy(address)
            tasks.cancel_scope.cancel()
        return store

    async def _report_on(self, held: Mark) -> None:
        while True:
            await trio.sleep(REPORT_S)
            with suppress(JournalError):  # the next report may succeed
                await trio.to_thread.run_sync(self._report_at, held)
