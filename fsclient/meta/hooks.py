"""What the session's state machine (fsclient.meta.core) calls in its surroundings."""

from collections.abc import Callable
from dataclasses import dataclass, field

from fscommon.errors import BraidError
from fscommon.wire.messages import Failure
from fscommon.wire.ops import Op

from .restoring import Held


class SessionRefusedError(BraidError):
    """The metaserver refused this session; the message says why. is_final: trying again is of no
    use, as the key is no longer valid."""

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the core calls in its surroundings, synchronously.

    opens, exclusive: inodes held open, files held exclusively, for SESSION_OPEN. ready: requests
    are sent again. losing: the session is lost; callers that wait for a reply do not know it yet.
    evicted: the session was lost and a new one is open. held: reported to a restarted metaserver.
    orphaned: a request succeeded for which nobody waits any more. opened(lease_s, restarted): the
    session is open, perhaps at another metaserver. failed(failure, request id): a request failed,
    and its reply grants leases.
    """

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
