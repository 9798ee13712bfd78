"""The file of a backup: what was written is read again, and what is wrong is refused by name."""

import io
import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fscommon.archive import (
    BLOCK_LENGTH,
    BLOCK_LENGTH_MAX,
    KEY_LENGTH_MAX,
    ArchiveError,
    ArchiveReader,
    ArchiveWriter,
    BadRecordsError,
    Head,
    Record,
    Totals,
    pack_record,
    unpack_records,
)
from fscommon.checksum import xxh3_64

HEAD = Head(b"c" * 16, 1, 77, 5, 1_700_000_000_000_000_000)
HEAD_SIZE = 64
BLOCK_SIZE = 32  # of the head of a block
RECORDS = [(b"k%05d" % number, bytes(number % 50)) for number in range(2000)]


def written(records: list[Record], each: int = 100) -> bytes:
    file = io.BytesIO()
    writer = ArchiveWriter(file, HEAD)
    for start in range(0, len(records), each):
        part = records[start : start + each]
        writer.add(b"".join(pack_record(*record) for record in part), len(part))
    writer.finish()
    return file.getvalue()


def read(raw: bytes) -> list[Record]:
    reader = ArchiveReader(io.BytesIO(raw), "a.backup")
    assert reader.head == HEAD
    return [record for block in reader.records() for record in block]


def refusal(raw: bytes) -> str:
    with pytest.raises(ArchiveError) as caught:
        read(raw)
    said = str(caught.value)
    assert said.startswith("a.backup: ")
    return said


def sealed(fields: bytes) -> bytes:
    return fields + struct.pack("<Q", xxh3_64(fields))


def block(packed: bytes, count: int, *, length: int | None = None, stored: bytes = b"") -> bytes:
    """A block with sound sums, whatever it says."""
    stored = stored or zlib.compress(packed, 1)
    length = len(packed) if length is None else length
    fields = struct.pack("<4sIIIQ", b"BLCK", count, length, len(stored), xxh3_64(stored))
    return sealed(fields) + stored


def head_of_file() -> bytes:
    return written([])[:HEAD_SIZE]


records_of = st.dictionaries(
    st.binary(min_size=1, max_size=KEY_LENGTH_MAX), st.binary(max_size=3000), max_size=40
).map(lambda found: sorted(found.items()))


@given(records_of, st.integers(1, 7))
@settings(deadline=None)
def test_what_was_written_is_read(records: list[Record], each: int) -> None:
    assert read(written(records, each)) == records


def test_blocks_are_of_a_megabyte_and_counted() -> None:
    records = [(b"%08d" % number, random.Random(number).randbytes(40_000)) for number in range(100)]
    raw = written(records, 3)
    reader = ArchiveReader(io.BytesIO(raw), "a.backup")
    lengths = [sum(6 + len(k) + len(v) for k, v in found) for found in reader.records()]
    assert len(lengths) == 5 and max(lengths) <= BLOCK_LENGTH
    assert reader.totals == Totals(5, 100, sum(lengths))


def test_an_empty_backup_is_whole() -> None:
    assert read(written([])) == []


# ---- what is refused ---------------------------------------------------------------------------


def test_a_file_that_was_cut_off_is_refused_wherever_it_was() -> None:
    raw = written(RECORDS[:50], 10)
    for end in range(len(raw)):
        said = refusal(raw[:end])
        assert said.endswith(
            "the file was cut off" if end >= 8 else "it is no backup of a BraidFS metaserver"
        )


def test_each_byte_counts() -> None:
    raw = written(RECORDS[:50], 10)
    for place in range(len(raw)):
        damaged = bytearray(raw)
        damaged[place] ^= 0x20
        refusal(bytes(damaged))


@given(st.binary(max_size=300))
def test_a_foreign_file_is_refused(raw: bytes) -> None:
    with pytest.raises(ArchiveError):
        read(raw)


def test_another_format_is_named() -> None:
    raw = bytearray(written(RECORDS))
    raw[8] = 9
    assert "it has format 9; this program knows 1" in refusal(bytes(raw))


def test_something_behind_the_end_is_refused() -> None:
    assert "something follows its end" in refusal(written(RECORDS) + b"\0")


def test_a_missing_block_is_noticed() -> None:
    records = [(b"%08d" % number, random.Random(number).randbytes(40_000)) for number in range(100)]
    raw = written(records, 3)
    length = struct.unpack_from("<I", raw, HEAD_SIZE + 12)[0]
    cut = raw[:HEAD_SIZE] + raw[HEAD_SIZE + BLOCK_SIZE + length :]
    assert "blocks are missing" in refusal(cut)


@pytest.mark.parametrize(
    ("records", "what"),
    [
        ([(b"b", b""), (b"a", b"")], "the keys are not in order"),
        ([(b"a", b""), (b"a", b"")], "the keys are not in order"),
        ([(b"", b"")], "a key has 0 bytes"),
        ([(b"k" * 512, b"")], "a key has 512 bytes"),
    ],
)
def test_records_that_no_writer_makes_are_refused(records: list[Record], what: str) -> None:
    packed = b"".join(pack_record(*record) for record in records)
    assert f"block 1: {what}" in refusal(head_of_file() + block(packed, len(records)))


def test_keys_are_in_order_from_block_to_block() -> None:
    first, second = pack_record(b"b", b""), pack_record(b"a", b"")
    raw = head_of_file() + block(first, 1) + block(second, 1)
    assert "block 2: the keys are not in order" in refusal(raw)


@pytest.mark.parametrize(
    ("made", "what"),
    [
        (lambda one: block(one, 2), "has 1 records, not 2"),
        (lambda one: block(one + b"\0", 1), "a record is cut off"),
        (lambda one: block(one[:-1], 1), "a record is cut off"),
        (lambda one: block(one, 1, length=len(one) - 1), "does not have the"),
        (lambda one: block(one, 1, length=len(one) + 1), "does not have the"),
        (lambda one: block(one, 1, length=0), "says that it has 0 bytes"),
        (lambda one: block(one, 1, length=BLOCK_LENGTH_MAX + 1), "says that it has"),
        (lambda one: block(one, 1, stored=b"not zlib"), "cannot be expanded"),
        (lambda one: block(one, 1, stored=zlib.compress(one) + b"x"), "does not have the"),
        (lambda one: sealed(struct.pack("<4sIIIQ", b"BLOB", 1, 1, 1, 1)), "neither a block"),
    ],
)
def test_blocks_that_lie_are_refused(made: Callable[[bytes], bytes], what: str) -> None:
    assert what in refusal(head_of_file() + made(pack_record(b"a", b"value")))


@pytest.mark.parametrize(
    "lie", [("<I", 2**32 - 1, 12), ("<I", 2**32 - 1, 8)], ids=["compressed", "expanded"]
)
def test_a_length_is_not_believed(lie: tuple[str, int, int]) -> None:
    form, value, at = lie
    fields = bytearray(block(pack_record(b"a", b""), 1)[: BLOCK_SIZE - 8])
    struct.pack_into(form, fields, at, value)
    assert "says that it has" in refusal(head_of_file() + sealed(bytes(fields)))


def test_a_bomb_does_not_go_off() -> None:
    bomb = zlib.compress(bytes(1 << 28), 9)
    raw = head_of_file() + block(b"", 1, length=1000, stored=bomb)
    tracemalloc.start()
    try:
        assert "does not have the 1000 bytes" in refusal(raw)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


def test_a_long_backup_takes_little_memory() -> None:
    raw = written([(b"%09d" % number, bytes(1000)) for number in range(60_000)], 200)
    tracemalloc.start()
    try:
        reader = ArchiveReader(io.BytesIO(raw), "a.backup")
        for _ in reader.records():
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reader.totals.bytes > 60_000_000 and peak < 12 << 20


def test_random_changes_never_do_more_than_be_refused() -> None:
    """A changed file is refused, or (where sums were mended) has sound records."""
    rng = random.Random(61)
    raw = written(RECORDS[:300], 10)
    for _ in range(3000):
        changed = bytearray(raw)
        for _ in range(rng.randrange(1, 5)):
            at = rng.randrange(len(changed))
            changed[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(4))
        if rng.random() < 0.5:
            _mend(changed)
        try:
            found = read(bytes(changed))
        except ArchiveError:
            continue
        except AssertionError:
            continue  # the head is sound, and another one
        keys = [key for key, _ in found]
        assert keys == sorted(set(keys))


def _mend(raw: bytearray) -> None:
    """Makes the sums of the head and of the first block right again."""
    raw[HEAD_SIZE - 8 : HEAD_SIZE] = struct.pack("<Q", xxh3_64(bytes(raw[: HEAD_SIZE - 8])))
    start = HEAD_SIZE
    stored = bytes(raw[start + BLOCK_SIZE :][: struct.unpack_from("<I", raw, start + 12)[0]])
    struct.pack_into("<Q", raw, start + 16, xxh3_64(stored))
    head = bytes(raw[start : start + BLOCK_SIZE - 8])
    struct.pack_into("<Q", raw, start + BLOCK_SIZE - 8, xxh3_64(head))


@given(st.binary(max_size=200), st.binary(max_size=4))
def test_packed_records_from_outside_are_sound_or_refused(packed: bytes, after: bytes) -> None:
    try:
        found = list(unpack_records(packed, after))
    except BadRecordsError:
        return
    assert b"".join(pack_record(*record) for record in found) == packed
    assert [after, *(key for key, _ in found)] == sorted({after, *(key for key, _ in found)})
