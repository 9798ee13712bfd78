"""What is reported again to a restarted metaserver, between the last replay and REPLAY_DONE: the
locks and the shared leases of this session (SESSION_OPEN has the exclusive ones).

The metaserver has granted nothing to anybody since the restart, so what was held is still true;
without the report every file in use would be opened once more, and its pages read again. It is not
true if a replay had another result than before. A metaserver of a release that does not know
LEASE_RESTORE ends the connection: then the leases are given up, and the next connection reports
none. Pure; touched by the client's trio thread only, as part of fsclient.meta.core.
"""

from collections.abc import Callable
from dataclasses import dataclass

from fscommon.errors import ProtocolError
from fscommon.wire.codec import decode
from fscommon.wire.frame import Frame, encode_frame
from fscommon.wire.leases import LeaseRestored
from fscommon.wire.locks import LockRestored
from fscommon.wire.ops import Op

RESTORES = (Op.LOCK_RESTORE, Op.LEASE_RESTORE)


@dataclass(frozen=True, slots=True)
class Held:
    """locks, leases: bodies of LOCK_RESTORE and LEASE_RESTORE. leases_lost: nothing is held of
    these inodes any more; None: of all inodes that LEASE_RESTORE would have named."""

    locks: Callable[[], list[bytes]] = list
    leases: Callable[[], list[bytes]] = list
    leases_lost: Callable[[tuple[int, ...] | None], None] = lambda inos: None


class Restoring:
    def __init__(self, held: Held, log: Callable[[str], None]) -> None:
        self._held = held
        self._log = log
        self._unanswered = 0  # LEASE_RESTORE requests

    def frames(self, *, leases: bool) -> list[bytes]:
        """The requests to send. leases: also those for leases, which are lost otherwise."""
        frames = [encode_frame(Op.LOCK_RESTORE, body=body) for body in self._held.locks()]
        if not leases:
            self._held.leases_lost(None)
            return frames
        bodies = self._held.leases()
        self._unanswered = len(bodies)
        return frames + [encode_frame(Op.LEASE_RESTORE, body=body) for body in bodies]

    def answered(self, frame: Frame) -> None:
        """Takes a reply to one of them."""
        if frame.header.op == Op.LEASE_RESTORE:
            self._leases_answered(frame)
            return
        refused = decode(LockRestored, frame.body).refused if not frame.header.status else -1
        if refused:
            self._log(f"locks could not be restored: {refused} (-1: status {frame.header.status})")

    def _leases_answered(self, frame: Frame) -> None:
        if not self._unanswered:
            raise ProtocolError("reply to a LEASE_RESTORE that was not sent")
        self._unanswered -= 1
        is_done = not frame.header.status
        self._held.leases_lost(decode(LeaseRestored, frame.body).refused if is_done else None)

    def disconnected(self) -> None:
        if self._unanswered:
            self._held.leases_lost(None)
        self._unanswered = 0
