"""The guest, and the tests of tests/rdma/guest in one: the most important ones, or (--full) all.

Everything there is emulated and takes minutes, so the guest is started with the first test of a run
(tests/rdma/conftest.py), and works beside the others at low priority.
"""

import io

import pytest

from tests.rdma.guest_tests import FULL_SECONDS_MAX, TOO_SLOW, GuestTests, UnableError
from tests.rdma.vm.guest import TIMED_OUT, GuestRun, missing, run_in_guest


@pytest.mark.timeout(FULL_SECONDS_MAX + 600)
def test_the_guests_tests_pass(guest_tests: GuestTests) -> None:
    try:
        code = guest_tests.wait()
    except UnableError as reason:
        pytest.skip(str(reason))
    text = (guest_tests.out.getvalue() + guest_tests.err.getvalue()).decode(errors="replace")
    if code == TOO_SLOW:
        pytest.skip(f"the guest is too slow on this busy machine: {text.strip()}")
    assert code == 0, f"exit {code}; repeat it with ./dev rdma\n{text[-20000:]}"
    summary = guest_tests.out.getvalue().decode(errors="replace").strip().splitlines()[-1]
    assert " passed" in summary and " skipped" not in summary, summary


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("script", "seconds", "code"),
    [
        ("echo out; echo err >&2; exit 7", 120.0, 7),
        ("echo out; echo err >&2; sleep 600", 3.0, TIMED_OUT),
    ],
)
def test_a_command_in_the_guest_is_as_here(script: str, seconds: float, code: int) -> None:
    """Its output, its exit code, and its time limit are the same."""
    if reason := missing():
        pytest.skip(reason)
    out, err = io.BytesIO(), io.BytesIO()
    assert run_in_guest(GuestRun(("bash", "-c", script), seconds_max=seconds), out, err) == code
    assert (out.getvalue(), err.getvalue()) == (b"out\n", b"err\n")
