"""BACKUP_BEGIN, BACKUP_NEXT, BACKUP_END: a running metaserver gives away a snapshot of its store,
in parts (docs/decisions/0061-backup.md), on connections of purpose "admin".

Each part is a bounded piece of work for the event loop. Stored replies are left out of a backup:
they are for sessions, which do not outlive a restore. A standby metaserver asks for the whole.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Final

from fscommon.archive import pack_record
from fscommon.wire.backup import (
    BackupBegin,
    BackupBegun,
    BackupEnd,
    BackupEnded,
    BackupNext,
    BackupPart,
)
from fscommon.wire.ops import Op
from metaserver import records
from metaserver.context import Context
from metaserver.ops.row import Access, OpRow, always
from metaserver.store.waist import Snapshot
from metaserver.transaction import Transaction

PART_LENGTH: Final = 256 << 10  # a part ends with the record that exceeds this


def backup_begin(tx: Transaction, request: BackupBegin, context: Context) -> BackupBegun:
    """The reply waits until everything before is durable, so the snapshot that the first
    BACKUP_NEXT takes has it."""
    context.check_serving()
    services = context.services
    number = services.backups.begin(context.peer, context.now_s, whole=request.whole)
    context.wait_durable = True
    return BackupBegun(number, services.progress.room.used)


def backup_next(tx: Transaction, request: BackupNext, context: Context) -> BackupPart:
    services = context.services
    snapshot, whole = services.backups.snapshot(request.id, context.peer, context.now_s)
    packed: list[bytes] = []
    length = 0
    end = True
    for key, value in _behind(snapshot, request.after, whole=whole):
        if length > PART_LENGTH:
            end = False
            break
        packed.append(pack_record(key, value))
        length += len(packed[-1])
    return BackupPart(
        services.cluster,
        records.SCHEMA_VERSION,
        records.unpack_number(snapshot.get(records.TXN_KEY)),
        records.unpack_number(snapshot.get(records.INODES_KEY)),
        len(packed),
        b"".join(packed),
        end,
    )


def _behind(snapshot: Snapshot, after: bytes, *, whole: bool) -> Iterator[tuple[bytes, bytes]]:
    start = after + b"\0"
    if whole:
        return snapshot.range(start, records.KEYS_END)
    first_reply, behind_replies = records.all_of(b"R")
    return chain(
        snapshot.range(start, first_reply),
        snapshot.range(max(start, behind_replies), records.KEYS_END),
    )


def backup_end(tx: Transaction, request: BackupEnd, context: Context) -> BackupEnded:
    context.services.backups.end(request.id, context.peer)
    return BackupEnded()


ROWS: Final = (
    OpRow(op=Op.BACKUP_BEGIN, run=backup_begin, access=Access.ADMIN, audited=always),
    OpRow(op=Op.BACKUP_NEXT, run=backup_next, access=Access.ADMIN),
    OpRow(op=Op.BACKUP_END, run=backup_end, access=Access.ADMIN),
)
