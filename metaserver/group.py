"""A metaserver that is one of several: it stands by, is active for a term, and stands by again.

One process does so until it is stopped. As a standby it follows the journal (metaserver.standby).
When it has claimed the journal it makes an engine of its store, as after a restart, and serves
(metaserver.server). It serves until it is stopped, and then resigns, so that another one takes over
at once; or until another one has claimed the journal: then everything that it had in memory is
dropped, its connections end, and its clients replay to the other one. An administrator may have it
hand over (META_SWITCH): then it resigns as when it is stopped, and stands by.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import trio

from fscommon.errors import BraidError, TransportError
from fscommon.net.serve import AcceptLimits, Peer, serve
from fscommon.net.stream import FrameStream
from fscommon.net.transport import Transport
from fscommon.observe.log import RateLimit
from fscommon.observe.metrics import Metrics
from fscommon.service import Service
from fscommon.tasks import first_exception, open_tasks
from metaserver.beats import Beats
from metaserver.boot import Booting, Settings, prepare
from metaserver.committer import FULL_RETRY_S, UNCERTAIN_RETRY_S
from metaserver.config import MetaserverConfig
from metaserver.engine_care import care_for_engine
from metaserver.group_metrics import forget_active, show_active, show_standby
from metaserver.group_status import ASK_S, LOOK_S, GroupView, health_of
from metaserver.overlay import Overlay
from metaserver.owners import Owner
from metaserver.server import Metaserver, settings_of
from metaserver.standby import Claimed, Own, Standby
from metaserver.store.journal import FencedError, Journal, JournalError, JournalFullError, Sighting
from metaserver.store.journaled import DeposedError, JournaledStore, Mark
from metaserver.store.lmdb import DamagedRecordError, DamagedStoreError
from metaserver.store.terms import LeaseClock, clock_s
from metaserver.store.trimming import Trimming
from metaserver.store.waist import Store, StoreFullError, StoreUncertainError
from metaserver.times import Clock

LOOKS_PER_TRIM: Final = 3  # the active reports, and looks at the others, so often between two trims
RESIGN_S_MAX: Final = 2.0
REPLY_S: Final = 0.05  # the reply to META_SWITCH leaves meanwhile
HOLD_BACK_S: Final = 2.0  # who has handed over claims nothing, so that another one does
_SHOW_S: Final = 1.0
_LOG_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Parts:
    """What a process is made of, whichever role it has. open_door: to the journal."""

    config: MetaserverConfig
    service: Service
    key: bytes
    transport: Transport | None
    open_door: Callable[[], Journal]
    own: Own

    @property
    def engine(self) -> str:
        settings = self.config.journal_settings()
        return settings.address.engine if settings is not None else ""

    @property
    def metrics(self) -> Metrics:
        return self.service.metrics


class Group:
    def __init__(self, parts: Parts, store: Store) -> None:
        self._parts = parts
        self._store = store
        self._log = parts.service.log
        self._owner = Owner(parts.config.own_name, parts.config.own_address)
        parts.metrics.counter("braidfs_take_overs_total")  # it is shown from the beginning: as 0
        self._is_ready = False
        self._unasked = RateLimit(_LOG_S)
        self._lease_clock = LeaseClock(clock_s, time.time)
        self._claims_from_s = 0.0
        self._damage = ""  # of the store, found when this metaserver was about to serve
        self._standby: Standby | None = None
        self._view: GroupView | None = None  # while this metaserver is active

    async def run(self) -> None:
        """Until the service is to stop. Raises ConfigError, StoreError."""
        stopping = self._parts.service.stopping
        async with open_tasks() as tasks:
            tasks.start_soon(self._show)
            while not stopping.is_set():
                if self._damage:
                    self._store, self._damage = self._parts.own.discard(self._damage), ""
                door = self._parts.open_door()
                try:
                    claimed = await self._stand_by(door)
                    if claimed is not None:
                        await self._be_active(door, claimed)
                finally:
                    await trio.to_thread.run_sync(door.close)
            tasks.cancel_scope.cancel()

    # ---- standby -------------------------------------------------------------------------------

    async def _stand_by(self, door: Journal) -> Claimed | None:
        """None: the service is to stop."""
        parts = self._parts
        standby = Standby(
            self._store,
            door,
            self._owner,
            clock=clock_s,
            own=parts.own,
            log=self._log,
            claims_from_s=self._claims_from_s,
        )
        standby.lease_clock = self._lease_clock
        self._standby = standby
        claimed: Claimed | None = None
        self._log.info("standing by", name=self._owner.name)
        async with open_tasks() as tasks:
            await tasks.start(self._refuse_all, standby)
            tasks.start_soon(_end_at, parts.service.stopping, tasks.cancel_scope)
            claimed = await standby.until_claimed(self._ready)
            tasks.cancel_scope.cancel()
        self._store = standby.store
        return claimed

    async def _refuse_all(
        self, standby: Standby, task_status: trio.TaskStatus[object] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async def refused(peer: Peer, stream: FrameStream) -> None:
            raise TransportError(standby.why_not())

        await serve(
            self._parts.config.listen,
            key=self._parts.key,
            on_connection=refused,
            log=self._log,
            limits=AcceptLimits(why_not=lambda hello: standby.why_not()),
            transport=self._parts.transport,
            task_status=task_status,
        )

    def _ready(self) -> None:
        if not self._is_ready:
            self._is_ready = True
            self._parts.service.ready()

    # ---- what is seen from outside -------------------------------------------------------------

    async def _show(self) -> None:
        while True:
            if self._view is not None:
                show_active(self._parts.metrics, self._view)
            elif self._standby is not None:
                show_standby(self._parts.metrics, self._standby, clock_s())
            await trio.sleep(_SHOW_S)

    # ---- active --------------------------------------------------------------------------------

    async def _be_active(self, door: Journal, claimed: Claimed) -> None:
        parts = self._parts
        head, lease = claimed.head, claimed.lease
        clock = self._lease_clock
        store = JournaledStore(self._store, door, head, lease=lease, clock=clock)
        beating, keeping, asking = (parts.open_door() for _ in range(3))
        beats = Beats(beating, head, lease, clock)
        view = GroupView(
            self._owner.member(Mark.of(head), 0, parts.own.kept),
            engine=parts.engine,
            head=lambda: store.head,
            lease=lease,
            clock=clock_s,
            lease_clock=clock,
        )
        store.appended = self._timed(view)
        self._view = view
        self._log.info("active", name=self._owner.name, term=head.term)
        parts.metrics.counter("braidfs_take_overs_total").inc()
        try:
            async with open_tasks() as askers:
                # A question to the engine may last: nobody waits for its end to resign.
                askers.start_soon(self._ask_engine, asking, view)
                askers.start_soon(care_for_engine, parts.open_door(), head, self._log)
                async with open_tasks() as tasks:
                    tasks.start_soon(beats.run)
                    tasks.start_soon(_raise_deposed, beats.deposed)
                    tasks.start_soon(self._keep_up, keeping, store, view)
                    await self._serve(store, claimed, view)
                    tasks.cancel_scope.cancel()
                lease.end()
                if view.switching.is_set():
                    self._claims_from_s = clock_s() + HOLD_BACK_S
                await self._resign(door, store)
                askers.cancel_scope.cancel()
        except* DeposedError as group:
            lease.end()
            self._log.warning(
                "not active any more", why=str(first_exception(group)), term=head.term
            )
        finally:
            self._view = None
            forget_active(parts.metrics)
            with trio.CancelScope(shield=True):
                for used in (beating, keeping, asking):
                    await trio.to_thread.run_sync(used.close)

    def _timed(self, view: GroupView) -> Callable[[float], None]:
        histogram = self._parts.metrics.histogram("braidfs_journal_append_seconds")

        def appended(seconds: float) -> None:
            histogram.observe(seconds)
            view.appended(seconds)

        return appended

    async def _serve(self, store: JournaledStore, claimed: Claimed, view: GroupView) -> None:
        """Until the service is to stop, or another metaserver is to take over."""
        parts = self._parts
        ends = trio.Event()
        try:
            booting = await _boot(store, settings_of(parts.config, parts.key))
        except (DamagedRecordError, DamagedStoreError) as error:
            self._damage = str(error)
            return
        booting.services.group = view
        overlay = Overlay(store)
        try:
            metaserver = Metaserver(
                parts.config,
                store,
                parts.metrics,
                key=parts.key,
                transport=parts.transport,
                engine=booting.engine(overlay),
                may_answer=lambda: claimed.lease.holds(self._lease_clock()),
            )
            async with open_tasks() as watchers:
                watchers.start_soon(_pass_on, parts.service.stopping, ends)
                watchers.start_soon(_pass_on, view.switching, ends, REPLY_S)
                async with open_tasks() as tasks:
                    address = await tasks.start(metaserver.run, ends)
                    self._log.info("serving", address=address)
                watchers.cancel_scope.cancel()
        finally:
            overlay.close()

    async def _keep_up(self, door: Journal, store: JournaledStore, view: GroupView) -> None:
        """Reports how far this store is, looks at the others, and deletes entries that nobody
        needs."""
        trimming = Trimming()
        reports = 0

        def keep_up() -> None:
            head = store.head
            self._parts.own.saw(head)
            view.kept = self._parts.own.kept
            with suppress(JournalFullError):  # what follows makes room
                door.report(self._owner.member(Mark.of(head), reports, view.kept))
            members = door.members()
            view.saw_members(members, head)
            others = [member for member in members if member.name != self._owner.name]
            below = trimming.below(others, head, head.index, clock_s())
            if reports % LOOKS_PER_TRIM == 0:
                door.trim(head, below)
            for name in view.to_forget():
                door.forget(name)
                view.forgot(name)

        while True:
            reports += 1
            try:
                await trio.to_thread.run_sync(keep_up)
            except FencedError as error:
                raise DeposedError(f"another metaserver is active: {error}") from error
            except JournalError as error:
                self._log.warning("the journal could not be trimmed", error=error)
            await trio.sleep(LOOK_S)

    async def _ask_engine(self, door: Journal, view: GroupView) -> None:
        """How the servers of the journal's engine are."""
        while True:
            try:
                view.saw_engine(await trio.to_thread.run_sync(health_of, door))
            except BraidError as error:
                view.saw_engine(None)
                suppressed = self._unasked.permit()
                if suppressed is not None:
                    self._log.warning(
                        "the journal's servers say nothing", error=error, suppressed=suppressed
                    )
            await trio.sleep(ASK_S)

    async def _resign(self, door: Journal, store: JournaledStore) -> None:
        """Lets another one take over at once. If it fails, the others wait for the lease."""

        def resign() -> None:
            sighting = door.sighting()
            if sighting.head == store.head:
                door.claim(Sighting(store.head, sighting.beats), "")

        with trio.move_on_after(RESIGN_S_MAX) as scope:
            try:
                await trio.to_thread.run_sync(resign, abandon_on_cancel=True)
                self._log.info("resigned", term=store.head.term)
            except JournalError as error:
                self._log.warning("could not resign", error=error)
        if scope.cancelled_caught:
            self._log.warning("could not resign", error="the journal did not answer in time")


async def _boot(store: JournaledStore, settings: Settings) -> Booting:
    """Serving begins when the first entry of the term is durable: waits while the journal does not
    answer, or is full. Raises DeposedError, StoreError."""
    booting: Booting = prepare(store, settings, Clock()())
    while True:
        try:
            await trio.to_thread.run_sync(store.commit, booting.batch)
            return booting
        except StoreUncertainError:
            await trio.sleep(UNCERTAIN_RETRY_S)
        except StoreFullError:
            await trio.sleep(FULL_RETRY_S)


async def _end_at(stopping: trio.Event, scope: trio.CancelScope) -> None:
    await stopping.wait()
    scope.cancel()


async def _pass_on(event: trio.Event, ends: trio.Event, after_s: float = 0.0) -> None:
    await event.wait()
    await trio.sleep(after_s)
    ends.set()


async def _raise_deposed(deposed: trio.Event) -> None:
    await deposed.wait()
    raise DeposedError("another metaserver has claimed the journal")
