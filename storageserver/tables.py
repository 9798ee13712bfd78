"""Puts what the metaserver says into native code: capability key, sessions, target ids, and the
time until which clients may be served.

That time is as long after the last answered heartbeat was sent as the metaserver takes to give this
node up (rule 15). Native code compares the clock with it for every request.

State of one task, the membership task; connections read `knows` and wait for `refreshed`. No I/O:
the replies decide, and storageserver.membership sends the requests.
"""

import trio

from fscommon.auth.key import session_secret
from fscommon.errors import ConfigError
from fscommon.native_ports import ChunkServer
from fscommon.wire.hello import KeyedHello
from fscommon.wire.servers import HeartbeatReply, Registered
from storageserver.targets import Targets


class Tables:
    """The tables in native code. session_version is the version of its session table, 0: it has
    none. asked_ns, below, is CLOCK_BOOTTIME when the request was sent, in nanoseconds."""

    def __init__(self, native: ChunkServer, targets: Targets) -> None:
        self._native = native
        self._targets = targets
        self._sessions: frozenset[int] = frozenset()
        self._refreshed = trio.Event()
        self.session_version = 0
        self.node = 0
        self._capability_key = b""
        self._lease_ns = 0
        self._until_ns = 0

    def assigned(self, reply: Registered, cluster: bytes) -> None:
        """Takes the ids in the reply to REGISTER. Raises ConfigError when the metaserver belongs to
        another cluster."""
        if cluster not in (b"", reply.cluster):
            raise ConfigError(
                f"the metaserver belongs to cluster {reply.cluster.hex()}, "
                f"this storage server to {cluster.hex()}"
            )
        self._targets.assign(reply.targets)
        self.node = reply.node

    def registered(self, reply: Registered, asked_ns: int) -> None:
        """Takes the reply to REGISTER, when the names are known that were dropped before: clients
        are served from now on."""
        self._capability_key = reply.capability_key
        self._native.capability_key(reply.capability_key)
        # REGISTER names no version: the first heartbeat fetches table and version.
        self.session_version = 0
        self._put_sessions(reply.sessions)
        self._lease_ns = int(reply.timeout_s * 1_000_000_000)
        self._serve_until(asked_ns + self._lease_ns)

    def heard(self, reply: HeartbeatReply, asked_ns: int) -> None:
        if reply.sessions is not None:
            self._put_sessions(reply.sessions)
        self.session_version = reply.session_version
        self._serve_until(asked_ns + self._lease_ns)
        self._refreshed.set()
        self._refreshed = trio.Event()

    def has_lease(self, now_ns: int) -> bool:
        """False: it has run out. The metaserver may have taken this server for gone meanwhile, and
        dropped names without telling it; another heartbeat must not renew it."""
        return now_ns < self._until_ns

    def client_key(self, hello: KeyedHello) -> bytes | None:
        """The key of a client with a key of its own: it proves the session that it names, and
        nothing else. None: no such session can be proved."""
        if hello.purpose not in ("data", "rdma") or not hello.session or not self._capability_key:
            return None
        return session_secret(self._capability_key, hello.session)

    def knows(self, session: int) -> bool:
        return session in self._sessions

    @property
    def refreshed(self) -> trio.Event:
        """Set by the next heartbeat that is answered."""
        return self._refreshed

    def _serve_until(self, until_ns: int) -> None:
        self._until_ns = until_ns
        self._native.serve_until(until_ns)

    def _put_sessions(self, sessions: tuple[int, ...]) -> None:
        self._sessions = frozenset(sessions)
        self._native.sessions(list(sessions))
