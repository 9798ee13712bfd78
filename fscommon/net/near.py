"""Keeps lanes near their rails: a client's lane runs on the cores of the NUMA node of its rail.

On a machine with one NUMA node, and for a rail whose node is not known, nothing is done. Among the
cores of the node the kernel chooses. A limit on the whole program (taskset, cpuset) is respected.
"""

import os
import re
from pathlib import Path
from typing import Final

from fscommon.net.rails import Rails

NODES: Final = Path("/sys/devices/system/node")
TASKS: Final = Path("/proc/self/task")
_LANE: Final = re.compile(r"braid-lane-(\d+)\n")  # native/src/client/lane.cpp


def pin_lanes(rails: Rails, nodes: Path = NODES) -> None:
    """Pins each lane. Called again after each refresh(), because rails come and go. Never
    raises."""
    cores = _cores_of_nodes(nodes)
    if len(cores) < 2:
        return
    allowed = os.sched_getaffinity(0)  # the main thread, which is no lane
    for thread, lane in _lanes():
        rail = rails.of_lane(lane)
        near = cores.get(rail.choice.port.numa_node, set()) & allowed if rail else set()
        wanted = near or allowed
        try:
            if os.sched_getaffinity(thread) != wanted:
                os.sched_setaffinity(thread, wanted)
        except OSError:  # the thread ended, or a cpuset changed: the next call tries again
            continue


def _lanes() -> list[tuple[int, int]]:
    """Thread id and index of each lane."""
    found = []
    for task in TASKS.iterdir():
        try:
            match = _LANE.fullmatch((task / "comm").read_text())
        except OSError:  # the thread ended meanwhile
            continue
        if match:
            found.append((int(task.name), int(match.group(1))))
    return found


def _cores_of_nodes(nodes: Path) -> dict[int, set[int]]:
    """The cores of each node that has some; a node may have memory only."""
    cores: dict[int, set[int]] = {}
    for node in nodes.glob("node[0-9]*"):
        found = _parse((node / "cpulist").read_text())
        if found:
            cores[int(node.name.removeprefix("node"))] = found
    return cores


def _parse(text: str) -> set[int]:
    """The cores in a list as the kernel writes it, such as "0-3,8"."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            found.update(range(int(first), int(last or first) + 1))
    return found
