"""Rebuilds of what a lost target had, and how fast files are copied."""

from dataclasses import replace
from typing import Final

import pytest
import trio
from trio.testing import MockClock

from fscommon.layout.layout import VACANT
from fscommon.wire.jobs import REPAIR, JobSet
from fscommon.wire.messages import Empty, Unlink
from fscommon.wire.ops import Op
from metaserver.placement import ReplicaPolicy
from metaserver.records import lacking_place
from metaserver.repair_policy import RepairPolicy

from .bench import ROOT
from .job_bench import (
    FOUR,
    LOGS,
    ONE,
    admin_of,
    drain,
    files,
    on,
    remove,
    row,
    rows,
    state,
    until,
    until_done,
)
from .mirrors import TWO, Copiers, LiveBench, tasks_of

pytestmark = pytest.mark.expects_log(LOGS)
SOON: Final = RepairPolicy(rebuild_after_s=20)


@pytest.fixture
def bench() -> LiveBench:
    return LiveBench(nodes=len(FOUR))


# ---- rebuild ------------------------------------------------------------------------------------


def end(bench: LiveBench, targets: Copiers, number: int) -> None:
    """The storage server dies."""
    targets.ended.add(number)
    bench.engine.closed(bench.servers[number].connection)


async def test_what_a_target_had_is_made_again(bench: LiveBench, autojump_clock: MockClock) -> None:
    inos = files(bench, 20)
    targets = Copiers()
    async with tasks_of(bench, targets, SOON):
        end(bench, targets, 2)
        await trio.sleep(SOON.rebuild_after_s)
        assert [one.kind for one in rows(bench)] == ["repair", "scrub"], "it may come back"
        await trio.sleep(15)
        seen = await until_done(bench, "rebuild")
        assert seen.target == 2 and on(bench, inos, 2) == []
        assert seen.files == len([1 for ino in inos if len(bench.layout(ino).generations)])
        assert all(VACANT not in bench.layout(ino).targets for ino in inos)
        repair = rows(bench)[0]
        assert repair.job == REPAIR and repair.state == "done" and repair.files >= seen.files
        await trio.sleep(120)
        assert [one.kind for one in rows(bench)] == ["repair", "scrub", "rebuild"], "once"
        assert state(bench, 2) == "down"
    assert bench.records(b"H") == [] and bench.faults() == []


async def test_a_target_that_returns_is_not_rebuilt_further(
    bench: LiveBench, autojump_clock: MockClock
) -> None:
    inos = files(bench, 40)
    targets = Copiers(seconds=5.0)
    async with tasks_of(bench, targets, replace(SOON, parallel=1)):
        end(bench, targets, 2)
        await until(lambda: bool([one for one in rows(bench) if one.kind == "rebuild"]), 60)
        admin_of(bench).call(Op.JOB_SET, JobSet(row(bench, "rebuild").job, is_paused=True))
        await trio.sleep(3)
        left = len(on(bench, inos, 2))
        targets.ended.clear()
        bench.join(2)
        await trio.sleep(5)
        assert row(bench, "rebuild").state == "done" and len(on(bench, inos, 2)) == left
        await until(lambda: not (bench.records(b"H")), 600)
    for ino in inos:
        assert VACANT not in bench.layout(ino).targets
    assert bench.faults() == []


async def test_an_administrator_gives_a_target_up(
    bench: LiveBench, autojump_clock: MockClock
) -> None:
    inos = files(bench, 20)
    targets = Copiers()
    async with tasks_of(bench, targets):
        end(bench, targets, 2)
        await trio.sleep(1)
        [job] = remove(bench, 2, is_lost=True).jobs
        assert state(bench, 2) == "lost" and row(bench, "rebuild").job == job
        await until_done(bench, "rebuild")
        assert state(bench, 2) == "none" and on(bench, inos, 2) == []
        await trio.sleep(5)
    assert bench.records(b"Y") == [] and bench.records(b"L") == [] and bench.faults() == []


async def test_the_last_replica_keeps_a_lost_target_in_the_map(autojump_clock: MockClock) -> None:
    bench = LiveBench(nodes=4, settings=replace(ONE, stripe_width_max=1))
    inos = files(bench, 12)
    there = on(bench, inos, 2)
    targets = Copiers()
    async with tasks_of(bench, targets):
        end(bench, targets, 2)
        remove(bench, 2, is_lost=True)
        await trio.sleep(60)
        seen = row(bench, "rebuild")
        assert seen.state == "waiting" and f"{len(there)} files have their only" in seen.because
        assert on(bench, inos, 2) == there and state(bench, 2) == "lost"
        client = bench.writer()
        for at, ino in enumerate(inos):
            if ino in there:
                client.call(Op.UNLINK, Unlink(ROOT, b"f%d" % at))
        client.call(Op.SESSION_CLOSE, Empty())
        await until_done(bench, "rebuild")
        assert state(bench, 2) == "none"
    assert bench.faults() == []


async def test_a_lost_target_that_answers_is_emptied(autojump_clock: MockClock) -> None:
    """An administrator gives up a target that is served: its files are moved, and no reader of a
    former view sees what is older than what is written elsewhere."""
    bench = LiveBench(nodes=4, settings=ONE)
    inos = files(bench, 12)
    there = on(bench, inos, 2)
    targets = Copiers()
    async with tasks_of(bench, targets):
        remove(bench, 2, is_lost=True)
        await until_done(bench, "rebuild")
        assert on(bench, inos, 2) == [] and state(bench, 2) == "none"
    assert len(targets.told) >= len(there) and bench.faults() == []


async def test_those_with_one_replica_left_come_first(autojump_clock: MockClock) -> None:
    """Where files may have three replicas, a rebuild takes two passes."""
    policy = ReplicaPolicy(3, replicas_max=3)
    settings = replace(TWO, replicas=policy, stripe_width_max=1)
    bench = LiveBench(nodes=5, settings=settings)
    inos = files(bench, 30)
    targets = Copiers(seconds=1.0)
    async with tasks_of(bench, targets, replace(SOON, parallel=1)):
        end(bench, targets, 1)
        end(bench, targets, 2)
        await until(lambda: bool(targets.done), 200)
        both = [ino for ino in inos if {1, 2} <= set(bench.layout(ino).targets)]
        first = [name.file_id for what, name in targets.done if what == "copy"]
        counts = [lacking_place(key)[0] for key, _ in bench.records(b"H")]
        assert first and (1 in counts or not both)
        await until_done(bench, "rebuild", 2000)
        await until(
            lambda: (
                not ([one for one in rows(bench) if one.kind == "rebuild" and one.state != "done"])
            ),
            2000,
        )
    assert all(VACANT not in bench.layout(ino).targets for ino in inos)
    assert bench.faults() == []


# ---- pace ---------------------------------------------------------------------------------------


async def test_the_rate_is_bounded_for_each_target(
    bench: LiveBench, autojump_clock: MockClock
) -> None:
    inos = files(bench, 20)
    there = on(bench, inos, 2)
    targets = Copiers(bytes=4 << 20)
    async with tasks_of(bench, targets, RepairPolicy(rate_mib=1.0)):
        drain(bench, 2)
        began = trio.current_time()
        await until_done(bench, "drain", 2000)
    copies = len([1 for what, _ in targets.done if what == "copy"])
    assert copies >= len(there)
    assert trio.current_time() - began > copies * 4 / 3 - 4 - 4, "three targets receive"


async def test_several_files_are_copied_at_once(
    bench: LiveBench, autojump_clock: MockClock
) -> None:
    inos = files(bench, 24)
    times = {}
    for parallel in (1, 8):
        target = 2 if parallel == 1 else 3
        targets = Copiers(seconds=3.0)
        async with tasks_of(bench, targets, RepairPolicy(parallel=parallel)):
            drain(bench, target)
            began = trio.current_time()
            await until_done(bench, "drain", 2000)
            times[parallel] = trio.current_time() - began
            assert targets.most <= parallel
            drain(bench, target, is_draining=False)
    assert times[1] > 2 * times[8] and on(bench, inos, 3) == []
