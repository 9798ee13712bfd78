"""A metaserver that did not run for a while does not count that time as silence of its peers."""

from dataclasses import dataclass

import pytest
import trio.testing

from fscommon.layout.attributes import LEASE_DATA
from fscommon.wire.leases import LeaseTake
from fscommon.wire.messages import Open, SessionRenew
from fscommon.wire.ops import Op
from fscommon.wire.servers import Heartbeat, TargetReport
from metaserver.engine import Time
from metaserver.membership import NODE_TIMEOUT_S
from metaserver.times import BEAT_S, LATE_S, Clock

from .bench import ROOT, SETTINGS, Bench, Client
from .test_leases import Cached

TIMEOUT_S = SETTINGS.session_timeout_s


@dataclass
class Machine:
    """`seconds`: the value of its monotonic clock."""

    seconds: float = 5000.0

    def __post_init__(self) -> None:
        self.clock = Clock(lambda: self.seconds)

    def turn(self, seconds: float) -> None:
        """The event loop runs during all that time."""
        end = self.seconds + seconds
        while self.seconds < end:
            self.seconds += BEAT_S
            self.clock.beat()

    def stall(self, seconds: float) -> None:
        self.seconds += seconds


class TimedBench(Bench):
    """Its time is that of a machine."""

    def __init__(self) -> None:
        self.machine = Machine()
        super().__init__()

    def time(self) -> Time:
        self.now_ns += 1000
        return Time(self.now_ns, self.machine.clock().now_s)


@pytest.fixture
def bench() -> TimedBench:
    return TimedBench()


def test_it_goes_on_while_the_loop_turns() -> None:
    machine = Machine()
    before_s = machine.clock().now_s
    machine.turn(100.0)
    assert machine.clock().now_s == pytest.approx(before_s + 100.0)
    machine.stall(LATE_S / 2)
    assert machine.clock().now_s == pytest.approx(before_s + 100.0 + LATE_S / 2)


@pytest.mark.parametrize("beats_first", [True, False])
def test_a_stall_counts_for_a_second(beats_first: bool) -> None:
    machine = Machine()
    before_s = machine.clock().now_s
    machine.stall(1000.0)
    if beats_first:  # the order in which tasks run after it is not known
        machine.clock.beat()
    seen = [machine.clock().now_s for _ in range(3)]
    machine.clock.beat()
    machine.stall(0.5)
    seen.append(machine.clock().now_s)
    assert seen == sorted(seen), "it never goes back"
    assert seen[0] <= before_s + LATE_S
    assert seen[-1] == pytest.approx(seen[0] + 0.5)


def test_short_stalls_one_after_another_do_not_count_either() -> None:
    machine = Machine()
    before_s = machine.clock().now_s
    for _ in range(100):
        machine.stall(60.0)
        machine.clock.beat()
    assert machine.clock().now_s <= before_s + 100 * LATE_S


def test_a_stall_takes_no_storage_server_down(bench: TimedBench) -> None:
    membership = bench.engine.services.membership
    bench.machine.stall(10 * NODE_TIMEOUT_S)
    assert membership.expire(bench.time().now_s) == []
    bench.machine.turn(NODE_TIMEOUT_S / 2)
    assert membership.expire(bench.time().now_s) == []
    bench.machine.turn(NODE_TIMEOUT_S)
    assert len(membership.expire(bench.time().now_s)) == 1, "it is silent while we listen"


def test_nor_one_that_was_heard_just_before(bench: TimedBench) -> None:
    server = Client(bench, bench.connect("server"))
    report = TargetReport(1, bytes([1, 0]) * 8, 1, 1 << 40, 1 << 39, 0, 0)
    membership = bench.engine.services.membership
    for _ in range(20):
        bench.machine.turn(2.0)
        server.call(Op.HEARTBEAT, Heartbeat(1, (report,), 0))
        bench.machine.stall(NODE_TIMEOUT_S + 1.0)
        assert membership.expire(bench.time().now_s) == []


def test_a_stall_ends_no_session(bench: TimedBench) -> None:
    client = bench.client()
    bench.machine.stall(100 * TIMEOUT_S)
    assert bench.engine.sessions.expired(bench.time().now_s, TIMEOUT_S) == []
    client.call(Op.SESSION_RENEW, SessionRenew(0))
    bench.machine.turn(TIMEOUT_S + 1.0)
    assert [one.id for one in bench.engine.sessions.expired(bench.time().now_s, TIMEOUT_S)] == [
        client.session
    ]


def test_a_stall_evicts_nobody_who_is_to_give_up_a_lease(bench: TimedBench) -> None:
    one, two = Cached.of(bench), Cached.of(bench)
    ino = one.client.create(ROOT, b"f").ino
    leases = bench.engine.services.leases
    two.client.send(Op.LEASE_TAKE, LeaseTake(ino, LEASE_DATA))
    assert two.waits() and one.recalled()
    bench.machine.stall(100 * TIMEOUT_S)
    assert leases.expire(bench.time().now_s) == []
    bench.machine.turn(leases.duration_s + 1.0)
    assert leases.expire(bench.time().now_s) == [one.client.session]


def test_a_stall_ends_no_shared_lease_unasked(bench: TimedBench) -> None:
    """Otherwise a client that changes the file would not wait for a holder whose answer is in
    flight."""
    one, two = Cached.of(bench), Cached.of(bench)
    ino = one.client.create(ROOT, b"f").ino
    one.client.call(Op.OPEN, Open(ino, False))
    bench.machine.stall(100 * TIMEOUT_S)
    two.client.send(Op.OPEN, Open(ino, True))
    assert two.waits(), "the holder is asked"


async def test_silence_does_not_count_while_nobody_is_answered(
    autojump_clock: trio.testing.MockClock,
) -> None:
    answers = [True]
    clock = Clock(trio.current_time, lambda: answers[0])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(clock.run)
        await trio.sleep(10.0)
        before_s = clock().now_s
        answers[0] = False
        await trio.sleep(600.0)
        assert clock().now_s - before_s <= LATE_S + BEAT_S
        answers[0] = True
        await trio.sleep(5.0)
        assert 5.0 - BEAT_S <= clock().now_s - before_s <= 5.0 + LATE_S + BEAT_S
        nursery.cancel_scope.cancel()
