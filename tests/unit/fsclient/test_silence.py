"""A silent metaserver: what is tried when, and that a client which did not run counts that time
against no server.
"""

from math import inf

import pytest
import trio
import trio.testing

from fsclient.meta.silence import LATE_S, PING_S, PROBE_S, SILENCE_S_MAX, TICK_S, Silence, Step
from fscommon.errors import FsError, NobodyThereError, TransportError
from fscommon.wire.messages import Entry, GetAttr
from fscommon.wire.ops import Op

from .test_meta_client import World

PATIENCE_S = 30.0


def steps(silence: Silence, seconds: float, owed_since: float, start: float = 0.0) -> list[Step]:
    count = int(seconds / TICK_S)
    return [
        silence.step(start + TICK_S * (index + 1), owed_since, PATIENCE_S) for index in range(count)
    ]


def test_who_owes_nothing_may_be_silent() -> None:
    assert set(steps(Silence(0.0), 100.0, inf)) == {Step.WAIT}


def test_first_a_sign_of_life_then_another_connection_then_the_end() -> None:
    found = steps(Silence(0.0), SILENCE_S_MAX + 2 * TICK_S, 0.0)
    assert found.count(Step.PING) == 1
    assert found.index(Step.PING) * TICK_S == pytest.approx(PING_S)
    assert found.index(Step.PROBE) * TICK_S == pytest.approx(PROBE_S)
    assert found.index(Step.GIVE_UP) * TICK_S == pytest.approx(SILENCE_S_MAX)


def test_a_sign_of_life_begins_it_anew() -> None:
    silence = Silence(0.0)
    for round_ in range(20):
        start = round_ * 2.5
        assert Step.PROBE not in steps(silence, 2.5, 0.0, start)
        silence.heard(start + 2.5)


def test_a_short_session_is_given_up_sooner() -> None:
    silence = Silence(0.0)
    found = [silence.step(TICK_S * (index + 1), 0.0, 4.0) for index in range(10)]
    assert found[-1] is Step.GIVE_UP


@pytest.mark.parametrize("stall_s", [SILENCE_S_MAX, 3600.0])
def test_a_stall_is_nobodys_silence(stall_s: float) -> None:
    silence = Silence(0.0)
    steps(silence, 1.0, 0.0)
    assert silence.step(1.0 + stall_s, 0.0, PATIENCE_S) is Step.WAIT
    after = steps(silence, SILENCE_S_MAX + 1.0, 0.0, 1.0 + stall_s)
    assert Step.GIVE_UP in after, "it is silent while we listen"


def test_small_delays_are_no_stalls() -> None:
    silence = Silence(0.0)
    now, step = 0.0, Step.WAIT
    while step is not Step.GIVE_UP:
        now += TICK_S + LATE_S * 0.9
        step = silence.step(now, 0.0, PATIENCE_S)
    assert now < SILENCE_S_MAX + 2 * (TICK_S + LATE_S)


# ---- over connections ---------------------------------------------------------------------------


async def test_a_slow_answer_of_a_living_metaserver_is_waited_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Such an answer belongs, for example, to an op that waits for another client's lease."""
    world = World()
    client = world.client(timeout_s=inf)
    async with world.running(client):
        world.streams[0].forgets = Op.GETATTR
        with trio.move_on_after(10 * SILENCE_S_MAX):
            await client.call(Op.GETATTR, GetAttr(1), Entry)
        assert len(world.streams) == 1
        pings = [op for op, *_ in world.server.seen if op is Op.PING]
        assert len(pings) > 10


async def test_a_silent_connection_is_replaced_by_the_one_beside_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    client = world.client(timeout_s=inf)
    async with world.running(client):
        world.streams[0].is_mute = True
        began = trio.current_time()
        assert (await client.call(Op.GETATTR, GetAttr(1), Entry)).attributes == b"read"
        assert trio.current_time() - began < PROBE_S + 3 * TICK_S
        assert len(world.streams) == 2


async def test_where_nobody_listens_the_wait_ends_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    client = world.client("one:1", "two:1", timeout_s=inf)
    async with world.running(client):
        world.streams[0].is_mute = True
        world.dead.add("one:1")
        world.failure = NobodyThereError
        began = trio.current_time()
        assert (await client.call(Op.GETATTR, GetAttr(1), Entry)).attributes == b"read"
        assert trio.current_time() - began < PROBE_S + 3 * TICK_S
        assert client.address == "two:1"


async def test_a_probe_is_closed_when_the_silence_ends(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    client = world.client(timeout_s=inf)
    async with world.running(client), trio.open_nursery() as nursery:
        first = world.streams[0]
        first.is_held = True
        nursery.start_soon(client.call, Op.GETATTR, GetAttr(1), Entry)
        await trio.sleep(PROBE_S + 1.4 * TICK_S)
        assert len(world.streams) == 2 and not world.streams[1].is_closed
        first.release()
        await trio.sleep(2 * TICK_S)
        assert world.streams[1].is_closed and not first.is_closed
        assert client.connection_count == 1


async def test_a_metaserver_that_never_opens_the_session_is_left(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    client = world.client(timeout_s=inf)
    async with world.running(client):
        world.mutes_next = True
        world.streams[0].cut()
        began = trio.current_time()
        await client.call(Op.GETATTR, GetAttr(1), Entry)
        assert trio.current_time() - began < SILENCE_S_MAX + 3.0
        assert len(world.streams) >= 3


async def test_time_in_which_the_client_did_not_run_ends_no_request() -> None:
    clock = trio.testing.MockClock(autojump_threshold=inf)

    async def main() -> None:
        world = World()
        client = world.client(timeout_s=60.0)
        async with world.running(client):
            stream = world.streams[0]
            stream.is_held = True
            outcome: list[Entry | FsError] = []

            async def ask() -> None:
                try:
                    outcome.append(await client.call(Op.GETATTR, GetAttr(1), Entry))
                except FsError as error:
                    outcome.append(error)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await trio.testing.wait_all_tasks_blocked()
                clock.jump(3600.0)  # the process was stopped
                await trio.testing.wait_all_tasks_blocked()
                assert outcome == []
                stream.release()
            assert isinstance(outcome[0], Entry)
            assert client.connection_count == 1

    await trio.to_thread.run_sync(lambda: trio.run(main, clock=clock))


async def test_reconnecting_becomes_rarer_and_more_patient(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    client = world.client(timeout_s=inf)
    async with world.running(client):
        world.dead.add("one:1")
        world.streams[0].cut()
        began, before = trio.current_time(), len(world.dialed)
        await trio.sleep(30.0)
        tries = len(world.dialed) - before
        assert 30 <= tries <= 70, f"{tries} in {trio.current_time() - began} s"
        assert world.failure is TransportError
