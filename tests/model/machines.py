"""The machines of takeover_world: a metaserver with its disk and its door to the journal.

All that decides is the real code; the tasks around it are here. A machine may be paused, cut off,
killed, or lost for good.
"""

import itertools
from collections import deque
from dataclasses import replace
from enum import Flag, auto
from typing import TYPE_CHECKING

from fscommon.types import Ino
from metaserver.boot import Booting, prepare
from metaserver.engine import Time
from metaserver.eviction import forget
from metaserver.ops.session import delete_range
from metaserver.overlay import Overlay
from metaserver.records import fence_key, intent_key, written_of
from metaserver.sessions import Session
from metaserver.store.follower import Follower, NeedsCopyError
from metaserver.store.journal import (
    Entry,
    FencedError,
    Head,
    Member,
    Sighting,
    UnknownOutcomeError,
    UnreachableError,
)
from metaserver.store.journaled import MARK_KEY, DeposedError, JournaledStore, mark_in
from metaserver.store.journals.memory import Fault, MemoryJournal, MemoryLog
from metaserver.store.memory import MemoryStore
from metaserver.store.terms import ActiveLease, TakeOverWatch
from metaserver.store.trimming import Trimming
from metaserver.store.waist import Batch, StoreFullError, StoreUncertainError
from metaserver.transaction import Transaction
from tests.unit.metaserver.bench import SETTINGS, Bench

if TYPE_CHECKING:
    from tests.model.takeover_world import TakeOverWorld

TIMEOUT_S = 12.0
PAUSE_S_MAX = 20.0
KEPT_S = 60.0
COMMIT_S = 0.2
WORLD_SETTINGS = replace(SETTINGS, session_timeout_s=TIMEOUT_S, lease_duration_s=TIMEOUT_S)


class Mode(Flag):
    """What is wrong with a machine for a while."""

    FINE = 0
    PAUSED = auto()
    CUT = auto()  # from the journal
    DEAF = auto()  # what it asks of the journal happens, and no answer comes
    BEATLESS = auto()  # the thread that beats is cut off, or stuck, and appends are not


MODES = [*Mode, Mode.FINE, Mode.DEAF | Mode.BEATLESS]
# An append is settled long after it has happened, and the link fails again soon.
SETTLED_LATE = (Mode.DEAF | Mode.BEATLESS, Mode.BEATLESS, Mode.CUT)


class KilledError(Exception):
    """The machine dies within a call."""


class FragileStore(MemoryStore):
    dies = False

    def commit(self, batch: Batch) -> None:
        if self.dies:
            raise KilledError
        super().commit(batch)

    def copy_of(self, other: "FragileStore") -> None:
        self._records = other._records.copy()

    def records(self) -> dict[bytes, bytes]:
        return {key: value for key, value in self._records.items() if key != MARK_KEY}


class RecordedLog(MemoryLog):
    """Keeps what it was, also after it was trimmed."""

    history: list[Entry]
    base: dict[bytes, bytes]

    def append(self, at: Head, nonce: bytes, payload: bytes) -> Head:
        before = self.head
        head = super().append(at, nonce, payload)
        if head != before:
            self.history.append(self.entries[head.index])
        return head


class Machine:
    """One metaserver, its disk, and the machine that both are on."""

    def __init__(self, world: "TakeOverWorld", name: str) -> None:
        self.world = world
        self.name = name
        self.store = FragileStore()
        self.door = MemoryJournal(world.log_engine, self._fault)
        self.trouble: deque[tuple[float, Mode]] = deque()  # until when it lasts, in order
        self.reports = itertools.count(1)
        self._processes = itertools.count(1)
        self.start()

    def start(self) -> None:
        """A new process: nothing is left but the disk."""
        self.owner = f"{self.name}.{next(self._processes)}"
        self.lease = ActiveLease()
        self.watch = TakeOverWatch()
        self.trimming = Trimming(KEPT_S)
        self.follower = Follower(self.store, self.door)
        self.claiming: Sighting | None = None
        self.claimed_s: float | None = None  # when the first attempt of that claim was sent
        self.journaled: JournaledStore | None = None
        self.booting: Booting | None = None
        self.bench: Bench | None = None
        self.frozen: Batch | None = None
        self.cut: list[Ino] = []  # intents whose removal is in the next batch

    def _fault(self, call: str) -> Fault:
        mode = self.mode
        if mode & Mode.CUT or (call == "beat" and mode & Mode.BEATLESS):
            return Fault.LOST
        if mode & Mode.DEAF:
            return Fault.ANSWER_LOST
        if self.world.is_calm or self.world.random.random() > 0.06:
            return Fault.NONE
        faults = [Fault.LOST, Fault.ANSWER_LOST, Fault.LATE]
        if call == "append":
            faults.append(Fault.FULL)
        return self.world.random.choice(faults)

    @property
    def mode(self) -> Mode:
        while self.trouble and self.trouble[0][0] <= self.world.now_s:
            self.trouble.popleft()
        return self.trouble[0][1] if self.trouble else Mode.FINE

    @property
    def is_paused(self) -> bool:
        return bool(self.mode & Mode.PAUSED)

    def gets_into_trouble(self) -> None:
        """A few modes, one after the other."""
        random, at_s = self.world.random, self.world.now_s
        self.trouble.clear()
        if random.random() < 0.2:
            modes = SETTLED_LATE
        else:
            modes = tuple(random.choice(MODES) for _ in range(random.randint(1, 4)))
        for mode in modes:
            at_s += random.uniform(0, random.choice((1.0, 3.0, 6.0, PAUSE_S_MAX)))
            self.trouble.append((at_s, mode))

    @property
    def term(self) -> int:
        return self.journaled.head.term if self.journaled is not None else 0

    # ---- what its tasks do -------------------------------------------------------------------

    def tick(self) -> None:
        if self.is_paused:
            return
        if self.journaled is None:
            self._stand_by()
        else:
            self._beat()
        if self.bench is not None:
            self._expire()
        if self.world.random.random() < 0.3:
            self._report()

    def _stand_by(self) -> None:
        now_s = self.world.now_s
        try:
            sighting = self.door.sighting()
            self.watch.saw(sighting, now_s)
            is_at_end = self.follower.follow(sighting.head)
        except UnreachableError:
            self.watch.failed()
            return
        except NeedsCopyError:
            self.world.copy_state(self)
            return
        if self.claiming is not None:
            self._claim(self.claiming)
        elif is_at_end and self.watch.may_claim(now_s):
            self.claiming, self.claimed_s = sighting, None  # it may take a while to do it

    def _claim(self, seen: Sighting) -> None:
        sent_s = self.claimed_s if self.claimed_s is not None else self.world.now_s
        self.claimed_s = sent_s
        try:
            head = self.door.claim(seen, self.owner)
        except UnknownOutcomeError:
            return
        except FencedError:
            self.claiming = None
            return
        self.claiming = None
        self.lease.proven(sent_s)
        self.journaled = JournaledStore(
            self.store, self.door, head, lease=self.lease, clock=lambda: self.world.now_s
        )
        self.booting = prepare(self.journaled, WORLD_SETTINGS, self.time())
        self.world.counts["claims"] += 1

    def time(self) -> Time:
        return Time(self.world.time_ns(), self.world.now_s)

    def _beat(self) -> None:
        assert self.journaled is not None
        sent_s = self.world.now_s
        try:
            self.door.beat(self.journaled.head)
        except FencedError:
            self.depose()
        except UnknownOutcomeError:
            pass
        else:
            self.lease.proven(sent_s)

    def commit(self) -> None:
        if self.is_paused or self.journaled is None:
            return
        try:
            if self.booting is not None:
                self._boot(self.booting)
            elif self.bench is not None:
                self._commit(self.bench)
        except DeposedError:
            self.depose()
        except (StoreFullError, StoreUncertainError):
            self.world.counts["uncertain"] += 1

    def _boot(self, booting: Booting) -> None:
        assert self.journaled is not None
        self.journaled.commit(booting.batch)
        engine = booting.engine(Overlay(self.journaled))
        self.bench = Bench(self.journaled, targets=0, engine=engine)
        self.bench.now_s = self.world.now_s
        self.booting = None
        self.world.counts["take-overs"] += 1
        if not engine.services.membership.targets():
            self.bench.ask_to_register(targets=2)

    def _commit(self, bench: Bench) -> None:
        assert self.journaled is not None
        if self.frozen is None:
            if not (bench.engine.dirty or bench.engine.urgent):
                return
            self.frozen = bench.engine.freeze()
        self.journaled.commit(self.frozen)
        self.frozen = None
        bench.engine.committed(bench.store.room())
        self._finish_truncates(bench)

    def _finish_truncates(self, bench: Bench) -> None:
        """What metaserver.truncation does where no target is to be asked."""
        engine = bench.engine
        done, self.cut = self.cut, list(engine.services.intents.take_fresh())
        for ino in done:  # the removal of its intent is durable
            engine.truncated(ino, self.time())
        for ino in self.cut:
            key = intent_key(ino)
            engine.system(lambda tx, context, key=key: tx.delete(key))  # type: ignore[misc]

    def _expire(self) -> None:
        assert self.bench is not None
        engine = self.bench.engine
        for session in engine.sessions.expired(self.world.now_s, TIMEOUT_S):
            self._evict(session)

    def _evict(self, session: Session) -> None:
        """What metaserver.eviction does where no storage server is to be asked."""
        assert self.bench is not None
        engine, time = self.bench.engine, self.time()

        def forget_writes(tx: Transaction) -> None:
            tx.delete(fence_key(session.id))
            delete_range(tx, *written_of(session.id))

        engine.system(lambda tx, context: forget(tx, context, session), time)
        engine.sessions.remove(session.id)
        engine.evicted(session.id)
        engine.end_recovery_if_done()
        engine.fenced(session.id, time)
        engine.system(lambda tx, context: forget_writes(tx))
        engine.services.leases.fenced(session.id, time.now_s)
        engine.leases_changed(time)
        self.world.evicted(session.id)

    def _report(self) -> None:
        snapshot = self.store.snapshot()
        mark = mark_in(snapshot)
        if mark is None:
            return
        try:
            member = Member(self.name, self.name, mark.log, mark.index, next(self.reports))
            self.door.report(member)
            if self.journaled is not None and self.bench is not None:
                head = self.journaled.head
                below = self.trimming.below(self.door.members(), head, mark.index, self.world.now_s)
                self.door.trim(head, below)
                self.world.counts["trims"] += 1
        except UnreachableError:
            pass
        except FencedError:
            self.depose()

    # ---- what happens to it --------------------------------------------------------------------

    def depose(self) -> None:
        """It notices that another one is active: it stands by, as a new process does."""
        assert self.world.log_engine.head.owner != self.owner, "deposed, and nobody has claimed"
        self.world.counts["deposed"] += 1
        self._end()

    def resign(self) -> None:
        """A planned hand-over. Whether the journal has heard of it does not matter: if it has not,
        the others wait for the lease."""
        if self.is_paused or self.journaled is None or self.bench is None:
            return
        self.lease.end()
        try:
            head, beats = self.journaled.head, self.world.log_engine.beats
            self.door.claim(Sighting(head, beats), "")
            self.world.counts["resigned"] += 1
        except (FencedError, UnknownOutcomeError):
            pass
        self._end()

    def kill(self) -> None:
        """kill -9; half of the time between an append and the commit to the store below it."""
        if self.world.random.random() < 0.5 and not self.is_paused:
            self.store.dies = True
            try:
                self.commit()
            except KilledError:
                self.world.counts["killed between append and apply"] += 1
            self.store.dies = False
        self.world.counts["kills"] += 1
        self._end()

    def _end(self) -> None:
        bench, self.bench = self.bench, None
        for client in self.world.roaming:
            if client.machine is self and bench is not None:
                client.disconnect_from(bench)
        self.start()

    def lose(self) -> None:
        """The machine burns down; an empty one of the same name comes in its place."""
        self._end()
        self.store.copy_of(FragileStore())
        self.start()
        self.world.counts["lost"] += 1

    # ---- what clients see ------------------------------------------------------------------------

    def may_answer(self) -> bool:
        return self.lease.holds(self.world.now_s)
