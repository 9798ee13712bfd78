"""`./dev bench transport`: what a request costs each end by TCP and by RDMA, in counts.

The counts are of instructions and system calls, from a guest whose clocks count instructions
(tests/rdma/guest/count_transport.py): emulation makes times meaningless. Reads and writes are those
of the native streams, metadata frames go through Python on both ends. With RDMA, the kernel's part
is Soft-RoCE doing in software what a card does: a card needs neither those instructions nor most of
the system calls, each of which rings a doorbell of Soft-RoCE. On real cards use
.build/native/bench/braidfs-transport-bench (docs/operate/rdma.md).
"""

import io
import json

from rich.table import Table

from tests.dev.build import NATIVE_BUILD, build
from tests.dev.rdma import refuse_without_guest
from tests.dev.steps import BUILD, StepError, console, tool
from tests.rdma.vm.guest import GuestRun, run_in_guest

SECONDS_MAX = 1800.0
RESULTS = BUILD / "bench" / "transport.json"
PROGRAM = NATIVE_BUILD / "bench" / "braidfs-transport-bench"


def transport() -> None:
    """Prints the table and stores the figures in .build/bench."""
    refuse_without_guest()
    build(tests=True)
    out = io.BytesIO()
    words = (tool("python"), "-m", "tests.rdma.guest.count_transport", str(PROGRAM))
    code = run_in_guest(GuestRun(words, seconds_max=SECONDS_MAX, is_counting=True), out)
    if code != 0:
        raise StepError(f"the guest's command ended with {code}")
    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(rows, indent=2) + "\n")
    table = Table(
        "request",
        "by",
        "client instructions",
        "client calls",
        "server instructions",
        "server calls",
        title="Per request (Soft-RoCE: RDMA includes the work of the card)",
    )
    for row in rows:
        table.add_row(
            _request(row["op"], row["size"]),
            row["transport"],
            f"{row['client_instructions']:,.0f}",
            f"{row['client_calls']:.1f}",
            f"{row['server_instructions']:,.0f}",
            f"{row['server_calls']:.1f}",
        )
    console.print(table)


def _request(op: str, size: int) -> str:
    return f"{op} {size // 1024} KiB" if size >= 1024 else f"{op} {size} B"
