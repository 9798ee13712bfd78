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
from fscommon.wire.messages import BODIES
from fscommon.wire.ops import Op
from fscommon.wire.quota import QuotaAssign
from metaserver.connection import Connection

AUDITED: Final = frozenset(
    (
        Op.EVICT,
        Op.KEY_CREATE,
        Op.KEY_REVOKE,
        Op.QUOTA_ASSIGN,
        Op.QUOTA_SET,
        Op.TARGET_SET,
        Op.TRASH_PURGE,
        Op.TRASH_RESTORE,
        Op.TRASH_SET,
    )
)
_REQUEST_LENGTH_MAX: Final = 400
_REFUSED_S: Final = 1.0


class Audit:
    def __init__(self) -> None:
        self._log = Log("audit")
        self._refusals = RateLimit(_REFUSED_S)

    def ended(self, connection: Connection, frame: Frame, status: int) -> None:
        """A request of an op in AUDITED was answered with this status."""
        op = Op(frame.header.op)
        try:
            request: object = decode(BODIES[op][0], frame.body)
        except BraidError:
            request = None
        if isinstance(request, QuotaAssign) and len(request.stack) > 1 and not status:
            return  # a later step of a walk that was logged when it began
        suppressed = self._refusals.permit() if status else 0
        if suppressed is None:
            return
        key = connection.key
        self._log.info(
            "administration",
            op=op.name,
            outcome=status_of(status).name,
            by=connection.node,
            peer=connection.peer,
            key=key.name if key is not None else None,
            request=repr(request)[:_REQUEST_LENGTH_MAX],
            suppressed=suppressed or None,
        )
