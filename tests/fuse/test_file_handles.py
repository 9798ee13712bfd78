"""File handles (name_to_handle_at, open_by_handle_at), as NFS servers and backup programs use them.

A handle from one mount is opened on another one, whose kernel has never seen the file. This is the
same as after the caches were dropped, or after the client was started again.
"""

import ctypes
import errno
import os
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.process import wait_until
from tests.fuse.posix.calls import c

pytestmark = [pytest.mark.mount, pytest.mark.timeout(120)]

AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000


class Handle(ctypes.Structure):
    _fields_ = (("size", ctypes.c_uint), ("type", ctypes.c_int), ("octets", ctypes.c_ubyte * 128))


def _handle_of(path: Path) -> Handle:
    handle, mount_id = Handle(size=128), ctypes.c_int()
    c.name_to_handle_at(AT_FDCWD, os.fsencode(path), handle, ctypes.byref(mount_id), 0)
    return handle


def _open(mount: Path, handle: Handle, flags: int = os.O_RDONLY) -> int:
    at = os.open(mount, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return c.open_by_handle_at(at, handle, flags)
    finally:
        os.close(at)


@pytest.fixture
def views(workdir: Path, cluster: Cluster, lasting: Path) -> tuple[Path, Path]:
    return workdir, lasting / workdir.relative_to(cluster.mount_path)


def test_a_file_is_opened_where_nobody_named_it(views: tuple[Path, Path], lasting: Path) -> None:
    here, _ = views
    (here / "deep" / "below").mkdir(parents=True)
    for size in (5, 200_000):
        path = here / "deep" / "below" / f"file-{size}"
        path.write_bytes(b"x" * size)
        handle = _handle_of(path)
        path.rename(here / f"moved-{size}")  # a handle does not depend on the name
        fd = _open(lasting, handle, os.O_RDWR)
        try:
            assert os.read(fd, size + 1) == b"x" * size
            assert os.fstat(fd).st_ino == (here / f"moved-{size}").stat().st_ino
            os.pwrite(fd, b"y", 0)
        finally:
            os.close(fd)
        assert (here / f"moved-{size}").read_bytes()[:1] == b"y"


def test_directories_and_what_is_above_them(views: tuple[Path, Path], lasting: Path) -> None:
    here, there = views
    below = here / "one" / "two"
    below.mkdir(parents=True)
    (below / "file").touch()
    fd = _open(lasting, _handle_of(below), os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert os.listdir(fd) == ["file"]
        assert Path(os.readlink(f"/proc/self/fd/{fd}")) == there / "one" / "two"
        up = os.open("..", os.O_RDONLY, dir_fd=fd)
        assert os.fstat(up).st_ino == (here / "one").stat().st_ino
        os.close(up)
    finally:
        os.close(fd)
    root = _open(lasting, _handle_of(lasting), os.O_RDONLY | os.O_DIRECTORY)
    assert os.fstat(root).st_ino == lasting.stat().st_ino
    os.close(root)


def _is_stale(mount: Path, handle: Handle) -> bool:
    try:
        os.close(_open(mount, handle))
    except OSError as error:
        assert error.errno == errno.ESTALE
        return True
    return False


def test_what_is_gone_is_stale(views: tuple[Path, Path], lasting: Path) -> None:
    """A later file has another number, so that the handle never means another file.

    Another client learns of the removal when the metaserver does: removals by lanes are reported
    within a moment.
    """
    here, _ = views
    (here / "file").write_bytes(b"x")
    (here / "folder").mkdir()
    handles = [_handle_of(here / "file"), _handle_of(here / "folder")]
    (here / "file").unlink()
    (here / "folder").rmdir()
    (here / "file").write_bytes(b"another one")
    assert wait_until(lambda: all(_is_stale(lasting, handle) for handle in handles), 5)


def test_one_without_a_name_lives_while_it_is_open(views: tuple[Path, Path], lasting: Path) -> None:
    path = views[0] / "file"
    path.write_bytes(b"still here")
    handle = _handle_of(path)
    with path.open("rb"):
        path.unlink()
        fd = _open(lasting, handle)
        assert os.read(fd, 20) == b"still here"
        assert os.fstat(fd).st_nlink == 0
        os.close(fd)
