"""Processes are killed with real signals under a running workload: no wrong byte and no error.

Each test has a cluster of its own. A kill counts only if it took effect: the test checks that the
copy had not finished yet, and that the process really ended.
"""

import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.cluster import mounts
from tests.cluster.cluster import Cluster
from tests.cluster.plan import SHORT_SESSIONS
from tests.cluster.process import Program, wait_until
from tests.conftest import ClusterMaker

pytestmark = [pytest.mark.mount, pytest.mark.timeout(900), pytest.mark.expects_warnings]


@pytest.fixture
def tree(localdir: Path) -> Path:
    """Some 1,000 files in 40 folders, 90 MB: most are small, some have several chunks."""
    chance = random.Random(11)
    for folder in range(40):
        (localdir / "tree" / f"{folder}").mkdir(parents=True)
        for number in range(25):
            size = chance.choice([0, 10, 5000, 60_000, 100_000])
            (localdir / "tree" / f"{folder}" / f"{number}").write_bytes(chance.randbytes(size))
        (localdir / "tree" / f"{folder}" / "large").write_bytes(chance.randbytes(1_500_000))
    return localdir / "tree"


def _copy(tree: Path, sink: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(["cp", "-r", str(tree), str(sink)], stderr=subprocess.PIPE, text=True)


def _finish(copying: "subprocess.Popen[str]") -> None:
    _, complaints = copying.communicate(timeout=300)
    assert copying.returncode == 0, complaints


def _same(tree: Path, copy: Path) -> None:
    result = subprocess.run(
        ["diff", "-r", str(tree), str(copy)], check=False, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout[:3000] + result.stderr[:3000]


def _progress(sink: Path) -> int:
    return sum(1 for _ in sink.iterdir()) if sink.exists() else 0


def _kill_and_restart(program: Program, dead_seconds: float) -> None:
    program.kill()
    assert program.pid() is None
    time.sleep(dead_seconds)
    program.start()


def _has_copied(copying: "subprocess.Popen[str]", sink: Path, done: int) -> bool:
    """So much, or all."""
    return _progress(sink) >= done or copying.poll() is not None


@pytest.mark.parametrize(
    "victims",
    [
        pytest.param(("storage",), marks=pytest.mark.full),
        pytest.param(("meta",), marks=pytest.mark.full),
        ("storage", "meta"),
    ],
)
def test_copy_survives_killed_servers(
    make_cluster: ClusterMaker, tree: Path, victims: tuple[str, ...]
) -> None:
    cluster = make_cluster(storage_servers=2, targets=1)
    programs = {"storage": cluster.storageservers[0], "meta": cluster.metaserver}
    sink = cluster.mount_path / "copy"
    copying = _copy(tree, sink)
    hits = 0
    for done in (3, 12, 25):
        wait_until(partial(_has_copied, copying, sink, done), 120)
        if copying.poll() is not None:
            break
        for victim in victims:
            programs[victim].kill()
        time.sleep(0.3)
        for victim in reversed(victims):
            programs[victim].start()
        hits += 1
    assert hits >= 2, "the copy was over before the kills"
    _finish(copying)
    _same(tree, sink)
    cluster.remount()
    _same(tree, sink)
    cluster.restart_servers()
    cluster.remount()
    _same(tree, sink)


def test_every_server_killed_at_once(make_cluster: ClusterMaker, tree: Path) -> None:
    cluster = make_cluster(storage_servers=2, targets=2)
    sink = cluster.mount_path / "copy"
    copying = _copy(tree, sink)
    assert wait_until(lambda: _progress(sink) >= 8, 120)
    assert copying.poll() is None
    for program in cluster.programs:
        program.kill()
    for program in cluster.programs:
        program.start()
    _finish(copying)
    cluster.remount()
    _same(tree, sink)


def test_metaserver_killed_between_answer_and_commit(
    make_cluster: ClusterMaker, sized: Callable[[int, int], int]
) -> None:
    """Every answered operation is there afterwards; each round kills the metaserver during
    a burst."""
    cluster = make_cluster(settings={"metaserver": {"commit_interval_ms": 200}})
    folder = cluster.mount_path / "burst"
    folder.mkdir()
    chance = random.Random(5)
    answered: set[str] = set()
    for round_ in range(sized(4, 50)):
        answered |= _burst_and_kill(cluster, folder, round_, chance)
        there = set(os.listdir(folder))
        assert answered - there == set(), f"round {round_}: answered, then gone"
        assert len(there - answered) == 0, f"round {round_}: {there - answered} came from nowhere"
    cluster.remount()
    assert set(os.listdir(folder)) == answered


def _burst_and_kill(cluster: Cluster, folder: Path, round_: int, chance: random.Random) -> set[str]:
    program = (
        "import os, sys\n"
        "folder, tag, count = sys.argv[1], sys.argv[2], int(sys.argv[3])\n"
        "for n in range(count):\n"
        "    a, b = f'{folder}/{tag}-{n}.tmp', f'{folder}/{tag}-{n}'\n"
        "    os.close(os.open(a, os.O_CREAT | os.O_EXCL | os.O_WRONLY))\n"
        "    os.rename(a, b)\n"
        "    print(os.path.basename(b), flush=True)\n"
    )
    words = [sys.executable, "-c", program, str(folder), f"r{round_}", "120"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as burst:
        assert burst.stdout is not None
        names = [burst.stdout.readline().strip() for _ in range(chance.randrange(1, 60))]
        cluster.metaserver.kill()
        cluster.metaserver.start()
        names += burst.stdout.read().split()
        assert burst.wait(120) == 0
    assert len(names) == 120
    return set(names)


def test_fsynced_bytes_survive_killed_servers(make_cluster: ClusterMaker) -> None:
    cluster = make_cluster(storage_servers=2, targets=1)
    path = cluster.mount_path / "file"
    chance = random.Random(9)
    wanted = bytearray(chance.randbytes(5 << 20))
    with path.open("w+b", buffering=0) as file:
        file.write(wanted)
        for _ in range(6):
            os.fsync(file.fileno())
            offset = chance.randrange(4 << 20)
            piece = chance.randbytes(chance.randrange(1, 300_000))
            os.pwrite(file.fileno(), piece, offset)
            wanted[offset : offset + len(piece)] = piece
            os.fsync(file.fileno())
            _kill_and_restart(chance.choice(cluster.storageservers), 0.0)
            assert os.pread(file.fileno(), len(wanted), 0) == wanted
    cluster.remount()
    assert path.read_bytes() == wanted


def test_answered_writes_survive_a_killed_storage_server(make_cluster: ClusterMaker) -> None:
    """No fsync is needed: a killed process loses no byte that its host's kernel still has."""
    cluster = make_cluster(storage_servers=1, targets=2)
    path = cluster.mount_path / "file"
    wanted = random.Random(2).randbytes(20 << 20)
    path.write_bytes(wanted)
    cluster.storageservers[0].kill()
    cluster.storageservers[0].start()
    cluster.remount()
    assert path.read_bytes() == wanted


def test_killed_client_leaves_a_clean_unmount(make_cluster: ClusterMaker) -> None:
    cluster = make_cluster(settings=SHORT_SESSIONS)
    (cluster.mount_path / "file").write_bytes(b"written and closed")
    pid = cluster.client_pid()
    assert pid is not None
    mounts.kill_client(pid)
    assert wait_until(lambda: cluster.client_pid() is None, 20)
    with pytest.raises(OSError) as caught:
        os.listdir(cluster.mount_path)
    assert caught.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    mounts.unmount(cluster.mount_path, lazy=True)
    assert not mounts.is_mounted(cluster.mount_path)
    cluster.mount()
    assert (cluster.mount_path / "file").read_bytes() == b"written and closed"


def test_unlinked_file_of_a_killed_client_is_reaped(make_cluster: ClusterMaker) -> None:
    cluster = make_cluster(storage_servers=1, settings=SHORT_SESSIONS)
    path = cluster.mount_path / "orphan"
    fd = os.open(path, os.O_CREAT | os.O_WRONLY)
    os.write(fd, os.urandom(32 << 20))
    path.unlink()
    pid = cluster.client_pid()
    assert pid is not None
    mounts.kill_client(pid)
    assert wait_until(lambda: cluster.client_pid() is None, 20)
    with pytest.raises(OSError):
        os.close(fd)
    cluster.unmount(lazy=True)

    def stored() -> int:
        words = ["du", "-s", "--block-size=1", str(cluster.plan.state / "targets")]
        return int(subprocess.run(words, check=False, capture_output=True).stdout.split()[0])

    assert wait_until(lambda: stored() < 20 << 20, 60), stored()


_DIRECT_READER = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
os.preadv(fd, [mmap.mmap(-1, 4096)], 1 << 20)
"""
# Python handles SIGINT, so the kernel must notify the client (INTERRUPT); cat dies of it. A handled
# signal does not end a wait for a page of a buffered read: the kernel decides that.
BLOCKED_READERS = {
    "direct, handled": [sys.executable, "-c", _DIRECT_READER, "{}"],
    "buffered, fatal": ["cat", "{}"],
}


@pytest.mark.parametrize("kind", BLOCKED_READERS)
def test_interrupted_read_returns_at_once(make_cluster: ClusterMaker, kind: str) -> None:
    cluster = make_cluster(storage_servers=1)
    path = cluster.mount_path / "file"
    path.write_bytes(os.urandom(4 << 20))
    cluster.remount()
    with cluster.paused(*cluster.storageservers):
        words = [word.format(path) for word in BLOCKED_READERS[kind]]
        reader = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(1.0)
        assert reader.poll() is None, "the read did not block"
        started = time.monotonic()
        reader.send_signal(signal.SIGINT)
        reader.wait(20)
        assert time.monotonic() - started < 2.0
    assert len(path.read_bytes()) == 4 << 20


def test_interrupted_metadata_call_returns_at_once(make_cluster: ClusterMaker) -> None:
    cluster = make_cluster(storage_servers=1)
    with cluster.paused(cluster.metaserver):
        words = ["stat", str(cluster.mount_path / "never-seen")]
        caller = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        time.sleep(0.5)
        assert caller.poll() is None, "the call did not block"
        started = time.monotonic()
        caller.send_signal(signal.SIGINT)
        caller.wait(20)
        assert time.monotonic() - started < 2.0
    assert not (cluster.mount_path / "never-seen").exists()


_MAKER = """
import os, signal, sys
signal.signal(signal.SIGALRM, lambda *_: print("handled", flush=True))
signal.siginterrupt(signal.SIGALRM, True)
print("asks", flush=True)
fd = os.open(sys.argv[1], os.O_CREAT | os.O_EXCL | os.O_WRONLY)
print("made", flush=True)
"""


@contextmanager
def _maker_of(path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A program that creates the file exclusively, and has received a signal that it handles."""
    words = (sys.executable, "-c", _MAKER, str(path))
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout is not None and maker.stdout.readline() == "asks\n"
        time.sleep(0.5)
        maker.send_signal(signal.SIGALRM)
        time.sleep(0.5)
        assert maker.poll() is None
        yield maker
        maker.kill()


def test_a_handled_signal_waits_for_the_answer(make_cluster: ClusterMaker) -> None:
    cluster = make_cluster(storage_servers=1)
    path = cluster.mount_path / "made"
    with ExitStack() as stack:
        with cluster.paused(cluster.metaserver):
            maker = stack.enter_context(_maker_of(path))
        said, _ = maker.communicate(timeout=30)
        assert said == "handled\nmade\n", "and not an error of a file that exists"
    assert path.exists()


def test_a_killed_caller_goes_at_once_though_it_was_interrupted_before(
    make_cluster: ClusterMaker,
) -> None:
    """The kernel notifies the client only of the first signal."""
    cluster = make_cluster(storage_servers=1)
    with cluster.paused(cluster.metaserver), _maker_of(cluster.mount_path / "made") as maker:
        started = time.monotonic()
        maker.kill()
        maker.wait(20)
        assert time.monotonic() - started < 2.0


def test_dead_server_gives_eio_after_the_timeout(make_cluster: ClusterMaker) -> None:
    cluster = make_cluster(storage_servers=1, client_options=("timeout=2",))
    path = cluster.mount_path / "file"
    path.write_bytes(os.urandom(2 << 20))
    cluster.remount()
    cluster.storageservers[0].kill()
    started = time.monotonic()
    with pytest.raises(OSError) as caught:
        path.read_bytes()
    assert caught.value.errno == errno.EIO
    assert 1.0 < time.monotonic() - started < 20
    cluster.storageservers[0].start()
    assert wait_until(lambda: _readable(path), 20)


def _readable(path: Path) -> bool:
    try:
        return len(path.read_bytes()) == 2 << 20
    except OSError:
        return False
