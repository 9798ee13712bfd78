"""Objects that are neither file nor folder: fifos, sockets, devices."""

import errno
import os
import socket
import stat
import threading
from pathlib import Path

import pytest

pytestmark = pytest.mark.mount


def test_fifo_carries_bytes(workdir: Path) -> None:
    os.mkfifo(workdir / "pipe", 0o640)
    assert stat.S_ISFIFO((workdir / "pipe").stat().st_mode)
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.append((workdir / "pipe").read_bytes()))
    thread.start()
    (workdir / "pipe").write_bytes(b"through the pipe")
    thread.join(30)
    assert got == [b"through the pipe"]


def test_unix_socket(workdir: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        os.chdir(workdir)  # sun_path is short
        try:
            server.bind("sock")
            server.listen()
            client.connect("sock")
        finally:
            os.chdir("/")
        assert stat.S_ISSOCK((workdir / "sock").stat().st_mode)


@pytest.mark.parametrize(("kind", "device"), [(stat.S_IFCHR, (1, 3)), (stat.S_IFBLK, (7, 99))])
def test_device_nodes(workdir: Path, kind: int, device: tuple[int, int]) -> None:
    path = workdir / "node"
    os.mknod(path, kind | 0o600, os.makedev(*device))
    found = path.stat()
    assert stat.S_IFMT(found.st_mode) == kind
    assert (os.major(found.st_rdev), os.minor(found.st_rdev)) == device


def test_device_numbers_beyond_eight_bits(workdir: Path) -> None:
    os.mknod(workdir / "node", stat.S_IFCHR | 0o600, os.makedev(300, 70_000))
    found = (workdir / "node").stat()
    assert (os.major(found.st_rdev), os.minor(found.st_rdev)) == (300, 70_000)


def test_mknod_makes_a_plain_file(workdir: Path) -> None:
    os.mknod(workdir / "file", stat.S_IFREG | 0o640)
    (workdir / "file").write_bytes(b"x")
    assert (workdir / "file").read_bytes() == b"x"
    with pytest.raises(FileExistsError):
        os.mknod(workdir / "file", stat.S_IFREG | 0o640)


def test_types_are_seen_by_readdir(workdir: Path) -> None:
    (workdir / "file").touch()
    (workdir / "folder").mkdir()
    (workdir / "link").symlink_to("file")
    os.mkfifo(workdir / "pipe")
    with os.scandir(workdir) as entries:
        kinds = {
            entry.name: (
                entry.is_file(follow_symlinks=False),
                entry.is_dir(follow_symlinks=False),
                entry.is_symlink(),
            )
            for entry in entries
        }
    assert kinds == {
        "file": (True, False, False),
        "folder": (False, True, False),
        "link": (False, False, True),
        "pipe": (False, False, False),
    }


def test_open_of_an_unbound_socket_is_refused(workdir: Path) -> None:
    os.mknod(workdir / "sock", stat.S_IFSOCK | 0o600)
    with pytest.raises(OSError) as caught:
        os.open(workdir / "sock", os.O_RDONLY)
    assert caught.value.errno == errno.ENXIO
