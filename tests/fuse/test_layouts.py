"""braidfs.layout on a mount: new files follow their directory, and every layout reads back."""

import errno
import os
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster

pytestmark = pytest.mark.mount
NAME = "braidfs.layout"


@pytest.fixture(autouse=True)
def only_braidfs(cluster: Cluster) -> None:
    """Only BraidFS has these attributes."""


@pytest.mark.parametrize(
    ("chunk_size", "width"), [(65536, 1), (65536, 4), (262144, 3), (4 << 20, 2), (64 << 20, 4)]
)
def test_every_layout_reads_back(workdir: Path, chunk_size: int, width: int) -> None:
    os.setxattr(workdir, NAME, f"chunk_size={chunk_size},stripe_width={width}".encode())
    file = workdir / "file"
    content = os.urandom(5_000_003)
    file.write_bytes(content)
    with file.open("r+b") as opened:
        opened.seek(chunk_size - 7)
        opened.write(b"across a border")
        os.fsync(opened.fileno())
    expected = bytearray(content.ljust(chunk_size + 8, b"\0"))
    expected[chunk_size - 7 : chunk_size + 8] = b"across a border"
    assert file.read_bytes() == bytes(expected)
    told = os.getxattr(file, NAME).decode()
    shape = f"chunk_size={chunk_size},stripe_width={min(width, 4)},replicas=1"
    assert told.startswith(f"{shape},targets=")


def test_sub_directories_inherit_and_lists_stay_empty(workdir: Path) -> None:
    os.setxattr(workdir, NAME, b"stripe_width=1")
    (workdir / "a").mkdir()
    (workdir / "a" / "file").touch()
    assert b"stripe_width=1," in os.getxattr(workdir / "a" / "file", NAME)
    assert os.listxattr(workdir) == [] and os.listxattr(workdir / "a" / "file") == []
    os.removexattr(workdir, NAME)
    with pytest.raises(OSError) as caught:
        os.getxattr(workdir, NAME)
    assert caught.value.errno == errno.ENODATA


def test_a_written_file_keeps_its_layout(workdir: Path) -> None:
    (workdir / "file").write_bytes(b"x")
    with pytest.raises(OSError) as caught:
        os.setxattr(workdir / "file", NAME, b"stripe_width=1")
    assert caught.value.errno in (errno.EINVAL, errno.EBUSY)


@pytest.mark.parametrize("text", [b"", b"stripe_width=0", b"chunk_size=3", b"x" * 1000])
def test_wrong_texts_are_einval(workdir: Path, text: bytes) -> None:
    with pytest.raises(OSError) as caught:
        os.setxattr(workdir, NAME, text)
    assert caught.value.errno == errno.EINVAL
