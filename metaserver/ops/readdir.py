"""READDIR: returns a page of a directory, behind a cookie, with attributes.

Entries are in the order of their name hashes, which never changes. So a page needs no state: an
entry that exists all the time is seen exactly once.
"""

import struct
from typing import Final

from fscommon.layout.attributes import ATTRIBUTES_SIZE
from fscommon.wire.messages import ReadDir, ReadDirReply
from fscommon.wire.ops import Op
from metaserver import squash
from metaserver.context import Context
from metaserver.namespace.listing import list_page
from metaserver.ops import footprints, grants, names
from metaserver.ops.row import OpRow
from metaserver.records import dentry_cookie, dentry_name
from metaserver.transaction import Transaction


def readdir(tx: Transaction, request: ReadDir, context: Context) -> ReadDirReply:
    rows, end = list_page(tx, request.ino, request.cookie, request.count, _row)
    return ReadDirReply(
        names=tuple([dentry_name(key) for key, _ in rows]),
        cookies=struct.pack(f"<{len(rows)}Q", *[dentry_cookie(key) for key, _ in rows]),
        attributes=b"".join([record[:ATTRIBUTES_SIZE] for _, record in rows]),
        end=end,
    )


def _row(key: bytes, record: bytes) -> tuple[bytes, bytes]:
    return key, record


def _looks_into(request: ReadDir) -> int:
    return request.ino


ROWS: Final = (
    OpRow(
        op=Op.READDIR,
        run=readdir,
        footprint=footprints.names,
        grants=grants.found,
        looks_into=_looks_into,
        is_look=True,
        names=names.its_ino,
        squash=squash.read_inode,
    ),
)
