"""What the engine knows of each op, in one row, by its code: no lookup of a request looks twice."""

from dataclasses import dataclass
from typing import Final

from fscommon.errors import ProtocolError
from fscommon.wire.header import FLAG_REPLY, Header
from fscommon.wire.messages import BODIES
from fscommon.wire.ops import SPECS, Op
from metaserver.audit import AUDITED
from metaserver.leases.footprints import FOOTPRINTS
from metaserver.ops import HANDLERS, Access, OpFunction


@dataclass(frozen=True, slots=True)
class Row:
    op: Op
    function: OpFunction
    access: Access
    request: type
    mutation: bool
    has_footprint: bool
    is_audited: bool


_ROWS: Final = {
    int(op): Row(
        op,
        handler.function,
        handler.access,
        BODIES[op][0],
        SPECS[op].mutation,
        op in FOOTPRINTS,
        op in AUDITED,
    )
    for op, handler in HANDLERS.items()
}
PURPOSES: Final = {Access.SERVER: "server", Access.CLIENT: "meta", Access.ADMIN: "admin"}


def row_of(header: Header) -> Row:
    """Raises ProtocolError."""
    row = _ROWS.get(header.op)
    if row is None or header.flags & FLAG_REPLY:
        raise ProtocolError(f"op {header.op} is no request to a metaserver")
    return row
