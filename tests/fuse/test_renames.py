"""Names that lanes change themselves in delegated directories: like any other rename for every
observer, whichever program dies meanwhile (docs/decisions/0025-renames.md).
"""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import mounts
from tests.cluster.cluster import Cluster
from tests.cluster.plan import SHORT_SESSIONS
from tests.cluster.process import wait_until
from tests.conftest import ClusterMaker
from tests.fuse.looks import lanes_counted, seen_from, wait_delegated
from tests.fuse.test_removals import USER, make, numbered
from tests.fuse.turnover import Turnover

pytestmark = pytest.mark.mount

COUNT = 200


def renames(cluster: Cluster) -> int:
    """How many names lanes have changed since the mount."""
    return lanes_counted(cluster, "renames")


@pytest.fixture
def folder(cluster: Cluster, workdir: Path) -> Path:
    """A directory in which lanes rename."""
    new = workdir / "folder"
    new.mkdir()

    def change(number: int) -> None:
        make(new, ["first"])
        (new / "first").rename(new / f"second-{number}")
        (new / f"second-{number}").unlink()

    wait_delegated(cluster, "renames", change)
    return new


def replace_whole(folder: Path, name: str, content: bytes, *, sync: bool = False) -> None:
    """Replaces a file as programs do that must leave the old content or the new one, never
    a part."""
    with (folder / f"{name}.tmp").open("wb") as file:
        file.write(content)
        if sync:
            os.fsync(file.fileno())
    (folder / f"{name}.tmp").replace(folder / name)


# ---- one client ----------------------------------------------------------------------------------


def test_they_have_their_new_names(cluster: Cluster, folder: Path) -> None:
    make(folder, numbered(COUNT), b"content")
    before = renames(cluster)
    inos = {name: (folder / name).stat().st_ino for name in numbered(COUNT)}
    started_ns = time.time_ns() - 20_000_000
    for name in numbered(COUNT):
        (folder / name).rename(folder / f"new-{name}")
        assert not (folder / name).exists()
    assert renames(cluster) - before > COUNT * 0.8
    assert started_ns <= folder.stat().st_mtime_ns == folder.stat().st_ctime_ns <= time.time_ns()
    for name, ino in inos.items():
        seen = (folder / f"new-{name}").stat()
        assert (seen.st_ino, seen.st_nlink) == (ino, 1)
        assert started_ns <= seen.st_ctime_ns
    with pytest.raises(FileNotFoundError):
        (folder / "0").rename(folder / "1")
    cluster.remount()
    assert sorted(os.listdir(folder)) == sorted(f"new-{name}" for name in numbered(COUNT))
    assert {(folder / f"new-{name}").stat().st_ino for name in inos} == set(inos.values())
    assert (folder / "new-7").read_bytes() == b"content"


def test_one_file_replaced_again_and_again(cluster: Cluster, folder: Path) -> None:
    before = renames(cluster)
    for number in range(COUNT):
        replace_whole(folder, "state", b"%d" % number * 100)
        assert (folder / "state").read_bytes() == b"%d" % number * 100
        assert os.listdir(folder) == ["state"]
        assert (folder / "state").stat().st_nlink == 1
    assert renames(cluster) - before > COUNT * 0.8
    cluster.remount()
    assert (folder / "state").read_bytes() == b"%d" % (COUNT - 1) * 100


def test_what_is_replaced_lives_while_it_is_open(folder: Path) -> None:
    for number in range(30):
        replace_whole(folder, "state", b"old %d" % number)
        with (folder / "state").open("r+b") as file:
            replace_whole(folder, "state", b"new")
            assert os.fstat(file.fileno()).st_nlink == 0
            assert file.read() == b"old %d" % number
            file.write(b"more")
            file.flush()
            assert os.fstat(file.fileno()).st_size == len(b"old %d" % number) + 4
        assert (folder / "state").read_bytes() == b"new"


def test_renamed_while_it_is_written(folder: Path) -> None:
    for number in range(30):
        with (folder / "one").open("xb") as file:
            file.write(b"a" * 50_000)
            (folder / "one").rename(folder / f"two-{number}")
            file.write(b"b" * 50_000)
            assert (folder / f"two-{number}").stat().st_nlink == 1
        assert (folder / f"two-{number}").read_bytes() == b"a" * 50_000 + b"b" * 50_000
    assert len(os.listdir(folder)) == 30


def test_read_again_under_the_new_name(cluster: Cluster, folder: Path) -> None:
    """Files that are cached with their directory's grant, or kept open, are renamed and read."""
    make(folder, numbered(COUNT), b"content")
    cluster.remount()
    for name in numbered(COUNT):
        assert (folder / name).read_bytes() == b"content"
    for _ in range(2):
        for name in numbered(COUNT):
            times = (folder / name).stat()
            (folder / name).rename(folder / "aside")
            assert (folder / "aside").read_bytes() == b"content"
            seen = (folder / "aside").stat()
            assert (seen.st_mtime_ns, seen.st_size) == (times.st_mtime_ns, times.st_size)
            assert seen.st_ctime_ns > times.st_ctime_ns
            (folder / "aside").rename(folder / name)
    assert sorted(os.listdir(folder)) == sorted(numbered(COUNT))


def test_hard_links_and_special_files(cluster: Cluster, folder: Path) -> None:
    make(folder, ["file"])
    os.link(folder / "file", folder / "link")
    # These are two names of one inode: nothing happens.
    os.rename(folder / "file", folder / "link")
    assert sorted(os.listdir(folder)) == ["file", "link"]
    (folder / "file").rename(folder / "other")
    assert (folder / "link").stat().st_nlink == (folder / "other").stat().st_nlink == 2
    os.symlink("nowhere", folder / "symlink")
    os.mkfifo(folder / "pipe")
    for name in ("symlink", "pipe"):
        (folder / name).rename(folder / f"new-{name}")
        (folder / f"new-{name}").rename(folder / "other")
        assert os.path.lexists(folder / "other")
    assert (folder / "link").stat().st_nlink == 1
    cluster.remount()
    assert sorted(os.listdir(folder)) == ["link", "other"]


def test_errors_are_those_of_rename(folder: Path) -> None:
    (folder / "folder").mkdir()
    (folder / "full").mkdir()
    make(folder / "full", ["inner"])
    make(folder, ["file"])
    for name, new_name, wanted in (
        ("none", "new", errno.ENOENT),
        ("file", "n" * 256, errno.ENAMETOOLONG),
        ("file", "folder", errno.EISDIR),
        ("folder", "file", errno.ENOTDIR),
        ("folder", "full", errno.ENOTEMPTY),
        ("folder", "folder/below", errno.EINVAL),
    ):
        with pytest.raises(OSError) as refused:
            os.rename(folder / name, folder / new_name)
        assert refused.value.errno == wanted, (name, new_name)
    assert sorted(os.listdir(folder)) == ["file", "folder", "full"]


@pytest.mark.parametrize("kind", ["sticky", "not writable", "immutable", "append-only"])
def test_who_may_not_may_not(folder: Path, kind: str) -> None:
    make(folder, numbered(20))
    (folder / "19").rename(folder / "20")
    code = f"import os; os.setuid({USER}); os.rename(r'{folder}/1', r'{folder}/2')"
    if kind == "sticky":
        folder.chmod(0o1777)
    elif kind == "not writable":
        folder.chmod(0o755)
    else:
        flag = "i" if kind == "immutable" else "a"
        of = folder if kind == "append-only" else folder / "2"
        code = f"import os; os.rename(r'{folder}/1', r'{folder}/2')"
        subprocess.run(["chattr", f"+{flag}", of], check=True, timeout=60)
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert "PermissionError" in ended.stderr
    assert (folder / "1").exists()
    if kind in ("immutable", "append-only"):
        subprocess.run(["chattr", f"-{flag}", of], check=True, timeout=60)
    (folder / "1").rename(folder / "2")
    assert not (folder / "1").exists()


def test_bytes_of_what_is_replaced_are_given_back(cluster: Cluster, folder: Path) -> None:
    def stored() -> int:
        targets = (cluster.plan.state / "targets").rglob("*")
        return sum(1 for path in targets if path.parent.parent.name == "objects")

    before = stored()
    for number in range(COUNT):
        replace_whole(folder, "state", b"%d" % number * 1000)
    assert wait_until(lambda: stored() <= before + 8, 60)


# ---- two clients ---------------------------------------------------------------------------------


def test_another_client_sees_the_new_names(cluster: Cluster, folder: Path, other: Path) -> None:
    there = seen_from(other, cluster, folder)
    make(folder, numbered(60), b"content")
    for number in range(20):
        (folder / f"{number}").rename(folder / f"new-{number}")
        assert not (there / f"{number}").exists()
        assert (there / f"new-{number}").read_bytes() == b"content"
        (folder / f"{number + 20}").rename(folder / f"new-{number + 20}")
        with pytest.raises(FileNotFoundError):
            os.rename(there / f"{number + 20}", there / "mine")
        (folder / f"{number + 40}").rename(folder / f"new-{number + 40}")
        assert f"new-{number + 40}" in os.listdir(there)
        assert there.stat().st_mtime_ns == folder.stat().st_mtime_ns
        seen, mine = ((at / f"new-{number + 40}").stat() for at in (there, folder))
        assert seen.st_ctime_ns == mine.st_ctime_ns
        (there / f"new-{number}").rename(there / f"{number}")
        assert (folder / f"{number}").read_bytes() == b"content"


def test_a_reader_elsewhere_sees_the_old_or_the_new(
    cluster: Cluster, folder: Path, other: Path
) -> None:
    """A reader never finds the name missing, and never sees a part of a file."""
    there = seen_from(other, cluster, folder)
    replace_whole(folder, "state", b"%08d" % 0 * 1000)
    problems: list[str] = []
    ended = threading.Event()

    def read() -> None:
        last = 0
        while not ended.is_set():
            try:
                content = (there / "state").read_bytes()
            except OSError as error:
                problems.append(f"after {last}: {error}")
                continue
            if content != content[:8] * 1000:
                problems.append(f"{len(content)} bytes, {content[:16]!r}")
            elif int(content[:8]) < last:
                problems.append(f"{int(content[:8])} after {last}")
            else:
                last = int(content[:8])

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(1, 151):
            replace_whole(folder, "state", b"%08d" % number * 1000)
    finally:
        ended.set()
        reader.join(60)
    assert not problems, problems[:5]
    assert (there / "state").read_bytes() == b"%08d" % 150 * 1000


def test_two_clients_rename_the_same_names(cluster: Cluster, folder: Path, other: Path) -> None:
    there = seen_from(other, cluster, folder)
    make(folder, numbered(COUNT))
    won: dict[str, list[int]] = {"one": [], "two": []}

    def contend(place: Path, who: str) -> None:
        for number in range(COUNT):
            with contextlib.suppress(FileNotFoundError):
                os.rename(place / f"{number}", place / f"{number}-{who}")
                won[who].append(number)

    threads = [
        threading.Thread(target=contend, args=each) for each in ((folder, "one"), (there, "two"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(won["one"] + won["two"]) == list(range(COUNT))
    left = sorted([f"{n}-one" for n in won["one"]] + [f"{n}-two" for n in won["two"]])
    assert sorted(os.listdir(folder)) == sorted(os.listdir(there)) == left


# ---- faults --------------------------------------------------------------------------------------


@pytest.mark.expects_warnings
def test_none_is_lost_with_the_metaserver(
    make_cluster: ClusterMaker, localdir: Path, sized: Callable[[int, int], int]
) -> None:
    """The metaserver is killed while two clients replace files, each in a directory of its own."""
    cluster = make_cluster()
    with cluster.second_client(localdir / "second") as second, contextlib.ExitStack() as stack:
        places = [cluster.mount_path / "one", second / "two"]
        workers = [Turnover(place, localdir / f"{place.name}.log", "rename") for place in places]
        for worker in workers:
            stack.callback(worker.end)
        for _ in range(sized(2, 40)):
            for worker in workers:
                enough = len(worker.lines()) + 80
                assert wait_until(lambda w=worker, e=enough: w.has(e), 90)  # type: ignore[misc]
            cluster.metaserver.signal(signal.SIGKILL)
            assert wait_until(lambda: cluster.metaserver.pid() is None, 20)
            cluster.metaserver.start()
        assert renames(cluster) > 80
    cluster.remount()
    for worker in workers:
        worker.check(cluster.mount_path / worker.place.name)


@pytest.mark.expects_warnings
def test_synced_ones_outlive_the_client(make_cluster: ClusterMaker) -> None:
    cluster = make_cluster(settings=SHORT_SESSIONS)
    folder = cluster.mount_path / "folder"
    folder.mkdir()
    for number in range(60):
        replace_whole(folder, f"{number % 20}", b"%d" % number, sync=True)
    fd = os.open(folder, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    assert renames(cluster) > 20
    pid = cluster.client_pid()
    assert pid is not None
    mounts.kill_client(pid)
    cluster.unmount(lazy=True)
    cluster.mount()
    assert sorted(os.listdir(folder)) == sorted(numbered(20))
    assert [(folder / f"{n}").read_bytes() for n in range(20)] == [
        b"%d" % (n + 40) for n in range(20)
    ]


def test_they_are_answered_while_the_metaserver_is_silent(cluster: Cluster, folder: Path) -> None:
    """As many as the client can remember are answered, and none is lost."""
    make(folder, numbered(COUNT))
    listed = os.listdir(folder)
    fd = os.open(folder, os.O_RDONLY)
    os.fsync(fd)
    with cluster.paused(cluster.metaserver):
        for name in listed:
            (folder / name).rename(folder / f"new-{name}")
        assert not (folder / "0").exists()
    os.fsync(fd)
    os.close(fd)
    cluster.remount()
    assert sorted(os.listdir(folder)) == sorted(f"new-{name}" for name in listed)
