"""Files that lanes create themselves in delegated directories are like any other for every
observer, whichever program dies meanwhile (docs/decisions/0013-delegation.md).
"""

import contextlib
import errno
import os
import signal
import stat
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

pytestmark = pytest.mark.mount

COUNT = 300
USER, GROUP = 12345, 23456


def births(cluster: Cluster) -> int:
    """How many files lanes have created since the mount."""
    return lanes_counted(cluster, "births")


def make(folder: Path, names: list[str], mode: int = 0o644) -> None:
    for name in names:
        os.close(os.open(folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))


def delegated(cluster: Cluster, folder: Path) -> None:
    """Creates files in the folder until lanes create them."""
    wait_delegated(cluster, "births", lambda number: make(folder, [f"first-{number}"]))


@pytest.fixture
def folder(cluster: Cluster, workdir: Path) -> Path:
    new = workdir / "folder"
    new.mkdir()
    delegated(cluster, new)
    return new


def test_they_are_files_as_any_other(cluster: Cluster, folder: Path) -> None:
    started_ns = time.time_ns() - 20_000_000
    names = [f"{number}" for number in range(COUNT)]
    before = births(cluster)
    make(folder, names, 0o3600)
    assert births(cluster) - before > COUNT * 0.9
    made = [(folder / name).stat() for name in names]
    assert {status.st_mode for status in made} == {stat.S_IFREG | 0o3600}
    assert {(status.st_nlink, status.st_size, status.st_blocks) for status in made} == {(1, 0, 0)}
    assert len({status.st_ino for status in made}) == COUNT
    for status in made:
        assert started_ns <= status.st_mtime_ns == status.st_ctime_ns <= time.time_ns()
    assert set(names) < set(os.listdir(folder))
    assert folder.stat().st_mtime_ns >= made[-1].st_mtime_ns
    with pytest.raises(FileExistsError):
        make(folder, [names[0]])
    cluster.remount()
    for name, status in zip(names, made, strict=True):
        again = (folder / name).stat()
        assert again.st_ino == status.st_ino
        assert again.st_mtime_ns == status.st_mtime_ns
        assert again.st_mode == status.st_mode


def test_files_of_new_directories_are_made_by_lanes_at_once(
    cluster: Cluster, workdir: Path, other: Path
) -> None:
    def first(number: int) -> None:
        (workdir / f"first-{number}").mkdir()
        make(workdir / f"first-{number}", ["only"])

    wait_delegated(cluster, "births", first)  # the first creation requests slots
    before = births(cluster)
    for number in range(40):
        (workdir / f"{number}" / "in").mkdir(parents=True)
        for folder in (workdir / f"{number}", workdir / f"{number}" / "in"):
            make(folder, ["only"])
            (folder / "written").write_bytes(b"x" * 5000)
    assert births(cluster) - before > 160 * 0.9
    there = seen_from(other, cluster, workdir)
    for number in range(40):
        assert set(os.listdir(there / f"{number}")) == {"in", "only", "written"}
        assert (there / f"{number}" / "in" / "written").read_bytes() == b"x" * 5000
        (there / f"{number}" / "in" / "theirs").touch()
        make(workdir / f"{number}" / "in", ["again"])
        names = set(os.listdir(workdir / f"{number}" / "in"))
        assert names == {"again", "only", "theirs", "written"}


def test_owner_and_umask_are_the_callers(cluster: Cluster, folder: Path) -> None:
    folder.chmod(0o777)
    code = (
        "import os, sys\n"
        f"os.setgroups([]); os.setgid({GROUP}); os.setuid({USER}); os.umask(0o027)\n"
        "for number in range(50):\n"
        "    os.close(os.open(f'{sys.argv[1]}/u{number}', os.O_CREAT | os.O_WRONLY, 0o666))\n"
    )
    subprocess.run([sys.executable, "-c", code, folder], check=True, timeout=60)
    for number in range(50):
        status = (folder / f"u{number}").stat()
        assert (status.st_uid, status.st_gid) == (USER, GROUP)
        assert stat.S_IMODE(status.st_mode) == 0o640


@pytest.mark.parametrize("kind", ["set-group-id", "default ACL", "immutable", "not writable"])
def test_what_the_directory_says_of_new_files_holds_at_once(folder: Path, kind: str) -> None:
    if kind == "set-group-id":
        os.chown(folder, -1, GROUP)
        folder.chmod(0o2777)
        make(folder, ["new"])
        assert (folder / "new").stat().st_gid == GROUP
    elif kind == "default ACL":
        subprocess.run(["setfacl", "-d", "-m", f"u:{USER}:rw", folder], check=True, timeout=60)
        make(folder, ["new"])
        acl = subprocess.run(
            ["getfacl", "-cn", folder / "new"],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        assert f"user:{USER}:rw-" in acl
    elif kind == "immutable":
        subprocess.run(["chattr", "+i", folder], check=True, timeout=60)
        try:
            with pytest.raises(PermissionError):
                make(folder, ["new"])
        finally:
            subprocess.run(["chattr", "-i", folder], check=True, timeout=60)
    else:
        folder.chmod(0o555)
        code = f"import os; os.setuid({USER}); os.open(r'{folder}/new', os.O_CREAT | os.O_WRONLY)"
        ended = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
        )
        assert "PermissionError" in ended.stderr


def test_bytes_and_names_change_as_ever(cluster: Cluster, folder: Path) -> None:
    before = births(cluster)
    for number in range(100):
        with (folder / f"{number}").open("xb") as file:
            file.write(b"x" * number * 100)
    assert births(cluster) - before > 90
    for number in range(0, 100, 2):
        (folder / f"{number}").rename(folder / f"even-{number}")
    for number in range(1, 100, 4):
        (folder / f"{number}").unlink()
    for number in range(0, 100, 2):
        assert (folder / f"even-{number}").read_bytes() == b"x" * number * 100
    make(folder, ["1", "0"])
    left = {f"{n}" for n in range(3, 100, 4)} | {f"even-{n}" for n in range(0, 100, 2)} | {"0", "1"}
    assert {name for name in os.listdir(folder) if not name.startswith("first")} == left
    cluster.remount()
    assert {name for name in os.listdir(folder) if not name.startswith("first")} == left


def test_closed_files_have_their_sizes_and_times_at_once(cluster: Cluster, folder: Path) -> None:
    """The metaserver is told of them later, in one message for each."""
    before = lanes_counted(cluster, "commits_with_births")
    sizes = {f"{number}": 1 + number * 7919 for number in range(COUNT)}
    for name, size in sizes.items():
        (folder / name).write_bytes(b"x" * size)
        status = (folder / name).stat()
        assert (status.st_size, status.st_blocks) == (size, -(-size // 512))
        assert status.st_mtime_ns >= folder.stat().st_mtime_ns
    assert lanes_counted(cluster, "commits_with_births") - before > COUNT / 2
    times = {name: (folder / name).stat().st_mtime_ns for name in sizes}
    cluster.remount()
    for name, size in sizes.items():
        status = (folder / name).stat()
        assert (status.st_size, status.st_mtime_ns) == (size, times[name])
        assert (folder / name).read_bytes() == b"x" * size


def test_what_is_written_after_its_time_was_set_has_the_time_of_the_write(
    cluster: Cluster, folder: Path
) -> None:
    names = [f"{number}" for number in range(50)]
    started_ns = time.time_ns() - 20_000_000
    for number, name in enumerate(names):
        with (folder / name).open("xb", buffering=0) as file:
            file.write(b"before")
            os.utime(file.fileno(), ns=(5, 5))
            if number % 2:
                file.write(b"after")
    for is_remounted in (False, True):
        for number, name in enumerate(names):
            mtime_ns = (folder / name).stat().st_mtime_ns
            if number % 2:
                assert mtime_ns > started_ns, is_remounted
            else:
                assert mtime_ns == 5, is_remounted
        cluster.remount()


def test_another_client_sees_what_was_made_before_it_looked(
    cluster: Cluster, folder: Path, other: Path
) -> None:
    there = seen_from(other, cluster, folder)
    for number in range(20):
        make(folder, [f"{number}"])
        assert (there / f"{number}").exists()
        assert f"{number}" in os.listdir(there)
        assert there.stat().st_mtime_ns == folder.stat().st_mtime_ns
        with pytest.raises(FileExistsError):
            make(there, [f"{number}"])
        make(there, [f"other-{number}"])
        with pytest.raises(FileExistsError):
            make(folder, [f"other-{number}"])


def test_two_clients_make_files_in_one_directory(
    cluster: Cluster, folder: Path, other: Path, sized: Callable[[int, int], int]
) -> None:
    count = sized(200, 20_000)
    there = seen_from(other, cluster, folder)
    won: dict[str, list[int]] = {"one": [], "two": []}

    def contend(place: Path, who: str) -> None:
        for number in range(count):
            try:
                make(place, [f"{number}"])
            except FileExistsError:
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
    assert sorted(won["one"] + won["two"]) == list(range(count)), "each name was made once"


@pytest.mark.expects_warnings
def test_what_was_synced_survives_the_clients_death(
    make_cluster: Callable[..., Cluster], localdir: Path
) -> None:
    cluster = make_cluster(settings=SHORT_SESSIONS)
    folder = cluster.mount_path / "folder"
    folder.mkdir()
    delegated(cluster, folder)
    names = [f"{number}" for number in range(COUNT)]
    make(folder, names)
    fd = os.open(folder, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    with (folder / "synced").open("xb") as file:
        file.write(b"content")
        os.fsync(file.fileno())
    pid = cluster.client_pid()
    assert pid is not None
    mounts.kill_client(pid)
    cluster.unmount(lazy=True)
    cluster.mount()
    assert {*names, "synced"} <= set(os.listdir(folder))
    assert (folder / "synced").read_bytes() == b"content"


@pytest.mark.expects_warnings
def test_nothing_is_lost_when_the_metaserver_is_killed(
    make_cluster: Callable[..., Cluster], localdir: Path, sized: Callable[[int, int], int]
) -> None:
    cluster = make_cluster()
    folder = cluster.mount_path / "folder"
    folder.mkdir()
    delegated(cluster, folder)
    others = len(os.listdir(folder))
    worker = Turnover(folder, localdir / "log", "keep")
    with contextlib.ExitStack() as stack:
        stack.callback(worker.end)
        for _ in range(sized(4, 40)):
            enough = len(worker.lines()) + 50
            assert wait_until(lambda enough=enough: worker.has(enough), 90)  # type: ignore[misc]
            cluster.metaserver.signal(signal.SIGKILL)
            assert wait_until(lambda: cluster.metaserver.pid() is None, 20)
            cluster.metaserver.start()
    cluster.remount()
    worker.check(folder, others)


# ---- written and closed before they were reported to the metaserver ------------------------------


def test_size_and_bytes_are_seen_elsewhere_at_once(
    cluster: Cluster, folder: Path, other: Path
) -> None:
    there = seen_from(other, cluster, folder)
    for number in range(60):
        content = b"%d" % number * (number * 40)
        (folder / f"{number}").write_bytes(content)
        if number % 3 == 0:
            assert (there / f"{number}").stat().st_size == len(content)
        assert (there / f"{number}").read_bytes() == content
        mine, seen = ((at / f"{number}").stat() for at in (folder, there))
        assert (mine.st_size, mine.st_mtime_ns) == (seen.st_size, seen.st_mtime_ns)
        assert mine.st_ctime_ns == seen.st_ctime_ns
        assert mine.st_blocks == seen.st_blocks == (len(content) + 511) // 512


def test_closed_and_unmounted_at_once(cluster: Cluster, folder: Path) -> None:
    for number in range(5):
        for name in range(10):
            (folder / f"{number}-{name}").write_bytes(b"content")
        cluster.remount()
        assert len(os.listdir(folder)) >= 10 * (number + 1)
        for name in range(10):
            assert (folder / f"{number}-{name}").read_bytes() == b"content"


def test_written_again_and_again(cluster: Cluster, folder: Path) -> None:
    """The file is opened and closed many times before and after it is reported to the
    metaserver."""
    for number in range(30):
        path = folder / f"{number}"
        expected = b""
        for part in range(6):
            with path.open("ab") as file:
                file.write(b"%d" % part * 100)
            expected += b"%d" % part * 100
            assert path.stat().st_size == len(expected)
        with path.open("r+b") as file:
            file.truncate(250)
        assert path.read_bytes() == expected[:250]
    cluster.remount()
    for number in range(30):
        assert (folder / f"{number}").read_bytes() == expected[:250]


@pytest.mark.expects_warnings
def test_fsync_makes_the_file_whole(make_cluster: Callable[..., Cluster]) -> None:
    """The client process dies: what was synced is there, with what was created before it."""
    cluster = make_cluster(settings=SHORT_SESSIONS)
    folder = cluster.mount_path / "folder"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number}").write_bytes(b"before" * number)
    with (folder / "synced").open("xb") as file:
        file.write(b"synced" * 1000)
        file.flush()
        os.fsync(file.fileno())
    pid = cluster.client_pid()
    assert pid is not None
    mounts.kill_client(pid)
    cluster.unmount(lazy=True)
    cluster.mount()
    assert (folder / "synced").read_bytes() == b"synced" * 1000
    for number in range(40):
        assert (folder / f"{number}").read_bytes() == b"before" * number


def test_a_name_that_is_too_long_is_refused(folder: Path) -> None:
    with pytest.raises(OSError) as refused:
        make(folder, ["n" * 256])
    assert refused.value.errno == errno.ENAMETOOLONG
    make(folder, ["n" * 255])


def test_the_second_mount_finds_them_by_path(cluster: Cluster, folder: Path, other: Path) -> None:
    """Not by listing: each LOOKUP alone recalls what it needs."""
    make(folder, ["alone"])
    assert seen_from(other, cluster, folder / "alone").stat().st_size == 0
    assert mounts.is_mounted(other)
