"""A simulated world with several metaservers over one journal in memory.

It is metaserver_world with machines: each has a store, a door to the journal, and real code behind
both (JournaledStore, Follower, ActiveLease, TakeOverWatch, Trimming, the engine). Network, clock,
disk and the tasks around the engine are simulated. One seed decides everything: calls to the
journal are lost, happen without an answer, or late; machines are paused for longer than a lease,
killed between append and apply, cut off, or lost for good; clients stay with a metaserver that is
paused, or never return.

What must hold after every step (docs/decisions/0062-journal.md):
M1 the entries of the log form one chain, and their terms never fall; M2 what was answered as
durable is in the log, and nothing that was answered to a living client is missing; M3 no reply
leaves a metaserver when a later term has an entry, or before its own term has one; M6 a store's
records are those that the log makes up to its mark.
"""

import itertools
import random
from collections import Counter
from contextlib import suppress

from metaserver.fsck import check
from metaserver.store.batches import unpack_batch
from metaserver.store.journal import Member, UnreachableError
from metaserver.store.journaled import mark_in
from metaserver.store.terms import BEAT_S
from tests.model.machines import COMMIT_S, PAUSE_S_MAX, Machine, RecordedLog
from tests.model.metaserver_world import Oracle, SimulatedClient, World
from tests.unit.metaserver.bench import ROOT, Bench


class RoamingClient(SimulatedClient):
    """A client that tries one metaserver after the other, and stays with the one that serves."""

    world: "TakeOverWorld"
    machine: Machine | None = None
    away_until_s = 0.0

    def connect(self) -> None:
        self.disconnect()
        if self.world.now_s < self.away_until_s:
            return
        machine = self.world.random.choice(self.world.machines)
        if machine.bench is None or machine.is_paused:
            return  # a standby refuses
        self.machine = machine
        self.connection = machine.bench.connect()
        self.core.connected()

    def disconnect(self) -> None:
        if self.connection is None:
            return
        if self.machine is not None and self.machine.bench is not None:
            self.machine.bench.engine.closed(self.connection)
        self.connection = None
        self.machine = None
        self.core.lost()

    def disconnect_from(self, bench: Bench) -> None:
        """Its metaserver has ended."""
        if self.connection is not None:
            bench.engine.closed(self.connection)
            self.connection = None
            self.machine = None
            self.core.lost()

    def _served_by(self) -> Machine | None:
        machine = self.machine
        if self.connection is None or machine is None or machine.bench is None:
            return None
        if machine.is_paused or self.world.now_s < self.away_until_s:
            return None
        if self.core.must_reconnect or not self.connection.is_open:
            self.core.must_reconnect = False
            self.disconnect()
            return None
        return machine

    def send(self) -> None:
        machine = self._served_by()
        if machine is None or machine.bench is None or self.connection is None:
            return
        machine.bench.now_s = self.world.now_s
        self.world.bench = machine.bench
        super().send()

    def receive(self, count: int) -> None:
        machine = self._served_by()
        if machine is None or self.connection is None:
            return
        if self.connection.outbox and machine.may_answer():
            self.world.check_answer(machine)
            super().receive(count)

    def _evicted(self, session: int) -> None:
        super()._evicted(session)
        self.doubtful |= self.opens
        self.opens.clear()


class TakeOverWorld(World):
    def __init__(self, seed: int, machines: int = 3, clients: int = 3) -> None:
        self.random = random.Random(seed)
        self.now_s = 1000.0
        self._time_ns = itertools.count(1_000_000_000_000, 1000)
        self.is_calm = True
        self.counts: Counter[str] = Counter()
        self.log_engine = RecordedLog(new_log=lambda: self.random.randbytes(16))
        self.log_engine.history = []
        self.log: list[str] = []
        self.oracle = Oracle()
        self.directories = [ROOT]
        self.answers: Counter[str] = Counter()
        self.replayed: Counter[str] = Counter()
        self.machines = [Machine(self, f"m{index}") for index in range(machines)]
        self.roaming = [RoamingClient(self, index) for index in range(clients)]
        self.clients: list[SimulatedClient] = [*self.roaming]
        self.quiesce()
        for client in self.clients:
            self._make_home(client)
        self.quiesce()
        self.is_calm = False

    def time_ns(self) -> int:
        return next(self._time_ns)

    def now(self) -> float:
        self.now_s += 0.001
        return self.now_s

    # ---- what can happen ------------------------------------------------------------------

    def step(self) -> None:
        self._time_goes_on(self.random.choice((0.0, 0.001, 0.01, 0.05, 0.2)))
        action = self.random.random()
        client = self.random.choice(self.roaming)
        machine = self.random.choice(self.machines)
        if action < 0.35:
            self.submit(client)
            client.send()
        elif action < 0.75:
            client.receive(self.random.randint(1, 4))
        elif action < 0.83:
            machine.commit()
        elif action < 0.88:
            machine.tick()
        elif action < 0.93:
            self._meet_again(client)
        elif action < 0.96 and self.log_engine.late:
            self.log_engine.deliver_late(self.random.randrange(len(self.log_engine.late)))
        else:
            self._fault(client, machine)
        self.check_log()

    def _time_goes_on(self, passed_s: float) -> None:
        """The tasks of each machine run about as often as those of a real one."""
        self.now_s += passed_s
        for machine in self.machines:
            if self.random.random() < passed_s / BEAT_S:
                machine.tick()
            if self.random.random() < passed_s / COMMIT_S:
                machine.commit()

    def _meet_again(self, client: RoamingClient) -> None:
        if client.connection is None or self.random.random() < 0.2:
            client.connect()
        client.send()

    def _fault(self, client: RoamingClient, machine: Machine) -> None:
        kind = self.random.random()
        until_s = self.now_s + self.random.uniform(0, self.random.choice((0.5, 5.0, PAUSE_S_MAX)))
        active = self.serving()
        if active is not None and self.random.random() < 0.5:
            machine = active
        if kind < 0.55:
            machine.gets_into_trouble()
        elif kind < 0.61:
            client.away_until_s = until_s
        elif kind < 0.69:
            self.now_s = until_s  # nothing happens for a while
        else:
            self._end_something(client, machine)

    def _end_something(self, client: RoamingClient, machine: Machine) -> None:
        kind = self.random.random()
        if kind < 0.35:
            machine.kill()
        elif kind < 0.55:
            machine.resign()
        elif kind < 0.65:
            client.die()
            client.connect()
        elif kind < 0.75:
            self._lose(machine)
        else:
            self.quiesce()
            self.verify()

    def _lose(self, machine: Machine) -> None:
        """At most one at a time: another one must have the state, and follow the log."""
        others = [one for one in self.machines if one is not machine]
        marks = [mark_in(one.store.snapshot()) for one in others]
        log = self.log_engine.head.log
        if any(mark is not None and mark.log == log and mark.index for mark in marks):
            machine.lose()

    def copy_state(self, machine: Machine) -> None:
        """It takes a copy from the active one. It reports before, so that what comes behind the
        copy is not trimmed: the copy has the newest entry that it has seen, or the one before."""
        for other in self.machines:
            if other.bench is None or other.is_paused or not other.may_answer():
                continue
            seen = machine.watch.seen
            assert seen is not None
            with suppress(UnreachableError):
                before = max(0, seen.head.index - 1)
                machine.door.report(Member(machine.name, machine.name, seen.head.log, before, 0))
                machine.store.copy_of(other.store)
                machine.start()
                self.counts["copies"] += 1
            return

    def evicted(self, session: int) -> None:
        """A metaserver has given up a session. What its client was answered may be gone unless it
        is durable."""
        for client in self.clients:
            if client.core.session == session:
                self.counts["evictions"] += 1
                for mutation in client.core.journal.in_order():
                    self.oracle.doubt(client.answered.get(mutation.request_id, ()))

    def quiesce(self) -> None:
        """All faults end; all messages are delivered until no client waits."""
        was_calm, self.is_calm = self.is_calm, True
        for one in self.machines:
            one.trouble.clear()
        for client in self.roaming:
            client.away_until_s = 0.0
        for _ in range(1000):
            for one in self.machines:
                one.tick()
                one.commit()
            for client in self.roaming:
                if client.connection is None:
                    client.connect()
                client.send()
                client.receive(1 << 20)
            self.now_s += 0.2
            self.check_log()
            if all(one.is_idle for one in self.clients) and self.serving() is not None:
                self.is_calm = was_calm
                return
        states = [(c.core.phase, c.core.waiting_count, c.machine) for c in self.roaming]
        raise AssertionError(f"the world never came to rest: {states}")

    def serving(self) -> Machine | None:
        serving = [one for one in self.machines if one.bench is not None and one.may_answer()]
        return serving[0] if len(serving) == 1 else None

    # ---- what must hold ---------------------------------------------------------------------

    def check_log(self) -> None:
        """M1."""
        history = self.log_engine.history
        if len(history) > 1:
            last, before = history[-1], history[-2]
            assert last.index == before.index + 1 and last.previous == before.nonce, "M1: a fork"
            assert last.term >= before.term, "M1: an entry of a former term"

    def check_answer(self, machine: Machine) -> None:
        """M3."""
        last = self.log_engine.history[-1].term if self.log_engine.history else 0
        assert last == machine.term, f"M3: {machine.name} answers in term {machine.term} of {last}"

    def verify(self) -> None:
        """No client waits, no fault is left."""
        self._settle()
        machine = self.serving()
        assert machine is not None and machine.bench is not None
        self.bench = machine.bench
        self._check_states()
        self.check_answers()  # M2
        self.counts["verified"] += 1

    def _settle(self) -> None:
        """Until everything is in every store."""
        was_calm, self.is_calm = self.is_calm, True
        for _ in range(100):
            for one in self.machines:
                one.tick()
                one.commit()
            self.now_s += 0.2
            for client in self.roaming:
                client.send()
                client.receive(1 << 20)
            machine = self.serving()
            if machine is None or machine.bench is None or machine.bench.engine.dirty:
                continue
            marks = {mark_in(one.store.snapshot()) for one in self.machines}
            if len(marks) == 1:
                self.is_calm = was_calm
                return
        raise AssertionError("the stores never came to the end of the journal")

    def _check_states(self) -> None:
        """M6: all stores are at the end of the log, and have what it makes."""
        folded: dict[bytes, bytes | None] = {}
        for entry in self.log_engine.history:
            folded.update(unpack_batch(entry.payload))
        wanted = {key: value for key, value in folded.items() if value is not None}
        for one in self.machines:
            assert one.store.records() == wanted, f"M6: {one.name} has other records"
        faults = check(self.bench.store.snapshot())
        assert faults == [], f"the store is not consistent: {faults[:3]}"
