"""Which process made a request, if the kernel says it and if it does not."""

import os
import subprocess
from collections.abc import Iterator

import pytest

from fsclient.fs.caller import UNKNOWN_ID, Requester, is_user

NOBODY, GROUP, OTHER_GROUP = 65534, 1234, 1235


@pytest.fixture
def of_nobody() -> Iterator[int]:
    """A process of another user."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    process = subprocess.Popen(
        ["sleep", "60"], user=NOBODY, group=NOBODY, extra_groups=[GROUP, OTHER_GROUP]
    )
    yield process.pid
    process.kill()
    process.wait()


def _requester(uid: int, pid: int) -> Requester:
    return Requester(uid, uid, 0o22, lambda: pid)


def test_groups_are_those_of_the_process(of_nobody: int) -> None:
    assert _requester(NOBODY, of_nobody).in_group(GROUP)
    assert not _requester(NOBODY, of_nobody).in_group(77)
    assert _requester(NOBODY, of_nobody).for_mode(0o2755).groups == (GROUP, OTHER_GROUP)


def test_who_is_not_told_may_be_root(of_nobody: int) -> None:
    assert is_user(0, UNKNOWN_ID, os.getpid)
    assert not is_user(0, UNKNOWN_ID, lambda: of_nobody)
    assert is_user(NOBODY, UNKNOWN_ID, lambda: of_nobody)
    assert not is_user(0, UNKNOWN_ID, lambda: 0), "of a PID namespace that is not seen"
    assert is_user(0, 0, lambda: of_nobody) and not is_user(0, NOBODY, os.getpid)


def test_groups_of_who_is_not_told_are_not_believed(of_nobody: int) -> None:
    """Their ids belong to another mapping."""
    assert not _requester(UNKNOWN_ID, of_nobody).in_group(GROUP)
    assert _requester(UNKNOWN_ID, os.getpid()).in_group(GROUP)
