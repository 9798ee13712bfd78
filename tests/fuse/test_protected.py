"""chattr +i and +a refuse the same calls with the same errors as on ext4.

The exceptions are rmdir(2) of a file and unlink(2) of a directory, which the kernel refuses before
it asks the mount.
"""

import errno
import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fscommon.file_time import file_time_ns
from tests.cluster.process import wait_until
from tests.fuse.posix.calls import (
    FS_APPEND_FL,
    FS_IMMUTABLE_FL,
    FS_IOC_GETFLAGS,
    FS_IOC_SETFLAGS,
    RENAME_EXCHANGE,
    c,
)

pytestmark = [pytest.mark.mount, pytest.mark.timeout(120)]

Act = Callable[[Path], object]


def _protect(path: Path, flags: int) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        told = struct.unpack("I", fcntl.ioctl(fd, FS_IOC_GETFLAGS, struct.pack("I", 0)))[0]
        others = told & ~(FS_IMMUTABLE_FL | FS_APPEND_FL)
        fcntl.ioctl(fd, FS_IOC_SETFLAGS, struct.pack("I", others | flags))
    finally:
        os.close(fd)


def _flags(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY)
    try:
        told = fcntl.ioctl(fd, FS_IOC_GETFLAGS, struct.pack("I", 0))
    finally:
        os.close(fd)
    return int(struct.unpack("I", told)[0]) & (FS_IMMUTABLE_FL | FS_APPEND_FL)


def _opened(flags: int, then: Callable[[int], object] = lambda _fd: None) -> Act:
    def act(path: Path) -> None:
        fd = os.open(path, flags)
        try:
            then(fd)
        finally:
            os.close(fd)

    return act


def _exchange(path: Path) -> None:
    c.renameat2(-100, os.fsencode(path), -100, os.fsencode(path.parent / "other"), RENAME_EXCHANGE)


# The acts use a folder "tree" with file, folder/inner, empty/, link (symbolic) and other (a file).
FILE_ACTS: dict[str, Act] = {
    "unlink": os.unlink,
    "rename": lambda path: path.rename(path.parent / "renamed"),
    "rename_over": lambda path: (path.parent / "other").rename(path),
    "exchange": _exchange,
    "link": lambda path: os.link(path, path.parent / "linked"),
    "chmod": lambda path: path.chmod(0o600),
    "chown": lambda path: os.chown(path, 5, 6),
    "chown_nothing": lambda path: os.chown(path, -1, -1),
    "utime": lambda path: os.utime(path, (5, 5)),
    "touch": lambda path: os.utime(path),
    "truncate": lambda path: os.truncate(path, 1),
    "open_read": _opened(os.O_RDONLY),
    "open_write": _opened(os.O_WRONLY),
    "open_both": _opened(os.O_RDWR),
    "open_append": _opened(os.O_WRONLY | os.O_APPEND),
    "open_append_truncate": _opened(os.O_WRONLY | os.O_APPEND | os.O_TRUNC),
    "append": _opened(os.O_WRONLY | os.O_APPEND, lambda fd: os.write(fd, b"more")),
    "append_cut": _opened(os.O_WRONLY | os.O_APPEND, lambda fd: os.ftruncate(fd, 1)),
    "setxattr": lambda path: os.setxattr(path, "user.x", b"y"),
    "removexattr": lambda path: os.removexattr(path, "user.there"),
}
FOLDER_ACTS: dict[str, Act] = {
    "rmdir": os.rmdir,
    "rename": lambda path: path.rename(path.parent / "renamed"),
    "rename_over": lambda path: (path.parent / "empty").rename(path),
    "exchange": _exchange,
    "chmod": lambda path: path.chmod(0o700),
    "chown": lambda path: os.chown(path, 5, 6),
    "utime": lambda path: os.utime(path, (5, 5)),
    "touch": lambda path: os.utime(path),
    "create": lambda path: (path / "new").touch(exist_ok=False),
    "mkdir": lambda path: (path / "new").mkdir(),
    "symlink": lambda path: (path / "new").symlink_to("x"),
    "mknod": lambda path: os.mkfifo(path / "new"),
    "link_into": lambda path: os.link(path.parent / "other", path / "new"),
    "rename_into": lambda path: (path.parent / "other").rename(path / "new"),
    "rename_over_inside": lambda path: (path.parent / "other").rename(path / "inner"),
    "unlink_inside": lambda path: (path / "inner").unlink(),
    "rmdir_inside": lambda path: (path / "below").rmdir(),
    "unlink_what_is_not_inside": lambda path: (path / "absent").unlink(),
    "rename_inside": lambda path: (path / "inner").rename(path / "renamed"),
    "rename_out": lambda path: (path / "inner").rename(path.parent / "renamed"),
    "link_out": lambda path: os.link(path / "inner", path.parent / "linked"),
    "write_inside": lambda path: (path / "inner").write_bytes(b"z"),
    "chmod_inside": lambda path: (path / "inner").chmod(0o600),
    "setxattr": lambda path: os.setxattr(path, "user.x", b"y"),
    "list": lambda path: sorted(os.listdir(path)),
}


def _tree(at: Path) -> None:
    for folder in (at, at / "folder", at / "folder" / "below", at / "empty"):
        folder.mkdir()
    for file in ("file", "other", "folder/inner"):
        (at / file).write_bytes(b"bytes")
    os.setxattr(at / "file", "user.there", b"v")


def _outcome(act: Act, path: Path) -> str:
    """Its errno, and the names that exist afterwards."""
    try:
        act(path)
        said = "done"
    except OSError as error:
        said = errno.errorcode[error.errno or 0]
    names = [name for place in (path.parent, path) if place.is_dir() for name in os.listdir(place)]
    return f"{said} {sorted(names)}"


@pytest.fixture
def folders(workdir: Path, localdir: Path) -> Iterator[tuple[Path, Path]]:
    yield workdir, localdir
    for folder in (workdir, localdir):
        for place, names, files in os.walk(folder):
            for name in names + files:
                path = Path(place, name)
                if not path.is_symlink() and (path.is_dir() or path.is_file()):
                    _protect(path, 0)


@pytest.mark.parametrize("flags", [FS_IMMUTABLE_FL, FS_APPEND_FL, FS_IMMUTABLE_FL | FS_APPEND_FL])
@pytest.mark.parametrize(
    ("name", "acts"), [("file", FILE_ACTS), ("folder", FOLDER_ACTS), ("empty", FOLDER_ACTS)]
)
def test_refuses_as_on_ext4(
    folders: tuple[Path, Path], name: str, acts: dict[str, Act], flags: int
) -> None:
    wrong = []
    for act_name, act in acts.items():
        seen = []
        for folder in folders:
            tree = folder / act_name
            _tree(tree)
            _protect(tree / name, flags)
            seen.append(_outcome(act, tree / name))
            if (tree / name).exists():
                assert _flags(tree / name) == flags
                _protect(tree / name, 0)
        if seen[0] != seen[1]:
            wrong.append(f"{act_name} of {name}: {seen[0]}, not {seen[1]}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("flags", [FS_IMMUTABLE_FL, FS_APPEND_FL, 0])
def test_setting_flags_is_a_change(workdir: Path, flags: int) -> None:
    """ctime changes at once, also when the flags stay the same. That shows only if the clock of the
    metaserver has moved, which does so in ticks; utimensat(2) may stamp with a finer one."""
    for path in (workdir / "file", workdir / "folder"):
        path.mkdir() if path.name == "folder" else path.touch()
        os.utime(path, (5, 5))
        for _ in range(3):
            before = path.stat()
            assert wait_until(lambda: file_time_ns() > before.st_ctime_ns, 5)  # noqa: B023
            _protect(path, flags)
            after = path.stat()
            assert after.st_ctime_ns > before.st_ctime_ns
            assert (after.st_atime, after.st_mtime) == (5, 5)
        _protect(path, 0)


def test_chown_of_nothing_is_a_change(workdir: Path) -> None:
    for path in (workdir / "file", workdir / "folder"):
        path.mkdir() if path.name == "folder" else path.touch()
        path.chmod(0o2755)
        before = path.stat()
        while os.stat(workdir).st_ctime_ns <= before.st_ctime_ns:
            os.utime(workdir)
        os.chown(path, -1, -1)
        assert path.stat().st_ctime_ns > before.st_ctime_ns
        assert path.stat().st_mode & 0o777 == 0o755
        assert bool(path.stat().st_mode & 0o2000) == path.is_dir()
