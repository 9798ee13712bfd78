"""The tests of tests/rdma/guest in one guest: the most important ones, or (--full) all of them."""

import io
import subprocess
import sys
import threading
from dataclasses import dataclass, field

from tests.dev.steps import StepError
from tests.rdma.vm.guest import GuestRun, missing, run_in_guest
from tests.rdma.vm.image import make_image

FOLDER = "tests/rdma/guest"
QUICK = tuple(
    f"{FOLDER}/test_mount.py::{name}"
    for name in ("test_no_payload_byte_goes_by_tcp", "test_two_servers_answer_on_two_addresses")
)
# On a quiet machine the guest starts such a program in two or three seconds. If it takes this long,
# no other deadline would hold either, and a failure would say nothing about RDMA.
START_SECONDS_MAX = 15
TOO_SLOW = 77
PROBE = f"""
begun=$(date +%s)
"$1" -c 'import trio, msgpack, click, rich' || exit
took=$(($(date +%s) - begun))
if ((took > {START_SECONDS_MAX})); then echo "a program starts in $took s"; exit {TOO_SLOW}; fi
exec "$@"
"""
# A quiet machine needs a tenth; everything in the guest is emulated.
QUICK_SECONDS_MAX = 900.0
FULL_SECONDS_MAX = 3600.0


class UnableError(Exception):
    """No guest can run here; the message is the reason."""


@dataclass
class GuestTests:
    """One run of the tests in the guest, in a thread of its own."""

    is_full: bool
    out: io.BytesIO = field(default_factory=io.BytesIO)
    err: io.BytesIO = field(default_factory=io.BytesIO)
    _code: int = 0
    _failure: BaseException | None = None

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait(self) -> int:
        """Waits for the exit code. Raises UnableError, or the error of the run."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._code

    def _run(self) -> None:
        try:
            self._code = self._run_in_guest()
        except BaseException as failure:
            self._failure = failure

    def _run_in_guest(self) -> int:
        reason = missing()
        if reason:
            raise UnableError(reason)
        try:
            make_image()
        except (StepError, subprocess.SubprocessError, OSError) as error:
            raise UnableError(f"the guest's kernel cannot be had: {error}") from error
        chosen = (FOLDER,) if self.is_full else QUICK
        pytest_words = ("-m", "pytest", "-p", "no:cacheprovider", "--timeout=600", *chosen)
        command = ("bash", "-c", PROBE, "-", sys.executable, *pytest_words)
        seconds = FULL_SECONDS_MAX if self.is_full else QUICK_SECONDS_MAX
        return run_in_guest(GuestRun(command, seconds_max=seconds), self.out, self.err)
