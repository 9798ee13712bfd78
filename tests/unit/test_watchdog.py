"""The watchdog of tests/conftest.py never kills the client of a test that still has time."""

import pytest

from tests.conftest import hang_seconds


def test_the_watchdog_comes_after_the_timeout_of_the_test() -> None:
    assert hang_seconds(pytest.mark.timeout(1800).mark, 300) > 1800
    assert hang_seconds(pytest.mark.timeout(timeout=1800).mark, 300) > 1800


def test_a_test_without_a_timeout_has_that_of_the_configuration() -> None:
    assert 300 < hang_seconds(None, 300) < 400
