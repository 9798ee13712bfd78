"""What the session's state machine (fsclient.meta.core) asks of and tells to its surroundings."""

from collections.abc import Callable
from dataclasses import dataclass, field

from fscommon.errors import BraidError
from fscommon.wire.messages import Failure
from fscommon.wire.ops import Op

from .restoring import Held


class SessionRefusedError(BraidError):
    """The metaserver will not have this session; the message says why. is_final: asking again is
    of no use, the key is good no more."""

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the core asks of and tells to its surroundings; called synchronously.

    opens, exclusive: inodes held open, files held exclusively, for SESSION_OPEN. ready: requests
    flow again. losing: the session is lost, which nobody was told yet who waits for a reply.
    evicted: it was lost and a new one is open. held: for a restarted metaserver. orphaned: a
    success that nobody waits for any more. opened(lease_s, restarted): the session is open, perhaps
    at another metaserver. failed(failure, request id): a request failed, and its reply grants
    leases."""

    opens: Callable[[], tuple[int, ...]]
    ready: Callable[[], None]
    evicted: Callable[[int], None]
    orphaned: Callable[[Op, bytes], None]
    log: Callable[[str], None]
    held: Held = field(default_factory=Held)
    exclusive: Callable[[], tuple[int, ...]] = tuple
    opened: Callable[[float, bool], None] = lambda lease_s, restarted: None
    failed: Callable[[Failure, int], None] = lambda failure, request_id: None
    losing: Callable[[], None] = lambda: None
