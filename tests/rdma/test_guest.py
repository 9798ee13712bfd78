"""The tests of tests/rdma/guest, in one guest for all of them."""

import io
import subprocess
import sys

import pytest

from tests.dev.steps import StepError
from tests.rdma.vm.guest import GuestRun, missing, run_in_guest
from tests.rdma.vm.image import make_image

SECONDS_MAX = 270.0


@pytest.mark.timeout(SECONDS_MAX + 200)
def test_the_guests_tests_pass() -> None:
    reason = missing()
    if reason:
        pytest.skip(reason)
    try:
        make_image()
    except (StepError, subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"the guest's kernel cannot be had: {error}")
    out, err = io.BytesIO(), io.BytesIO()
    command = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "tests/rdma/guest")
    code = run_in_guest(GuestRun(command, seconds_max=SECONDS_MAX), out, err)
    text = (out.getvalue() + err.getvalue()).decode(errors="replace")
    assert code == 0, f"repeat it with ./dev rdma\n{text[-20000:]}"
