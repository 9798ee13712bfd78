"""FSCK_NAMES, FSCK_SLOTS, FSCK_DROP: what `braidfs fsck` needs to compare records with the objects
of targets, while clients work.

Names are read from a snapshot of the store, which BACKUP_BEGIN has begun (metaserver.backups), in
parts of bounded work. A file that a client has made by itself, and has not told of, is in no
snapshot; it was made from a slot.
"""

import stat
from collections.abc import Iterator
from itertools import chain
from typing import Final

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import ATTRIBUTES_SIZE, unpack_attributes
from fscommon.layout.layout import is_inline, without_inline
from fscommon.types import Ino
from fscommon.wire.codec import decode
from fscommon.wire.fsck import (
    EntryRow,
    FileRow,
    FsckDrop,
    FsckDropped,
    FsckNames,
    FsckNamesPart,
    FsckSlots,
    FsckSlotsPart,
    Named,
    NameRow,
    Row,
    pack_row,
)
from fscommon.wire.ops import Op
from fscommon.wire.replicas import DROPS_MAX
from metaserver import records
from metaserver.context import Context
from metaserver.drops import Drop
from metaserver.forms import FormedSnapshot, log_damage
from metaserver.namespace.inode import find
from metaserver.namespace.replicas import names_of
from metaserver.ops.replicas import drop_or_wait
from metaserver.ops.row import Access, OpRow, always
from metaserver.records import ObjectName
from metaserver.sessions import SYSTEM_SESSION
from metaserver.transaction import Transaction

PART_RECORDS: Final = 500  # a part ends with so many records, a few ms of work
PART_LENGTH: Final = 256 << 10  # or with the row that exceeds this
SLOTS_OF_PART: Final = 4096  # a part ends with the session that exceeds this


def _inode(key: bytes, value: bytes) -> Iterator[tuple[Named, Row]]:
    attributes, tail = unpack_attributes(value[:ATTRIBUTES_SIZE]), value[ATTRIBUTES_SIZE:]
    if stat.S_ISREG(attributes.mode):
        kind = Named.INLINE_FILE if is_inline(tail) else Named.FILE
        times = attributes.mtime_ns, attributes.ctime_ns
        yield kind, FileRow(attributes.ino, attributes.size, *times, without_inline(tail))


def _entry(key: bytes, value: bytes) -> Iterator[tuple[Named, Row]]:
    ino, kind = records.unpack_dentry(value)
    yield Named.ENTRY, EntryRow(records.dentry_parent(key), ino, kind, records.dentry_name(key))


def _plan(key: bytes, value: bytes) -> Iterator[tuple[Named, Row]]:
    for name in decode(records.PlanRecord, value).names():
        yield Named.PLANNED, _named(name)


def _lone(key: bytes, value: bytes) -> Iterator[tuple[Named, Row]]:
    yield Named.LONE, _named(records.lone_name(key))


def _dropped(key: bytes, value: bytes) -> Iterator[tuple[Named, Row]]:
    yield Named.DROPPED, _named(records.dropped_name(key))


def _intent(key: bytes, value: bytes) -> Iterator[tuple[Named, Row]]:
    yield Named.INTENT, without_inline(records.unpack_intent(value).layout)


def _written(key: bytes, value: bytes) -> Iterator[tuple[Named, Row]]:
    yield Named.WRITTEN, records.written_ino(key)


def _doomed(key: bytes, value: bytes) -> Iterator[tuple[Named, Row]]:
    yield Named.DOOMED, without_inline(value)


def _named(name: ObjectName) -> NameRow:
    return NameRow(name.target, name.number, name.file_id)


# The records that name objects, in the order of their keys.
_ROWS_OF: Final = {
    b"C": _plan,
    b"D": _entry,
    b"I": _inode,
    b"L": _lone,
    b"T": _intent,
    b"W": _written,
    b"Y": _dropped,
    b"Z": _doomed,
}


def fsck_names(tx: Transaction, request: FsckNames, context: Context) -> FsckNamesPart:
    """Raises ENOENT if there is no such snapshot any more."""
    backups = context.services.backups
    snapshot, _ = backups.snapshot(request.id, context.peer, context.now_s)
    formed = FormedSnapshot(snapshot, log_damage)
    start = request.after + b"\0" if request.after else b""
    ranges = (records.all_of(one) for one in _ROWS_OF if request.entries or one != b"D")
    found = chain.from_iterable(
        formed.readable(max(start, first), end) for first, end in ranges if start < end
    )
    packed: list[bytes] = []
    length = looked_at = 0
    after = b""
    for key, value in found:
        if looked_at == PART_RECORDS or length > PART_LENGTH:
            break
        for kind, row in _ROWS_OF[key[:1]](key, value):
            packed.append(pack_row(kind, row))
            length += len(packed[-1])
        looked_at += 1
        after = key
    else:
        after = b""
    of = records.unpack_number(formed.get(records.INODES_KEY))
    return FsckNamesPart(b"".join(packed), after, looked_at, of)


def fsck_slots(tx: Transaction, request: FsckSlots, context: Context) -> FsckSlotsPart:
    """The reply leaves when all births that were told before are durable: a snapshot that is taken
    then has them."""
    context.check_serving()
    context.wait_durable = True
    sessions = context.services.sessions
    former_end = max((one.former_slots_end for one in sessions.all()), default=0)
    file_ids: list[int] = []
    after = request.after
    for session in sorted(one for one in sessions.ids() if one > request.after):
        file_ids += sessions.slots(session)
        after = session
        if len(file_ids) > SLOTS_OF_PART:
            return FsckSlotsPart(tuple(file_ids), after, former_end)
    return FsckSlotsPart(tuple(file_ids), 0, former_end)


def fsck_drop(tx: Transaction, request: FsckDrop, context: Context) -> FsckDropped:
    """Answered when no client gets an answer from a replica that was dropped. Raises NOT_READY when
    a target has not said so for too long: ask again."""
    context.check_serving()
    if not 0 < len(request.objects) == len(request.targets) <= DROPS_MAX:
        raise FsError(Status.BAD_REQUEST, f"name 1 to {DROPS_MAX} replicas, each by two numbers")
    rows = zip(request.targets, request.objects, strict=True)
    names = tuple([ObjectName(target, request.file_id, number) for target, number in rows])
    inode = find(tx, Ino(request.ino))
    if inode is None or not inode.is_file or inode.layout().file_id != request.file_id:
        return FsckDropped(0)
    drop = Drop(SYSTEM_SESSION, inode.ino, request.file_id, request.truncate_epoch, names)
    drop_or_wait(tx, inode, drop, context)
    context.wait_durable = True
    return FsckDropped(len(set(names) - set(names_of(inode.layout()))))


ROWS: Final = (
    OpRow(op=Op.FSCK_NAMES, run=fsck_names, access=Access.ADMIN),
    OpRow(op=Op.FSCK_SLOTS, run=fsck_slots, access=Access.ADMIN),
    OpRow(op=Op.FSCK_DROP, run=fsck_drop, access=Access.ADMIN, audited=always),
)
