"""The clock of the active metaserver's lease: suspended machines, and machines that stand still."""

from dataclasses import dataclass

import pytest

from metaserver.store.journal import FencedError, Head
from metaserver.store.journaled import DeposedError, JournaledStore
from metaserver.store.journals.memory import MemoryJournal, MemoryLog
from metaserver.store.memory import MemoryStore
from metaserver.store.terms import ANSWER_S, BEAT_S, CLAIM_S, ActiveLease, LeaseClock, TakeOverWatch


@dataclass
class Clocks:
    """Those of one machine: its hypervisor may stop `boot`, and sets `wall` right afterwards."""

    boot_s: float = 1000.0
    wall_s: float = 1_800_000_000.0

    def lease_clock(self) -> LeaseClock:
        return LeaseClock(lambda: self.boot_s, lambda: self.wall_s)

    def run(self, seconds: float) -> None:
        self.boot_s += seconds
        self.wall_s += seconds


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


def test_both_clocks_count_once(clocks: Clocks) -> None:
    clock = clocks.lease_clock()
    began_s = clock()
    clocks.run(2.0)
    assert clock() - began_s == 2.0
    clocks.boot_s += 3.0  # as after a wall clock that was set back meanwhile
    assert clock() - began_s == 5.0


@pytest.mark.parametrize("back_s", [0.5, 3600.0])
def test_a_wall_clock_that_is_set_back_prolongs_nothing(clocks: Clocks, back_s: float) -> None:
    clock, lease = clocks.lease_clock(), ActiveLease()
    lease.proven(clock())
    clocks.wall_s -= back_s
    clocks.run(ANSWER_S - 0.1)
    assert lease.holds(clock())
    clocks.run(0.2)
    assert not lease.holds(clock())


def test_many_short_stops_add_up(clocks: Clocks) -> None:
    clock, lease = clocks.lease_clock(), ActiveLease()
    lease.proven(clock())
    for _ in range(4):
        clocks.wall_s += 0.8
        clocks.boot_s += 0.01
        clock()
    assert not lease.holds(clock())


class Machine:
    """A metaserver with clocks of its own, over a journal in memory."""

    def __init__(self, log: MemoryLog, name: str) -> None:
        self.clocks = Clocks(boot_s=7.0 if name == "two" else 1000.0)
        self.lease_clock = self.clocks.lease_clock()
        self.door = MemoryJournal(log)
        self.lease = ActiveLease()
        self.watch = TakeOverWatch()
        self.name = name
        self.head = Head()

    def claim(self) -> None:
        sent_s = self.lease_clock()
        self.head = self.door.claim(self.door.sighting(), self.name)
        self.lease.proven(sent_s)

    def beat(self) -> None:
        sent_s = self.lease_clock()
        self.door.beat(self.head)
        self.lease.proven(sent_s)

    def look(self) -> bool:
        """Whether it may claim."""
        self.watch.saw(self.door.sighting(), self.clocks.boot_s)
        return self.watch.may_claim(self.clocks.boot_s)

    def may_answer(self) -> bool:
        return self.lease.holds(self.lease_clock())


@pytest.mark.parametrize("counts_suspension", [True, False], ids=["suspended", "stopped"])
def test_one_that_stood_still_answers_nobody_before_it_has_beaten(counts_suspension: bool) -> None:
    """Another one has taken over meanwhile; or nobody has, and a beat is enough."""
    for is_taken_over in (False, True):
        log = MemoryLog()
        one, two = Machine(log, "one"), Machine(log, "two")
        one.claim()
        assert one.may_answer() and not two.look()
        for _ in range(50):
            two.clocks.run(0.1)
            if is_taken_over and two.look():
                two.claim()
                break
        one.clocks.wall_s += CLAIM_S + 1
        one.clocks.boot_s += CLAIM_S + 1 if counts_suspension else 0.0
        assert not one.may_answer()
        assert two.may_answer() == is_taken_over
        if is_taken_over:
            with pytest.raises(FencedError):
                one.beat()
            assert not one.may_answer()
        else:
            one.beat()
            assert one.may_answer()


def test_an_answer_to_what_was_sent_before_the_stop_proves_nothing(clocks: Clocks) -> None:
    log = MemoryLog()
    clock, lease = clocks.lease_clock(), ActiveLease()
    door = MemoryJournal(log)
    head = door.claim(door.sighting(), "one")

    class SlowJournal(MemoryJournal):
        """The machine stands still when the append has happened, before it has the answer."""

        def append(self, at: Head, nonce: bytes, payload: bytes) -> Head:
            new = super().append(at, nonce, payload)
            clocks.wall_s += CLAIM_S + 1
            return new

    store = JournaledStore(MemoryStore(), SlowJournal(log), head, lease=lease, clock=clock)
    store.commit([(b"a", b"1")])
    assert not lease.holds(clock())
    other = MemoryJournal(log)
    other.claim(other.sighting(), "two")
    with pytest.raises(DeposedError):
        store.commit([(b"a", b"2")])
    assert not lease.holds(clock())


def test_a_step_of_the_wall_clock_costs_a_beat_and_hastens_no_take_over() -> None:
    log = MemoryLog()
    one, two = Machine(log, "one"), Machine(log, "two")
    one.claim()
    assert not two.look()
    for machine in (one, two):
        machine.clocks.wall_s += 3600.0
    assert not one.may_answer()
    assert not two.look(), "a step is no silence"
    for machine in (one, two):
        machine.clocks.run(BEAT_S)
    one.beat()
    assert one.may_answer() and not two.look()
