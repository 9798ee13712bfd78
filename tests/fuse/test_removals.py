"""Names that lanes remove themselves in delegated directories: they are gone for every observer,
and the files are like any other removed file, whichever program dies meanwhile
(docs/decisions/0014-removals.md).
"""

import contextlib
import errno
import os
import shutil
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
from tests.fuse.looks import lanes_counted, seen_from, wait_delegated
from tests.fuse.turnover import Turnover

COUNT = 300
USER = 12345


def removals(cluster: Cluster) -> int:
    """How many names lanes have removed since the mount."""
    return lanes_counted(cluster, "removals")


def make(folder: Path, names: list[str], content: bytes = b"") -> None:
    for name in names:
        with (folder / name).open("xb") as file:
            file.write(content)


def numbered(count: int = COUNT) -> list[str]:
    return [f"{number}" for number in range(count)]


def empty(cluster: Cluster, folder: Path) -> None:
    """Creates and removes files in the folder until lanes remove them."""

    def change(number: int) -> None:
        make(folder, [f"first-{number}"])
        (folder / f"first-{number}").unlink()

    wait_delegated(cluster, "removals", change)


@pytest.fixture
def folder(cluster: Cluster, workdir: Path) -> Path:
    new = workdir / "folder"
    new.mkdir()
    empty(cluster, new)
    return new


# ---- one client ----------------------------------------------------------------------------------


def test_they_are_gone(cluster: Cluster, folder: Path) -> None:
    make(folder, numbered(), b"content")
    before = removals(cluster)
    started_ns = time.time_ns() - 20_000_000
    for name in numbered():
        (folder / name).unlink()
        assert not (folder / name).exists()
    assert removals(cluster) - before > COUNT * 0.8
    assert os.listdir(folder) == []
    assert started_ns <= folder.stat().st_mtime_ns == folder.stat().st_ctime_ns <= time.time_ns()
    with pytest.raises(FileNotFoundError):
        (folder / "0").unlink()
    make(folder, ["0"], b"another")
    cluster.remount()
    assert os.listdir(folder) == ["0"]
    assert (folder / "0").read_bytes() == b"another"


def test_a_tree_of_many_directories_goes_whole(cluster: Cluster, workdir: Path) -> None:
    """Each directory is empty before its RMDIR, which is sent after the changes of lanes in it."""
    for number in range(30):
        inner = workdir / "tree" / f"{number % 5}" / f"{number}"
        inner.mkdir(parents=True)
        make(inner, numbered(12))
        os.symlink("nowhere", inner / "link")
        os.mkfifo(inner / "pipe")
    cluster.remount()
    before = removals(cluster)
    shutil.rmtree(workdir / "tree")
    assert removals(cluster) - before > 100
    assert not (workdir / "tree").exists()
    cluster.remount()
    assert os.listdir(workdir) == []


def test_names_that_are_listed_meanwhile(folder: Path) -> None:
    """rm while a page of the listing still has removed names: no name comes back."""
    names = numbered(1500)
    make(folder, names)
    left = set(names)
    with os.scandir(folder) as listing:
        for entry in listing:
            os.unlink(entry.path)
            left.discard(entry.name)
            assert not os.path.lexists(entry.path)
    assert left == set()
    assert os.listdir(folder) == []
    for name in names:
        assert not (folder / name).exists()


def test_an_open_file_lives_until_it_is_closed(folder: Path) -> None:
    make(folder, numbered(), b"content")
    fds = {name: os.open(folder / name, os.O_RDWR) for name in numbered()[::10]}
    for name in numbered():
        (folder / name).unlink()
    for name, fd in fds.items():
        assert os.pread(fd, 100, 0) == b"content"
        assert os.fstat(fd).st_nlink == 0
        os.pwrite(fd, name.encode(), 0)
        os.fsync(fd)
        assert os.pread(fd, len(name), 0) == name.encode()
        os.close(fd)
    assert os.listdir(folder) == []


def test_what_was_just_written_or_is_about_to_be(folder: Path) -> None:
    for number in range(50):
        path = folder / f"{number}"
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR)
        os.write(fd, b"x" * 100_000)
        if number % 2:
            os.close(fd)
            path.unlink()
        else:
            path.unlink()
            assert os.fstat(fd).st_nlink == 0
            os.write(fd, b"y")
            assert os.fstat(fd).st_size == 100_001
            assert os.pread(fd, 2, 99_999) == b"xy"
            os.close(fd)
        assert not path.exists()
    assert os.listdir(folder) == []


def test_an_inode_that_is_known_by_no_name_says_so(folder: Path) -> None:
    make(folder, ["file"])
    changed_ns = (folder / "file").stat().st_ctime_ns
    fd = os.open(folder / "file", os.O_PATH)
    (folder / "file").unlink()
    gone = os.fstat(fd)
    os.close(fd)
    assert gone.st_nlink == 0
    assert gone.st_ctime_ns >= changed_ns


def test_another_name_keeps_the_file(folder: Path) -> None:
    make(folder, numbered(), b"content")
    for name in numbered()[::7]:
        os.link(folder / name, folder / f"link-{name}")
    for name in numbered():
        (folder / name).unlink()
    for name in numbered()[::7]:
        link = folder / f"link-{name}"
        assert link.stat().st_nlink == 1
        assert link.read_bytes() == b"content"
        link.unlink()
    assert os.listdir(folder) == []


def test_a_name_that_is_made_and_removed_by_turns(cluster: Cluster, folder: Path) -> None:
    for number in range(COUNT):
        make(folder, ["turn"])
        assert (folder / "turn").stat().st_nlink == 1
        if number % 3 == 2:
            os.rename(folder / "turn", folder / "renamed")
            os.rename(folder / "renamed", folder / "turn")
        (folder / "turn").unlink()
        assert os.listdir(folder) == [] or number % 10
    make(folder, ["turn"])
    cluster.remount()
    assert os.listdir(folder) == ["turn"]


@pytest.mark.parametrize("kind", ["sticky", "not writable", "immutable", "append-only"])
def test_who_may_not_may_not(folder: Path, kind: str) -> None:
    make(folder, numbered(20))
    (folder / "19").unlink()
    code = f"import os; os.setuid({USER}); os.unlink(r'{folder}/1')"
    if kind == "sticky":
        folder.chmod(0o1777)
    elif kind == "not writable":
        folder.chmod(0o755)
    else:
        flag = "i" if kind == "immutable" else "a"
        of = folder if kind == "append-only" else folder / "1"
        code = f"import os; os.unlink(r'{folder}/1')"
        subprocess.run(["chattr", f"+{flag}", of], check=True, timeout=60)
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert "PermissionError" in ended.stderr
    assert (folder / "1").exists()
    if kind in ("immutable", "append-only"):
        subprocess.run(["chattr", f"-{flag}", of], check=True, timeout=60)
    (folder / "1").unlink()
    assert not (folder / "1").exists()


def test_errors_are_those_of_unlink(folder: Path) -> None:
    (folder / "folder").mkdir()
    for name, wanted in (
        ("none", errno.ENOENT),
        ("n" * 256, errno.ENAMETOOLONG),
        ("folder", errno.EISDIR),
    ):
        with pytest.raises(OSError) as refused:
            (folder / name).unlink()
        assert refused.value.errno == wanted
    with pytest.raises(OSError) as refused:
        os.rmdir(folder)
    assert refused.value.errno == errno.ENOTEMPTY


def test_their_bytes_are_given_back(cluster: Cluster, folder: Path) -> None:
    def stored() -> int:
        targets = (cluster.plan.state / "targets").rglob("*")
        return sum(1 for path in targets if path.parent.parent.name == "objects")

    before = stored()
    make(folder, numbered(200), b"x" * 5000)
    fd = os.open(folder, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    assert stored() >= before + 200
    for name in numbered(200):
        (folder / name).unlink()
    assert wait_until(lambda: stored() <= before, 60)


# ---- two clients ---------------------------------------------------------------------------------


def test_another_client_sees_what_is_left(cluster: Cluster, folder: Path, other: Path) -> None:
    there = seen_from(other, cluster, folder)
    make(folder, numbered())
    for number in range(20):
        (folder / f"{number}").unlink()
        assert not (there / f"{number}").exists()
        (folder / f"{number + 100}").unlink()
        with pytest.raises(FileNotFoundError):
            os.unlink(there / f"{number + 100}")
        (folder / f"{number + 200}").unlink()
        assert f"{number + 200}" not in os.listdir(there)
        assert there.stat().st_mtime_ns == folder.stat().st_mtime_ns
        make(there, [f"{number}"], b"made there")
        assert (folder / f"{number}").read_bytes() == b"made there"
    assert len(os.listdir(folder)) == COUNT - 40


def test_open_there(cluster: Cluster, folder: Path, other: Path) -> None:
    """Files that another client has open stay readable, and show at once that they have no name."""
    there = seen_from(other, cluster, folder)
    make(folder, numbered(50), b"still here")
    fds = {name: os.open(there / name, os.O_RDONLY) for name in numbered(50)[::5]}
    for name in numbered(50):
        (folder / name).unlink()
        if name in fds:
            assert os.fstat(fds[name]).st_nlink == 0
    for fd in fds.values():
        assert os.fstat(fd).st_nlink == 0
        assert os.pread(fd, 100, 0) == b"still here"
        os.close(fd)
    assert os.listdir(there) == []


def test_known_there(cluster: Cluster, folder: Path, other: Path) -> None:
    """Another client has the attributes of every file: removing them waits for no client."""
    there = seen_from(other, cluster, folder)
    make(folder, numbered())
    assert {(there / name).stat().st_nlink for name in numbered()} == {1}
    before = removals(cluster)
    shutil.rmtree(folder)
    assert not there.exists()
    assert not any((there / name).exists() for name in numbered())
    assert removals(cluster) >= before


def test_two_clients_remove_the_same_names(
    cluster: Cluster, folder: Path, other: Path, sized: Callable[[int, int], int]
) -> None:
    count = sized(300, 20_000)
    there = seen_from(other, cluster, folder)
    make(folder, numbered(count))
    won: dict[str, list[int]] = {"one": [], "two": []}

    def contend(place: Path, who: str) -> None:
        for number in range(count):
            try:
                os.unlink(place / f"{number}")
            except FileNotFoundError:
                continue
            won[who].append(number)

    threads = [
        threading.Thread(target=contend, args=(folder, "one")),
        threading.Thread(target=contend, args=(there, "two")),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won["one"] + won["two"]) == list(range(count)), "each name was removed once"
    assert os.listdir(folder) == os.listdir(there) == []


# ---- killed programs
# ------------------------------------------------------------------------------


@pytest.mark.expects_warnings
def test_what_was_synced_is_gone_after_the_clients_death(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster(settings=SHORT_SESSIONS)
    folder = cluster.mount_path / "folder"
    folder.mkdir()
    empty(cluster, folder)
    make(folder, numbered())
    for name in numbered()[: COUNT // 2]:
        (folder / name).unlink()
    fd = os.open(folder, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    for name in numbered()[COUNT // 2 : -10]:
        (folder / name).unlink()
    pid = cluster.client_pid()
    assert pid is not None
    mounts.kill_client(pid)
    cluster.unmount(lazy=True)
    cluster.mount()
    left = set(os.listdir(folder))
    assert left <= set(numbered()[COUNT // 2 :])
    assert left >= set(numbered()[-10:])
    shutil.rmtree(folder)


@pytest.mark.expects_warnings
def test_nothing_comes_back_when_the_metaserver_is_killed(
    make_cluster: Callable[..., Cluster], localdir: Path, sized: Callable[[int, int], int]
) -> None:
    """Two clients work, each in a directory of its own."""
    cluster = make_cluster()
    with cluster.second_client(localdir / "second") as second, contextlib.ExitStack() as stack:
        places = [cluster.mount_path / "one", second / "two"]
        workers = [Turnover(place, localdir / f"{place.name}.log", "remove") for place in places]
        for worker in workers:
            stack.callback(worker.end)
        for _ in range(sized(2, 40)):
            for worker in workers:
                enough = len(worker.lines()) + 80
                assert wait_until(lambda w=worker, e=enough: w.has(e), 90)  # type: ignore[misc]
            cluster.metaserver.signal(signal.SIGKILL)
            assert wait_until(lambda: cluster.metaserver.pid() is None, 20)
            cluster.metaserver.start()
    cluster.remount()
    for worker in workers:
        worker.check(cluster.mount_path / worker.place.name)


def test_removals_are_answered_while_the_metaserver_is_silent(
    cluster: Cluster, folder: Path
) -> None:
    """As many as the client can remember are answered, and none is lost."""
    make(folder, numbered())
    listed = os.listdir(folder)
    fd = os.open(folder, os.O_RDONLY)
    os.fsync(fd)
    with cluster.paused(cluster.metaserver):
        for name in listed:
            (folder / name).unlink()
        assert not (folder / "0").exists()
    os.fsync(fd)
    os.close(fd)
    cluster.remount()
    assert os.listdir(folder) == []
