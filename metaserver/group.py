"""A metaserver that is one of several: it stands by, is active for a term, and stands by again.

One process does so until it is stopped. As a standby it follows the journal (metaserver.standby).
When it has claimed the journal it makes an engine of its store, as after a restart, and serves
(metaserver.server). It serves until it is stopped, and then resigns, so that another one takes over
at once; or until another one has claimed the journal: then everything that it had in memory is
dropped, its connections end, and its clients replay to the other one.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import trio

from fscommon.errors import TransportError
from fscommon.net.serve import AcceptLimits, Peer, serve
from fscommon.net.stream import FrameStream
from fscommon.net.transport import Transport
from fscommon.observe.metrics import Metrics
from fscommon.service import Service
from fscommon.tasks import open_tasks
from metaserver.beats import Beats
from metaserver.boot import Booting, Settings, prepare
from metaserver.committer import FULL_RETRY_S, UNCERTAIN_RETRY_S
from metaserver.config import MetaserverConfig
from metaserver.overlay import Overlay
from metaserver.owners import Owner
from metaserver.server import Metaserver, settings_of
from metaserver.standby import Claimed, Standby
from metaserver.store.journal import FencedError, Journal, JournalError, Sighting
from metaserver.store.journaled import DeposedError, JournaledStore, Mark
from metaserver.store.trimming import Trimming
from metaserver.store.waist import Store, StoreFullError, StoreUncertainError
from metaserver.times import Clock

KEEP_UP_S: Final = 5.0  # between two reports of the active, each with a trim
RESIGN_S_MAX: Final = 2.0


def clock_s() -> float:
    """Seconds that go on while the machine is suspended: a lease must not outlast that."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a process is made of, whichever role it has. open_door: to the journal. copy(address):
    takes a copy of the state from the metaserver there; returns the new store."""

    config: MetaserverConfig
    service: Service
    key: bytes
    transport: Transport | None
    open_door: Callable[[], Journal]
    copy: Callable[[str], Awaitable[Store]]

    @property
    def metrics(self) -> Metrics:
        return self.service.metrics


class Group:
    def __init__(self, parts: Parts, store: Store) -> None:
        self._parts = parts
        self._store = store
        self._log = parts.service.log
        self._owner = Owner(parts.config.own_name, parts.config.own_address)
        self._is_ready = False

    async def run(self) -> None:
        """Until the service is to stop. Raises ConfigError, StoreError."""
        stopping = self._parts.service.stopping
        while not stopping.is_set():
            door = self._parts.open_door()
            try:
                claimed = await self._stand_by(door)
                if claimed is not None:
                    await self._be_active(door, claimed)
            finally:
                await trio.to_thread.run_sync(door.close)

    # ---- standby -------------------------------------------------------------------------------

    async def _stand_by(self, door: Journal) -> Claimed | None:
        """None: the service is to stop."""
        parts = self._parts
        standby = Standby(
            self._store, door, self._owner, clock=clock_s, copy=parts.copy, log=self._log
        )
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

    # ---- active --------------------------------------------------------------------------------

    async def _be_active(self, door: Journal, claimed: Claimed) -> None:
        parts = self._parts
        head, lease = claimed.head, claimed.lease
        store = JournaledStore(self._store, door, head, lease=lease, clock=clock_s)
        beating, keeping = parts.open_door(), parts.open_door()
        beats = Beats(beating, head, lease, clock_s)
        self._log.info("active", name=self._owner.name, term=head.term)
        try:
            async with open_tasks() as tasks:
                tasks.start_soon(beats.run)
                tasks.start_soon(_raise_deposed, beats.deposed)
                tasks.start_soon(self._keep_up, keeping, store)
                await self._serve(store, claimed)
                tasks.cancel_scope.cancel()
            lease.end()
            await self._resign(door, store)
        except* DeposedError as group:
            lease.end()
            self._log.warning("not active any more", why=str(group.exceptions[0]), term=head.term)
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(beating.close)
                await trio.to_thread.run_sync(keeping.close)

    async def _serve(self, store: JournaledStore, claimed: Claimed) -> None:
        """Until the service is to stop."""
        parts = self._parts
        booting = await _boot(store, settings_of(parts.config, parts.key))
        overlay = Overlay(store)
        try:
            metaserver = Metaserver(
                parts.config,
                store,
                parts.metrics,
                key=parts.key,
                transport=parts.transport,
                engine=booting.engine(overlay),
                may_answer=lambda: claimed.lease.holds(clock_s()),
            )
            async with open_tasks() as tasks:
                address = await tasks.start(metaserver.run, parts.service.stopping)
                self._log.info("serving", address=address)
        finally:
            overlay.close()

    async def _keep_up(self, door: Journal, store: JournaledStore) -> None:
        """Reports how far this store is, and deletes entries that nobody needs."""
        trimming = Trimming()
        reports = 0

        def keep_up() -> None:
            head = store.head
            door.report(self._owner.member(Mark.of(head), reports))
            door.trim(head, trimming.below(door.members(), head, head.index, clock_s()))

        while True:
            await trio.sleep(KEEP_UP_S)
            reports += 1
            try:
                await trio.to_thread.run_sync(keep_up)
            except FencedError as error:
                raise DeposedError(f"another metaserver is active: {error}") from error
            except JournalError as error:
                self._log.warning("the journal could not be trimmed", error=error)

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
    """Serving begins when the first entry of the term is durable. Raises DeposedError,
    StoreError."""
    booting: Booting = prepare(store, settings, Clock()())
    while True:
        try:
            await trio.to_thread.run_sync(store.commit, booting.batch)
            return booting
        except StoreUncertainError:
            await trio.sleep(UNCERTAIN_RETRY_S)
        except StoreFullError:  # `braidfs status` of nobody can say so: the log of the engine does
            await trio.sleep(FULL_RETRY_S)


async def _end_at(stopping: trio.Event, scope: trio.CancelScope) -> None:
    await stopping.wait()
    scope.cancel()


async def _raise_deposed(deposed: trio.Event) -> None:
    await deposed.wait()
    raise DeposedError("another metaserver has claimed the journal")
