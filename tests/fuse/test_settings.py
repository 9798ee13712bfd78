"""Attributes that lanes set on files that only this client may write: like any other for every
observer, whichever program dies meanwhile (docs/decisions/0024-settings.md).
"""

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.process import wait_until
from tests.fuse.looks import lanes_counted, seen_from, wait_delegated
from tests.fuse.test_quotas import MIB, Quota, quota_of, write_until_refused

pytestmark = pytest.mark.mount

USER, GROUP = 12345, 23456
LIMITED = 34567
OLD_NS = 1_234_567_890_123_456_789


def settings(cluster: Cluster) -> int:
    """How often lanes have set attributes since the mount."""
    return lanes_counted(cluster, "settings")


def _create(directory: Path, number: int) -> None:
    (directory / f"first-{number}").write_bytes(b"")


@pytest.fixture
def folder(cluster: Cluster, workdir: Path) -> Path:
    """A directory in which lanes create files."""
    new = workdir / "folder"
    new.mkdir()
    wait_delegated(cluster, "births", partial(_create, new))
    return new


def seen(path: Path) -> tuple[int, int, int, int, int, int]:
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    times = status.st_atime_ns, status.st_mtime_ns
    return mode, status.st_uid, status.st_gid, status.st_size, *times


def set_all(fd: int, number: int) -> None:
    """Sets what cp -p and tar set before they close a file."""
    os.utime(fd, ns=(OLD_NS + number, OLD_NS + 2 * number))
    os.fchown(fd, USER, GROUP)
    os.fchmod(fd, 0o640)


def wanted(number: int, size: int) -> tuple[int, int, int, int, int, int]:
    return 0o640, USER, GROUP, size, OLD_NS + number, OLD_NS + 2 * number


def test_what_is_set_before_close_stays(cluster: Cluster, folder: Path, tmp_path: Path) -> None:
    before = settings(cluster)
    for number in range(50):
        with (folder / f"{number}").open("wb", buffering=0) as file:
            file.write(b"x" * 1000 * number)
            set_all(file.fileno(), number)
            status = os.fstat(file.fileno())
            assert (stat.S_IMODE(status.st_mode), status.st_size) == (0o640, 1000 * number)
            assert status.st_mtime_ns == OLD_NS + 2 * number
        assert seen(folder / f"{number}") == wanted(number, 1000 * number)
    assert settings(cluster) - before >= 140, "lanes set most of it"
    cluster.remount()
    for number in range(50):
        assert seen(folder / f"{number}") == wanted(number, 1000 * number)


def test_a_new_directory_is_enough(cluster: Cluster, folder: Path, tmp_path: Path) -> None:
    """Lanes forget whose files are limited when a directory is recalled; no DELEGATE tells them
    again."""
    with cluster.second_client(tmp_path / "other") as other:
        assert list(seen_from(other, cluster, folder).iterdir())
    new = folder / "new"
    new.mkdir()
    before = settings(cluster)
    with (new / "file").open("wb", buffering=0) as file:
        set_all(file.fileno(), 1)
    assert settings(cluster) - before == 3


def test_a_directory_that_is_removed_takes_nothing_along(cluster: Cluster, folder: Path) -> None:
    """This changed no user's limits, so lanes go on setting owners."""
    for number in range(5):
        gone = folder / f"gone-{number}"
        gone.mkdir()
        (folder / f"new-{number}").mkdir()
        before = settings(cluster)
        with (folder / f"new-{number}" / "file").open("wb", buffering=0) as file:
            gone.rmdir()
            set_all(file.fileno(), number)
        assert settings(cluster) - before == 3


def test_another_client_sees_it_at_once(cluster: Cluster, folder: Path, tmp_path: Path) -> None:
    with cluster.second_client(tmp_path / "other") as other:
        there = seen_from(other, cluster, folder)
        for number in range(20):
            with (folder / f"{number}").open("wb", buffering=0) as file:
                file.write(b"x" * 10)
                set_all(file.fileno(), number)
                assert seen(there / f"{number}") == wanted(number, 10)
                os.fchmod(file.fileno(), 0o600)
                assert stat.S_IMODE((there / f"{number}").stat().st_mode) == 0o600
            assert stat.S_IMODE((there / f"{number}").stat().st_mode) == 0o600


def test_a_write_afterwards_counts(folder: Path) -> None:
    with (folder / "file").open("wb", buffering=0) as file:
        file.write(b"one")
        os.utime(file.fileno(), ns=(OLD_NS, OLD_NS))
        file.write(b"two")
        assert os.fstat(file.fileno()).st_mtime_ns > OLD_NS
    status = (folder / "file").stat()
    assert status.st_mtime_ns > OLD_NS and status.st_atime_ns == OLD_NS and status.st_size == 6


def test_an_overwrite_before_it_is_seen_elsewhere(
    cluster: Cluster, folder: Path, tmp_path: Path
) -> None:
    """Neither size nor time of the file show that its bytes changed."""
    path = folder / "file"
    path.write_bytes(b"old")
    os.utime(path, ns=(OLD_NS, OLD_NS))
    with cluster.second_client(tmp_path / "other") as other:
        there = seen_from(other, cluster, path)
        assert there.read_bytes() == b"old"
        with path.open("r+b", buffering=0) as file:
            file.write(b"new")
            os.utime(file.fileno(), ns=(OLD_NS, OLD_NS))
        assert there.read_bytes() == b"new" and there.stat().st_mtime_ns == OLD_NS


@pytest.mark.parametrize(
    "change",
    [
        lambda fd: os.fchmod(fd, 0o4755),
        lambda fd: os.setxattr(fd, "user.name", b"value"),
        lambda fd: os.truncate(fd, 5),
        lambda fd: os.fsync(fd),
    ],
    ids=["set-id", "xattr", "truncate", "fsync"],
)
def test_between_other_changes(folder: Path, change: Callable[[int], None]) -> None:
    with (folder / "file").open("wb", buffering=0) as file:
        file.write(b"x" * 10)
        os.fchmod(file.fileno(), 0o600)
        change(file.fileno())
        os.fchown(file.fileno(), USER, GROUP)
        os.utime(file.fileno(), ns=(OLD_NS, OLD_NS))
        inside = os.fstat(file.fileno())
    after = (folder / "file").stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (inside.st_mode, USER, GROUP)
    assert not after.st_mode & stat.S_ISUID, "a change of owner takes it away"
    assert after.st_mtime_ns == OLD_NS == inside.st_mtime_ns


@pytest.mark.expects_warnings
def test_nothing_is_lost_when_the_metaserver_is_killed(cluster: Cluster, folder: Path) -> None:
    """Another program has the files open: a process that the test starts would wait to close its
    copies."""
    count = 400
    program = (
        "import os, sys\n"
        "for n in range(int(sys.argv[2])):\n"
        "    with open(f'{sys.argv[1]}/{n}', 'wb', buffering=0) as file:\n"
        "        file.write(b'x')\n"
        f"        os.utime(file.fileno(), ns=({OLD_NS} + n, {OLD_NS} + 2 * n))\n"
        f"        os.fchown(file.fileno(), {USER}, {GROUP})\n"
        "        os.fchmod(file.fileno(), 0o640)\n"
        "    print(n, flush=True)\n"
    )
    words = [sys.executable, "-c", program, str(folder), str(count)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(2):
            for _ in range(50):
                writer.stdout.readline()
            cluster.metaserver.kill()
            cluster.metaserver.start()
        writer.stdout.read()
        assert writer.wait(120) == 0
    for _ in range(2):
        assert [seen(folder / f"{n}") for n in range(count)] == [wanted(n, 1) for n in range(count)]
        cluster.remount()


def test_users_cannot_do_more_than_they_may(folder: Path) -> None:
    program = (
        "import os, sys\n"
        "os.setgid(23456); os.setuid(12345)\n"
        "fd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY, 0o644)\n"
        "os.fchmod(fd, 0o600)\n"
        "try:\n    os.fchown(fd, 0, 0)\nexcept PermissionError:\n    print('refused')\n"
    )
    folder.chmod(0o777)
    words = ["python3", "-c", program, str(folder / "mine")]
    result = subprocess.run(words, capture_output=True, text=True, check=True)
    assert result.stdout == "refused\n"
    assert seen(folder / "mine")[:3] == (0o600, USER, GROUP)


def test_the_limit_of_a_new_owner_holds(cluster: Cluster, folder: Path) -> None:
    """The metaserver decides whose files are limited, and how far they may grow."""
    quota = quota_of(cluster)
    quota("set", "--user", LIMITED, "--bytes", "1M")
    try:
        for number in range(2):
            fresh = folder / f"fresh-{number}"
            fresh.mkdir()
            wait_delegated(cluster, "births", partial(_create, fresh))
            path = fresh / "limited"
            with path.open("wb", buffering=0) as file:
                os.fchown(file.fileno(), LIMITED, -1)
                assert write_until_refused(file.fileno()) == (MIB, "EDQUOT")
            path.unlink()
            assert wait_until(lambda: _bytes_of(quota) == 0, 30)
    finally:
        quota("remove", "--user", LIMITED)


def _bytes_of(quota: Quota) -> int:
    rows = quota("list")
    counted = [r["bytes"] for r in rows if (r["kind"], r["number"]) == ("user", LIMITED)]
    return int(counted[0])
