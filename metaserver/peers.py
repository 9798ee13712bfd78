"""Bounds on what peers use of the metaserver, beside those of fscommon.net.serve.

All connections of one key share a bound on the memory for what waits. There is a deadline for a
peer that does not read its replies, and for one that has authenticated and then neither opens a
session nor sends anything. Nothing here waits: the server calls end_late once a second.
"""

import weakref
from collections.abc import Callable
from typing import Final

from fscommon.limits import SESSION_OPEN_SECONDS_MAX, UNREAD_BYTES_PER_KEY_MAX, UNREAD_SECONDS_MAX
from fscommon.observe.log import Log, RateLimit
from metaserver.connection import Connection, Share
from metaserver.engine import Time
from metaserver.keys import ClientKey
from metaserver.sessions import SYSTEM_SESSION

_UNREAD_BYTES_MAX: Final = 1 << 30  # of all peers with the cluster key together
_LOG_S: Final = 60.0


class Peers:
    def __init__(self, log: Log, now: Callable[[], Time]) -> None:
        self._log = log
        self._now = now
        self._shares: weakref.WeakValueDictionary[int, Share] = weakref.WeakValueDictionary()
        self._trusted = Share(_UNREAD_BYTES_MAX)
        self._silent: dict[Connection, float] = {}  # peers without a session: when last heard
        self._sending: dict[object, tuple[Connection, float]] = {}
        self._lines = RateLimit(_LOG_S)

    def share_of(self, key: ClientKey | None) -> Share:
        if key is None:
            return self._trusted
        share = self._shares.get(key.id)
        if share is None:
            share = self._shares[key.id] = Share(UNREAD_BYTES_PER_KEY_MAX)
        return share

    def began(self, connection: Connection) -> None:
        if connection.purpose == "meta" or (connection.key and connection.purpose != "recall"):
            self._silent[connection] = self._now().now_s

    def heard(self, connection: Connection) -> None:
        if connection in self._silent:
            if connection.session == SYSTEM_SESSION:
                self._silent[connection] = self._now().now_s
            else:
                del self._silent[connection]

    def ended(self, connection: Connection) -> None:
        self._silent.pop(connection, None)
        connection.ended()

    def sends(self, connection: Connection) -> object:
        """Starts the deadline for a send; has_sent() ends it with what this returns."""
        token = object()
        self._sending[token] = (connection, self._now().now_s)
        return token

    def has_sent(self, token: object) -> None:
        del self._sending[token]

    def end_late(self) -> None:
        now_s = self._now().now_s
        for connection, since_s in list(self._silent.items()):
            if connection.session == SYSTEM_SESSION and now_s - since_s > SESSION_OPEN_SECONDS_MAX:
                self._end(connection, "it opened no session")
        for connection, since_s in list(self._sending.values()):
            if now_s - since_s > UNREAD_SECONDS_MAX:
                self._end(connection, "its answers are not read")

    def _end(self, connection: Connection, why: str) -> None:
        suppressed = self._lines.permit()
        if suppressed is not None:
            self._log.warning(
                "connection ended",
                peer=connection.peer,
                node=connection.node,
                why=why,
                suppressed=suppressed or None,
            )
        connection.end()
