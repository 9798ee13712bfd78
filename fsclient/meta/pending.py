"""One request to the metaserver, from its submission until its outcome is known.

A Pending belongs to the SessionCore; a caller may abandon it only through the core. `deliver` is
called at most once, never from inside submit(). An abandoned request that was already sent stays in
the window: its outcome is still needed for the journal.
"""

from collections.abc import Callable

from fscommon.errors import FsError, Retry
from fscommon.wire.ops import SPECS, Op

Deliver = Callable[[FsError | None, bytes], None]

NEVER = float("inf")


class Pending:
    """A request. op and body are as on the wire; request_id is 0 until it was first sent."""

    __slots__ = (
        "abandoned",
        "attempt_count",
        "body",
        "deadline",
        "deliver",
        "is_mutation",
        "not_before",
        "oneway",
        "op",
        "request_id",
        "sent_at",
    )

    def __init__(
        self, op: Op, body: bytes, deliver: Deliver | None, deadline: float, *, oneway: bool = False
    ) -> None:
        self.op = op
        self.body = body
        self.deliver = deliver
        self.deadline = deadline
        self.oneway = oneway
        self.is_mutation = SPECS[op].mutation
        self.request_id = 0
        self.attempt_count = 0
        self.not_before = 0.0
        self.sent_at = 0.0
        self.abandoned = False

    @property
    def may_repeat(self) -> bool:
        """Whether repeating the request under another id changes nothing."""
        return SPECS[self.op].retry is Retry.SAFE

    def finish(self, error: FsError | None, body: bytes) -> None:
        """Gives the outcome to the caller, if it still waits."""
        deliver, self.deliver = self.deliver, None
        if deliver is not None and not self.abandoned:
            deliver(error, body)
