"""flock(2) and fcntl(2) locks, through one mount and through two.

Every case runs twice: with both processes on one mount, and with each on a mount of its own. The
workers are processes (lock_worker.py), because locks belong to processes. No test waits for a fixed
time: a worker is blocked when its system call shows that, and a granted one answers.
"""

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import mounts
from tests.cluster.cluster import Cluster
from tests.cluster.process import wait_until

pytestmark = [pytest.mark.mount, pytest.mark.timeout(200)]

WORKER = Path(__file__).with_name("lock_worker.py")
ANSWER_SECONDS_MAX = 20.0
_LOCKING_CALLS = ("72", "73")  # these are fcntl and flock on x86-64
READ, WRITE, NONE = "read", "write", "none"


class Process:
    """A worker on one mount."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, *command: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_SECONDS_MAX)
        assert ready, "no answer"
        _kind, value = json.loads(self._process.stdout.readline())
        return value

    def has_answer(self, other: "Process") -> bool:
        """Whether this worker answers before the other one."""
        mine, others = self._process.stdout, other._process.stdout
        assert mine is not None and others is not None
        ready, _, _ = select.select([mine, others], [], [], ANSWER_SECONDS_MAX)
        assert ready, "neither answers"
        return ready[0] is mine

    def ask(self, *command: Any) -> Any:
        """The result, or the name of an errno."""
        self.send(*command)
        return self.answer()

    def open(self, name: str, file: str, flags: int = os.O_RDWR) -> None:
        assert self.ask("open", name, str(self.root / file), flags) is None

    def is_blocked(self) -> bool:
        """Whether it is in a system call that the file system has not answered."""
        call = Path(f"/proc/{self.pid}/syscall").read_text().split()[0]
        return call in _LOCKING_CALLS

    def kill(self, number: int = signal.SIGKILL) -> None:
        self._process.send_signal(number)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture(scope="session")
def other_mount(shared_cluster: Cluster) -> Iterator[Path]:
    point = shared_cluster.plan.state / "other"
    point.mkdir(exist_ok=True)
    with shared_cluster.second_client(point) as other:
        yield other
    while mounts.is_mounted(point):
        mounts.unmount(point, lazy=True)


@pytest.fixture(params=["one mount", "two mounts"])
def roots(request: pytest.FixtureRequest, workdir: Path) -> tuple[Path, Path]:
    """The paths at which the first and the second process see the same new folder."""
    (workdir / "file").write_bytes(b"x" * 1000)
    if request.param == "one mount":
        return workdir, workdir
    cluster: Cluster = request.getfixturevalue("cluster")
    other: Path = request.getfixturevalue("other_mount")
    mirror = other / workdir.relative_to(cluster.mount_path)
    assert wait_until((mirror / "file").exists, 10)
    return workdir, mirror


Starter = Callable[[int], Process]


@pytest.fixture
def start(roots: tuple[Path, Path]) -> Iterator[Starter]:
    started: list[Process] = []

    def start_one(index: int) -> Process:
        started.append(Process(roots[index]))
        return started[-1]

    yield start_one
    for process in started:
        process.end()


@pytest.fixture
def pair(start: Starter) -> tuple[Process, Process]:
    """Two processes that have the file open as "f"."""
    one, two = start(0), start(1)
    one.open("f", "file")
    two.open("f", "file")
    return one, two


def fcntl_now(process: Process, kind: str, start: int = 0, length: int = 0) -> Any:
    return process.ask("fcntl", "f", kind, start, length, False)


# ---- fcntl --------------------------------------------------------------------------------------


def test_a_write_lock_excludes_and_a_read_lock_is_shared(pair: tuple[Process, Process]) -> None:
    one, two = pair
    assert fcntl_now(one, READ) is None
    assert fcntl_now(two, READ) is None
    assert fcntl_now(two, WRITE) == "EAGAIN"
    assert fcntl_now(one, NONE) is None
    assert fcntl_now(two, WRITE) is None
    assert fcntl_now(one, READ) == "EAGAIN"


def test_ranges_are_split_and_merged(pair: tuple[Process, Process]) -> None:
    one, two = pair
    assert fcntl_now(one, WRITE, 0, 100) is None
    assert fcntl_now(one, NONE, 40, 20) is None
    assert fcntl_now(two, WRITE, 40, 20) is None
    assert two.ask("getlk", "f", WRITE, 0, 0) == [WRITE, 0, 40, one.pid]
    assert two.ask("getlk", "f", WRITE, 60, 0) == [WRITE, 60, 40, one.pid]
    assert fcntl_now(two, NONE, 0, 0) is None
    assert fcntl_now(one, WRITE, 40, 20) is None
    assert two.ask("getlk", "f", READ, 50, 1) == [WRITE, 0, 100, one.pid]


def test_upgrade_and_downgrade(pair: tuple[Process, Process]) -> None:
    one, two = pair
    assert fcntl_now(one, READ, 0, 10) is None
    assert fcntl_now(one, WRITE, 0, 10) is None
    assert fcntl_now(two, READ, 0, 10) == "EAGAIN"
    assert fcntl_now(one, READ, 0, 5) is None
    assert fcntl_now(two, READ, 0, 5) is None
    assert fcntl_now(two, READ, 5, 5) == "EAGAIN"


def test_getlk_says_nobody_where_nobody_is(pair: tuple[Process, Process]) -> None:
    one, two = pair
    assert two.ask("getlk", "f", WRITE, 0, 0) == ["none"]
    assert fcntl_now(one, READ, 5, 5) is None
    assert one.ask("getlk", "f", WRITE, 0, 0) == ["none"], "its own"
    assert two.ask("getlk", "f", READ, 0, 0) == ["none"], "read locks are shared"
    assert two.ask("getlk", "f", WRITE, 0, 0) == [READ, 5, 5, one.pid]


def test_the_end_of_the_file_is_no_end_of_a_lock(pair: tuple[Process, Process]) -> None:
    one, two = pair
    assert fcntl_now(one, WRITE, 1 << 40, 0) is None
    assert fcntl_now(two, WRITE, (1 << 40) + 5, 1) == "EAGAIN"
    assert fcntl_now(two, WRITE, 0, 1 << 40) is None
    assert two.ask("getlk", "f", WRITE, 1 << 50, 0) == [WRITE, 1 << 40, 0, one.pid]


def test_a_blocked_request_goes_on_when_the_lock_is_free(pair: tuple[Process, Process]) -> None:
    one, two = pair
    assert fcntl_now(one, WRITE) is None
    two.send("fcntl", "f", WRITE, 0, 0, True)
    assert wait_until(two.is_blocked, 20)
    assert fcntl_now(one, NONE) is None
    assert two.answer() is None


def test_a_signal_ends_a_wait(pair: tuple[Process, Process]) -> None:
    one, two = pair
    assert fcntl_now(one, WRITE) is None
    two.send("fcntl", "f", WRITE, 0, 0, True)
    assert wait_until(two.is_blocked, 20)
    two.kill(signal.SIGUSR1)
    assert two.answer() == "EINTR"
    assert fcntl_now(one, NONE) is None
    assert one.ask("getlk", "f", WRITE, 0, 0) == ["none"], "the wait was cancelled"


def test_a_killed_waiter_leaves_no_lock(pair: tuple[Process, Process], start: Starter) -> None:
    one, two = pair
    assert fcntl_now(one, WRITE) is None
    two.send("fcntl", "f", WRITE, 0, 0, True)
    assert wait_until(two.is_blocked, 20)
    two.end()
    assert fcntl_now(one, NONE) is None
    three = start(1)
    three.open("f", "file")
    assert fcntl_now(three, WRITE) is None


def test_deadlock_is_told(pair: tuple[Process, Process]) -> None:
    one, two = pair
    assert fcntl_now(one, WRITE, 0, 1) is None
    assert fcntl_now(two, WRITE, 1, 1) is None
    one.send("fcntl", "f", WRITE, 1, 1, True)
    two.send("fcntl", "f", WRITE, 0, 1, True)
    refused, waiting = (one, two) if one.has_answer(two) else (two, one)
    assert refused.answer() in ("EDEADLK", "EDEADLOCK")
    assert fcntl_now(refused, NONE, 0, 0) is None
    assert waiting.answer() is None


def test_closing_any_descriptor_drops_the_locks(pair: tuple[Process, Process]) -> None:
    one, two = pair
    assert fcntl_now(one, WRITE) is None
    one.open("second", "file")
    assert one.ask("close", "second") is None
    assert fcntl_now(two, WRITE) is None


@pytest.mark.parametrize("opened", ["before", "after"])
@pytest.mark.parametrize("kind", [READ, WRITE])
def test_closing_a_descriptor_for_reading_drops_the_locks(
    pair: tuple[Process, Process], kind: str, opened: str
) -> None:
    """This includes a descriptor that was opened before the first lock, and is not the one that was
    locked."""
    one, two = pair
    one.open("one", "file", os.O_RDONLY)
    if opened == "before":
        one.open("other", "file", os.O_RDONLY)
    assert one.ask("fcntl", "one" if kind == READ else "f", kind, 0, 0, False) is None
    if opened == "after":
        one.open("other", "file", os.O_RDONLY)
    assert fcntl_now(two, WRITE) == "EAGAIN"
    assert one.ask("close", "other") is None
    assert two.ask("fcntl", "f", WRITE, 0, 0, True) is None


@pytest.mark.parametrize("made", ["opened", "copied"])
def test_a_close_that_nobody_tells_refuses_nobody(start: Starter, made: str) -> None:
    """The descriptor was opened for reading before the first lock, or is a copy of such a one."""
    one, two = start(0), start(1)
    for _ in range(200):
        one.open("locked", "file", os.O_RDONLY)
        if made == "opened":
            one.open("other", "file", os.O_RDONLY)
        else:
            assert one.ask("dup", "locked", "other") is None
        two.open("f", "file")
        # The other process's lock may be released just now.
        assert one.ask("fcntl", "locked", READ, 0, 0, True) is None
        assert two.ask("getlk", "f", WRITE, 0, 0) == [READ, 0, 0, one.pid]
        assert one.ask("close", "other") is None
        assert two.ask("getlk", "f", WRITE, 0, 0) == ["none"]
        assert fcntl_now(two, WRITE) is None
        assert one.ask("close", "locked") is None
        assert two.ask("close", "f") is None


def test_a_descriptor_that_takes_the_number_of_a_closed_one_keeps_no_lock(start: Starter) -> None:
    one, two = start(0), start(1)
    for _ in range(100):
        one.open("locked", "file", os.O_RDONLY)
        one.open("other", "file", os.O_RDONLY)
        two.open("f", "file")
        assert one.ask("fcntl", "locked", READ, 0, 0, True) is None
        assert one.ask("close", "other") is None
        one.open("other", "file", os.O_RDONLY)
        assert fcntl_now(two, WRITE) is None
        for name in ("other", "locked"):
            assert one.ask("close", name) is None
        assert two.ask("close", "f") is None


@pytest.mark.parametrize("roots", ["one mount"], indirect=True)
def test_a_copy_that_was_made_after_the_lock_drops_it(start: Starter) -> None:
    one, two = start(0), start(0)
    one.open("locked", "file", os.O_RDONLY)
    two.open("f", "file")
    assert one.ask("fcntl", "locked", READ, 0, 0, False) is None
    one.ask("dup", "locked", "copy")
    assert fcntl_now(two, WRITE) == "EAGAIN"
    time.sleep(0.5)  # the client notices it in /proc
    assert one.ask("close", "copy") is None
    assert fcntl_now(two, WRITE) is None


def test_a_child_that_closes_its_copy_drops_no_lock(pair: tuple[Process, Process]) -> None:
    one, two = pair
    for name in ("locked", "other"):
        one.open(name, "file", os.O_RDONLY)
    assert one.ask("fcntl", "locked", READ, 0, 0, False) is None
    one.ask("fork", "f")
    one.ask("reap")
    for _ in range(20):
        assert fcntl_now(two, WRITE) == "EAGAIN"


def test_a_descriptor_of_another_process_drops_no_lock(pair: tuple[Process, Process]) -> None:
    one, two = pair
    for process in (one, two):
        process.open("one", "file", os.O_RDONLY)
        process.open("other", "file", os.O_RDONLY)
    assert one.ask("fcntl", "one", READ, 0, 0, False) is None
    assert two.ask("close", "other") is None
    for _ in range(20):  # meanwhile the client reads /proc several times
        assert fcntl_now(two, WRITE) == "EAGAIN"


def test_closing_a_copy_drops_the_locks(pair: tuple[Process, Process]) -> None:
    one, two = pair
    one.open("ro", "file", os.O_RDONLY)
    assert fcntl_now(one, WRITE) is None
    one.ask("dup", "f", "copy")
    assert one.ask("close", "copy") is None
    assert fcntl_now(two, WRITE) is None


def test_a_read_only_descriptor_drops_its_read_lock_at_close(pair: tuple[Process, Process]) -> None:
    one, two = pair
    one.open("ro", "file", os.O_RDONLY)
    assert one.ask("fcntl", "ro", READ, 0, 0, False) is None
    assert fcntl_now(two, WRITE) == "EAGAIN"
    assert one.ask("close", "ro") is None
    assert two.ask("fcntl", "f", WRITE, 0, 0, True) is None


def test_a_dead_process_holds_nothing(pair: tuple[Process, Process]) -> None:
    one, two = pair
    assert fcntl_now(one, WRITE) is None
    one.end()
    assert fcntl_now(two, WRITE) is None


def test_a_child_inherits_no_fcntl_lock_and_costs_none(pair: tuple[Process, Process]) -> None:
    one, two = pair
    assert fcntl_now(one, WRITE) is None
    one.ask("fork", "f")
    one.ask("reap")
    assert fcntl_now(two, WRITE) == "EAGAIN"


def test_locks_need_the_right_mode_of_opening(pair: tuple[Process, Process]) -> None:
    one, _ = pair
    one.open("ro", "file", os.O_RDONLY)
    one.open("wo", "file", os.O_WRONLY)
    assert one.ask("fcntl", "ro", WRITE, 0, 0, False) == "EBADF"
    assert one.ask("fcntl", "wo", READ, 0, 0, False) == "EBADF"
    assert one.ask("fcntl", "f", WRITE, -5, 2, False) == "EINVAL"


def test_bytes_written_under_a_lock_are_seen_under_the_next(pair: tuple[Process, Process]) -> None:
    one, two = pair
    for turn in range(20):
        writer, reader = (one, two) if turn % 2 else (two, one)
        text = f"turn {turn:04}"
        assert writer.ask("fcntl", "f", WRITE, 0, 0, True) is None
        assert writer.ask("write", "f", turn * 100_000, text) == len(text)
        assert writer.ask("fcntl", "f", NONE, 0, 0, False) is None
        assert reader.ask("fcntl", "f", READ, 0, 0, True) is None
        assert reader.ask("read", "f", turn * 100_000, len(text)) == text
        assert reader.ask("fcntl", "f", NONE, 0, 0, False) is None


# ---- open file description locks ----------------------------------------------------------------


def test_ofd_locks_go_with_the_description_and_not_with_a_copy(
    pair: tuple[Process, Process],
) -> None:
    one, two = pair
    assert one.ask("ofd", "f", WRITE, 0, 0, False) is None
    one.ask("dup", "f", "copy")
    assert one.ask("close", "copy") is None
    assert two.ask("ofd", "f", WRITE, 0, 0, False) == "EAGAIN"
    assert one.ask("close", "f") is None
    assert two.ask("ofd", "f", WRITE, 0, 0, True) is None


def test_ofd_and_process_locks_conflict(pair: tuple[Process, Process]) -> None:
    one, _ = pair
    assert one.ask("ofd", "f", WRITE, 0, 10, False) is None
    one.open("again", "file")
    assert one.ask("ofd", "again", WRITE, 0, 10, False) == "EAGAIN"
    assert one.ask("fcntl", "again", WRITE, 0, 10, False) == "EAGAIN"


# ---- flock --------------------------------------------------------------------------------------

SHARED, EXCLUSIVE, UNLOCK, NOW = fcntl.LOCK_SH, fcntl.LOCK_EX, fcntl.LOCK_UN, fcntl.LOCK_NB


def test_flock_shared_and_exclusive(pair: tuple[Process, Process]) -> None:
    one, two = pair
    assert one.ask("flock", "f", SHARED) is None
    assert two.ask("flock", "f", SHARED | NOW) is None
    assert two.ask("flock", "f", EXCLUSIVE | NOW) == "EAGAIN"
    assert one.ask("flock", "f", UNLOCK) is None
    assert two.ask("flock", "f", EXCLUSIVE | NOW) is None
    assert one.ask("flock", "f", SHARED | NOW) == "EAGAIN"


def test_flock_waits_and_is_interrupted(pair: tuple[Process, Process]) -> None:
    one, two = pair
    assert one.ask("flock", "f", EXCLUSIVE) is None
    two.send("flock", "f", SHARED)
    assert wait_until(two.is_blocked, 20)
    two.kill(signal.SIGUSR1)
    assert two.answer() == "EINTR"
    two.send("flock", "f", EXCLUSIVE)
    assert wait_until(two.is_blocked, 20)
    assert one.ask("flock", "f", UNLOCK) is None
    assert two.answer() is None


def test_flock_belongs_to_the_open_file_description(pair: tuple[Process, Process]) -> None:
    one, two = pair
    assert one.ask("flock", "f", EXCLUSIVE) is None
    one.open("again", "file")
    assert one.ask("flock", "again", EXCLUSIVE | NOW) == "EAGAIN"
    one.ask("dup", "f", "copy")
    assert one.ask("flock", "copy", EXCLUSIVE | NOW) is None
    assert one.ask("close", "f") is None
    assert two.ask("flock", "f", EXCLUSIVE | NOW) == "EAGAIN"
    assert one.ask("close", "copy") is None
    assert two.ask("flock", "f", EXCLUSIVE) is None


def test_a_child_keeps_the_flock(pair: tuple[Process, Process]) -> None:
    one, two = pair
    assert one.ask("flock", "f", EXCLUSIVE) is None
    one.ask("fork", "f")
    assert one.ask("close", "f") is None
    assert two.ask("flock", "f", EXCLUSIVE | NOW) == "EAGAIN"
    one.ask("reap")
    assert two.ask("flock", "f", EXCLUSIVE) is None


def test_flock_and_fcntl_do_not_meet(pair: tuple[Process, Process]) -> None:
    one, two = pair
    assert one.ask("flock", "f", EXCLUSIVE) is None
    assert fcntl_now(two, WRITE) is None


@pytest.mark.parametrize("roots", ["one mount"], indirect=True)
def test_close_frees_the_flock_for_the_next_on_the_same_mount(start: Starter) -> None:
    """RELEASE comes after close(2) has returned; it must not cause a refusal."""
    one, two = start(0), start(0)
    for _ in range(200):
        one.open("f", "file")
        two.open("f", "file")
        assert one.ask("flock", "f", EXCLUSIVE | NOW) is None
        assert one.ask("close", "f") is None
        assert two.ask("flock", "f", EXCLUSIVE | NOW) is None
        assert two.ask("close", "f") is None


# ---- failures -----------------------------------------------------------------------------------


@pytest.mark.expects_warnings
def test_locks_survive_a_restart_of_the_metaserver(
    pair: tuple[Process, Process], cluster: Cluster
) -> None:
    one, two = pair
    assert fcntl_now(one, WRITE, 0, 10) is None
    assert one.ask("flock", "f", SHARED) is None
    two.send("fcntl", "f", WRITE, 5, 1, True)
    assert wait_until(two.is_blocked, 20)
    cluster.metaserver.kill()
    cluster.metaserver.start()
    assert one.ask("getlk", "f", WRITE, 5, 1) in (["none"], [WRITE, 5, 1, two.pid])
    assert two.is_blocked()
    assert fcntl_now(one, NONE, 0, 0) is None
    assert two.answer() is None
    assert two.ask("flock", "f", EXCLUSIVE | NOW) == "EAGAIN"
