"""Bodies of the backup operations (docs/decisions/0061-backup.md), for administrators (connections
of purpose "admin").

A backup belongs to its connection. The metaserver holds one snapshot of its store for it, which a
minute without a request ends, or the end of the connection. Records travel packed as they lie in
the file (fscommon.archive).
"""

from dataclasses import dataclass
from typing import Annotated, Final

from fscommon.archive import KEY_LENGTH_MAX
from fscommon.ranges import U32, U64, Blob, Most, Token
from fscommon.wire.ops import Op


@dataclass(frozen=True, slots=True)
class BackupBegin:
    """whole: also with stored replies, for a metaserver that goes on with the sessions."""

    whole: bool


@dataclass(frozen=True, slots=True)
class BackupBegun:
    """Reply to BACKUP_BEGIN, when everything is durable that was answered before. bytes: about how
    many the records take."""

    id: U64
    bytes: U64


@dataclass(frozen=True, slots=True)
class BackupNext:
    """Asks for the first records with keys behind `after`; b"": from the beginning. The first
    request with this id takes the snapshot."""

    id: U64
    after: Annotated[bytes, Most(KEY_LENGTH_MAX)]


@dataclass(frozen=True, slots=True)
class BackupPart:
    """`count` packed records; end: no others follow. The other fields are of the snapshot, and the
    same in each part: schema of the records, the last transaction, how many inodes there are."""

    cluster: Token
    schema: U32
    txn: U64
    inodes: U64
    count: U32
    records: Blob
    end: bool


@dataclass(frozen=True, slots=True)
class BackupEnd:
    """Lets the snapshot go."""

    id: U64


@dataclass(frozen=True, slots=True)
class BackupEnded:
    """Reply to BACKUP_END, also if there was no such backup."""


BACKUP_BODIES: Final[dict[Op, tuple[type, type]]] = {
    Op.BACKUP_BEGIN: (BackupBegin, BackupBegun),
    Op.BACKUP_NEXT: (BackupNext, BackupPart),
    Op.BACKUP_END: (BackupEnd, BackupEnded),
}
