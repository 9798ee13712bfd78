"""The form of each kind of record, and snapshots that give out no record of another form.

A record whose sum is right (metaserver.store.lmdb) is what was written, which may still be wrong: a
fault of some release wrote it, or somebody has changed the store. Who reads records believes that
numbers are in their ranges and names are whole. So each record is looked at here, when it comes out
of the store. One of another form is an error for what needs it (UnreadableRecordError), is told of
once, and stays in the store as it is. Whether records agree with each other is for metaserver.fsck,
and for those that act on them.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Final

from fscommon.errors import ProtocolError
from fscommon.layout.attributes import ATTRIBUTES_SIZE
from fscommon.layout.layout import layout_fault, unpack_layout
from fscommon.layout.quota import QuotaKind
from fscommon.layout.template import LAYOUT_XATTR, unpack_default
from fscommon.limits import NAME_LENGTH_MAX, REPLICA_PLACES_MAX
from fscommon.observe.log import Log
from fscommon.wire.codec import decode
from fscommon.wire.messages import BODIES
from fscommon.wire.ops import Op
from metaserver import records
from metaserver.records import ObjectName
from metaserver.store.journaled import MARK_KEY, Mark
from metaserver.store.waist import RecordError, Snapshot

NUMBER_MAX: Final = (1 << 63) - 1  # of an inode, a count, a version: they go on rising
U32_MAX: Final = (1 << 32) - 1
EPOCH_MAX: Final = (1 << 32) - (1 << 16)  # of what has 32 bits, and goes on rising
_BYTES_MAX: Final = 1 << 126  # of an account
_TOLD_MAX: Final = 4096
_ONE: Final = 9  # bytes of a key of a letter and so many numbers
_TWO: Final = 17
_THREE: Final = 25
_FOUR: Final = 33
_KIND_AT: Final = 57  # the byte of an attribute record with the type of the inode
_KINDS: Final = frozenset((1, 2, 4, 6, 8, 10, 12))  # S_IFMT >> 12
_FILE: Final = 8
# The highest bytes of size, data version and change version of an attribute record.
_SIZE, _DATA, _CHANGE = 15, 87, 95
_HIGH: Final = 0x80
_ACL_HEAD: Final = b"\2\0\0\0"
_ACL_ENTRY: Final = 8
_STATES_OF_TREES: Final = 3
_FORMAT_MAX: Final = 1  # of stored replies

Tell = Callable[[str], None]


class UnreadableRecordError(RecordError):
    """A record has another form than its kind: EIO for the request that needs it."""

    def __init__(self, key: bytes, why: str) -> None:
        super().__init__(
            key, f"the record of key {key!r} in the metadata store cannot be read: {why}"
        )


class Once:
    """Tells each text once, and of no more than some thousand."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._told: set[str] = set()

    def __call__(self, text: str) -> None:
        if text not in self._told and len(self._told) < _TOLD_MAX:
            self._told.add(text)
            self._tell(text)


def log_damage(text: str) -> None:
    Log("metaserver").error("damaged metadata: its users get EIO", what=text)


class FormedSnapshot:
    """A snapshot of the store without records of a wrong form."""

    __slots__ = ("_inner", "_tell")

    def __init__(self, inner: Snapshot, tell: Tell) -> None:
        self._inner = inner
        self._tell = tell

    def get(self, key: bytes) -> bytes | None:
        """Raises RecordError."""
        try:
            value = self._inner.get(key)
            return value if value is None else _checked(key, value)
        except RecordError as error:
            self._tell(error.message)
            raise

    def range(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Raises RecordError at the first record that cannot be read."""
        try:
            for key, value in self._inner.range(start, end):
                yield key, _checked(key, value)
        except RecordError as error:
            self._tell(error.message)
            raise

    def readable(
        self, start: bytes, end: bytes, left_out: list[bytes] | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """As range(), but leaves out what cannot be read; the keys of that go to `left_out`."""
        while True:
            try:
                for key, value in self._inner.range(start, end):
                    yield key, _checked(key, value)
            except RecordError as error:
                self._tell(error.message)
                if left_out is not None:
                    left_out.append(error.key)
                start = error.key + b"\0"
            else:
                return

    def keys(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields the keys of a range, and b"" for their values, which may be damaged. Keys of a
        wrong length are left out."""
        while True:
            try:
                for key, value in self._inner.range(start, end):
                    if why := fault_of(key, value):
                        self._tell(UnreadableRecordError(key, why).message)
                    if len(key) == KEY_LENGTHS.get(key[:1], len(key)):
                        yield key, b""
            except RecordError as error:
                self._tell(error.message)
                if len(error.key) == KEY_LENGTHS.get(error.key[:1], len(error.key)):
                    yield error.key, b""
                start = error.key + b"\0"
            else:
                return

    def close(self) -> None:
        self._inner.close()


def _checked(key: bytes, value: bytes) -> bytes:
    if why := fault_of(key, value):
        raise UnreadableRecordError(key, why)
    return value


def fault_of(key: bytes, value: bytes) -> str:
    """Why this cannot be a record of its kind; "" if it can, or there is no such kind."""
    form = FORMS.get(key[:1])
    if form is None:
        return ""
    try:
        return form(key, value)
    except (ProtocolError, ValueError) as error:
        return str(error)
    except struct.error:
        return "it, or its key, has another length"


# ---- inodes and names --------------------------------------------------------------------------


def _inode(key: bytes, value: bytes) -> str:
    if len(value) < ATTRIBUTES_SIZE:
        return "it is too short for the attributes of an inode"
    if value[:8] != key[:0:-1]:
        return "it is of another inode"
    if (key[1] | value[_SIZE] | value[_DATA] | value[_CHANGE]) & _HIGH:
        return "a number of it is out of range"
    kind = value[_KIND_AT] >> 4
    if kind == _FILE:
        return layout_fault(value[ATTRIBUTES_SIZE:])
    return "" if kind in _KINDS else f"{kind} is no type of an inode"


def _dentry(key: bytes, value: bytes) -> str:
    name = records.dentry_name(key)
    if len(key) < _TWO or not _is_name(name):
        return "its key has no name"
    ino, kind = records.unpack_dentry(value)
    return "" if kind in _KINDS and 0 < ino <= NUMBER_MAX else "it names no inode"


def _is_name(name: bytes) -> bool:
    return 0 < len(name) <= NAME_LENGTH_MAX and b"/" not in name and b"\0" not in name


def _xattr(key: bytes, value: bytes) -> str:
    name = records.xattr_name(key)
    if not 0 < len(name) <= NAME_LENGTH_MAX or len(key) <= _ONE:
        return "its key has no name"
    if name == LAYOUT_XATTR:
        unpack_default(value)
    is_acl = name.startswith(b"system.posix_acl_")
    behind = len(value) - len(_ACL_HEAD)
    if is_acl and (not value.startswith(_ACL_HEAD) or behind % _ACL_ENTRY):
        return "it is no access control list"
    return ""


def _doomed(key: bytes, value: bytes) -> str:
    fault = _numbered(key, value)
    file_id = unpack_layout(value).file_id
    return fault or ("" if file_id == records.number_of(key) else "it is of another file")


def _intent(key: bytes, value: bytes) -> str:
    intent = records.unpack_intent(value)
    unpack_layout(intent.layout)
    return _numbered(key, value) or ("" if intent.size <= NUMBER_MAX else "its size is too large")


# ---- keys with numbers ---------------------------------------------------------------------------


def _numbered(key: bytes, value: bytes) -> str:
    if len(key) != _ONE:
        return "its key has another length"
    return "" if key[1] < _HIGH else "the number in its key is out of range"


def _orphan(key: bytes, value: bytes) -> str:
    return _numbered(key, value) or _number(key, value)


def _empty_one(key: bytes, value: bytes) -> str:
    return "it is not empty" if value else _numbered(key, value)


def _two(key: bytes, value: bytes) -> str:
    return "" if len(key) == _TWO else "its key has another length"


def _empty_two(key: bytes, value: bytes) -> str:
    return "it is not empty" if value else _two(key, value)


def _numbered_two(key: bytes, value: bytes) -> str:
    return _two(key, value) or _number(key, value)


def _object(name: ObjectName) -> str:
    return "" if max(name.target, name.number) <= U32_MAX else "its key names no object"


def _lone(key: bytes, value: bytes) -> str:
    return "it is not empty" if value else _object(records.lone_name(key))


def _dropped(key: bytes, value: bytes) -> str:
    return _number(key, value) or _object(records.dropped_name(key))


def _dropped_of_file(key: bytes, value: bytes) -> str:
    return "it is not empty" if value else _object(records.dropped_name_of_file(key))


def _number(key: bytes, value: bytes) -> str:
    return "" if records.unpack_number(value) <= NUMBER_MAX else "its number is out of range"


def _lacking(key: bytes, value: bytes) -> str:
    fault = _empty_two(key, value)
    return fault or ("" if records.lacking_place(key)[0] <= REPLICA_PLACES_MAX else "so many left")


# ---- messages --------------------------------------------------------------------------------


def _of(message: type, *counts: str) -> Callable[[bytes, bytes], str]:
    """The form of a packed message, by a key with one number. counts: fields that go on rising."""

    def fault(key: bytes, value: bytes) -> str:
        found: object = decode(message, value)
        if any(getattr(found, name) > NUMBER_MAX for name in counts):
            return "a number of it is out of range"
        return _numbered(key, value)

    return fault


def _member_of(message: type) -> Callable[[bytes, bytes], str]:
    """The form of a storage server or a target: the next one gets the number behind the last."""

    def fault(key: bytes, value: bytes) -> str:
        decode(message, value)
        is_small = records.number_of(key) <= EPOCH_MAX
        return _numbered(key, value) or ("" if is_small else "the number in its key is too large")

    return fault


def _client_key(key: bytes, value: bytes) -> str:
    records.unpack_key(value)
    return _numbered(key, value)


def _plan(key: bytes, value: bytes) -> str:
    plan = decode(records.PlanRecord, value)
    if len(plan.targets) != len(plan.numbers) or len(plan.gone_targets) != len(plan.gone_numbers):
        return "it has more targets than objects, or fewer"
    return _numbered(key, value)


def _finding(key: bytes, value: bytes) -> str:
    decode(records.FindingRecord, value)
    return _object(records.finding_place(key)[1]) if len(key) == _FOUR else "its key is too long"


def _reply(key: bytes, value: bytes) -> str:
    stored = records.unpack_reply(value)
    decode(BODIES[Op(stored.op)][1], stored.body)
    return _two(key, value)


# ---- accounts and trash ------------------------------------------------------------------------


def _quota(key: bytes, value: bytes) -> str:
    used = records.unpack_quota(value)
    kind, _ = records.quota_account(key)
    is_possible = abs(used.bytes) <= _BYTES_MAX and used.limits.grace_s <= U32_MAX
    return "" if QuotaKind(kind) and is_possible else "a number of it is out of range"


def _tree(key: bytes, value: bytes) -> str:
    tree = records.unpack_trash_tree(value)
    if tree.state >= _STATES_OF_TREES or tree.inodes > NUMBER_MAX or tree.expiry_s > NUMBER_MAX:
        return "a number of it is out of range"
    return _numbered(key, value)


def _kept(key: bytes, value: bytes) -> str:
    _, hashed, _ = records.kept_place(key)
    entry = records.unpack_kept(value)
    if not _is_name(entry.name) or records.name_hash(entry.name) != hashed:
        return "its name is not that of its key"
    return "" if entry.removed_ns <= NUMBER_MAX else "its time is out of range"


def _aged(key: bytes, value: bytes) -> str:
    records.kept_of_aged(key, value)
    return ""


# ---- single records ----------------------------------------------------------------------------


def _single(key: bytes, value: bytes) -> str:
    form = _SINGLE.get(key)
    return form(key, value) if form is not None else ""


def _cluster(key: bytes, value: bytes) -> str:
    return "" if len(value) == 16 else "it is no uuid"


def _map_epoch(key: bytes, value: bytes) -> str:
    fault = _number(key, value)
    return fault or ("" if records.unpack_number(value) <= EPOCH_MAX else "it is out of range")


def _scrub(key: bytes, value: bytes) -> str:
    found = decode(records.ScrubRecord, value)
    return "" if max(found.files, found.bytes) <= NUMBER_MAX else "a number of it is out of range"


def _mark(key: bytes, value: bytes) -> str:
    decode(Mark, value)
    return ""


_SINGLE: Final[dict[bytes, Callable[[bytes, bytes], str]]] = {
    records.SCHEMA_KEY: _number,
    records.CLUSTER_KEY: _cluster,
    records.INO_END_KEY: _number,
    records.MAP_EPOCH_KEY: _map_epoch,
    records.TXN_KEY: _number,
    records.INODES_KEY: _number,
    records.RECOVERY_KEY: _number,
    records.COMPARED_KEY: _number,
    records.SCRUB_KEY: _scrub,
    MARK_KEY: _mark,
}

# Of the kinds that are read by their keys alone.
KEY_LENGTHS: Final = {
    b"F": _ONE,
    b"H": _TWO,
    b"L": _THREE,
    b"O": _ONE,
    b"R": _TWO,
    b"U": _TWO,
    b"V": _THREE,
    b"W": _TWO,
    b"Y": _THREE,
}
FORMS: Final[dict[bytes, Callable[[bytes, bytes], str]]] = {
    b"A": _finding,
    b"B": _kept,
    b"C": _plan,
    b"D": _dentry,
    b"E": _aged,
    b"F": _empty_one,
    b"G": _member_of(records.TargetRecord),
    b"H": _lacking,
    b"I": _inode,
    b"J": _of(records.JobRecord, "cursor", "files", "bytes", "files_failed", "passes"),
    b"K": _client_key,
    b"L": _lone,
    b"M": _single,
    b"N": _member_of(records.NodeRecord),
    b"O": _orphan,
    b"P": _tree,
    b"Q": _quota,
    b"R": _reply,
    b"S": _of(records.SessionRecord, "lives"),
    b"T": _intent,
    b"U": _numbered_two,
    b"V": _dropped_of_file,
    b"W": _empty_two,
    b"X": _xattr,
    b"Y": _dropped,
    b"Z": _doomed,
}
