"""The audit log: who asked for what changes the cluster, and how that ended. One line for each.

`by` is what the program of an administrator said of itself, `peer` where it came from; that it had
the cluster key is proved (or, where `key` is named, that it had that key of a client, and was
refused). Requests that were refused are logged at most once a second, so that nobody fills the log.
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
