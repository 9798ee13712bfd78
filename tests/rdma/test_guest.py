"""The tests of tests/rdma/guest, in one guest: the most telling one, or (--full) all."""

import io
import subprocess
import sys

import pytest

from tests.dev.steps import StepError
from tests.rdma.vm.guest import GuestRun, missing, run_in_guest
from tests.rdma.vm.image import make_image

FOLDER = "tests/rdma/guest"
QUICK = (f"{FOLDER}/test_mount.py::test_no_payload_byte_goes_by_tcp",)
# On a quiet machine the guest starts such a program in two or three seconds. Where it takes this
# long nothing else would keep its own deadlines, and a failure would say nothing about RDMA.
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


@pytest.mark.timeout(FULL_SECONDS_MAX + 600)
def test_the_guests_tests_pass(full: bool) -> None:
    reason = missing()
    if reason:
        pytest.skip(reason)
    try:
        make_image()
    except (StepError, subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"the guest's kernel cannot be had: {error}")
    out, err = io.BytesIO(), io.BytesIO()
    chosen = (FOLDER,) if full else QUICK
    pytest_words = ("-m", "pytest", "-p", "no:cacheprovider", "--timeout=600", *chosen)
    command = ("bash", "-c", PROBE, "-", sys.executable, *pytest_words)
    seconds = FULL_SECONDS_MAX if full else QUICK_SECONDS_MAX
    code = run_in_guest(GuestRun(command, seconds_max=seconds), out, err)
    text = (out.getvalue() + err.getvalue()).decode(errors="replace")
    if code == TOO_SLOW:
        pytest.skip(f"the guest is too slow on this busy machine: {text.strip()}")
    assert code == 0, f"exit {code}; repeat it with ./dev rdma\n{text[-20000:]}"
    summary = out.getvalue().decode(errors="replace").strip().splitlines()[-1]
    assert " passed" in summary and " skipped" not in summary, summary
