"""Starts the guest's run with the first test of a session that includes it."""

import pytest

from tests.rdma.guest_tests import GuestTests

_NAME = "test_the_guests_tests_pass"
_begun: list[GuestTests] = []  # it has at most one entry


def _begin(config: pytest.Config) -> GuestTests:
    if not _begun:
        _begun.append(GuestTests(is_full=bool(config.getoption("--full"))))
    return _begun[0]


def pytest_collection_finish(session: pytest.Session) -> None:
    is_chosen = any(item.name == _NAME for item in session.items)
    if is_chosen and not session.config.getoption("--collect-only"):
        _begin(session.config)


@pytest.fixture
def guest_tests(pytestconfig: pytest.Config) -> GuestTests:
    return _begin(pytestconfig)
