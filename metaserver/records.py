"""Keys and values of the store (docs/INTERFACES.md, section 5). No other module knows their form.

A key is a letter and big-endian integers, so keys are in the order of these numbers. Values are
packed records, or msgpack of the frozen dataclasses below (fscommon.wire.codec). What the records
mean is in namespace/, sessions and membership.
"""

import struct
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from fscommon.checksum import xxh3_64
from fscommon.errors import ProtocolError
from fscommon.layout.quota import AccountId, Limits
from fscommon.ranges import I64, U32, U64, Text, Token, U32s
from fscommon.types import Ino, RequestId, SessionId, Txn
from fscommon.wire.codec import decode
from fscommon.wire.keys import IdMap
from metaserver.placement import domain_of

COOKIE_FIRST: Final = 3  # 0 starts a listing, 1 and 2 are . and ..
_HASH_END: Final = 1 << 63

_ONE: Final = struct.Struct(">cQ")
_TWO: Final = struct.Struct(">cQQ")
_THREE: Final = struct.Struct(">cQQQ")
_DENTRY: Final = struct.Struct("<QB")
_REPLY: Final = struct.Struct("<QHH")  # transaction, format, op
_REPLY_HASH: Final = struct.Struct("<Q")
_HASHED: Final = 1  # the format with the hash of the request; 0: the former one, without
_INTENT: Final = struct.Struct("<QI")
_NUMBER: Final = struct.Struct("<Q")
_QUOTA: Final = struct.Struct("<16sq5Q2q")
_KEPT: Final = struct.Struct("<2Q")
_TREE: Final = struct.Struct("<B2Q")


def inode_key(ino: int) -> bytes:
    return _ONE.pack(b"I", ino)


def inode_at(ino: int) -> tuple[bytes, bytes]:
    return inode_key(ino), inode_key(ino) + b"\0"


def name_hash(name: bytes) -> int:
    return xxh3_64(name) >> 1


def dentry_key(parent: int, name: bytes) -> bytes:
    return _TWO.pack(b"D", parent, xxh3_64(name) >> 1) + name


def dentries_after(parent: int, cookie: int) -> tuple[bytes, bytes]:
    """Returns start and end of the keys of parent's dentries behind the cookie."""
    first = cookie - COOKIE_FIRST + 1 if cookie >= COOKIE_FIRST else 0
    return _TWO.pack(b"D", parent, min(first, _HASH_END)), _TWO.pack(b"D", parent, _HASH_END)


def dentry_name(key: bytes) -> bytes:
    return key[_TWO.size :]


def dentry_parent(key: bytes) -> Ino:
    return Ino(_TWO.unpack_from(key)[1])


def dentry_cookie(key: bytes) -> int:
    return int(_TWO.unpack_from(key)[2]) + COOKIE_FIRST


class ObjectName(NamedTuple):
    """An object on a target. number: its stripe index and generation."""

    target: int
    file_id: int
    number: int


def dropped_key(name: ObjectName) -> bytes:
    return _THREE.pack(b"Y", *name)


def dropped_at(target: int, after: tuple[int, int]) -> tuple[bytes, bytes]:
    """Returns start and end of the keys of dropped names of a target behind this file id and object
    number."""
    return _THREE.pack(b"Y", target, *after) + b"\0", _ONE.pack(b"Y", target) + b"\xff" * 17


def dropped_name(key: bytes) -> ObjectName:
    return ObjectName(*_THREE.unpack(key)[1:])


def dropped_of_file_key(name: ObjectName) -> bytes:
    return _THREE.pack(b"V", name.file_id, name.target, name.number)


def dropped_of_file(file_id: int) -> tuple[bytes, bytes]:
    start = _ONE.pack(b"V", file_id)
    return start, start + b"\xff" * 17


def dropped_name_of_file(key: bytes) -> ObjectName:
    _, file_id, target, number = _THREE.unpack(key)
    return ObjectName(target, file_id, number)


def lone_key(name: ObjectName) -> bytes:
    return _THREE.pack(b"L", *name)


def lone_at(target: int) -> tuple[bytes, bytes]:
    return _ONE.pack(b"L", target), _ONE.pack(b"L", target + 1)


def lone_name(key: bytes) -> ObjectName:
    return ObjectName(*_THREE.unpack(key)[1:])


def unsynced_key(ino: int, session: int) -> bytes:
    return _TWO.pack(b"U", ino, session)


def unsynced_of(ino: int) -> tuple[bytes, bytes]:
    start = _ONE.pack(b"U", ino)
    return start, start + b"\xff" * 9


def unsynced_place(key: bytes) -> tuple[Ino, SessionId]:
    _, ino, session = _TWO.unpack(key)
    return Ino(ino), SessionId(session)


def plan_key(ino: int) -> bytes:
    return _ONE.pack(b"C", ino)


def lacking_key(left: int, ino: int) -> bytes:
    return _TWO.pack(b"H", left, ino)


def lacking_place(key: bytes) -> tuple[int, Ino]:
    """Returns how many replicas the file's poorest stripe has, and the file."""
    _, left, ino = _TWO.unpack(key)
    return int(left), Ino(ino)


def job_key(job: int) -> bytes:
    return _ONE.pack(b"J", job)


def pack_dentry(ino: int, kind: int) -> bytes:
    return _DENTRY.pack(ino, kind)


def unpack_dentry(value: bytes) -> tuple[Ino, int]:
    ino, kind = _DENTRY.unpack(value)
    return Ino(ino), kind


def xattr_key(ino: int, name: bytes) -> bytes:
    return _ONE.pack(b"X", ino) + name


def xattrs_of(ino: int) -> tuple[bytes, bytes]:
    start = _ONE.pack(b"X", ino)
    return start, start + b"\xff" * 256


def xattr_name(key: bytes) -> bytes:
    return key[_ONE.size :]


def orphan_key(ino: int) -> bytes:
    return _ONE.pack(b"O", ino)


def doomed_key(file_id: int) -> bytes:
    return _ONE.pack(b"Z", file_id)


def intent_key(ino: int) -> bytes:
    return _ONE.pack(b"T", ino)


def session_key(session: int) -> bytes:
    return _ONE.pack(b"S", session)


def fence_key(session: int) -> bytes:
    return _ONE.pack(b"F", session)


def writer_key(session: int, ino: int) -> bytes:
    return _TWO.pack(b"W", session, ino)


def written_of(session: int) -> tuple[bytes, bytes]:
    start = _ONE.pack(b"W", session)
    return start, start + b"\xff" * 9


def written_ino(key: bytes) -> Ino:
    return Ino(_TWO.unpack(key)[2])


def reply_key(session: int, request_id: int) -> bytes:
    return _TWO.pack(b"R", session, request_id)


def replies_of(session: int) -> tuple[bytes, bytes]:
    start = _ONE.pack(b"R", session)
    return start, start + b"\xff" * 9


def reply_request_id(key: bytes) -> RequestId:
    return RequestId(_TWO.unpack(key)[2])


def node_key(node: int) -> bytes:
    return _ONE.pack(b"N", node)


def target_key(target: int) -> bytes:
    return _ONE.pack(b"G", target)


def client_key_key(key_id: int) -> bytes:
    return _ONE.pack(b"K", key_id)


def quota_key(account: AccountId) -> bytes:
    return _TWO.pack(b"Q", *account)


def quota_account(key: bytes) -> AccountId:
    _, kind, number = _TWO.unpack(key)
    return int(kind), int(number)


def kept_key(directory: int, hashed: int, ino: int) -> bytes:
    """Returns the key of an entry of the trash, by the directory from which it was removed."""
    return _THREE.pack(b"B", directory, hashed, ino)


def kept_after(directory: int, hashed: int, ino: int) -> tuple[bytes, bytes]:
    """Returns start and end of the keys of a directory's entries behind this one."""
    start = kept_key(directory, hashed, ino)
    return start + b"\0", _TWO.pack(b"B", directory, _HASH_END)


def kept_place(key: bytes) -> tuple[Ino, int, Ino]:
    """Returns directory, hash of the name, and inode."""
    _, directory, hashed, ino = _THREE.unpack(key)
    return Ino(directory), int(hashed), Ino(ino)


def aged_key(tree: int, removed_ns: int, ino: int) -> bytes:
    """Returns the key of the same entry, by its age."""
    return _THREE.pack(b"E", tree, removed_ns, ino)


def aged_after(tree: int, removed_ns: int, ino: int) -> tuple[bytes, bytes]:
    """Returns start and end of the keys of a tree's entries that were removed later."""
    return aged_key(tree, removed_ns, ino) + b"\0", _ONE.pack(b"E", tree) + b"\xff" * 17


def aged_until(tree: int, removed_ns: int) -> tuple[bytes, bytes]:
    """Returns start and end of the keys of the entries that were removed by then."""
    return aged_key(tree, 0, 0), aged_key(tree, removed_ns + 1, 0)


def pack_aged(directory: int, hashed: int) -> bytes:
    return _KEPT.pack(directory, hashed)


def kept_of_aged(key: bytes, value: bytes) -> bytes:
    """Returns the key of the entry by its directory."""
    _, _, _, ino = _THREE.unpack(key)
    directory, hashed = _KEPT.unpack(value)
    return kept_key(directory, hashed, ino)


def trash_tree_key(ino: int) -> bytes:
    return _ONE.pack(b"P", ino)


def finding_key(ino: int, name: ObjectName) -> bytes:
    return _THREE.pack(b"A", ino, name.file_id, name.target) + _NUMBER.pack(name.number)


def finding_place(key: bytes) -> tuple[Ino, ObjectName]:
    """Returns inode and object."""
    _, ino, file_id, target = _THREE.unpack_from(key)
    (number,) = _NUMBER.unpack_from(key, _THREE.size)
    return Ino(ino), ObjectName(target, file_id, number)


def number_of(key: bytes) -> int:
    """Returns the number behind the letter."""
    return int(_ONE.unpack_from(key)[1])


def all_of(letter: bytes) -> tuple[bytes, bytes]:
    return letter, bytes([letter[0] + 1])


def meta_key(name: str) -> bytes:
    return b"M" + name.encode()


SCHEMA_KEY: Final = meta_key("schema")
CLUSTER_KEY: Final = meta_key("cluster")
INO_END_KEY: Final = meta_key("ino_end")  # numbers from here on were never given
MAP_EPOCH_KEY: Final = meta_key("map_epoch")
TXN_KEY: Final = meta_key("txn")
INODES_KEY: Final = meta_key("inodes")
QUOTA_KEY: Final = meta_key("quota")  # if it exists, the `Q` records are complete
QUOTA_COUNTS: Final = b"xattrs"  # its value where accounts include xattrs
LACKING_KEY: Final = meta_key("lacking")  # if it exists, the `H` records are complete
SCRUB_KEY: Final = meta_key("scrub")  # a ScrubRecord
# After a restore: files with replicas up to this inode were compared; the others are to be.
COMPARED_KEY: Final = meta_key("compared")
RECOVERY_KEY: Final = meta_key("recovery")  # the last txn when the unfinished recovery began
SCHEMA_VERSION: Final = 1
KEYS_END: Final = b"\xff"  # behind the keys of all records


def pack_number(value: int) -> bytes:
    return _NUMBER.pack(value)


def unpack_number(value: bytes | None) -> int:
    """Returns the number; 0 if there is no record."""
    return 0 if value is None else int(_NUMBER.unpack(value)[0])


@dataclass(frozen=True, slots=True)
class StoredReply:
    """The reply to a successful mutation, kept until the client does not need it any more.
    request_hash: of the body of the request; None in records of a former release."""

    txn: Txn
    op: int
    body: bytes
    request_hash: int | None

    def answers(self, op: int, request_hash: int) -> bool:
        """Whether it is the reply to exactly this request."""
        return self.op == op and self.request_hash in (None, request_hash)


def pack_reply(txn: int, op: int, body: bytes, request_hash: int) -> bytes:
    return _REPLY.pack(txn, _HASHED, op) + _REPLY_HASH.pack(request_hash) + body


def unpack_reply(value: bytes) -> StoredReply:
    txn, form, op = _REPLY.unpack_from(value)
    if form != _HASHED:
        return StoredReply(Txn(txn), op, value[_REPLY.size :], None)
    (request_hash,) = _REPLY_HASH.unpack_from(value, _REPLY.size)
    return StoredReply(Txn(txn), op, value[_REPLY.size + _REPLY_HASH.size :], request_hash)


@dataclass(frozen=True, slots=True)
class Intent:
    """A file must be cut to size at every target before it may grow again (rule 19). If the layout
    has inline bytes, these must be in its objects before anybody opens the file."""

    size: int
    epoch: int
    layout: bytes

    def pack(self) -> bytes:
        return _INTENT.pack(self.size, self.epoch) + self.layout


def unpack_intent(value: bytes) -> Intent:
    if len(value) < _INTENT.size:
        raise ProtocolError("a truncate intent is too short")
    size, epoch = _INTENT.unpack_from(value)
    return Intent(size, epoch, value[_INTENT.size :])


@dataclass(frozen=True, slots=True)
class QuotaRecord:
    """One account. bytes has 128 bits, because the sum of sparse files may need them. *_since_ns:
    when the soft limit was exceeded; 0: it is not exceeded."""

    bytes: int
    inodes: int
    limits: Limits
    bytes_since_ns: int
    inodes_since_ns: int


def pack_quota(record: QuotaRecord) -> bytes:
    limits = record.limits
    used = record.bytes.to_bytes(16, "little", signed=True)
    return _QUOTA.pack(
        used,
        record.inodes,
        limits.bytes_soft,
        limits.bytes_hard,
        limits.inodes_soft,
        limits.inodes_hard,
        limits.grace_s,
        record.bytes_since_ns,
        record.inodes_since_ns,
    )


def unpack_quota(value: bytes) -> QuotaRecord:
    used, inodes, *limits, bytes_since_ns, inodes_since_ns = _QUOTA.unpack(value)
    used = int.from_bytes(used, "little", signed=True)
    return QuotaRecord(used, inodes, Limits(*limits), bytes_since_ns, inodes_since_ns)


@dataclass(frozen=True, slots=True)
class KeptRecord:
    """An entry of the trash. tree: the tree whose rules apply to it."""

    tree: int
    removed_ns: int
    name: bytes


def pack_kept(record: KeptRecord) -> bytes:
    return _KEPT.pack(record.tree, record.removed_ns) + record.name


def unpack_kept(value: bytes) -> KeptRecord:
    tree, removed_ns = _KEPT.unpack_from(value)
    return KeptRecord(tree, removed_ns, value[_KEPT.size :])


@dataclass(frozen=True, slots=True)
class TrashTreeRecord:
    """A tree with a trash. inodes: the number of inodes in its trash."""

    state: int
    expiry_s: int
    inodes: int


def pack_trash_tree(record: TrashTreeRecord) -> bytes:
    return _TREE.pack(record.state, record.expiry_s, record.inodes)


def unpack_trash_tree(value: bytes) -> TrashTreeRecord:
    return TrashTreeRecord(*_TREE.unpack(value))


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """Copies of objects that are being made, row by row: they become replicas at this epoch, all
    together, or are given up at it. Without any: replicas that have left with an addition (gone_*),
    of which nobody may get an answer when somebody writes to the file again."""

    file_id: U64
    epoch: U32
    targets: U32s
    numbers: U32s
    gone_targets: U32s = ()
    gone_numbers: U32s = ()

    @property
    def is_added(self) -> bool:
        return not self.targets

    def names(self) -> list[ObjectName]:
        return self._names(self.targets, self.numbers)

    def gone(self) -> list[ObjectName]:
        return self._names(self.gone_targets, self.gone_numbers)

    def _names(self, targets: U32s, numbers: U32s) -> list[ObjectName]:
        rows = zip(targets, numbers, strict=True)
        return [ObjectName(target, self.file_id, number) for target, number in rows]


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job (fscommon.wire.jobs). cursor: the last inode that this pass of its walk is done with.
    files, bytes: that are done, in all passes. passes: whole walks. ended_ns: 0 until it is
    done."""

    kind: Text
    target: U64
    cursor: U64
    started_ns: I64
    files: U64 = 0
    bytes: U64 = 0
    files_failed: U64 = 0
    is_paused: bool = False
    passes: U64 = 0
    ended_ns: I64 = 0


@dataclass(frozen=True, slots=True)
class ScrubRecord:
    """What the job of scrubs has besides. files, bytes: of the pass that is under way; is_fast: it
    was asked for. ended_ns: of the last whole pass; 0: there was none."""

    files: U64 = 0
    bytes: U64 = 0
    is_fast: bool = False
    ended_ns: I64 = 0


@dataclass(frozen=True, slots=True)
class FindingRecord:
    """What a scrub has found of an object (fscommon.wire.scrub)."""

    what: Text
    outcome: Text
    blocks: U64
    found_ns: I64


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session. key: the id of the client's own key; 0: it has none. lives: how many more
    processes have gone on with it (metaserver.sessions). Earlier releases wrote neither lives nor,
    before that, the key."""

    node: Text
    opened_ns: I64
    key: U64 = 0
    lives: U64 = 0


def unpack_session(value: bytes) -> SessionRecord:
    return decode(SessionRecord, value)


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A key of a client: see metaserver.keys.ClientKey."""

    name: Text
    root: U64
    path: Text
    flags: U32
    created_ns: I64
    expires_ns: I64
    revoked_ns: I64


@dataclass(frozen=True, slots=True)
class MappedKeyRecord(KeyRecord):
    """A key for a client whose users have other ids in the cluster."""

    ids: IdMap


def unpack_key(value: bytes) -> KeyRecord:
    try:
        return decode(MappedKeyRecord, value)
    except ProtocolError:
        return decode(KeyRecord, value)


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A storage server. domain: its failure domain; earlier releases wrote none."""

    uuid: Token
    name: Text
    address: Text
    domain: Text = ""
    features: U64 = 0


def unpack_node(value: bytes) -> NodeRecord:
    node = decode(NodeRecord, value)
    return replace(node, domain=node.domain or domain_of(node.address, node.name))


@dataclass(frozen=True, slots=True)
class TargetRecord:
    """A target. incarnation: the newest one that it has reported; 0: unknown. risen_ns: when that
    was greater than the one before; 0: never. is_lost: it is gone with all that it had. is_removed:
    it is out of the cluster, and its number and uuid are used no more. is_drained: a whole walk has
    found no file on it. Earlier releases wrote fewer of these."""

    uuid: Token
    node: U64
    bytes_total: U64
    bytes_free: U64
    is_draining: bool = False
    incarnation: U64 = 0
    risen_ns: I64 = 0
    is_lost: bool = False
    is_removed: bool = False
    is_drained: bool = False


def unpack_target(value: bytes) -> TargetRecord:
    return decode(TargetRecord, value)
