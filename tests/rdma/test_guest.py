"""The tests of tests/rdma/guest, in one guest: the most telling one, or (--full) all.

Everything there is emulated and takes minutes, so the guest is started with the first test of a run
(tests/rdma/conftest.py), and works beside the others at low priority.
"""

import pytest

from tests.rdma.guest_tests import FULL_SECONDS_MAX, TOO_SLOW, GuestTests, UnableError


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
