"""In a counting guest: what one read and one write cost each end, by TCP and by RDMA; JSON lines.

One instruction is one nanosecond of this guest's clocks (GuestRun.is_counting), so the CPU time
that a process used is the number of its instructions, the kernel's on its behalf included. System
calls are counted by a histogram of the kernel's tracing. Each load runs with two counts; the
difference is free of what starting costs.
"""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TRACING = Path("/sys/kernel/tracing")
EVENT = TRACING / "events/raw_syscalls/sys_enter"
ADDRESS = "10.77.0.1"


@dataclass(frozen=True, slots=True)
class Load:
    transport: str
    op: str
    size: int
    counts: tuple[int, int]

    def words(self, count: int) -> list[str]:
        device = ["--device", "rxe0"] if self.transport == "rdma" else []
        write = ["--write"] if self.op == "write" else []
        return ["run", ADDRESS, *device, *write, "--size", str(self.size), "--count", str(count)]


LOADS = tuple(
    Load(transport, op, size, counts)
    for op in ("read", "write")
    for size, counts in ((4096, (100, 600)), (1 << 20, (10, 60)))
    for transport in ("tcp", "rdma")
)


class SystemCalls:
    """How many each process made while the block ran."""

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
    """instructions and system calls of both ends, for all of `count` requests."""
    device = ["--device", "rxe0"] if load.transport == "rdma" else []
    with SystemCalls() as calls:
        server = subprocess.Popen(
            [program, "serve", "--listen", ADDRESS, *device, "--once"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert server.stdout is not None
        server.stdout.readline()
        client = subprocess.Popen([program, *load.words(count)], stdout=subprocess.PIPE, text=True)
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


def main(program: str) -> None:
    if not EVENT.exists():
        subprocess.run(["mount", "-t", "tracefs", "tracefs", str(TRACING)], check=True)
    for load in LOADS:
        print(json.dumps(per_request(program, load)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
