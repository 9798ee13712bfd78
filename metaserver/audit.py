"""The audit log: one line for each request that changes the cluster, with its sender and outcome.

`by` is the name that the administrator's program gave itself, `peer` is its address. The program
has proved that it has the cluster key. Where `key` is named, it has proved a client's key instead,
and was refused. Refused requests are logged at most once a second, so that nobody can fill the log.
"""

from typing import Final

from fscommon.errors import BraidError, status_of
from fscommon.observe.log import Log, RateLimit
from fscommon.wire.codec import decode
from fscommon.wire.frame import Frame
from fscommon.wire.ops import Op
from metaserver.connection import Connection
from metaserver.ops.table import ROWS

_REQUEST_LENGTH_MAX: Final = 400
_REFUSED_S: Final = 1.0


class Audit:
    def __init__(self) -> None:
        self._log = Log("audit")
        self._refusals = RateLimit(_REFUSED_S)

    def ended(self, connection: Connection, frame: Frame, status: int) -> None:
        """A request of an audited op was answered with this status."""
        row = ROWS[Op(frame.header.op)]
        try:
            request: object = decode(row.request, frame.body)
        except BraidError:
            request = None
        has_succeeded = status == 0 and request is not None
        if has_succeeded and row.audited is not None and not row.audited(request):
            return
        suppressed = self._refusals.permit() if status else 0
        if suppressed is None:
            return
        key = connection.key
        self._log.info(
            "administration",
            op=row.op.name,
            outcome=status_of(status).name,
            by=connection.node,
            peer=connection.peer,
            key=key.name if key is not None else None,
            request=repr(request)[:_REQUEST_LENGTH_MAX],
            suppressed=suppressed or None,
        )
