"""Loads that fio does not have: names in a directory (as mdtest), small files, and one file of all
nodes (as IOR's hard pattern).

It is a program of its own, which a worker starts once for each job: `python -m
fsclient.validate.load ACTION {JSON}`. It prints one JSON object: began_s and ended_s (time.time),
operations, bytes, and the median and 99th percentile of an operation in µs. It imports nothing of
BraidFS.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

BLOCK_BYTES: Final = 47_008
SMALL_BYTES: Final = 4096
_PATTERN: Final = Random(1).randbytes(2 * BLOCK_BYTES)


class WrongBytesError(Exception):
    """The bytes that were read are not those that were written."""


@dataclass(frozen=True, slots=True)
class Share:
    """This job's part of the shared file: blocks rank, rank + ranks, rank + 2 * ranks, ..."""

    path: str
    rank: int
    ranks: int
    blocks: int

    def offsets(self) -> Iterator[int]:
        for number in range(self.blocks):
            yield (self.rank + number * self.ranks) * BLOCK_BYTES


def block_at(offset: int) -> bytes:
    """The bytes of the block at this offset: no two blocks of a file are the same."""
    index = offset // BLOCK_BYTES
    start = index % BLOCK_BYTES
    return index.to_bytes(8, "little") + _PATTERN[start : start + BLOCK_BYTES - 8]


def _timed(operations: Iterator[Callable[[], object]]) -> dict[str, Any]:
    began_s, times = time.time(), []
    for operation in operations:
        started = time.perf_counter_ns()
        operation()
        times.append(time.perf_counter_ns() - started)
    times.sort()
    middle, late = (times[int(len(times) * part)] if times else 0 for part in (0.5, 0.99))
    return {
        "began_s": began_s,
        "ended_s": time.time(),
        "operations": len(times),
        "bytes": 0,
        "p50_us": middle / 1000,
        "p99_us": late / 1000,
    }


def create(folder: str, count: int) -> dict[str, Any]:
    Path(folder).mkdir()
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    return _timed(
        lambda name=name: os.close(os.open(name, flags, 0o600))  # type: ignore[misc]
        for name in _names(folder, count)
    )


def stat(folder: str, count: int) -> dict[str, Any]:
    return _timed(
        lambda name=name: os.stat(name)  # type: ignore[misc] # noqa: PTH116 - as fast as can be
        for name in _names(folder, count)
    )


def remove(folder: str, count: int) -> dict[str, Any]:
    seen = _timed(
        lambda name=name: os.unlink(name)  # type: ignore[misc] # noqa: PTH108
        for name in _names(folder, count)
    )
    Path(folder).rmdir()
    return seen


def small_write(folder: str, count: int) -> dict[str, Any]:
    Path(folder).mkdir()
    seen = _timed(
        lambda name=name: _write_small(name)  # type: ignore[misc]
        for name in _names(folder, count)
    )
    return {**seen, "bytes": count * SMALL_BYTES}


def _write_small(name: str) -> None:
    file = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        os.write(file, _PATTERN[:SMALL_BYTES])
    finally:
        os.close(file)


def small_read(folder: str, count: int) -> dict[str, Any]:
    """Reads and checks small files. Raises WrongBytesError."""
    seen = _timed(
        lambda name=name: _read_small(name)  # type: ignore[misc]
        for name in _names(folder, count)
    )
    return {**seen, "bytes": count * SMALL_BYTES}


def _read_small(name: str) -> None:
    file = os.open(name, os.O_RDONLY)
    try:
        if os.read(file, 2 * SMALL_BYTES) != _PATTERN[:SMALL_BYTES]:
            raise WrongBytesError(f"wrong bytes in {name}")
    finally:
        os.close(file)


def _names(folder: str, count: int) -> Iterator[str]:
    return (f"{folder}/file-{number:07}" for number in range(count))


def shared_write(share: Share) -> dict[str, Any]:
    file = os.open(share.path, os.O_CREAT | os.O_WRONLY, 0o600)
    seen = _timed(
        lambda offset=offset: _write_whole(file, offset)  # type: ignore[misc]
        for offset in share.offsets()
    )
    os.fsync(file)
    os.close(file)
    return {**seen, "ended_s": time.time(), "bytes": share.blocks * BLOCK_BYTES}


def _write_whole(file: int, offset: int) -> None:
    if os.pwrite(file, block_at(offset), offset) != BLOCK_BYTES:
        raise OSError(0, f"a short write at offset {offset}")


def shared_read(share: Share) -> dict[str, Any]:
    """Reads and checks this job's part. Raises WrongBytesError with the first wrong place."""
    file = os.open(share.path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    seen = _timed(
        lambda offset=offset: _check_block(file, offset)  # type: ignore[misc]
        for offset in share.offsets()
    )
    os.close(file)
    return {**seen, "bytes": share.blocks * BLOCK_BYTES}


def _check_block(file: int, offset: int) -> None:
    found, wanted = os.pread(file, BLOCK_BYTES, offset), block_at(offset)
    if found == wanted:
        return
    pairs = enumerate(zip(found, wanted, strict=False))
    first = next((place for place, (one, two) in pairs if one != two), len(found))
    raise WrongBytesError(f"wrong bytes at offset {offset + first}")


_ACTIONS: Final[dict[str, Callable[..., dict[str, Any]]]] = {
    "create": create,
    "stat": stat,
    "remove": remove,
    "small-write": small_write,
    "small-read": small_read,
    "small-remove": remove,
}


def main() -> None:
    action, given = sys.argv[1], json.loads(sys.argv[2])
    try:
        if action in ("shared-write", "shared-read"):
            work = shared_write if action == "shared-write" else shared_read
            seen = work(Share(**given))
        else:
            seen = _ACTIONS[action](**given)
    except (OSError, WrongBytesError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(84 if isinstance(error, WrongBytesError) else 1)
    sys.stdout.write(json.dumps(seen) + "\n")


if __name__ == "__main__":
    main()
