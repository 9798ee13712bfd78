"""What processes consumed, from /proc: CPU time, context switches, peak memory.

CPU time of a process includes threads that have ended; context switches are those of threads that
exist at the end, which the lanes of BraidFS do as long as their program runs.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Serving:
    """The processes behind a mount."""

    client: tuple[int, ...] = ()
    servers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    cpu_s: float = 0.0
    switches: int = 0


@dataclass(slots=True)
class Spent:
    """The values are set when the measured time is over."""

    client: Usage = field(default_factory=Usage)
    servers: Usage = field(default_factory=Usage)

    @property
    def cpu_s(self) -> float:
        return self.client.cpu_s + self.servers.cpu_s

    @property
    def switches(self) -> int:
        return self.client.switches + self.servers.switches


@contextlib.contextmanager
def spending(serving: Serving) -> Iterator[Spent]:
    """What those processes consume while the block runs; they are not replaced meanwhile."""
    client, servers = _Count(serving.client), _Count(serving.servers)
    spent = Spent()
    yield spent
    spent.client = client.usage()
    spent.servers = servers.usage()


class _Count:
    """What some processes consume from now on."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._cpu_s = sum(map(_cpu_s, pids))
        self._switches = _switches(pids)

    def usage(self) -> Usage:
        switches = _switches(self._pids)
        since = sum(count - self._switches.get(task, 0) for task, count in switches.items())
        return Usage(sum(map(_cpu_s, self._pids)) - self._cpu_s, since)


def _cpu_s(pid: int) -> float:
    # This is the clock of another process, with the number that clock_getcpuclockid(3) computes. It
    # has nanoseconds, where /proc/PID/stat has ticks of 10 ms.
    with contextlib.suppress(OSError):
        return time.clock_gettime((~pid << 3) | 2)
    return 0.0


def _switches(pids: Sequence[int]) -> dict[str, int]:
    """The context switches of each thread."""
    found = {}
    for pid in pids:
        for status in Path(f"/proc/{pid}/task").glob("*/status"):
            with contextlib.suppress(OSError):
                lines = status.read_text().splitlines()
                counts = [int(one.split()[1]) for one in lines if "ctxt_switches" in one]
                found[status.parent.name] = sum(counts)
    return found


def peak_mib(pids: Sequence[int]) -> float:
    """The sum of the peak resident memory of each process."""
    return sum(_status_kib(pid, "VmHWM") for pid in pids) / 1024


def _status_kib(pid: int, key: str) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1])
    return 0


def with_children(pids: Sequence[int]) -> tuple[int, ...]:
    """These processes and all their descendants: some programs serve in a child."""
    found = list(dict.fromkeys(pids))
    for pid in found:  # the list grows while it is walked
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                words = children.read_text().split()
                found += [one for one in map(int, words) if one not in found]
    return tuple(found)


def busy_share(pause: Callable[[float], None], seconds: float = 1.0) -> float:
    """How busy the cores are with other work, 0 to 1: nothing of the benchmark runs meanwhile."""
    before = _core_times()
    pause(seconds)
    after = _core_times()
    total = sum(after) - sum(before)
    idle = after[3] + after[4] - before[3] - before[4]
    return 1 - idle / total if total else 0.0


def _core_times() -> list[int]:
    return [int(one) for one in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
