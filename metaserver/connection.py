"""One connection as the engine sees it. Sockets and tasks are in metaserver.server."""

from collections.abc import Callable
from dataclasses import dataclass, field

from fscommon.types import SessionId
from fscommon.wire.frame import Frame
from metaserver.identity import Who
from metaserver.keys import ClientKey
from metaserver.sessions import SYSTEM_SESSION


@dataclass(slots=True, eq=False, weakref_slot=True)
class Share:
    """The memory that all connections of one key share. unread_bytes counts the bytes of requests
    that wait, and of replies that have not left."""

    unread_bytes_max: int
    unread_bytes: int = 0

    @property
    def is_used_up(self) -> bool:
        return self.unread_bytes >= self.unread_bytes_max


@dataclass(slots=True, eq=False)
class Connection:
    """One peer. put() adds frames to the outbox; `wake` asks the owner to send them."""

    purpose: str
    wake: Callable[[], None]
    end: Callable[[], None]  # closes it, for example when another connection has its session
    session: SessionId = SYSTEM_SESSION
    in_flight: int = 0  # requests that are parked, or whose reply is held
    outbox: list[bytes] = field(default_factory=list)
    is_open: bool = True
    key: ClientKey | None = None  # the client's own key; None: the peer has the cluster key
    node: str = ""  # the name that the peer gave itself
    peer: str = ""  # its address
    share: Share = field(default_factory=lambda: Share(1 << 62))
    unread_bytes: int = 0  # this connection's part of share.unread_bytes

    @property
    def who(self) -> Who | None:
        """Translates ids in replies for this peer; None: it gets the ids of the cluster."""
        who = self.key.who if self.key is not None else None
        return who if who is not None and who.translates else None

    def holds(self, request: Frame) -> None:
        """Counts a request that waits, until `lets_go` when it has run or its reply has left."""
        self.in_flight += 1
        self.waits(len(request.body))

    def lets_go(self, request: Frame) -> None:
        self.in_flight -= 1
        self.waits(-len(request.body))

    def put(self, frame: bytes) -> None:
        self.outbox.append(frame)
        self.waits(len(frame))

    def take(self) -> bytes:
        """Returns the whole outbox. The caller reports with `waits` when the bytes have left."""
        outgoing = b"".join(self.outbox)
        self.outbox.clear()
        return outgoing

    def waits(self, count: int) -> None:
        """Adds to the bytes that wait; a negative count subtracts."""
        self.unread_bytes += count
        self.share.unread_bytes += count

    def ended(self) -> None:
        """The connection has ended: its bytes count no more."""
        self.share.unread_bytes -= self.unread_bytes
        self.share = Share(0)
