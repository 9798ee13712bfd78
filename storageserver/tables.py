"""What the metaserver says, put into native: capability key, sessions, map epoch, target ids, and
until when clients may be served: for as long after the last answered heartbeat left as it takes
the metaserver to give this node up (rule 15). Native looks at that clock with every request.

State of one task (the membership task); connections read `knows` and ask for a refresh. No I/O
here: the plan is decided by replies, the asking is storageserver.membership.
"""

import trio

from fscommon.auth.key import session_secret
from fscommon.errors import ConfigError
from fscommon.native import ChunkServer
from fscommon.wire.hello import KeyedHello
from fscommon.wire.servers import HeartbeatReply, Registered
from storageserver.targets import Targets


class Tables:
    """session_version: of the table that native has, 0 if none. asked_ns, below: CLOCK_BOOTTIME
    when the request left."""

    def __init__(self, native: ChunkServer, targets: Targets) -> None:
        self._native = native
        self._targets = targets
        self._sessions: frozenset[int] = frozenset()
        self._refreshed = trio.Event()
        self.session_version = 0
        self.node = 0
        self._capability_key = b""
        self._lease_ns = 0

    def registered(self, reply: Registered, cluster: bytes, asked_ns: int) -> None:
        """Raises ConfigError when the metaserver is that of another cluster."""
        if cluster not in (b"", reply.cluster):
            raise ConfigError(
                f"the metaserver belongs to cluster {reply.cluster.hex()}, "
                f"this storage server to {cluster.hex()}"
            )
        self._targets.assign(reply.targets)
        self.node = reply.node
        self._capability_key = reply.capability_key
        self._native.capability_key(reply.capability_key)
        self.session_version = (
            0  # REGISTER names none: the first heartbeat fetches table and number
        )
        self._put_sessions(reply.sessions)
        self._lease_ns = int(reply.timeout_s * 1_000_000_000)
        self._native.serve_until(asked_ns + self._lease_ns)

    def heard(self, reply: HeartbeatReply, asked_ns: int) -> None:
        if reply.sessions is not None:
            self._put_sessions(reply.sessions)
        self.session_version = reply.session_version
        self._native.serve_until(asked_ns + self._lease_ns)
        self._refreshed.set()
        self._refreshed = trio.Event()

    def client_key(self, hello: KeyedHello) -> bytes | None:
        """A client with a key of its own proves the session that it names, and nothing else."""
        if hello.purpose not in ("data", "rdma") or not hello.session or not self._capability_key:
            return None
        return session_secret(self._capability_key, hello.session)

    def knows(self, session: int) -> bool:
        return session in self._sessions

    @property
    def refreshed(self) -> trio.Event:
        """Set by the next heartbeat that is answered."""
        return self._refreshed

    def _put_sessions(self, sessions: tuple[int, ...]) -> None:
        self._sessions = frozenset(sessions)
        self._native.sessions(list(sessions))
