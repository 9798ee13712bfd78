"""Finds the row of an op by its code: once for each request, before anything else is done."""

from typing import Final

from fscommon.errors import ProtocolError
from fscommon.wire.header import FLAG_REPLY, Header
from metaserver.ops.row import OpRow
from metaserver.ops.table import ROWS

_ROWS: Final[dict[int, OpRow]] = {int(op): row for op, row in ROWS.items()}


def row_of(header: Header) -> OpRow:
    """Raises ProtocolError if the frame is no request of an op of the metaserver."""
    row = _ROWS.get(header.op)
    if row is None or header.flags & FLAG_REPLY:
        raise ProtocolError(f"op {header.op} is no request to a metaserver")
    return row
