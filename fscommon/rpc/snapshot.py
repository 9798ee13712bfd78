"""Reads one snapshot of a running metaserver's records, in parts (docs/decisions/0061-backup.md).

A backup is made of it, and a standby metaserver's copy of the state.
"""

from collections.abc import AsyncIterator, Callable

from fscommon.archive import CLUSTER_LENGTH, BadRecordsError, Record, unpack_records
from fscommon.errors import ProtocolError
from fscommon.rpc.caller import Caller
from fscommon.wire.backup import BackupBegin, BackupBegun, BackupEnd, BackupNext, BackupPart
from fscommon.wire.ops import Op


async def read_snapshot(
    caller: Caller, *, whole: bool, timeout_s: float, begun: Callable[[int], None] = lambda _: None
) -> AsyncIterator[tuple[BackupPart, list[Record]]]:
    """Yields the parts, one at least, with their records. whole: also stored replies. timeout_s: of
    each request. begun(bytes): called with about how many bytes the records take.

    Raises FsError, TransportError, ProtocolError if the metaserver sends something else.
    """
    answer: BackupBegun = await caller.call(Op.BACKUP_BEGIN, BackupBegin(whole), timeout_s)
    begun(answer.bytes)
    first: BackupPart | None = None
    after = b""
    while True:
        request = BackupNext(answer.id, after)
        part: BackupPart = await caller.call(Op.BACKUP_NEXT, request, timeout_s)
        records = _records(part, after)
        first = first or part
        if _snapshot_of(part) != _snapshot_of(first):
            raise ProtocolError("the parts of the backup are not of one snapshot")
        yield part, records
        if part.end:
            break
        after = records[-1][0]
    await caller.call(Op.BACKUP_END, BackupEnd(answer.id), timeout_s)


def _snapshot_of(part: BackupPart) -> tuple[bytes, int, int, int]:
    return part.cluster, part.schema, part.txn, part.inodes


def _records(part: BackupPart, after: bytes) -> list[Record]:
    try:
        records = list(unpack_records(part.records, after))
    except BadRecordsError as error:
        raise ProtocolError(f"a part of the backup is wrong: {error}") from error
    if len(part.cluster) != CLUSTER_LENGTH:
        raise ProtocolError("a part of the backup names no cluster")
    if len(records) != part.count or not (records or part.end):
        raise ProtocolError(
            f"a part of the backup has {len(records)} records, and says {part.count}"
        )
    return records
