"""Power is cut under the LMDB store: every committed batch is there, and each batch is there
completely or not at all.

The writes and syncs that LMDB really makes are recorded once (record_writes.c). A cut keeps what
was synced before it; each later write is kept, dropped, or torn at sectors of 512 bytes, at random,
so any order in which writes reach the disk is covered. The store must open and show the state after
the last commit that returned, or after the one in progress.
"""

import os
import random
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from metaserver.store.lmdb import LmdbStore
from tests.conformance.lmdb_workload import batches

SECTOR = 512
SEED, COUNT = 7, 250
HERE = Path(__file__).parent
_HEAD = struct.Struct("<cQI")


@dataclass(frozen=True)
class Event:
    kind: str  # W, D and S are those of record_writes.c; M: a commit returned.
    offset: int
    content: bytes


def record(directory: Path) -> list[Event]:
    library, log = directory / "record_writes.so", directory / "log"
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the recorder with")
    subprocess.run(
        [
            compiler,
            "-shared",
            "-fPIC",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-o",
            library,
            HERE / "record_writes.c",
            "-ldl",
            "-lpthread",
        ],
        check=True,
    )
    environment = os.environ | {
        "LD_PRELOAD": str(library),
        "BRAIDFS_WRITE_LOG": str(log),
        "PYTHONPATH": str(HERE.parent.parent),
    }
    subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.conformance.lmdb_workload",
            directory / "recorded",
            log,
            str(SEED),
            str(COUNT),
        ],
        env=environment,
        check=True,
        timeout=120,
    )
    return parse(log.read_bytes())


def parse(raw: bytes) -> list[Event]:
    events, position = [], 0
    while position < len(raw):
        kind, offset, length = _HEAD.unpack_from(raw, position)
        position += _HEAD.size
        events.append(Event(kind.decode(), offset, raw[position : position + length]))
        position += length
    return events


def states() -> list[dict[bytes, bytes]]:
    """What the store must contain after 0, 1, 2 ... commits."""
    state: dict[bytes, bytes] = {}
    made = [dict(state)]
    for batch in batches(SEED, COUNT):
        for key, value in batch:
            if value is None:
                state.pop(key, None)
            else:
                state[key] = value
        made.append(dict(state))
    return made


def apply(image: bytearray, offset: int, content: bytes) -> None:
    """Applies one write. An empty write makes a file longer, by zeros, so the bytes after it are
    left out."""
    if content and len(image) < offset:
        image.extend(bytes(offset - len(image)))
    if content:
        image[offset : offset + len(content)] = content


def apply_torn(image: bytearray, event: Event, chance: random.Random) -> None:
    """Applies a random subset of the sectors that the write touches."""
    start = 0
    while start < len(event.content):
        end = min(len(event.content), start + SECTOR - (event.offset + start) % SECTOR)
        if chance.random() < 0.5:
            apply(image, event.offset + start, event.content[start:end])
        start = end


class Disk:
    """The bytes that are surely on the disk, and the writes that may be."""

    def __init__(self, events: list[Event]) -> None:
        self._events = events
        self._next = 0
        self._image = bytearray()
        self._unsynced: list[Event] = []
        self.commits = 0
        # The file's length with space allocated in advance, not the end of the used pages.
        self.length = 0

    def advance(self, end: int) -> None:
        for event in self._events[self._next : end]:
            if event.kind == "S":
                for written in self._unsynced:
                    apply(self._image, written.offset, written.content)
                self._unsynced.clear()
            elif event.kind == "D":
                apply(self._image, event.offset, event.content)
            elif event.kind == "W":
                self._unsynced.append(event)
                self.length = max(self.length, event.offset if not event.content else 0)
            else:
                self.commits += 1
        self._next = end

    def cut(self, chance: random.Random) -> bytes:
        """The power fails during the next event."""
        image = bytearray(self._image)
        following = self._events[self._next]
        doubtful = [*self._unsynced, *([following] if following.content else [])]
        for event in doubtful:
            fate = chance.random()
            if fate < 0.4:
                apply(image, event.offset, event.content)
            elif fate < 0.7:
                apply_torn(image, event, chance)
        return bytes(image)


def read_store(directory: Path, image: bytes, length: int) -> dict[bytes, bytes]:
    directory.mkdir(exist_ok=True)
    (directory / "data.mdb").write_bytes(image)
    os.truncate(directory / "data.mdb", max(len(image), length))
    (directory / "lock.mdb").unlink(missing_ok=True)
    store = LmdbStore(directory, size_max=1 << 28)
    snapshot = store.snapshot()
    found = dict(snapshot.range(b"\0", b"\xff"))
    snapshot.close()
    store.close()
    return found


def run_cuts(directory: Path, count: int) -> int:
    """Cuts `count` times, spread over the whole recording; returns how many cuts lost something."""
    events = record(directory)
    expected = states()
    first = next(index for index, event in enumerate(events) if event.kind == "M") + 1
    chance = random.Random(count)
    points = sorted(chance.randrange(first, len(events) - 1) for _ in range(count))
    disk, lossy = Disk(events), 0
    for point in points:
        disk.advance(point)
        length = chance.choice([0, disk.length])  # the space is allocated, or not yet
        found = read_store(directory / "cut", disk.cut(chance), length)
        allowed = expected[disk.commits : disk.commits + 2]
        assert found in allowed, f"cut at event {point}, after {disk.commits} commits"
        lossy += found == allowed[0]
    return lossy


def test_the_recorder_sees_what_lmdb_does(tmp_path: Path) -> None:
    events = record(tmp_path)
    kinds = [event.kind for event in events]
    assert kinds.count("M") == COUNT
    assert min(kinds.count("S"), kinds.count("D")) > 0.9 * COUNT  # an empty commit writes nothing
    image = bytearray()
    for event in events:
        apply(image, event.offset, event.content)
    recorded = (tmp_path / "recorded" / "data.mdb").read_bytes()
    assert recorded[: len(image)] == image, "every byte of the file came through a recorded write"
    length = max(event.offset + len(event.content) for event in events)
    assert recorded[len(image) :] == bytes(length - len(image))


def test_power_loss(tmp_path: Path) -> None:
    assert run_cuts(tmp_path, 500) > 50


@pytest.mark.full
def test_power_loss_ten_thousand_times(tmp_path: Path) -> None:
    run_cuts(tmp_path, 10_000)


def test_a_store_that_never_syncs_is_caught(tmp_path: Path) -> None:
    """The test can fail: without the syncs, batches are missing or the store is broken."""
    events = [event for event in record(tmp_path) if event.kind != "S"]
    expected = states()
    chance = random.Random(1)
    disk, caught = Disk(events), 0
    for point in range(len(events) // 2, len(events) - 1, len(events) // 60):
        disk.advance(point)
        try:
            found = read_store(tmp_path / "cut", disk.cut(chance), disk.length)
            caught += found not in expected[disk.commits : disk.commits + 2]
        except Exception:
            caught += 1
    assert caught > 10
