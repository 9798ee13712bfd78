"""The file of a backup: the records of a metaserver, in blocks (docs/INTERFACES.md, section 9).

A head says of which cluster and of which moment the records are. Blocks follow, each compressed,
with a sum of its own; a trailer says how much there is and ends the file. So a file that was cut
off, damaged, or made by somebody else is noticed, at the latest at its trailer. Writer and reader
hold one block at a time, and no length in a file has them hold more than BLOCK_LENGTH_MAX.

Keys and values are bytes here: metaserver.records knows what they mean. Sums detect accidents; a
backup is as secret and as trusted as the place where it is kept.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

from fscommon.checksum import xxh3_64
from fscommon.errors import BraidError

VERSION: Final = 1
CLUSTER_LENGTH: Final = 16
KEY_LENGTH_MAX: Final = 511
BLOCK_LENGTH: Final = 1 << 20  # a block ends when it has so many bytes, before compression
BLOCK_LENGTH_MAX: Final = 8 << 20

_MAGIC: Final = b"BRAIDBAK"
_BLOCK_MAGIC: Final = b"BLCK"
_TRAILER_MAGIC: Final = b"TRLR"
_HEAD: Final = struct.Struct("<8sII16sQQqQ")
_BLOCK: Final = struct.Struct("<4sIIIQQ")  # records, length, compressed length, sum, own sum
_TRAILER: Final = struct.Struct("<4sIQQQQQ")
_RECORD: Final = struct.Struct("<HI")
_SUM: Final = struct.Struct("<Q")
_CHAIN: Final = struct.Struct("<2Q")
_STORED_MAX: Final = BLOCK_LENGTH_MAX + (64 << 10)  # zlib makes what it cannot compress longer
_LEVEL: Final = 1  # of zlib: the network and the disk are not to wait for it

Record = tuple[bytes, bytes]


class ArchiveError(BraidError):
    """A file is no whole backup; the message says which file, and what is wrong with it."""


class BadRecordsError(BraidError):
    """Bytes that are not records in the order of their keys."""


@dataclass(frozen=True, slots=True)
class Head:
    """What a backup is of. schema: of the records; txn: the last transaction that is in it; inodes:
    how many there are; time_ns: when it was made."""

    cluster: bytes
    schema: int
    txn: int
    inodes: int
    time_ns: int


@dataclass(frozen=True, slots=True)
class Totals:
    """bytes: of the records, before compression."""

    blocks: int = 0
    records: int = 0
    bytes: int = 0


# ---- records ---------------------------------------------------------------------------------


def pack_record(key: bytes, value: bytes) -> bytes:
    return _RECORD.pack(len(key), len(value)) + key + value


def unpack_records(packed: bytes, after: bytes = b"") -> Iterator[Record]:
    """Yields the records. Raises BadRecordsError unless they fill the bytes exactly, and each key
    is greater than the one before; that of the first one than `after`."""
    at = 0
    while at < len(packed):
        if at + _RECORD.size > len(packed):
            raise BadRecordsError("a record is cut off")
        key_length, value_length = _RECORD.unpack_from(packed, at)
        start = at + _RECORD.size
        at = start + key_length + value_length
        if not 0 < key_length <= KEY_LENGTH_MAX:
            raise BadRecordsError(f"a key has {key_length} bytes")
        if at > len(packed):
            raise BadRecordsError("a record is cut off")
        key = packed[start : start + key_length]
        if key <= after:
            raise BadRecordsError("the keys are not in order")
        after = key
        yield key, packed[start + key_length : at]


def _chained(chain: int, block_sum: int) -> int:
    return xxh3_64(_CHAIN.pack(chain, block_sum))


def _sealed(fields: bytes) -> bytes:
    return fields + _SUM.pack(xxh3_64(fields))


# ---- writing ---------------------------------------------------------------------------------


class ArchiveWriter:
    """Writes a backup to a file; `finish` must be called at the end. Raises OSError."""

    def __init__(self, file: BinaryIO, head: Head) -> None:
        self._file = file
        self._parts: list[bytes] = []
        self._length = 0
        self._records = 0
        self._chain = 0
        self._totals = Totals()
        fields = (head.cluster, head.txn, head.inodes, head.time_ns)
        packed = _HEAD.pack(_MAGIC, VERSION, head.schema, *fields, 0)
        file.write(_sealed(packed[: -_SUM.size]))

    def add(self, packed: bytes, count: int) -> None:
        """Adds `count` packed records, whose keys follow those that were added before."""
        if self._length + len(packed) > BLOCK_LENGTH:
            self._end_block()
        self._parts.append(packed)
        self._length += len(packed)
        self._records += count

    def _end_block(self) -> None:
        if not self._length:
            return
        assert self._length <= BLOCK_LENGTH_MAX, "a request and a record are bounded"
        stored = zlib.compress(b"".join(self._parts), _LEVEL)
        block_sum = xxh3_64(stored)
        counts = (self._records, self._length, len(stored))
        packed = _BLOCK.pack(_BLOCK_MAGIC, *counts, block_sum, 0)
        self._file.write(_sealed(packed[: -_SUM.size]) + stored)
        self._chain = _chained(self._chain, block_sum)
        totals = self._totals
        self._totals = Totals(
            totals.blocks + 1, totals.records + self._records, totals.bytes + self._length
        )
        self._parts, self._length, self._records = [], 0, 0

    def finish(self) -> Totals:
        self._end_block()
        totals = self._totals
        counts = (totals.blocks, totals.records, totals.bytes)
        packed = _TRAILER.pack(_TRAILER_MAGIC, 0, *counts, self._chain, 0)
        self._file.write(_sealed(packed[: -_SUM.size]))
        return totals


# ---- reading ---------------------------------------------------------------------------------


class ArchiveReader:
    """Reads a backup from its beginning. Whoever wants to be sure that it is whole reads `records`
    to their end. Raises ArchiveError, OSError."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self._name = name
        self._chain = 0
        self._last_key = b""
        self.totals = Totals()  # of what was read so far
        self.head = self._read_head()

    def _refuse(self, what: str) -> ArchiveError:
        return ArchiveError(f"{self._name}: {what}")

    def _read(self, size: int, what: str) -> bytes:
        found = self._file.read(size)
        if len(found) < size:
            raise self._refuse(f"it ends within {what}: the file was cut off")
        return found

    def _check_seal(self, sealed: bytes, what: str) -> None:
        if _SUM.unpack(sealed[-_SUM.size :])[0] != xxh3_64(sealed[: -_SUM.size]):
            raise self._refuse(f"{what} is damaged")

    def _read_head(self) -> Head:
        magic = self._file.read(len(_MAGIC))
        if magic != _MAGIC:
            raise self._refuse("it is no backup of a BraidFS metaserver")
        raw = magic + self._read(_HEAD.size - len(magic), "its head")
        _, version, schema, cluster, txn, inodes, time_ns, _ = _HEAD.unpack(raw)
        if version != VERSION:
            raise self._refuse(f"it has format {version}; this program knows {VERSION}")
        self._check_seal(raw, "its head")
        return Head(cluster, schema, txn, inodes, time_ns)

    def records(self) -> Iterator[list[Record]]:
        """Yields the records of each block, and ends when the trailer agrees with them."""
        while (block := self._next_block()) is not None:
            yield block

    def _next_block(self) -> list[Record] | None:
        where = f"block {self.totals.blocks + 1}"
        raw = self._read(_BLOCK.size, where)
        if raw.startswith(_TRAILER_MAGIC):
            self._end(raw)
            return None
        self._check_seal(raw, f"the head of {where}")
        magic, count, length, stored_length, block_sum, _ = _BLOCK.unpack(raw)
        if magic != _BLOCK_MAGIC:
            raise self._refuse(f"{where} is neither a block nor the end")
        if not 0 < length <= BLOCK_LENGTH_MAX or not 0 < stored_length <= _STORED_MAX:
            raise self._refuse(f"{where} says that it has {length} bytes in {stored_length}")
        stored = self._read(stored_length, where)
        if xxh3_64(stored) != block_sum:
            raise self._refuse(f"{where} is damaged")
        block = self._unpacked(self._expanded(stored, length, where), count, where)
        self._chain = _chained(self._chain, block_sum)
        totals = self.totals
        self.totals = Totals(totals.blocks + 1, totals.records + count, totals.bytes + length)
        return block

    def _expanded(self, stored: bytes, length: int, where: str) -> bytes:
        """Never makes more than `length` bytes and one."""
        stream = zlib.decompressobj()
        try:
            packed = stream.decompress(stored, length + 1)
        except zlib.error as error:
            raise self._refuse(f"{where} cannot be expanded: {error}") from error
        if len(packed) != length or not stream.eof or stream.unused_data:
            raise self._refuse(f"{where} does not have the {length} bytes that it names")
        return packed

    def _unpacked(self, packed: bytes, count: int, where: str) -> list[Record]:
        try:
            block = list(unpack_records(packed, self._last_key))
        except BadRecordsError as error:
            raise self._refuse(f"{where}: {error}") from error
        if len(block) != count:
            raise self._refuse(f"{where} has {len(block)} records, not {count}")
        self._last_key = block[-1][0]
        return block

    def _end(self, begun: bytes) -> None:
        raw = begun + self._read(_TRAILER.size - len(begun), "its end")
        self._check_seal(raw, "its end")
        _, _, *counts, chain, _ = _TRAILER.unpack(raw)
        if Totals(*counts) != self.totals or chain != self._chain:
            raise self._refuse("blocks are missing, or are not those of its end")
        if self._file.read(1):
            raise self._refuse("something follows its end")
