"""Random operations on the bytes of files, the same ones on the mount and on a local folder:
writes, truncates, holes and copies, in files over one target and over several.

No byte may differ, nor any outcome: as seen by the client that made the change, by reads past every
cache, and by another client. A reader of a missing object must know whether it is a hole or lost,
and every one of these calls changes that knowledge. Hypothesis reduces a difference to the shortest
list of calls that shows it.
"""

import ctypes
import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cluster.cluster import Cluster

pytestmark = pytest.mark.mount

CHUNK, BLOCK = 64 << 10, 4096
SIZE_MAX = 12 * CHUNK
NAMES = ("a", "b", "c")
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16
MODES = (0, KEEP_SIZE, KEEP_SIZE | PUNCH_HOLE, ZERO_RANGE, ZERO_RANGE | KEEP_SIZE)
WIDTHS = (1, 2, 4)
Outcome = tuple[str, Any]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]

_name = st.sampled_from(NAMES)
_place = st.one_of(
    st.integers(0, SIZE_MAX),
    st.integers(0, SIZE_MAX // CHUNK).map(lambda chunk: chunk * CHUNK),
    st.integers(0, SIZE_MAX // BLOCK).map(lambda block: block * BLOCK),
)
_length = st.one_of(st.integers(1, 3 * BLOCK), st.sampled_from([BLOCK, CHUNK, 3 * CHUNK, SIZE_MAX]))
_byte = st.integers(1, 255)


@dataclass
class Side:
    """`there`: the same folder on another client's mount; for the local side, the folder itself."""

    root: Path
    there: Path

    def open(self, name: str) -> int:
        return os.open(self.root / name, os.O_RDWR | os.O_CREAT, 0o644)


def _write(side: Side, name: str, at: int, length: int, byte: int) -> object:
    fd = side.open(name)
    try:
        return os.pwrite(fd, bytes([byte]) * min(length, SIZE_MAX), at)
    finally:
        os.close(fd)


def _truncate(side: Side, name: str, size: int) -> None:
    fd = side.open(name)
    try:
        os.ftruncate(fd, size)
    finally:
        os.close(fd)


def _fallocate(side: Side, name: str, mode: int, at: int, length: int) -> object:
    fd = side.open(name)
    try:
        if _libc.fallocate(fd, mode, at, length):
            raise OSError(ctypes.get_errno(), "fallocate")
        return None
    finally:
        os.close(fd)


def _copy(side: Side, source: str, at: int, sink: str, to: int, length: int) -> object:
    """Copies as much as there is, in as many calls as needed."""
    from_fd, to_fd = side.open(source), side.open(sink)
    try:
        done = 0
        while done < length:
            count = os.copy_file_range(from_fd, to_fd, length - done, at + done, to + done)
            if not count:
                break
            done += count
        return done
    finally:
        os.close(from_fd)
        os.close(to_fd)


def _anew(side: Side, source: str, sink: str) -> object:
    """Does what `cp` does: the sink loses all its bytes, and then becomes a copy of the source."""
    os.truncate(side.root / sink, 0)
    return _copy(side, source, 0, sink, 0, 2 * SIZE_MAX)


def _sync(side: Side, name: str) -> None:
    fd = side.open(name)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _read_past_caches(side: Side, name: str) -> object:
    fd = side.open(name)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return os.pread(fd, 3 * SIZE_MAX, 0)
    finally:
        os.close(fd)


def _read_elsewhere(side: Side, name: str) -> object:
    return (side.there / name).read_bytes()


def _write_elsewhere(side: Side, name: str, at: int, length: int, byte: int) -> object:
    return _write(Side(side.there, side.root), name, at, length, byte)


def _replace(side: Side, name: str, other: str) -> object:
    (side.root / name).rename(side.root / other)
    return None


_ARGUMENTS: dict[Callable[..., object], tuple[st.SearchStrategy[Any], ...]] = {
    _write: (_name, _place, _length, _byte),
    _truncate: (_name, _place),
    _fallocate: (_name, st.sampled_from(MODES), _place, _length),
    _copy: (_name, _place, _name, _place, _length),
    _anew: (_name, _name),
    _sync: (_name,),
    _read_past_caches: (_name,),
    _read_elsewhere: (_name,),
    _write_elsewhere: (_name, _place, _length, _byte),
    _replace: (_name, _name),
}
_operation = st.one_of(
    [st.tuples(st.just(call), st.tuples(*words)) for call, words in _ARGUMENTS.items()]
)


def _outcome(side: Side, call: Callable[..., object], words: tuple[Any, ...]) -> Outcome:
    try:
        return "value", call(side, *words)
    except OSError as error:
        return "errno", errno.errorcode.get(error.errno or 0, error.errno)


def _data_of(path: Path) -> bytes:
    """The bytes that SEEK_DATA and SEEK_HOLE show, with zeros for the holes between."""
    size = path.stat().st_size
    found = bytearray(size)
    fd = os.open(path, os.O_RDONLY)
    try:
        at = 0
        while at < size:
            try:
                begin = os.lseek(fd, at, os.SEEK_DATA)
            except OSError as error:
                assert error.errno == errno.ENXIO
                break
            at = os.lseek(fd, begin, os.SEEK_HOLE)
            assert begin < at
            found[begin:at] = os.pread(fd, at - begin, begin)
    finally:
        os.close(fd)
    return bytes(found)


def _same_everywhere(mounted: Side, local: Side) -> None:
    for name in NAMES:
        if not (local.root / name).exists():
            assert not (mounted.root / name).exists()
            continue
        wanted = (local.root / name).read_bytes()
        assert (mounted.there / name).read_bytes() == wanted, f"{name}, at another client"
        assert _read_past_caches(mounted, name) == wanted, f"{name}, past every cache"
        assert _data_of(mounted.root / name) == wanted, f"{name}, by its holes"


@pytest.mark.timeout(900)
def test_bytes_are_those_of_a_local_folder(
    cluster: Cluster, workdir: Path, localdir: Path, sized: Callable[[int, int], int]
) -> None:
    @settings(
        max_examples=sized(30, 2000),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    @given(width=st.sampled_from(WIDTHS), work=st.lists(_operation, min_size=3, max_size=25))
    def run(width: int, work: list[tuple[Any, Any]]) -> None:
        roots = [Path(tempfile.mkdtemp(dir=folder)) for folder in (workdir, localdir)]
        layout = f"chunk_size={CHUNK},stripe_width={width}".encode()
        os.setxattr(roots[0], "braidfs.layout", layout)
        mounted = Side(roots[0], other / roots[0].relative_to(cluster.mount_path))
        local = Side(roots[1], roots[1])
        try:
            for number, (call, words) in enumerate(work):
                got, wanted = _outcome(mounted, call, words), _outcome(local, call, words)
                assert got == wanted, f"operation {number}: {call.__name__}{words}"
            _same_everywhere(mounted, local)
        finally:
            for root in roots:
                shutil.rmtree(root)

    other = localdir / "other"
    with cluster.second_client(other):
        run()
