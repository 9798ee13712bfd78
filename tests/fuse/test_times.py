"""Times of files: far away, set ahead of the clock, and how a write changes them.

Two mounts show the same, and the same as ext4.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.fuse.looks import seen_from

pytestmark = [pytest.mark.mount, pytest.mark.timeout(120)]

SECOND = 10**9
LAST = 15032385535 * SECOND  # ext4 can store no later time: 2446-05-10
FAR = [
    *(-1, -SECOND, -SECOND - 1, -SECOND + 1, -(2**31) * SECOND + SECOND, 0, 1),
    *(2**31 * SECOND + 7, 2**32 * SECOND + 7, 2**63 - 1, 2**63, 2**63 + 123456789),
    *(2**33 * SECOND + 123456789, LAST - 1, LAST),
]
BEYOND = [
    *(LAST + 1, LAST + SECOND, 2**40 * SECOND),
    *(-(2**31) * SECOND, -(2**31) * SECOND - 7, -(2**36) * SECOND),
]
MONTH = 30 * 86400


@pytest.fixture
def views(workdir: Path, cluster: Cluster, lasting: Path) -> tuple[Path, Path]:
    return workdir, lasting / workdir.relative_to(cluster.mount_path)


def _file(path: Path, atime: int, mtime: int) -> None:
    path.write_bytes(b"x")
    os.utime(path, ns=(atime, mtime))


def _directory(path: Path, atime: int, mtime: int) -> None:
    path.mkdir()
    os.utime(path, ns=(atime, mtime))


def _link(path: Path, atime: int, mtime: int) -> None:
    path.symlink_to("x")
    os.utime(path, ns=(atime, mtime), follow_symlinks=False)


def _open(path: Path, atime: int, mtime: int) -> None:
    with path.open("wb", buffering=0) as file:
        file.write(b"x")
        os.utime(file.fileno(), ns=(atime, mtime))


def _times(path: Path) -> tuple[int, int]:
    seen = path.lstat()
    return seen.st_atime_ns, seen.st_mtime_ns


@pytest.mark.parametrize("make", [_file, _directory, _link, _open])
def test_far_away_as_on_ext4(
    views: tuple[Path, Path], localdir: Path, make: Callable[[Path, int, int], None]
) -> None:
    wrong = []
    for number, when in enumerate(FAR + BEYOND):
        for folder in (views[0], localdir):
            make(folder / f"{number}", when, FAR[-number % len(FAR)])
        wanted = _times(localdir / f"{number}")
        seen = [_times(view / f"{number}") for view in views]
        with os.scandir(views[1]) as entries:
            seen += [_times(Path(entry)) for entry in entries if entry.name == f"{number}"]
        if any(times != wanted for times in seen):
            wrong.append(f"{when} ns: {seen}, not {wanted}")
    assert not wrong, "\n".join(wrong)


def _write(flags: int, size: int) -> Callable[[Path], int]:
    def change(path: Path) -> int:
        fd = os.open(path, flags)
        os.write(fd, b"y" * size)
        return fd

    return change


def _cut(path: Path) -> int:
    os.truncate(path, 3)
    return os.open(path, os.O_RDONLY)


def _punch(path: Path) -> int:
    fd = os.open(path, os.O_RDWR)
    os.posix_fallocate(fd, 0, 100_000)
    return fd


WRITES = {
    "write": _write(os.O_WRONLY, 1),
    "write_read": _write(os.O_RDWR, 1),
    "append": _write(os.O_WRONLY | os.O_APPEND, 1),
    "append_read": _write(os.O_RDWR | os.O_APPEND, 1),
    "much": _write(os.O_RDWR, 300_000),
    "sync": _write(os.O_WRONLY | os.O_DSYNC, 10),
    "truncate": _cut,
    "allocate": _punch,
}


def _is_now(seen: os.stat_result) -> bool:
    now = time.time()
    return abs(seen.st_mtime - now) < 60 and abs(seen.st_ctime - now) < 60


@pytest.mark.parametrize("ahead", [MONTH, 3600, -86400, 600 * 365 * 86400 // 2])
def test_a_write_sets_the_time_to_now(views: tuple[Path, Path], ahead: int) -> None:
    """The time that was set before may be ahead of the clock or behind it; ctime becomes now in any
    case."""
    wrong = []
    for name, change in WRITES.items():
        for size in (100, 200_000):
            for writer, other in (views, views[::-1]):
                path = writer / f"{name}-{size}-{writer == views[0]}"
                path.write_bytes(b"x" * size)
                set_to = int(time.time()) + ahead
                os.utime(path, (set_to, set_to))
                before = path.stat()
                assert before.st_mtime == set_to and abs(before.st_ctime - time.time()) < 60
                fd = change(path)
                looks = [os.fstat(fd), path.stat(), (other / path.name).stat()]
                os.close(fd)
                looks += [path.stat(), (other / path.name).stat()]
                if not all(map(_is_now, looks)):
                    shown = [(look.st_mtime - time.time(), look.st_ctime) for look in looks]
                    wrong.append(f"{path.name}: {shown}")
    assert not wrong, "\n".join(wrong)


def test_a_time_that_was_set_stays_until_the_next_write(views: tuple[Path, Path]) -> None:
    """The time of an earlier write does not come back with a late commit."""
    for round_ in range(30):
        path = views[0] / f"{round_}"
        with path.open("wb", buffering=0) as file:
            for ahead in (-86400, MONTH, -3600):
                file.write(b"some bytes")
                set_to = (int(time.time()) + ahead) * SECOND + round_
                os.utime(file.fileno() if round_ % 2 else path, ns=(set_to, set_to))
                assert path.stat().st_mtime_ns == set_to
                if round_ % 3 == 0:
                    os.fsync(file.fileno())
                assert (views[1] / path.name).stat().st_mtime_ns == set_to
                assert path.stat().st_mtime_ns == set_to
        assert [(view / path.name).stat().st_mtime_ns for view in views] == [set_to, set_to]


def test_either_client_sets_and_writes(views: tuple[Path, Path]) -> None:
    (views[0] / "file").write_bytes(b"x")
    with (
        (views[0] / "file").open("r+b", buffering=0) as here,
        (views[1] / "file").open("r+b", buffering=0) as there,
    ):
        for round_ in range(20):
            writer, other = ((here, views[1]), (there, views[0]))[round_ % 2]
            set_to = time.time() + (MONTH if round_ % 4 < 2 else -MONTH)
            os.utime(other / "file", (set_to, set_to))
            for view in views:
                assert abs((view / "file").stat().st_mtime - set_to) < 0.001
            writer.write(b"z")
            assert all(_is_now((view / "file").stat()) for view in views), round_


@pytest.mark.parametrize("size", [100, 100_000])
def test_all_clients_see_one_ctime(cluster: Cluster, workdir: Path, other: Path, size: int) -> None:
    """The file was written: git and others check by ctime whether it changed since."""
    there = seen_from(other, cluster, workdir)
    for number in range(10):
        path = workdir / f"{number}"
        path.write_bytes(bytes(10))
        os.stat(there / f"{number}")
        with path.open("ab") as file:
            file.write(bytes(size))
        first = path.stat()
        theirs = (there / f"{number}").stat()
        assert first.st_mtime_ns <= first.st_ctime_ns
        assert (first.st_ctime_ns, first.st_mtime_ns) == (theirs.st_ctime_ns, theirs.st_mtime_ns)
        with path.open("rb") as file:
            os.fsync(file.fileno())
        assert path.stat().st_ctime_ns == first.st_ctime_ns
