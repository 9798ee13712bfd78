"""Entries of READDIRPLUS that are made of attributes, and of a record's fields, are the same
bytes."""

from hypothesis import given
from hypothesis import strategies as st

from fsclient.fuse.structures import READDIR_SIZE_MAX, DirectoryBody, EntryOut
from fscommon.file_time import kept_time
from fscommon.layout.attributes import Attributes, record_fields

U32 = st.integers(0, (1 << 32) - 1)
U64 = st.integers(0, (1 << 64) - 1)
TIMES = st.integers(-(1 << 33), 1 << 35).map(lambda seconds: kept_time(seconds * 10**9 + 7))
ENTRIES = st.builds(
    Attributes,
    ino=st.integers(2, (1 << 64) - 1),
    size=U64,
    blocks=U64,
    atime_ns=TIMES,
    mtime_ns=TIMES,
    ctime_ns=TIMES,
    mode=U32,
    nlink=U32,
    uid=U32,
    gid=U32,
    rdev=U32,
    flags=U32,
)
NAMES = st.binary(min_size=1, max_size=255)


@given(
    rows=st.lists(st.tuples(NAMES, U64, ENTRIES), max_size=6),
    entry_s=st.floats(0, 1000),
    size=st.sampled_from([600, 1000, READDIR_SIZE_MAX]),
)
def test_entries_of_fields_are_those_of_attributes(
    rows: list[tuple[bytes, int, Attributes]], entry_s: float, size: int
) -> None:
    usual, quick = DirectoryBody(size), DirectoryBody(size)
    for name, cookie, attributes in rows:
        entry = EntryOut(attributes, attributes.ino, entry_s, 0.0)
        is_taken = usual.add(name, cookie, entry)
        fields = record_fields(b"before" + attributes.pack(), len(b"before"))
        assert quick.add(name, cookie, EntryOut(fields, fields.ino, entry_s, 0.0)) == is_taken
    assert quick.octets == usual.octets
