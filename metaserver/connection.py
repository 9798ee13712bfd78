"""One peer as the engine sees it. Sockets and tasks are metaserver.server."""

from collections.abc import Callable
from dataclasses import dataclass, field

from fscommon.types import SessionId
from fscommon.wire.frame import Frame
from metaserver.identity import Who
from metaserver.keys import ClientKey
from metaserver.sessions import SYSTEM_SESSION


@dataclass(slots=True, eq=False, weakref_slot=True)
class Share:
    """What the connections of one key have together. unread_bytes: of requests that wait, and of
    answers that have not left."""

    unread_bytes_max: int
    unread_bytes: int = 0

    @property
    def is_used_up(self) -> bool:
        return self.unread_bytes >= self.unread_bytes_max


@dataclass(slots=True, eq=False)
class Connection:
    """`wake` asks its owner to send what is in the outbox, to which put() adds."""

    purpose: str
    wake: Callable[[], None]
    end: Callable[[], None]  # close it: another one took its session up
    session: SessionId = SYSTEM_SESSION
    in_flight: int = 0  # held or parked
    outbox: list[bytes] = field(default_factory=list)
    is_open: bool = True
    key: ClientKey | None = None  # the client's own, None: the cluster key was proved
    node: str = ""  # as it said
    peer: str = ""  # where it comes from
    share: Share = field(default_factory=lambda: Share(1 << 62))
    unread_bytes: int = 0  # its part of the share's

    @property
    def who(self) -> Who | None:
        """Whose numbers its replies are told in; None: the cluster's own."""
        who = self.key.who if self.key is not None else None
        return who if who is not None and who.translates else None

    def holds(self, request: Frame) -> None:
        """The request waits for something; `lets_go` when it is run, or its answer has left."""
        self.in_flight += 1
        self.waits(len(request.body))

    def lets_go(self, request: Frame) -> None:
        self.in_flight -= 1
        self.waits(-len(request.body))

    def put(self, frame: bytes) -> None:
        self.outbox.append(frame)
        self.waits(len(frame))

    def take(self) -> bytes:
        """All that is in the outbox; `waits` less when it has left."""
        outgoing = b"".join(self.outbox)
        self.outbox.clear()
        return outgoing

    def waits(self, count: int) -> None:
        """So many bytes more, or less, wait."""
        self.unread_bytes += count
        self.share.unread_bytes += count

    def ended(self) -> None:
        """Nothing of it leaves any more."""
        self.share.unread_bytes -= self.unread_bytes
        self.share = Share(0)
