"""What processes spent, from /proc: CPU time, context switches, memory at its peak.

CPU time of a process counts threads that have ended too; context switches only those of threads
that live, which the lanes and servers of BraidFS do as long as their program.
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

    def since(self, before: "Usage") -> "Usage":
        return Usage(self.cpu_s - before.cpu_s, self.switches - before.switches)


@dataclass(slots=True)
class Spent:
    """Filled in when the measured time is over."""

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
    """What those processes spend while the block runs; they are not replaced meanwhile."""
    client, servers = _usage(serving.client), _usage(serving.servers)
    spent = Spent()
    yield spent
    spent.client = _usage(serving.client).since(client)
    spent.servers = _usage(serving.servers).since(servers)


def _usage(pids: Sequence[int]) -> Usage:
    return Usage(sum(map(_cpu_s, pids)), sum(map(_switches, pids)))


def _cpu_s(pid: int) -> float:
    # The clock of another process, as clock_getcpuclockid(3) makes its number; nanoseconds, where
    # /proc/PID/stat has ticks of 10 ms.
    with contextlib.suppress(OSError):
        return time.clock_gettime((~pid << 3) | 2)
    return 0.0


def _switches(pid: int) -> int:
    count = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with contextlib.suppress(OSError):
            lines = status.read_text().splitlines()
            count += sum(int(one.split()[1]) for one in lines if "ctxt_switches" in one)
    return count


def peak_mib(pids: Sequence[int]) -> float:
    """The most memory that each ever had resident, added up."""
    return sum(_status_kib(pid, "VmHWM") for pid in pids) / 1024


def _status_kib(pid: int, key: str) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1])
    return 0


def with_children(pids: Sequence[int]) -> tuple[int, ...]:
    """They, and whatever descends from them: some programs serve in a child."""
    found = list(dict.fromkeys(pids))
    for pid in found:  # grows while it is walked
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
