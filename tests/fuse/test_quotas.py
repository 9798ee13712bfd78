"""Quotas as programs see them: the call that exceeds a limit fails with EDQUOT, and none before."""

import ctypes
import errno
import json
import mmap
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fsclient.cli.main import cli
from tests.cluster import mounts
from tests.cluster.cluster import Cluster
from tests.cluster.process import wait_until
from tests.fuse.looks import lanes_counted, seen_from

pytestmark = [pytest.mark.mount, pytest.mark.timeout(120)]

LIBC = ctypes.CDLL(None, use_errno=True)
MIB = 1 << 20
UID = 61234
EDQUOT = "OSError: [Errno 122] Disk quota exceeded"
Quota = Callable[..., Any]


@pytest.fixture
def quota(cluster: Cluster) -> Quota:
    return quota_of(cluster)


def quota_of(cluster: Cluster) -> Quota:
    """`braidfs quota WORDS --json`, decoded; without a process of its own each time."""

    def run(*words: object) -> Any:
        command = [
            "quota",
            *map(str, words),
            "--json",
            "-s",
            f"127.0.0.1:{cluster.plan.metaserver.port}",
            "-k",
            str(cluster.plan.key_file),
        ]
        done = CliRunner().invoke(cli, command, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    return run


@pytest.fixture
def tree(workdir: Path, quota: Quota) -> Iterator[Path]:
    path = workdir / "tree"
    path.mkdir()
    yield path
    quota("remove", "--tree", path)


def refused(call: Callable[..., object], *arguments: object) -> str:
    with pytest.raises(OSError) as caught:
        call(*arguments)
    return errno.errorcode[caught.value.errno or 0]


def used(quota: Quota, path: Path) -> tuple[int, int]:
    row = next(row for row in quota("get", path) if row["kind"] == "tree")
    return row["bytes"], row["inodes"]


def write_until_refused(fd: int, piece: int = 64 << 10) -> tuple[int, str]:
    done = 0
    try:
        while done < 64 * MIB:
            done += os.write(fd, bytes(piece))
    except OSError as error:
        return done, errno.errorcode[error.errno or 0]
    return done, ""


def test_write_says_edquot_and_nothing_written_is_lost(tree: Path, quota: Quota) -> None:
    quota("set", "--tree", tree, "--bytes", "2M")
    fd = os.open(tree / "file", os.O_RDWR | os.O_CREAT, 0o644)
    assert write_until_refused(fd) == (2 * MIB, "EDQUOT")
    assert os.pwrite(fd, b"over", 100) == 4, "what is there may be written over"
    os.fsync(fd)
    os.close(fd)
    assert (tree / "file").stat().st_size == 2 * MIB
    assert used(quota, tree) == (2 * MIB, 2)
    with (tree / "other").open("wb", buffering=0) as other:
        assert refused(other.write, b"x") == "EDQUOT"
        (tree / "file").unlink()
        assert wait_until(lambda: _writes(other.fileno()), 20), "the room is given back"


def _writes(fd: int) -> bool:
    try:
        return os.write(fd, b"x") == 1
    except OSError:
        return False


def test_xattrs_are_limited(tree: Path, quota: Quota) -> None:
    file = tree / "file"
    file.write_bytes(b"x" * 100)
    os.setxattr(file, "user.a", b"v" * 50)
    quota("set", "--tree", tree, "--bytes", 200)
    assert used(quota, tree) == (100 + len("user.a") + 50, 2)
    assert refused(os.setxattr, file, "user.b", b"v" * 50) == "EDQUOT"
    os.setxattr(file, "user.a", b"v" * 90)
    assert refused(os.truncate, file, 105) == "EDQUOT"
    os.removexattr(file, "user.a")
    os.setxattr(tree, "user.b", b"v" * 50)
    assert used(quota, tree) == (100 + len("user.b") + 50, 2)
    file.unlink()
    assert used(quota, tree) == (len("user.b") + 50, 1)


def test_inodes_truncate_fallocate_and_rename(tree: Path, workdir: Path, quota: Quota) -> None:
    (workdir / "large").write_bytes(b"x" * 5000)
    quota("set", "--tree", tree, "--bytes", "4096", "--inodes", 3)
    (tree / "a").touch()
    assert refused(os.truncate, tree / "a", 4097) == "EDQUOT"
    os.truncate(tree / "a", 4000)
    with (tree / "a").open("r+b") as file:
        assert refused(os.posix_fallocate, file.fileno(), 0, 4097) == "EDQUOT"
    assert refused(os.rename, workdir / "large", tree / "large") == "EDQUOT"
    (tree / "b").mkdir()
    assert refused(os.mkdir, tree / "c") == "EDQUOT"
    assert refused(os.symlink, "x", tree / "c") == "EDQUOT"
    (workdir / "outside").touch()
    os.truncate(tree / "a", 0)
    quota("set", "--tree", tree, "--inodes", "none")
    assert refused(os.rename, workdir / "large", tree / "large") == "EDQUOT"
    quota("set", "--tree", tree, "--bytes", "10K")
    os.rename(workdir / "large", tree / "large")
    assert used(quota, tree) == (5000, 4)


def test_mv_copies_directories_into_a_tree(tree: Path, workdir: Path, quota: Quota) -> None:
    quota("set", "--tree", tree, "--bytes", "1M")
    (workdir / "folder").mkdir()
    (workdir / "folder" / "file").write_bytes(b"abc")
    assert refused(os.rename, workdir / "folder", tree / "folder") == "EXDEV"
    assert refused(os.link, workdir / "folder" / "file", tree / "link") == "EXDEV"
    subprocess.run(["mv", workdir / "folder", tree], check=True)
    assert (tree / "folder" / "file").read_bytes() == b"abc"
    assert used(quota, tree) == (3, 3)


def test_what_is_in_a_directory_is_counted(tree: Path, quota: Quota) -> None:
    for number in range(40):
        (tree / f"d{number}").mkdir()
        for name in range(10):
            (tree / f"d{number}" / str(name)).write_bytes(b"12345")
    quota("set", "--tree", tree, "--bytes", "1T")
    assert used(quota, tree) == (2000, 441)
    quota("remove", "--tree", tree)
    assert [row["kind"] for row in quota("get", tree)] == ["user", "group"]


def test_a_user_is_limited_whoever_asks_from_wherever(
    workdir: Path, quota: Quota, cluster: Cluster
) -> None:
    os.chmod(workdir, 0o777)
    quota("set", "--user", UID, "--inodes", "2", "--bytes", "1M")
    script = (
        "import os,sys;os.setuid(int(sys.argv[1]));\n"
        "for name in sys.argv[2:]: open(name, 'x').write('y' * 10)"
    )

    def make(*names: Path) -> str:
        """The last line that Python prints when it fails; "" when it does not."""
        words = [sys.executable, "-c", script, str(UID), *map(str, names)]
        done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
        return done.stderr.strip().rpartition("\n")[2].partition(": '")[0]

    other = cluster.plan.state / "elsewhere"
    other.mkdir(exist_ok=True)
    try:
        with cluster.second_client(other) as there:
            assert make(workdir / "a", there / workdir.name / "b") == ""
            assert make(workdir / "c") == EDQUOT
            assert make(there / workdir.name / "d") == EDQUOT
            row = next(r for r in quota("list") if (r["kind"], r["number"]) == ("user", UID))
            assert (row["bytes"], row["inodes"]) == (20, 2)
    finally:
        quota("remove", "--user", UID)
        while mounts.is_mounted(other):
            mounts.unmount(other, lazy=True)
    assert all(row["number"] != UID for row in quota("list"))
    with pytest.raises(KeyError):
        pwd.getpwuid(UID)


@pytest.mark.expects_warnings
def test_accounts_outlive_a_kill_of_the_metaserver(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster()
    quota = quota_of(cluster)
    tree = cluster.mount_path / "tree"
    tree.mkdir()
    quota("set", "--tree", tree, "--bytes", "1M", "--inodes", "100")
    for number in range(30):
        (tree / str(number)).write_bytes(b"x" * 1000)
        if number == 15:
            cluster.metaserver.kill()
            cluster.metaserver.start()
    assert used(quota, tree) == (30_000, 31)
    for number in range(30):
        (tree / str(number)).unlink()
    assert wait_until(lambda: used(quota, tree) == (0, 1), 20)


# ---- files that lanes create (decision 0013) ----------------------------------------------------


def births(cluster: Cluster) -> int:
    """How many files lanes have created since the mount."""
    return lanes_counted(cluster, "births")


def touch(path: Path) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))


def delegated(cluster: Cluster, folder: Path) -> int:
    """Creates files in the folder until lanes create them; returns how many were created."""
    before = births(cluster)
    for number in range(200):
        touch(folder / f"first-{number}")
        if births(cluster) > before:
            return number + 1
        time.sleep(0.02)
    pytest.fail("the directory was not delegated")


def make_until_refused(folder: Path, count: int = 200) -> tuple[int, str]:
    for number in range(count):
        try:
            touch(folder / f"file-{number}")
        except OSError as error:
            return number, errno.errorcode[error.errno or 0]
    return count, ""


def test_files_that_lanes_make_are_counted_and_a_limit_ends_that(
    workdir: Path, quota: Quota, cluster: Cluster
) -> None:
    folder = workdir / "folder"
    folder.mkdir()
    made = delegated(cluster, folder)
    assert make_until_refused(folder, 50) == (50, "")
    quota("set", "--tree", folder, "--inodes", made + 50 + 1 + 7)
    try:
        before = births(cluster)
        (folder / "sub").mkdir()
        touch(folder / "sub" / "a")
        touch(folder / "sub" / "b")
        for number in range(4):
            touch(folder / f"new-{number}")
        assert make_until_refused(folder / "sub") == (0, "EDQUOT")
        assert refused(touch, folder / "one-too-many") == "EDQUOT"
        assert births(cluster) == before, "the metaserver makes them, as only it may refuse"
        assert used(quota, folder)[1] == made + 58
        assert len(os.listdir(folder)) == made + 50 + 1 + 4
    finally:
        quota("remove", "--tree", folder)


def test_lanes_make_their_share_of_a_limit(tree: Path, quota: Quota, cluster: Cluster) -> None:
    """Lanes create nearly all files of a tree with plenty left, and writes are bounded there, too:
    a file that grows beyond its share asks the metaserver."""
    quota("set", "--tree", tree, "--inodes", 5000, "--bytes", "2G")
    folder = tree / "folder"  # the new limit recalled this folder from no client
    folder.mkdir()
    delegated(cluster, folder)
    before = births(cluster)
    assert make_until_refused(folder, 1500) == (1500, "")
    assert births(cluster) >= before + 1400
    with (folder / "large").open("wb", buffering=0) as large:
        for _ in range(48):
            large.write(bytes(MIB))
    inodes = len(list(folder.iterdir())) + 2
    assert used(quota, tree) == (48 * MIB, inodes)
    quota("set", "--tree", tree, "--inodes", inodes + 3, "--bytes", 49 * MIB)
    for number in range(3):
        touch(folder / f"last-{number}")
    assert refused(touch, folder / "one-too-many") == "EDQUOT"
    with (folder / "large").open("ab", buffering=0) as large:
        assert write_until_refused(large.fileno()) == (MIB, "EDQUOT")


def test_df_in_a_limited_tree_shows_its_limit(tree: Path, quota: Quota) -> None:
    whole = os.statvfs(tree)
    (tree / "file").write_bytes(bytes(3 * MIB))
    quota("set", "--tree", tree, "--inodes", 100, "--bytes", "8M")
    for place in (tree, tree / "file"):
        room = os.statvfs(place)
        assert room.f_blocks * room.f_frsize == 8 * MIB
        assert room.f_bavail * room.f_frsize == room.f_bfree * room.f_frsize == 5 * MIB
        assert (room.f_files, room.f_ffree) == (100, 98)
    outside = os.statvfs(tree.parent)
    assert outside.f_blocks == whole.f_blocks


def test_files_of_a_limited_user_are_not_made_by_lanes(
    workdir: Path, quota: Quota, cluster: Cluster
) -> None:
    folder = workdir / "folder"
    folder.mkdir()
    folder.chmod(0o777)
    delegated(cluster, folder)
    script = (
        "import os, sys\nos.setgroups([]); os.setgid(60000); os.setuid(int(sys.argv[1]))\n"
        "for n in range(int(sys.argv[2]), int(sys.argv[3])):\n"
        "    os.close(os.open(f'{sys.argv[4]}/u{n}', os.O_CREAT | os.O_EXCL | os.O_WRONLY))\n"
    )

    def make(begin: int, end: int) -> str:
        words = [sys.executable, "-c", script, str(UID), str(begin), str(end), str(folder)]
        done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
        return done.stderr.strip().rpartition("\n")[2].partition(": '")[0]

    before = births(cluster)
    assert make(0, 20) == ""
    assert births(cluster) >= before + 20
    quota("set", "--user", UID, "--inodes", 30)
    try:
        assert make(20, 40) == EDQUOT
        made = sorted(path.name for path in folder.iterdir() if path.name.startswith("u"))
        assert made == sorted(f"u{n}" for n in range(30)), "each that was made, and no other"
        row = next(r for r in quota("list") if (r["kind"], r["number"]) == ("user", UID))
        assert row["inodes"] == 30
    finally:
        quota("remove", "--user", UID)


# ---- files that are being written ---------------------------------------------------------------


def test_a_limit_holds_at_once_for_files_at_work(workdir: Path, quota: Quota) -> None:
    folder = workdir / "folder"
    folder.mkdir()
    fds = [os.open(folder / name, os.O_RDWR | os.O_CREAT) for name in "ab"]
    try:
        for fd in fds:
            os.write(fd, bytes(MIB))
        quota("set", "--tree", folder, "--bytes", "3M")
        assert write_until_refused(fds[0]) == (MIB, "EDQUOT")
        os.fsync(fds[0])
        assert write_until_refused(fds[1]) == (0, "EDQUOT")
        quota("set", "--tree", folder, "--bytes", "4M")
        assert write_until_refused(fds[1]) == (MIB, "EDQUOT"), "it is asked for more"
    finally:
        for fd in fds:
            os.close(fd)
    assert used(quota, folder) == (4 * MIB, 3)
    quota("remove", "--tree", folder)


@pytest.mark.parametrize("flags", [os.O_APPEND, os.O_DIRECT, os.O_SYNC])
def test_every_way_to_write_is_refused(tree: Path, quota: Quota, flags: int) -> None:
    quota("set", "--tree", tree, "--bytes", "1M")
    fd = os.open(tree / "file", os.O_WRONLY | os.O_CREAT | flags)
    try:
        with mmap.mmap(-1, MIB // 4) as piece:
            for _ in range(4):
                assert os.write(fd, piece) == MIB // 4
            assert refused(os.write, fd, piece) == "EDQUOT"
    finally:
        os.close(fd)
    assert used(quota, tree)[0] == MIB


def test_two_clients_share_what_there_is(
    tree: Path, quota: Quota, cluster: Cluster, other: Path
) -> None:
    """Each client is told how much it may add before it asks again, so both may exceed the limit by
    that much."""
    quota("set", "--tree", tree, "--bytes", "4M")
    there = seen_from(other, cluster, tree)
    mine = os.open(tree / "mine", os.O_RDWR | os.O_CREAT)
    theirs = os.open(there / "theirs", os.O_RDWR | os.O_CREAT)
    try:
        os.write(theirs, bytes(MIB // 2))
        os.fsync(theirs)
        assert write_until_refused(mine) == (MIB * 7 // 2, "EDQUOT")
        os.fsync(mine)
        over, error = write_until_refused(theirs)
        assert error == "EDQUOT"
        assert over <= MIB
        os.ftruncate(mine, MIB)
        assert write_until_refused(theirs) == (MIB * 5 // 2 - over, "EDQUOT"), "at once"
    finally:
        os.close(mine)
        os.close(theirs)
    assert used(quota, tree) == (4 * MIB, 3)
    assert refused(touch_limited, quota, tree, there) == "EDQUOT"


def touch_limited(quota: Quota, tree: Path, there: Path) -> None:
    """One client gets the last free inode, and no client gets the next."""
    quota("set", "--tree", tree, "--inodes", "4")
    touch(tree / "last")
    touch(there / "one-too-many")


def test_a_file_that_is_moved_into_a_tree_is_limited_there(
    tree: Path, workdir: Path, quota: Quota, cluster: Cluster, other: Path
) -> None:
    quota("set", "--tree", tree, "--bytes", "2M")
    for mover in (workdir, seen_from(other, cluster, workdir)):
        fd = os.open(workdir / "file", os.O_RDWR | os.O_CREAT)
        try:
            os.write(fd, bytes(MIB))
            os.rename(mover / "file", mover / "tree" / "file")
            assert write_until_refused(fd) == (MIB, "EDQUOT")
            os.rename(mover / "tree" / "file", mover / "file")
            os.write(fd, bytes(MIB))
        finally:
            os.close(fd)
        assert used(quota, tree) == (0, 1)
        assert refused(os.rename, mover / "file", mover / "tree" / "file") == "EDQUOT"
        (workdir / "file").unlink()


def test_a_file_without_a_name_goes_into_the_tree_of_its_first(
    tree: Path, workdir: Path, quota: Quota
) -> None:
    quota("set", "--tree", tree, "--bytes", "1M", "--inodes", "2")
    fd = os.open(workdir, os.O_TMPFILE | os.O_RDWR)
    try:
        os.write(fd, b"four")
        os.fsync(fd)
        give_name(fd, tree / "one")
        assert used(quota, tree) == (4, 2)
        assert write_until_refused(fd, 4096) == (MIB - 4, "EDQUOT")
    finally:
        os.close(fd)
    fd = os.open(workdir, os.O_TMPFILE | os.O_RDWR)
    try:
        assert refused(give_name, fd, tree / "two") == "EDQUOT"
    finally:
        os.close(fd)


def give_name(fd: int, path: Path) -> None:
    here, follow = -100, 0x400
    if LIBC.linkat(here, b"/proc/self/fd/%d" % fd, here, os.fsencode(path), follow) != 0:
        raise OSError(ctypes.get_errno(), "linkat")


def test_chown_moves_what_is_counted_and_its_writer_learns_of_it(
    workdir: Path, quota: Quota, cluster: Cluster, other: Path
) -> None:
    quota("set", "--user", UID, "--bytes", "1M")
    try:
        for chowner in (workdir, seen_from(other, cluster, workdir)):
            fd = os.open(workdir / "file", os.O_RDWR | os.O_CREAT)
            try:
                os.write(fd, bytes(MIB // 2))
                os.chown(chowner / "file", UID, -1)
                row = next(r for r in quota("list") if (r["kind"], r["number"]) == ("user", UID))
                assert (row["bytes"], row["inodes"]) == (MIB // 2, 1)
                assert write_until_refused(fd) == (MIB // 2, "EDQUOT")
                os.chown(chowner / "file", 0, -1)
                assert os.write(fd, b"x") == 1
            finally:
                os.close(fd)
            (workdir / "file").unlink()
    finally:
        quota("remove", "--user", UID)


@pytest.mark.expects_warnings
def test_limits_hold_across_a_restart_of_the_metaserver(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster()
    quota = quota_of(cluster)
    tree = cluster.mount_path / "tree"
    tree.mkdir()
    quota("set", "--tree", tree, "--bytes", "2M", "--inodes", "4")
    fd = os.open(tree / "file", os.O_RDWR | os.O_CREAT)
    try:
        os.write(fd, bytes(MIB))
        touch(tree / "a")
        os.fsync(fd)  # starting a process closes its copy, which waits for unwritten bytes
        cluster.metaserver.kill()
        cluster.metaserver.start()
        touch(tree / "b")
        assert refused(touch, tree / "c") == "EDQUOT"
        assert write_until_refused(fd) == (MIB, "EDQUOT")
    finally:
        os.close(fd)
    assert used(quota, tree) == (2 * MIB, 4)
