"""In a counting guest: the cost of one read, one write and one metadata request at each end, by TCP
and by RDMA, as JSON lines.

The last line is for Python (metadata_ends.py), the others are for native. One instruction is one
nanosecond of this guest's clocks (GuestRun.is_counting), so the CPU time of a process is the number
of its instructions, including those that the kernel executes for it. A histogram of the kernel's
tracing counts system calls. Each load runs with two counts; their difference does not include the
cost of starting.
"""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.rdma.guest.metadata_ends import ANSWER

TRACING = Path("/sys/kernel/tracing")
EVENT = TRACING / "events/raw_syscalls/sys_enter"
ADDRESS = "10.77.0.1"


@dataclass(frozen=True, slots=True)
class Load:
    transport: str
    op: str
    size: int
    counts: tuple[int, int]

    @property
    def _device(self) -> list[str]:
        return ["--device", "rxe0"] if self.transport == "rdma" else []

    def server(self, program: str, count: int) -> list[str]:
        if self.op == METADATA:
            return [*ENDS, "serve", ADDRESS, *self._device, "--count", str(count)]
        return [program, "serve", "--listen", ADDRESS, *self._device, "--once"]

    def client(self, program: str, count: int) -> list[str]:
        if self.op == METADATA:
            return [*ENDS, "run", ADDRESS, *self._device, "--count", str(count)]
        write = ["--write"] if self.op == "write" else []
        size = ["--size", str(self.size)]
        return [program, "run", ADDRESS, *self._device, *write, *size, "--count", str(count)]


METADATA = "metadata"
ENDS = (sys.executable, "-m", "tests.rdma.guest.metadata_ends")
KINDS = (
    ("read", 4096, (100, 600)),
    ("read", 1 << 20, (10, 60)),
    ("write", 4096, (100, 600)),
    ("write", 1 << 20, (10, 60)),
    (METADATA, len(ANSWER), (100, 600)),
)
LOADS = tuple(Load(transport, *kind) for kind in KINDS for transport in ("tcp", "rdma"))


class SystemCalls:
    """How many system calls each process made while the block ran."""

    def __enter__(self) -> "SystemCalls":
        (EVENT / "trigger").write_text("hist:keys=common_pid\n")
        return self

    def __exit__(self, *_: object) -> None:
        self.by_pid = {
            int(pid): int(count)
            for pid, count in re.findall(
                r"common_pid:\s+(\d+) } hitcount:\s+(\d+)", (EVENT / "hist").read_text()
            )
        }
        (EVENT / "trigger").write_text("!hist:keys=common_pid\n")


def measure(program: str, load: Load, count: int) -> dict[str, int]:
    """Instructions and system calls of both ends, for all of `count` requests."""
    with SystemCalls() as calls:
        server = subprocess.Popen(load.server(program, count), stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        server.stdout.readline()
        client = subprocess.Popen(load.client(program, count), stdout=subprocess.PIPE, text=True)
        ran = json.loads(client.communicate(timeout=600)[0])
        served = json.loads(server.communicate(timeout=60)[0])
    return {
        "client_instructions": int(ran["client_cpu_ns"]),
        "server_instructions": int(served["server_cpu_ns"]),
        "client_calls": calls.by_pid.get(client.pid, 0),
        "server_calls": calls.by_pid.get(server.pid, 0),
    }


def per_request(program: str, load: Load) -> dict[str, Any]:
    few, many = load.counts
    before, after = (measure(program, load, count) for count in (few, many))
    each = {name: round((after[name] - before[name]) / (many - few), 2) for name in after}
    return {"transport": load.transport, "op": load.op, "size": load.size, **each}


def main(program: str, only: str = "") -> None:
    if not EVENT.exists():
        subprocess.run(["mount", "-t", "tracefs", "tracefs", str(TRACING)], check=True)
    for load in LOADS:
        if only not in ("", load.op):
            continue
        print(json.dumps(per_request(program, load)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
