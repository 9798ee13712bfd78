"""Steps that are staged in memory, and the drain that makes them durable. Without root."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from braidfs.checkpoint import (
    Checkpoints,
    DrainFailed,
    LockTimeout,
    PartFailed,
    StagingFull,
    StepLost,
    staging,
)
from braidfs.checkpoint.calls import take_lock
from braidfs.checkpoint.drain import Drain, run
from braidfs.checkpoint.staging import Staging


@pytest.fixture(autouse=True)
def short_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAIDFS_DRAIN_IDLE_SECONDS", "0.3")


@pytest.fixture
def staged(tmp_path: Path) -> Iterator[Checkpoints]:
    """With a drain that runs when the test says so: the lock is held."""
    made = Checkpoints(tmp_path / "root", staging=tmp_path / "memory", staged=2)
    made.staging_timeout = 0.2
    folder = folder_of(made)
    folder.mkdir(parents=True)
    lock = take_lock(folder / "drain.lock", exclusive=True, make=True)
    assert lock is not None and made._staging is not None
    (folder / "drain.json").write_text(f'{{"root": "{made.root}", "keep": 2, "keep_every": 0}}')
    yield made
    lock.close()


def folder_of(checkpoints: Checkpoints) -> Path:
    assert isinstance(checkpoints._staging, Staging)
    return checkpoints._staging.folder


def write(checkpoints: Checkpoints, step: int, part: int = 0, parts: int = 1) -> None:
    with checkpoints.begin(step, part, parts, "a") as c, c.file(f"d/{part}.pt") as file:
        file.write(b"x" * (part + 1))


def test_a_drain_process_makes_a_step_durable(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "root", staging=tmp_path / "memory", sums=True)
    with checkpoints.begin(1, attempt="a") as c, c.file("model.pt") as file:
        file.write(b"123")
    done = c.wait(30)
    assert (done.path / "model.pt").read_bytes() == b"123"
    checkpoints.flush(30)
    assert checkpoints.latest() == done and not done.staged
    wait_for_end(checkpoints)
    assert checkpoints._staging is not None and checkpoints._staging.attempts() == []


def wait_for_end(checkpoints: Checkpoints) -> None:
    """Of the drain process, which has nothing to do any more."""
    end = time.monotonic() + 20
    while (lock := take_lock(folder_of(checkpoints) / "drain.lock", exclusive=True)) is None:
        assert time.monotonic() < end
        time.sleep(0.02)
    lock.close()


def test_the_newest_is_in_memory_until_it_is_durable(staged: Checkpoints) -> None:
    write(staged, 1, 0, 2)
    assert staged.latest() is None
    write(staged, 1, 1, 2)
    newest = staged.latest()
    assert newest is not None and newest.staged and newest.bytes == 3
    with staged.reading() as path:
        assert (path / "d" / "1.pt").read_bytes() == b"xx"
        Drain(folder_of(staged)).look()
        assert (path / "d" / "1.pt").read_bytes() == b"xx"  # the memory of a reader stays
    drain = Drain(folder_of(staged))
    drain.look()
    assert not drain.has_work()
    newest = staged.latest()
    assert newest is not None and not newest.staged and newest.parts == 2
    assert (newest.path / "d" / "1.pt").read_bytes() == b"xx"
    assert list(folder_of(staged).glob(".step*")) == []


def test_memory_is_bounded(staged: Checkpoints) -> None:
    write(staged, 1)
    write(staged, 2)
    with pytest.raises(StagingFull) as caught:
        write(staged, 3)
    assert caught.value.staged == (1, 2)
    Drain(folder_of(staged)).look()
    write(staged, 3)


def test_a_rank_that_hangs_is_not_full_memory(
    staged: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "LOCK_SECONDS_LEAST", 0.1)
    held = take_lock(folder_of(staged) / staging.BEGIN_LOCK, exclusive=True, make=True)
    assert held is not None
    with pytest.raises(LockTimeout, match=r"begin\.lock for 0 s"):
        write(staged, 1)
    held.close()
    write(staged, 1)


def test_an_error_of_the_drain_is_told_once(staged: Checkpoints) -> None:
    with staged.begin(1, attempt="a") as c, c.file("model.pt") as file:
        file.write(b"123")
    (staged.root / ".step-000000001.a.partial" / "model.pt").mkdir()  # cannot be written
    Drain(folder_of(staged)).look()
    with pytest.raises((DrainFailed, PartFailed), match="Is a directory"):
        c.wait(5)
    with pytest.raises(DrainFailed, match=r"step 1 .*Is a directory"):
        write(staged, 2)
    write(staged, 2)
    Drain(folder_of(staged)).look()
    assert [step.number for step in staged.steps()] == [2]


def test_a_drain_that_was_killed_is_started_again(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "root", staging=tmp_path / "memory")
    with checkpoints.begin(1, attempt="a") as c, c.file("model.pt") as file:
        file.write(b"123" * 1_000_000)
    assert checkpoints._staging is not None
    process = checkpoints._staging._drain
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert c.wait(30).bytes == 3_000_000
    checkpoints.flush(30)
    wait_for_end(checkpoints)


def test_a_mark_that_a_killed_drain_left_is_not_written_over(staged: Checkpoints) -> None:
    write(staged, 1, 0, 2)
    Drain(folder_of(staged)).look()
    place = folder_of(staged) / ".step-000000001.a.partial"
    (place / ".parts" / "00000.drained").unlink()  # as if it was killed before it wrote this
    copied = staged.root / place.name / "d" / "0.pt"
    before = copied.stat().st_mtime_ns
    Drain(folder_of(staged)).look()
    assert copied.stat().st_mtime_ns == before
    write(staged, 1, 1, 2)
    Drain(folder_of(staged)).look()
    assert staged.latest() is not None


def test_what_a_crashed_job_left_makes_room(staged: Checkpoints) -> None:
    for step in (1, 2):
        write(staged, step, 0, 2)  # part 1 was never written
    Drain(folder_of(staged)).look()
    with staged.begin(1, attempt="b") as c:
        c.file("x").close()
    Drain(folder_of(staged)).look()
    assert [step.attempt for step in staged.steps()] == ["b"]


def test_failed_parts_take_no_memory(staged: Checkpoints) -> None:
    for step in (1, 2, 3):
        with pytest.raises(ZeroDivisionError), staged.begin(step, attempt="a") as c:
            c.file("x").close()
            raise ZeroDivisionError
    write(staged, 4)
    assert staged._staging is not None
    assert [one.step for one in staged._staging.attempts()] == [4]


def test_a_failed_part_reaches_the_other_nodes(staged: Checkpoints) -> None:
    other = Checkpoints(staged.root)
    with other.begin(1, 1, 2, "a") as c:
        c.file("1").close()
    with pytest.raises(ZeroDivisionError), staged.begin(1, 0, 2, "a"):
        raise ZeroDivisionError("no")
    with pytest.raises(PartFailed, match="part 0 failed: ZeroDivisionError: no"):
        c.wait(1)
    with pytest.raises(StepLost), staged.reading():
        pass


def test_one_drain_at_a_time(staged: Checkpoints) -> None:
    write(staged, 1)
    assert run(folder_of(staged), idle=0.0) == 0  # the lock is held
    assert staged.steps() == []
    words = [sys.executable, "-m", "braidfs.checkpoint.drain"]
    assert subprocess.run(words, capture_output=True, check=False).returncode == 2


SAVE_AND_DIE = """
import os, sys
from braidfs.checkpoint import Checkpoints
with Checkpoints(sys.argv[1], staging=sys.argv[2]).begin(7, attempt="a") as c:
    with c.file("model.pt") as file:
        file.write(b"1" * 1_000_000)
os._exit(9)  # as the job is killed: it does not wait
"""


def test_the_drain_goes_on_when_the_job_is_killed(tmp_path: Path) -> None:
    root, memory = tmp_path / "root", tmp_path / "memory"
    words = [sys.executable, "-c", SAVE_AND_DIE, str(root), str(memory)]
    assert subprocess.run(words, check=False).returncode == 9
    checkpoints = Checkpoints(root, staging=memory)
    newest = checkpoints.latest()  # whole in memory, or durable by now
    assert newest is not None and newest.number == 7
    done = Checkpoints(root).wait(7, "a", timeout=30)
    assert (done.path / "model.pt").stat().st_size == 1_000_000
    wait_for_end(checkpoints)
