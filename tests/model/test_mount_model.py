"""Random operations, the same ones on the mount and on a local folder: no difference is allowed.

Every operation gives an outcome, a value or an errno, and both sides' outcomes must be equal; so
must the trees at the end: names, types, modes, link counts, sizes, bytes, xattrs. Hypothesis
reduces a difference to the shortest list of operations that shows it; with BRAIDFS_MODEL_EXAMPLES
(their number, for a slow machine) the first one found is reported without that. With
BRAIDFS_MODEL_DSYNC=1 every write is durable when it returns, so that its bytes were sent: otherwise
the bytes of a file that is removed soon never leave a client's memory.
"""

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.mount

NAMES = ("a", "b", "c", "d/a", "d/b", "d/e/a", "d", "d/e", "x" * 255)
SIZE_MAX = 3 << 20
EXAMPLES = os.environ.get("BRAIDFS_MODEL_EXAMPLES")
DSYNC = os.O_DSYNC if os.environ.get("BRAIDFS_MODEL_DSYNC") == "1" else 0
Outcome = tuple[str, Any]

_path = st.sampled_from(NAMES)
_offset = st.one_of(
    st.integers(0, SIZE_MAX),
    st.sampled_from([0, 4095, 4096, 4097, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 2 << 20]),
)
_length = st.one_of(st.integers(0, 20_000), st.sampled_from([1, 4096, 1 << 20, (1 << 20) + 7]))
_byte = st.integers(1, 255)
_slot = st.integers(0, 3)
_flags = st.sampled_from(
    [
        os.O_RDWR,
        os.O_RDWR | os.O_CREAT,
        os.O_RDWR | os.O_CREAT | os.O_EXCL,
        os.O_RDWR | os.O_TRUNC,
        os.O_RDWR | os.O_CREAT | os.O_APPEND,
        os.O_RDONLY,
    ]
)


def _pattern(seed: int, length: int) -> bytes:
    return (bytes(range(seed % 200, 256)) * (length // (256 - seed % 200) + 1))[:length]


@dataclass
class Side:
    """One of the two folders, with its open descriptors."""

    root: Path
    slots: dict[int, int] = field(default_factory=dict)

    def at(self, name: str) -> Path:
        return self.root / name

    def close_all(self) -> None:
        for fd in self.slots.values():
            os.close(fd)
        self.slots.clear()


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | DSYNC, 0o644)


def _create(side: Side, name: str, seed: int, length: int) -> object:
    with open(side.at(name), "wb", buffering=0, opener=_opener) as file:
        return file.write(_pattern(seed, length))


def _read(side: Side, name: str) -> object:
    return side.at(name).read_bytes()


def _write_at(side: Side, name: str, offset: int, seed: int, length: int) -> object:
    with open(side.at(name), "r+b", buffering=0, opener=_opener) as file:
        return os.pwrite(file.fileno(), _pattern(seed, length), offset)


def _truncate(side: Side, name: str, size: int) -> None:
    os.truncate(side.at(name), size)


def _unlink(side: Side, name: str) -> None:
    side.at(name).unlink()


def _mkdir(side: Side, name: str) -> None:
    side.at(name).mkdir()


def _rmdir(side: Side, name: str) -> None:
    side.at(name).rmdir()


def _rename(side: Side, name: str, other: str) -> None:
    side.at(name).rename(side.at(other))


def _link(side: Side, name: str, other: str) -> None:
    os.link(side.at(name), side.at(other), follow_symlinks=False)


def _symlink(side: Side, name: str, other: str) -> None:
    side.at(name).symlink_to(other)


def _readlink(side: Side, name: str) -> object:
    return os.readlink(side.at(name))


def _chmod(side: Side, name: str, mode: int) -> None:
    side.at(name).chmod(mode | 0o600 | (0o100 if side.at(name).is_dir() else 0))


def _utime(side: Side, name: str, seconds: int) -> None:
    os.utime(side.at(name), ns=(seconds, seconds * 1_000_000_007))


def _setxattr(side: Side, name: str, seed: int, length: int) -> None:
    os.setxattr(side.at(name), f"user.{seed % 3}", _pattern(seed, length % 500))


def _removexattr(side: Side, name: str, seed: int) -> None:
    os.removexattr(side.at(name), f"user.{seed % 3}")


def _listdir(side: Side, name: str) -> object:
    return sorted(os.listdir(side.at(name)))


def _look(side: Side, name: str) -> object:
    return _attributes(side.at(name))


def _open(side: Side, slot: int, name: str, flags: int) -> object:
    fd = _opener(str(side.at(name)), flags)
    if slot in side.slots:
        os.close(side.slots[slot])
    side.slots[slot] = fd
    return None


def _close(side: Side, slot: int) -> object:
    if slot in side.slots:
        os.close(side.slots.pop(slot))
    return None


def _fd_write(side: Side, slot: int, offset: int, seed: int, length: int) -> object:
    if slot not in side.slots:
        return None
    os.lseek(side.slots[slot], offset, os.SEEK_SET)
    return os.write(side.slots[slot], _pattern(seed, length))


def _fd_read(side: Side, slot: int, offset: int, length: int) -> object:
    return os.pread(side.slots[slot], length, offset) if slot in side.slots else None


def _fd_truncate(side: Side, slot: int, size: int) -> None:
    if slot in side.slots:
        os.ftruncate(side.slots[slot], size)


def _fd_sync(side: Side, slot: int) -> None:
    if slot in side.slots:
        os.fsync(side.slots[slot])


def _fd_look(side: Side, slot: int) -> object:
    if slot not in side.slots:
        return None
    found = os.fstat(side.slots[slot])
    # Each file system has sizes of its own.
    size = found.st_size if not stat.S_ISDIR(found.st_mode) else 0
    return size, found.st_nlink, found.st_mode


_ARGUMENTS: dict[Callable[..., object], tuple[st.SearchStrategy[Any], ...]] = {
    _create: (_path, _byte, _length),
    _read: (_path,),
    _write_at: (_path, _offset, _byte, _length),
    _truncate: (_path, _offset),
    _unlink: (_path,),
    _mkdir: (_path,),
    _rmdir: (_path,),
    _rename: (_path, _path),
    _link: (_path, _path),
    _symlink: (_path, st.sampled_from(("a", "d", "../b", "none"))),
    _readlink: (_path,),
    _chmod: (_path, st.integers(0, 0o7777)),
    _utime: (_path, st.integers(0, 2**31)),
    _setxattr: (_path, _byte, _length),
    _removexattr: (_path, _byte),
    _listdir: (_path,),
    _look: (_path,),
    _open: (_slot, _path, _flags),
    _close: (_slot,),
    _fd_write: (_slot, _offset, _byte, _length),
    _fd_read: (_slot, _offset, _length),
    _fd_truncate: (_slot, _offset),
    _fd_sync: (_slot,),
    _fd_look: (_slot,),
}
_operation = st.one_of(
    [st.tuples(st.just(call), st.tuples(*words)) for call, words in _ARGUMENTS.items()]
)


def _outcome(side: Side, call: Callable[..., object], words: tuple[Any, ...]) -> Outcome:
    try:
        return "value", call(side, *words)
    except OSError as error:
        # EEXIST and ENOTEMPTY count as one answer for a folder that is not empty (POSIX allows
        # both).
        number = errno.EEXIST if error.errno == errno.ENOTEMPTY else error.errno
        return "errno", errno.errorcode.get(number or 0, number)


def _attributes(path: Path) -> tuple[object, ...]:
    found = path.lstat()
    regular = stat.S_ISREG(found.st_mode)
    return (
        found.st_mode,
        found.st_uid,
        found.st_gid,
        found.st_nlink,
        found.st_size if not stat.S_ISDIR(found.st_mode) else 0,
        path.read_bytes() if regular else b"",
        sorted(os.listxattr(path, follow_symlinks=False)),
    )


def _tree(root: Path) -> dict[str, tuple[object, ...]]:
    found = {}
    for folder, names, files in os.walk(root):
        for name in (*names, *files):
            path = Path(folder) / name
            found[str(path.relative_to(root))] = _attributes(path)
    return found


def _compare(mounted: Side, local: Side, operations: list[tuple[Any, Any]]) -> None:
    for number, (call, words) in enumerate(operations):
        got = _outcome(mounted, call, words)
        wanted = _outcome(local, call, words)
        assert got == wanted, f"operation {number}: {call.__name__}{words}"
    assert _tree(mounted.root) == _tree(local.root)
    mounted.close_all()
    local.close_all()
    assert _tree(mounted.root) == _tree(local.root)


@pytest.mark.timeout(1800)
def test_mount_behaves_like_a_local_folder(
    workdir: Path, localdir: Path, sized: Callable[[int, int], int]
) -> None:
    os.setxattr(localdir, "user.oracle", b"1")  # without xattrs here, every example would differ

    @settings(
        max_examples=int(EXAMPLES or sized(120, 3000)),
        phases=(Phase.generate,) if EXAMPLES else tuple(Phase),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    @given(st.lists(_operation, min_size=5, max_size=60))
    def run(operations: list[tuple[Any, Any]]) -> None:
        sides = [Side(Path(tempfile.mkdtemp(dir=folder))) for folder in (workdir, localdir)]
        for side in sides:
            side.root.chmod(0o755)
            (side.root / "d" / "e").mkdir(parents=True)
        try:
            _compare(sides[0], sides[1], operations)
        finally:
            for side in sides:
                side.close_all()
                shutil.rmtree(side.root)

    run()
