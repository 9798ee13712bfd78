"""Makes a metaserver's store from a backup: `python -m metaserver.restore BACKUP STATE_DIRECTORY`.

`braidfs meta restore` runs it. The store is written beside its place, read again, and then renamed;
until that moment nothing is there that a metaserver would start with.

What the cluster did after the backup is unknown to it, and has left traces: objects on targets,
bytes on clients' disks. So the records change on their way (docs/decisions/0061-backup.md):
- Numbers that must never be given twice, or never fall, jump beyond all that may have been used
  since: those of inodes and files, versions, truncate epochs, transactions, epochs of the map.
- Sessions end: each becomes one that was evicted, and what it was writing is cut to its committed
  size. So a client that comes back gets a new session and replays nothing.
- Copies of replicas that were being made are given up: their objects are deleted.
- Files with replicas are compared, before repair takes any replica for a good one: some may have
  been dropped since (docs/decisions/0066-scrub.md).
"""

import json
import os
import shutil
import stat
import struct
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final

from fscommon.archive import ArchiveError, ArchiveReader, Head, Record
from fscommon.errors import BraidError, ConfigError, ProtocolError
from fscommon.files import sync_directory
from fscommon.layout.attributes import ATTRIBUTES_SIZE, Attributes, unpack_attributes
from fscommon.layout.layout import Layout, unpack_layout
from fscommon.limits import GENERATION_MAX
from fscommon.wire.codec import decode
from metaserver import records
from metaserver.state_directory import RESTORING, STORE, held
from metaserver.store.journaled import MARK_KEY
from metaserver.store.lmdb import LmdbSnapshot, LmdbStore

_BATCH_MAX: Final = 20_000  # records of one commit
# What a clock that is wrong, or a number that is greater already, leaves for what was used since.
_LONG_JUMP: Final = 1 << 40
_SHORT_JUMP: Final = 1 << 20
_GENERATIONS: Final = 1 << 12
_EPOCH_S: Final = 1_577_836_800  # 2020-01-01: numbers of 32 bits count seconds from then on


@dataclass(frozen=True, slots=True)
class Jumps:
    """Where numbers go on after a restore at this time. A later restore, also one of the same
    backup, goes on further: by 2^20 numbers a second, and by one a second where there are only 32
    bits. That is more than a cluster uses."""

    now_s: int

    def far(self, number: int) -> int:
        return max(number + _LONG_JUMP, self.now_s << 20)

    def near(self, number: int) -> int:
        return max(number + _SHORT_JUMP, self.now_s - _EPOCH_S)

    def generation(self, number: int) -> int:
        """Generations have 24 bits: they go on by one a minute, which is more than a file uses."""
        minutes = max(number + _GENERATIONS, (self.now_s - _EPOCH_S) // 60)
        return max(number, min(minutes, GENERATION_MAX - _GENERATIONS))


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore has made. sessions: those that ended; cut: files that they were writing."""

    records: int
    inodes: int
    sessions: int
    cut: int


# ---- records -----------------------------------------------------------------------------------


def _with_jumps(attributes: Attributes, jumps: Jumps) -> Attributes:
    """Clients keep bytes by version on their disks: no version may come again with others."""
    return replace(
        attributes,
        data_version=jumps.far(attributes.data_version),
        change_version=jumps.far(attributes.change_version),
    )


def _later(layout: Layout, jumps: Jumps) -> Layout:
    """Targets refuse what has an older truncate epoch than they have heard of. No replica that is
    made later gets a generation that may have been given since."""
    later = replace(layout, truncate_epoch=jumps.near(layout.truncate_epoch))
    if not layout.is_replicated:
        return later
    return replace(later, generation_last=jumps.generation(layout.generation_last))


def _inode(value: bytes, jumps: Jumps) -> bytes:
    attributes = unpack_attributes(value[:ATTRIBUTES_SIZE])
    tail = value[ATTRIBUTES_SIZE:]
    if stat.S_ISREG(attributes.mode):
        tail = _later(unpack_layout(tail), jumps).pack()
    return _with_jumps(attributes, jumps).pack() + tail


def _intent(value: bytes, jumps: Jumps) -> bytes:
    intent = records.unpack_intent(value)
    layout = _later(unpack_layout(intent.layout), jumps)
    return records.Intent(intent.size, layout.truncate_epoch, layout.pack()).pack()


def _numbers(key: bytes, value: bytes, jumps: Jumps) -> bytes | None:
    if key in (records.RECOVERY_KEY, MARK_KEY):
        return None
    if key in (records.INO_END_KEY, records.TXN_KEY):
        return records.pack_number(jumps.far(records.unpack_number(value)))
    if key == records.MAP_EPOCH_KEY:
        return records.pack_number(jumps.near(records.unpack_number(value)))
    return value


def restored_record(key: bytes, value: bytes, jumps: Jumps) -> Record | None:
    """The record as it is after a restore; None: it is left out."""
    letter = key[:1]
    kept: bytes | None = value
    if letter == b"I":
        kept = _inode(value, jumps)
    elif letter == b"T":
        kept = _intent(value, jumps)
    elif letter == b"M":
        kept = _numbers(key, value, jumps)
    elif letter == b"S":
        return records.fence_key(records.number_of(key)), b""
    elif letter in (b"R", b"C"):
        kept = None
    return None if kept is None else (key, kept)


def _given_up(value: bytes) -> list[Record]:
    """The records that have the objects of a plan deleted."""
    plan = decode(records.PlanRecord, value)
    return [(records.lone_key(name), b"") for name in (*plan.names(), *plan.gone())]


def _cut_record(snapshot: LmdbSnapshot, ino: int) -> dict[bytes, bytes]:
    """The records that have the metaserver cut a file to its committed size; {} if it has no file,
    or one that is to be cut already."""
    raw = snapshot.get(records.inode_key(ino))
    if raw is None or snapshot.get(records.intent_key(ino)) is not None:
        return {}
    attributes = unpack_attributes(raw[:ATTRIBUTES_SIZE])
    if not stat.S_ISREG(attributes.mode):
        return {}
    layout = unpack_layout(raw[ATTRIBUTES_SIZE:])
    layout = replace(layout, truncate_epoch=layout.truncate_epoch + 1)
    objects = replace(layout, inline=b"").pack()  # inline bytes stay in the record
    intent = records.Intent(attributes.size, layout.truncate_epoch, objects)
    return {
        records.inode_key(ino): attributes.pack() + layout.pack(),
        records.intent_key(ino): intent.pack(),
    }


def _cut(store: LmdbStore) -> int:
    """Has files cut to their committed size that sessions of the backup were writing, as their
    eviction would. Returns how many."""
    count = 0
    written = store.snapshot()
    keys = (key for key, _ in written.range(*records.all_of(b"W")))
    while some := list(islice(keys, _BATCH_MAX)):
        snapshot = store.snapshot()  # it has the files that were cut before
        batch: dict[bytes, bytes] = {}
        for ino in dict.fromkeys(map(records.written_ino, some)):
            batch |= _cut_record(snapshot, ino)
        snapshot.close()
        store.commit([*batch.items()])
        count += len(batch) // 2
    written.close()
    return count


# ---- the store ---------------------------------------------------------------------------------


def _batches(blocks: Iterable[list[Record]], jumps: Jumps) -> Iterator[dict[bytes, bytes]]:
    batch: dict[bytes, bytes] = {}
    for block in blocks:
        for key, value in block:
            try:
                record = restored_record(key, value, jumps)
                batch.update(_given_up(value) if key[:1] == b"C" else [])
            except (ProtocolError, struct.error, ValueError) as error:
                raise ProtocolError(f"that of key {key!r}: {error}") from error
            if record is not None:
                batch[record[0]] = record[1]
        if len(batch) >= _BATCH_MAX:
            yield batch
            batch = {}
    yield batch


def fill(store: LmdbStore, blocks: Iterable[list[Record]], jumps: Jumps) -> int:
    """Writes the records as they are after a restore, and has files cut that were being written.
    Returns how many."""
    for batch in _batches(blocks, jumps):
        store.commit([*batch.items()])
    store.commit([(records.COMPARED_KEY, records.pack_number(0))])
    return _cut(store)


def _check_head(store: LmdbStore, head: Head, name: str) -> None:
    """The head and the records must be of the same store."""
    snapshot = store.snapshot()
    try:
        found = {
            "cluster": snapshot.get(records.CLUSTER_KEY),
            "schema": records.unpack_number(snapshot.get(records.SCHEMA_KEY)),
            "inodes": records.unpack_number(snapshot.get(records.INODES_KEY)),
        }
    finally:
        snapshot.close()
    for what, value in found.items():
        if value != getattr(head, what):
            raise ArchiveError(f"{name}: its {what} is another one than that of its records")


def _verify(store: LmdbStore, head: Head, name: str) -> tuple[int, int]:
    """Reads all records again, which checks their sums. Returns how many records there are, and how
    many sessions have ended."""
    counts: dict[bytes, int] = {}
    snapshot = store.snapshot()
    try:
        for key, _ in snapshot.range(b"\0", records.KEYS_END):
            counts[key[:1]] = counts.get(key[:1], 0) + 1
    finally:
        snapshot.close()
    inodes = counts.get(b"I", 0)
    if inodes != head.inodes:
        raise ArchiveError(f"{name}: it has {inodes} inodes, and says {head.inodes}")
    return sum(counts.values()), counts.get(b"F", 0)


def _write(file: BinaryIO, name: str, directory: Path, now_s: int) -> Restored:
    reader = ArchiveReader(file, name)
    head, jumps = reader.head, Jumps(now_s)
    if head.schema != records.SCHEMA_VERSION:
        known = records.SCHEMA_VERSION
        raise ArchiveError(
            f"{name}: its records have schema {head.schema}; this program needs {known}"
        )
    store = LmdbStore(directory, size_max=0)
    try:
        cut = fill(store, reader.records(), jumps)
        _check_head(store, head, name)
        count, sessions = _verify(store, head, name)
    except (ProtocolError, struct.error, ValueError) as error:
        raise ArchiveError(f"{name}: a record is not one of a metaserver: {error}") from error
    finally:
        store.close()
    return Restored(count, head.inodes, sessions, cut)


def _remove_if_there(directory: Path) -> None:
    if directory.exists():
        shutil.rmtree(directory)


def give_to_owner(directory: Path, store: Path) -> None:
    """The store belongs to whoever has the state directory: root restores, and the metaserver has a
    user of its own."""
    owner = directory.stat()
    if os.geteuid() != 0 or owner.st_uid == 0:
        return
    for path in (store, *store.iterdir(), directory / "lock"):
        os.chown(path, owner.st_uid, owner.st_gid)


def restore(backup: Path, directory: Path, now_s: int) -> Restored:
    """Restores a backup into a state directory without a store. Raises ArchiveError, ConfigError,
    StoreError, OSError; then the directory still has none."""
    with backup.open("rb") as file, held(directory):
        if (directory / STORE).exists():
            raise ConfigError(f"{directory} has a metadata store: move {directory / STORE} away")
        fresh = directory / RESTORING
        _remove_if_there(fresh)  # of a restore that was interrupted
        try:
            restored = _write(file, str(backup), fresh, now_s)
            give_to_owner(directory, fresh)
            sync_directory(fresh)
            sync_directory(directory)
            fresh.rename(directory / STORE)
            sync_directory(directory)
        except BaseException:
            _remove_if_there(fresh)
            raise
    return restored


def main(argv: list[str] | None = None) -> int:
    """Prints what was restored as JSON. Exits with 1 if it failed, 2 if the directory or the words
    are wrong."""
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) != 2:
        print("usage: python -m metaserver.restore BACKUP STATE_DIRECTORY", file=sys.stderr)  # noqa: T201
        return 2
    try:
        restored = restore(Path(arguments[0]), Path(arguments[1]), int(time.time()))
    except ConfigError as error:
        print(error, file=sys.stderr)  # noqa: T201 - the output of a command
        return 2
    except BraidError as error:
        print(error, file=sys.stderr)  # noqa: T201 - the output of a command
        return 1
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        return 130
    print(json.dumps(asdict(restored)))  # noqa: T201 - the output of a command
    return 0


if __name__ == "__main__":
    sys.exit(main())
