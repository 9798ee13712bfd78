"""`./dev rdma`: a command, or the RDMA tests, in the guest with Soft-RoCE (tests/rdma/vm)."""

import statistics
import time
from collections.abc import Sequence

from tests.dev.build import build
from tests.dev.steps import StepError, console, tool
from tests.rdma.vm.guest import TIMED_OUT, GuestRun, missing, run_in_guest
from tests.rdma.vm.image import make_image

SUITE = ("-p", "no:cacheprovider", "--timeout=600", "tests/rdma/guest")


def rdma(words: Sequence[str], seconds: int) -> int:
    """Runs the command in the guest; returns its exit code."""
    refuse_without_guest()
    if not words:
        build(tests=True)
    command = words or (tool("python"), "-m", "pytest", *SUITE)
    code = run_in_guest(GuestRun(command, seconds_max=seconds))
    if code == TIMED_OUT:
        console.print(f"dev: the guest was stopped after {seconds} s", markup=False)
    return code


def prepare() -> int:
    """Makes the image; the packages are there by now (./dev installs them)."""
    refuse_without_guest()
    make_image()
    return 0


def boots(count: int) -> int:
    """Boots the guest `count` times, one after another, and prints how long each boot took until it
    served."""
    refuse_without_guest()
    seconds: list[float] = []
    for number in range(1, count + 1):
        started = time.monotonic()
        code = run_in_guest(GuestRun(("ibv_devices",), seconds_max=120.0))
        seconds.append(time.monotonic() - started)
        print(f"boot {number}: exit {code}, {seconds[-1]:.1f} s", flush=True)
        if code != 0:
            return code
    print(
        f"{count} of {count} boots; median {statistics.median(seconds):.1f} s, "
        f"longest {max(seconds):.1f} s"
    )
    return 0


def refuse_without_guest() -> None:
    if reason := missing():
        raise StepError(f"no guest with RDMA here: {reason}")
