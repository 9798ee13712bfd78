"""Two mounts of one cluster, each with a client process of its own, see one file system.

`pair` is one new folder on both. The other client must see at once what was done on one: no test
here waits for a cache to expire.
"""

import errno
import mmap
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import mounts
from tests.cluster.cluster import Cluster
from tests.cluster.numbers import metric, metrics, samples
from tests.cluster.plan import SHORT_SESSIONS
from tests.cluster.process import wait_until
from tests.fuse.posix.calls import RENAME_EXCHANGE, c

pytestmark = [pytest.mark.mount, pytest.mark.timeout(240)]

Pair = tuple[Path, Path]


@pytest.fixture(scope="module")
def other_mount(
    shared_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    point = tmp_path_factory.mktemp("two") / "other"
    point.mkdir()
    with shared_cluster.second_client(point) as other:
        yield other
    while mounts.is_mounted(point):
        mounts.unmount(point, lazy=True)


@pytest.fixture
def pair(cluster: Cluster, workdir: Path, other_mount: Path) -> Pair:
    return workdir, other_mount / workdir.relative_to(cluster.mount_path)


def _each_way(pair: Pair) -> tuple[Pair, Pair]:
    return pair, (pair[1], pair[0])


# ---- close-to-open -------------------------------------------------------------------------------


def test_open_sees_what_close_wrote(pair: Pair) -> None:
    for number in range(20):
        for index, (writer, reader) in enumerate(_each_way(pair)):
            wanted = b"%d %d\n" % (number, index) * (100 + 977 * number)
            (writer / "file").write_bytes(wanted)
            assert (reader / "file").read_bytes() == wanted
            assert (reader / "file").stat().st_size == len(wanted)


def test_truncate_is_seen(pair: Pair) -> None:
    first, second = pair
    (first / "file").write_bytes(b"x" * 100_000)
    assert (second / "file").stat().st_size == 100_000
    os.truncate(second / "file", 5)
    assert (first / "file").read_bytes() == b"xxxxx"
    os.truncate(first / "file", 0)
    assert (second / "file").read_bytes() == b""


@pytest.mark.parametrize("cut", [0, 5, 5000, 4096, 1 << 20, (1 << 20) + 1])
def test_a_read_ends_where_another_client_cut(pair: Pair, cut: int) -> None:
    """This includes a read that Linux sends as several READs, by the size that it received last.
    Each round has a file that is not known to be shared, of which the kernel keeps pages."""
    first, second = pair
    for number, size in enumerate((16384, 1 << 20, *[3 << 20] * 20)):
        name = f"{number} of {size} bytes"
        with (first / name).open("w+b", buffering=0) as file:
            file.write(b"x" * (3 << 20))
            os.truncate(second / name, cut)
            found = os.pread(file.fileno(), size, 0)
            assert len(found) == min(cut, size), name
            assert found == b"x" * len(found), name


# ---- attributes ----------------------------------------------------------------------------------


def test_attributes_are_seen_at_once(pair: Pair) -> None:
    first, second = pair
    (first / "file").touch()
    for number in range(20):
        mode = 0o600 | number
        (first / "file").chmod(mode)
        assert (second / "file").stat().st_mode & 0o777 == mode
        os.utime(second / "file", ns=(number, number * 1000))
        assert (first / "file").stat().st_mtime_ns == number * 1000
        os.setxattr(first / "file", "user.number", b"%d" % number)
        assert os.getxattr(second / "file", "user.number") == b"%d" % number


def test_stat_of_a_growing_file(pair: Pair) -> None:
    """Its writer keeps it open and flushes nothing."""
    first, second = pair
    with (first / "log").open("wb", buffering=0) as log:
        for count in range(1, 30):
            log.write(b"y" * 1000)
            assert (second / "log").stat().st_size == count * 1000


# ---- open on both clients ------------------------------------------------------------------------


def test_reads_see_completed_writes_of_an_open_file(pair: Pair) -> None:
    for index, (writer, reader) in enumerate(_each_way(pair)):
        name = f"file{index}"
        (writer / name).write_bytes(b"old " * 1024)
        out = os.open(writer / name, os.O_RDWR)
        into = os.open(reader / name, os.O_RDONLY)
        assert os.pread(into, 4, 0) == b"old "
        for number in range(30):
            wanted = b"%4d" % number
            os.pwrite(out, wanted, number * 40)
            assert os.pread(into, 4, number * 40) == wanted
        os.close(out)
        os.close(into)


def test_both_write_one_open_file(pair: Pair) -> None:
    """Handles that were opened before the file was shared see the other client's writes too."""
    first, second = (os.open(path / "file", os.O_RDWR | os.O_CREAT) for path in pair)
    for number in range(30):
        os.pwrite(first, b"A%5d" % number, number * 12)
        os.pwrite(second, b"B%5d" % number, number * 12 + 6)
        wanted = b"A%5dB%5d" % (number, number)
        assert os.pread(first, 12, number * 12) == wanted
        assert os.pread(second, 12, number * 12) == wanted
    os.close(first)
    os.close(second)
    assert len((pair[0] / "file").read_bytes()) == 30 * 12


def test_mapping_is_coherent_at_msync_and_open(pair: Pair) -> None:
    first, second = pair
    (first / "file").write_bytes(bytes(8192))
    with (first / "file").open("r+b") as file, mmap.mmap(file.fileno(), 8192) as mapping:
        for number in range(5):
            mapping[4096 + number] = 65 + number
            mapping.flush()
            wanted = bytes(range(65, 66 + number))
            assert (second / "file").read_bytes()[4096 : 4097 + number] == wanted


# ---- appends -------------------------------------------------------------------------------------


def _append(path: Path, tag: bytes, count: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for number in range(count):
        record = b"%s%06d" % (tag, number) + tag * (100 + number % 900) + b"\n"
        assert os.write(fd, record) == len(record)
    os.close(fd)


def test_appends_of_two_clients_lose_and_mix_nothing(
    pair: Pair, sized: Callable[[int, int], int]
) -> None:
    count = sized(60, 2000)
    (pair[0] / "log").touch()
    threads = [
        threading.Thread(target=_append, args=(path / "log", tag, count))
        for path, tag in zip(pair, (b"a", b"b"), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = (pair[0] / "log").read_bytes().splitlines()
    assert len(lines) == 2 * count
    for tag in (b"a", b"b"):
        own = [line for line in lines if line.startswith(tag)]
        assert [line[1:7] for line in own] == [b"%06d" % number for number in range(count)]
        assert all(line[7:] == tag * (100 + index % 900) for index, line in enumerate(own))
    assert (pair[1] / "log").read_bytes().splitlines() == lines


# ---- names ---------------------------------------------------------------------------------------


def test_names_are_seen_at_once(pair: Pair) -> None:
    for number in range(20):
        for here, there in _each_way(pair):
            name = f"name{number}"
            assert not (there / name).exists()  # an absent name is cached too
            (here / name).touch()
            assert (there / name).exists()
            (here / name).rename(here / "moved")
            assert not (there / name).exists()
            assert (there / "moved").exists()
            (there / "moved").unlink()
            assert not (here / "moved").exists()


@pytest.mark.parametrize("into", [".", "fresh", "shared"])
def test_renamed_name_is_recalled(pair: Pair, into: str) -> None:
    """The kernel keeps a dentry at a rename, with the time that it had under its old name."""
    here, there = pair
    for folder in ("fresh", "shared"):
        (here / folder).mkdir()
    (there / "shared" / "theirs").touch()  # that directory's lease was recalled
    with (here / "name").open("wb"):  # the inode exists on without a name
        (here / "name").rename(here / into / "moved")
        assert (here / into / "moved").exists()
        (there / into / "moved").unlink()
        assert not (here / into / "moved").exists()


def test_exchanged_names_are_recalled(pair: Pair) -> None:
    here, there = pair
    (here / "folder").mkdir()
    with (here / "one").open("wb") as one, (here / "folder" / "two").open("wb") as two:
        ends = bytes(here / "one"), bytes(here / "folder" / "two")
        c.renameat2(-100, ends[0], -100, ends[1], RENAME_EXCHANGE)
        assert (here / "one").stat().st_ino == os.fstat(two.fileno()).st_ino
        assert (here / "folder" / "two").stat().st_ino == os.fstat(one.fileno()).st_ino
        (there / "one").unlink()
        (there / "folder" / "two").unlink()
        assert not (here / "one").exists()
        assert not (here / "folder" / "two").exists()


def test_listing_sees_what_was_made_before(pair: Pair) -> None:
    for number in range(10):
        for here, there in _each_way(pair):
            (here / f"{number}-{here.parent.name}").mkdir()
            assert sorted(os.listdir(there)) == sorted(os.listdir(here))


def _race(pair: Pair, act: Callable[[Path], object]) -> list[object]:
    """Calls act() on both mounts at the same time; returns what each returned, or the errno with
    which it failed."""
    outcomes: list[object] = [None, None]
    barrier = threading.Barrier(2)

    def run(index: int) -> None:
        barrier.wait()
        try:
            outcomes[index] = act(pair[index])
        except OSError as error:
            outcomes[index] = errno.errorcode[error.errno or 0]

    threads = [threading.Thread(target=run, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def _create(path: Path) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))


def _acts(goal: str, own: str) -> dict[str, Callable[[Path], object]]:
    return {
        "create": lambda base: _create(base / goal),
        "mkdir": lambda base: (base / goal).mkdir(),
        "link": lambda base: os.link(base / "source", base / goal),
        "rename": lambda base: (base / own).rename(base / goal),
    }


def _renames(cluster: Cluster) -> int:
    """Renames that clients have requested from the metaserver so far."""
    server = cluster.plan.metaserver
    return int(metric(server, "braidfs_request_seconds_count", op="RENAME"))


@pytest.mark.parametrize("kind", ["create", "mkdir", "link", "rename"])
def test_one_of_two_clients_wins(cluster: Cluster, pair: Pair, kind: str) -> None:
    """Both may see success although one renamed: Linux sends no rename between names of one inode,
    and the name that it looks up first may have been moved before it looks up the other."""
    (pair[0] / "source").touch()
    for number in range(10):
        name = f"goal{number}"
        (pair[0] / f"mine{number}").touch()
        acts = _acts(name, f"mine{number}")
        renames = _renames(cluster)
        outcomes = _race(pair, acts[kind])
        loser = "ENOENT" if kind == "rename" else "EEXIST"
        losers = sum(outcome == loser for outcome in outcomes)
        if kind == "rename" and losers == 0:
            assert _renames(cluster) == renames + 1
        else:
            assert losers == 1, outcomes


def test_unlinked_here_but_open_there(pair: Pair) -> None:
    first, second = pair
    (first / "file").write_bytes(b"still here")
    fd = os.open(second / "file", os.O_RDONLY)
    (first / "file").unlink()
    assert not (second / "file").exists()
    assert os.pread(fd, 100, 0) == b"still here"
    assert os.fstat(fd).st_nlink == 0
    os.close(fd)


def _recalls(cluster: Cluster) -> dict[str, int]:
    """How many recalls have ended in each way so far."""
    server = cluster.plan.metaserver
    found = samples(metrics(server.metrics_port), "braidfs_lease_recalls_total")
    return {labels.split('"')[1]: int(count) for labels, count in found.items()}


def test_creating_and_unlinking_in_one_directory(
    cluster: Cluster, pair: Pair, sized: Callable[[int, int], int]
) -> None:
    """No recall ends by expiry (rule 6), as the metaserver counts them."""
    seconds = sized(4, 180)
    before = _recalls(cluster)
    slowest = [0.0, 0.0]
    counts = [0, 0]

    def work(index: int) -> None:
        ends = time.monotonic() + seconds
        while (began := time.monotonic()) < ends:
            path = pair[index] / f"{index}-{counts[index] % 7}"
            _create(path)
            path.unlink()
            counts[index] += 1
            slowest[index] = max(slowest[index], time.monotonic() - began)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recalls = {how: count - before.get(how, 0) for how, count in _recalls(cluster).items()}
    rates = ", ".join(f"{count / seconds:.0f}/s" for count in counts)
    print(f"created and removed: {rates} in {seconds} s, slowest {max(slowest):.2f} s; {recalls}")
    assert recalls.get("answered", 0) > seconds
    assert not recalls.get("expired", 0)
    assert max(slowest) < 8
    assert min(counts) > seconds
    assert os.listdir(pair[0]) == []


def test_fsync_of_a_file_that_another_client_emptied(pair: Pair) -> None:
    """The fsync does not make the holes of the new, empty file durable: they read as zeros."""
    for writer, other in _each_way(pair):
        out = os.open(writer / "file", os.O_RDWR | os.O_CREAT)
        os.write(out, os.urandom(3_000_000))
        os.close(os.open(other / "file", os.O_WRONLY | os.O_TRUNC))
        assert os.pread(out, 1, 0) == b""
        os.fsync(out)
        os.truncate(other / "file", 5_000_000)
        assert (other / "file").read_bytes() == bytes(5_000_000)
        assert os.pread(out, 5_000_000, 0) == bytes(5_000_000)
        os.close(out)
        os.unlink(writer / "file")


# ---- a client that vanishes ----------------------------------------------------------------------


@pytest.mark.expects_warnings
@pytest.mark.expects_log("the session was lost", "written bytes were lost")
def test_stopped_client_is_evicted_and_learns_so(
    make_cluster: Callable[..., Cluster], localdir: Path
) -> None:
    cluster = make_cluster(settings=SHORT_SESSIONS)
    point = localdir / "other"
    point.mkdir()
    with cluster.second_client(point) as other:
        base = cluster.mount_path
        pid = mounts.client_pid(point)
        assert pid is not None
        (base / "file").write_bytes(b"first")
        out = os.open(other / "file", os.O_WRONLY)
        kept = os.open(other / "clean", os.O_RDWR | os.O_CREAT)
        os.write(kept, b"kept")
        os.fsync(kept)
        (other / "closed").write_bytes(b"old!")  # it is never synced
        closed = (base / "closed").stat().st_ino
        os.write(out, b"LOST!")  # it would be sent after 0.1 s if the client were not stopped
        os.kill(pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            (base / "file").write_bytes(b"second")
            assert time.monotonic() - began < 60
            with (base / "closed").open("r+b") as file:
                file.write(b"new!")
        finally:
            os.kill(pid, signal.SIGCONT)
        with pytest.raises(OSError, match="Input/output"):
            os.fsync(out)
        os.fsync(kept)
        os.close(kept)
        os.close(out)
        assert (base / "file").read_bytes() == b"second"
        assert wait_until(lambda: (other / "file").read_bytes() == b"second", 20)
        log = cluster.plan.state / "log" / f"client-{point.name}.log"
        assert f"may not be durable: inodes {closed}" in log.read_text()
        with (other / "closed").open("r+b") as file:
            os.fsync(file.fileno())
        assert (base / "closed").read_bytes() == b"new!"
        (other / "again").write_bytes(b"goes on")
        assert (base / "again").read_bytes() == b"goes on"
