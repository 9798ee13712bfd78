"""Lanes near their rails: a client's lane runs on the cores of the NUMA node that its rail is on.

Where a machine has one NUMA node, or a rail's is not known, nothing is done. The kernel's choice
among the cores of the node stays; whoever limited the whole program (taskset, cpuset) is obeyed.
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
    """Again after each refresh(): rails come and go. Never raises."""
    cores = _cores_of_nodes(nodes)
    if len(cores) < 2:
        return
    allowed = os.sched_getaffinity(0)  # the main thread's: no lane
    for thread, lane in _lanes():
        rail = rails.of_lane(lane)
        near = cores.get(rail.choice.port.numa_node, set()) & allowed if rail else set()
        wanted = near or allowed
        try:
            if os.sched_getaffinity(thread) != wanted:
                os.sched_setaffinity(thread, wanted)
        except OSError:  # the thread ended, or a cpuset changed: tried again the next time
            continue


def _lanes() -> list[tuple[int, int]]:
    """Thread and lane."""
    found = []
    for task in TASKS.iterdir():
        try:
            match = _LANE.fullmatch((task / "comm").read_text())
        except OSError:  # it ended meanwhile
            continue
        if match:
            found.append((int(task.name), int(match.group(1))))
    return found


def _cores_of_nodes(nodes: Path) -> dict[int, set[int]]:
    """Nodes that have cores; memory alone is a node too."""
    cores: dict[int, set[int]] = {}
    for node in nodes.glob("node[0-9]*"):
        found = _parse((node / "cpulist").read_text())
        if found:
            cores[int(node.name.removeprefix("node"))] = found
    return cores


def _parse(text: str) -> set[int]:
    """A list of the kernel's, such as "0-3,8"."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            found.update(range(int(first), int(last or first) + 1))
    return found
