"""Locks that ranks of a node wait for, and where they meet. Without root."""

import os
import threading
import time
from pathlib import Path

import pytest

from braidfs.checkpoint import LockTimeout, node
from braidfs.checkpoint.calls import Lock, take_lock, wait_for_lock
from braidfs.checkpoint.manifest import File


def locked(path: Path) -> Lock:
    lock = take_lock(path, exclusive=True, make=True)
    assert lock is not None
    return lock


def test_a_lock_that_is_let_go_is_taken(tmp_path: Path) -> None:
    held = locked(tmp_path / "lock")
    timer = threading.Timer(0.1, held.close)
    timer.start()
    began = time.monotonic()
    wait_for_lock(tmp_path / "lock", began + 30).close()
    assert 0.05 < time.monotonic() - began < 10
    timer.join(30)


def test_a_lock_that_is_held_on_is_named(tmp_path: Path) -> None:
    held = locked(tmp_path / "lock")
    began = time.monotonic()
    with pytest.raises(LockTimeout, match=f"{tmp_path}/lock for 0 s: it hangs") as caught:
        wait_for_lock(tmp_path / "lock", began + 0.2)
    assert 0 < caught.value.seconds <= time.monotonic() - began < 10
    assert time.monotonic() - began >= 0.2
    assert caught.value.path == tmp_path / "lock"
    with pytest.raises(LockTimeout):
        wait_for_lock(tmp_path / "lock", 0.0)  # it looks once
    held.close()
    wait_for_lock(tmp_path / "lock", 0.0).close()


def test_a_forked_process_does_not_keep_a_lock(tmp_path: Path) -> None:
    """As a worker of a DataLoader that was started while the lock was held."""
    lock, (waits, tells) = locked(tmp_path / "lock"), os.pipe()
    worker = os.fork()
    if not worker:
        os.close(tells)
        os.read(waits, 1)  # until the test has ended, however it ends
        os._exit(0)
    try:
        lock.close()
        locked(tmp_path / "lock").close()
    finally:
        os.close(tells)
        os.close(waits)
        os.waitpid(worker, 0)


def test_a_rank_that_hangs_fails_the_parts_of_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "LOCK_SECONDS_MAX", 0.1)
    monkeypatch.setattr(node, "node_folder", lambda: tmp_path)
    hidden, file = Path("/data/.step"), File("a", 1, None, 0)
    assert node.gather_on_node((hidden, 0, 2), 0, [file]) == (None, [])
    (place,) = tmp_path.iterdir()
    held = locked(place / "lock")
    with pytest.raises(LockTimeout, match="lock for 0 s"):
        node.gather_on_node((hidden, 1, 2), 1, [])
    held.close()
    assert node.gather_on_node((hidden, 1, 2), 1, []) == ([0, 1], [file])
    assert list(tmp_path.iterdir()) == []
