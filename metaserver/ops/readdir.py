"""READDIR: a page of a directory behind a cookie, with attributes.

The order is that of name hashes, which never changes, so a page needs no state: an entry that is
there all the time is seen exactly once.
"""

import struct

from fscommon.layout.attributes import ATTRIBUTES_SIZE
from fscommon.wire.messages import ReadDir, ReadDirReply
from metaserver.context import Context
from metaserver.namespace.listing import list_page
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
