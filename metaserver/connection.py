"""One peer as the engine sees it. Sockets and tasks are metaserver.server."""

from collections.abc import Callable
from dataclasses import dataclass, field

from fscommon.types import SessionId
from metaserver.identity import Who
from metaserver.keys import ClientKey
from metaserver.sessions import SYSTEM_SESSION


@dataclass(slots=True, eq=False)
class Connection:
    """`wake` asks its owner to send what is in the outbox."""

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

    @property
    def who(self) -> Who | None:
        """Whose numbers its replies are told in; None: the cluster's own."""
        who = self.key.who if self.key is not None else None
        return who if who is not None and who.translates else None
