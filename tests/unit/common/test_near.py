"""Lanes run on the cores near their rails, if a machine has more than one NUMA node."""

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fscommon.net.near import pin_lanes
from tests.unit.common.test_rdma import FakeNative, gid, port, rails_over

CORES = sorted(os.sched_getaffinity(0))
FEW = pytest.mark.skipif(len(CORES) < 2, reason="this machine has one core")


@pytest.fixture
def lanes() -> Iterator[list[int]]:
    """Two threads that look like lanes."""
    ending = threading.Event()
    threads = [threading.Thread(target=ending.wait) for _ in range(2)]
    for number, thread in enumerate(threads):
        thread.start()
        Path(f"/proc/self/task/{thread.native_id}/comm").write_text(f"braid-lane-{number}")
    yield [thread.native_id or 0 for thread in threads]
    ending.set()
    for thread in threads:
        thread.join()


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    for node, cores in enumerate((f"{CORES[0]}", f"{CORES[-1]},4000-4001")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(f"{cores}\n")
    (tmp_path / "node2").mkdir()
    (tmp_path / "node2" / "cpulist").write_text("\n")  # this node has memory only
    return tmp_path


@FEW
def test_each_lane_runs_on_the_node_of_its_rail(
    monkeypatch: pytest.MonkeyPatch, lanes: list[int], nodes: Path
) -> None:
    ports = [replace(port("a"), numa_node=1), replace(port("b", gid(1, "10.1.0.1")), numa_node=0)]
    rails = rails_over(monkeypatch, FakeNative(), ports)
    pin_lanes(rails, nodes)
    assert [os.sched_getaffinity(lane) for lane in lanes] == [{CORES[-1]}, {CORES[0]}]
    assert os.sched_getaffinity(0) == set(CORES), "nothing but lanes"
    unknown = rails_over(monkeypatch, FakeNative(), [port("a")])
    pin_lanes(unknown, nodes)
    assert [os.sched_getaffinity(lane) for lane in lanes] == [set(CORES)] * 2


def test_a_machine_with_one_node_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, lanes: list[int], nodes: Path
) -> None:
    (nodes / "node1" / "cpulist").write_text("\n")
    rails = rails_over(monkeypatch, FakeNative(), [replace(port("a"), numa_node=0)])
    pin_lanes(rails, nodes)
    assert [os.sched_getaffinity(lane) for lane in lanes] == [set(CORES)] * 2
