"""The accepting end: every connection is counted, authenticated within a deadline, then served.

Strangers, who have not proved themselves yet, share a small pool. When it is full, or descriptors
are short, the oldest stranger of the address with most strangers is ended, so nobody can shut
others out by connecting. A stranger that is ended sees a closed connection and nothing else, costs
at most a handshake buffer, and is logged at most once a minute. Connections above the bounds are
closed at once, and no key but the cluster's may have more than its share of them. Whatever
on_connection raises, one exception or several, ends its connection and nothing else.
"""

import re
import resource
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import trio

from fscommon.auth.handshake import HandshakeState, KeyRing, ServerHandshake
from fscommon.errors import AuthenticationError, ProtocolError, TransportError
from fscommon.limits import (
    CONNECTIONS_MAX,
    CONNECTIONS_PER_KEY_MAX,
    CONNECTIONS_UNAUTHENTICATED_MAX,
    HANDSHAKE_SECONDS_MAX,
)
from fscommon.net.address import Address, parse_address
from fscommon.net.stream import FrameStream
from fscommon.net.tcp import TcpTransport
from fscommon.net.transport import ByteStream, Listener, Transport
from fscommon.observe.log import Log, RateLimit
from fscommon.tasks import first_exception
from fscommon.wire.hello import Hello, KeyedHello

_PROCESS: Final = re.compile(r"pid \d+, ")  # in the address of a peer on a local socket
_STRANGERS_PART: Final = 16
ACCEPT_PAUSE_S = 0.1  # after an error of accept(), mostly too many open files


@dataclass(frozen=True, slots=True)
class Peer:
    """What an authenticated peer says about itself."""

    purpose: str
    node: str
    session: int
    connection: int
    previous: int
    address: str
    key: int = 0  # id of the client's key that it proved; 0: the cluster key


def _strangers_max() -> int:
    """A small part of the descriptors that this process may have: the rest is for authenticated
    peers, and for stored objects."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(min(CONNECTIONS_UNAUTHENTICATED_MAX, soft // _STRANGERS_PART), 8)


WhyNot = Callable[[Hello], str]  # why a peer is not served; "": it is


def connections_max(share: float) -> int:
    """The number of connections that a process may have when it uses this share of its descriptors
    for them. Programs raise their limit when they start (fscommon.service)."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return min(CONNECTIONS_MAX, int(descriptors * share))


def too_many(count: int) -> str:
    """The message for a peer whose connection would be one too many."""
    return (
        f"it has {count}, as many as its descriptors allow: raise LimitNOFILE of its service, "
        "or have clients mount with fewer lanes"
    )


@dataclass(frozen=True, slots=True)
class AcceptLimits:
    """Bounds of one listener. per_key_max: connections of one client's key. why_not: says why a
    peer that proved itself is not served."""

    connections_max: int = field(default_factory=lambda: connections_max(0.75))
    per_key_max: int = CONNECTIONS_PER_KEY_MAX
    unauthenticated_max: int = field(default_factory=_strangers_max)
    handshake_seconds_max: float = HANDSHAKE_SECONDS_MAX
    why_not: WhyNot = lambda hello: ""


OnConnection = Callable[[Peer, FrameStream], Awaitable[None]]


async def serve(
    listen: Address | str,
    *,
    key: KeyRing | bytes,
    on_connection: OnConnection,
    log: Log | None = None,
    limits: AcceptLimits | None = None,
    transport: Transport | None = None,
    task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until cancelled. task_status.started() gets the address that is listened at. A peer
    that the limits refuse is told so after it has proved itself. Raises TransportError when it
    cannot listen.

    on_connection runs in a task of its own. Its stream is closed when it returns, unless it was
    detached.
    """
    address = parse_address(listen) if isinstance(listen, str) else listen
    listener = await (transport or TcpTransport()).listen(address)
    server = _Server(key, on_connection, log or Log("net"), limits or AcceptLimits())
    try:
        async with trio.open_nursery() as nursery:
            task_status.started(listener.address)
            await server.accept_all(listener, nursery)
    finally:
        with trio.CancelScope(shield=True):
            await listener.aclose()


class _Server:
    """The counts of one listener, and what happens to each connection."""

    def __init__(
        self, key: KeyRing | bytes, on_connection: OnConnection, log: Log, limits: AcceptLimits
    ) -> None:
        self._key = key
        self._on_connection = on_connection
        self._log = log
        self._limits = limits
        self._refusals = RateLimit(60.0)
        self._authenticated = 0
        self._of_keys: Counter[int] = Counter()
        self._strangers = _Strangers()

    async def accept_all(self, listener: Listener, nursery: trio.Nursery) -> None:
        while True:
            try:
                stream = await listener.accept()
            except TransportError as error:
                self._refused("accept failed", str(listener.address), error)
                self._strangers.end_one()
                await trio.sleep(ACCEPT_PAUSE_S)
                continue
            if len(self._strangers) >= self._limits.unauthenticated_max:
                self._refused("too many handshakes", self._strangers.end_one())
            nursery.start_soon(self._run, stream, self._strangers.add(stream.peer_address))

    async def _run(self, stream: ByteStream, stranger: "_Stranger") -> None:
        try:
            authenticated = await self._authenticate(stream, stranger)
            if authenticated is not None:
                await self._serve(*authenticated)
        finally:
            await stream.aclose()

    async def _authenticate(
        self, stream: ByteStream, stranger: "_Stranger"
    ) -> tuple[Peer, FrameStream] | None:
        handshake = ServerHandshake(self._key, self._why_not)
        stranger.scope.deadline = trio.current_time() + self._limits.handshake_seconds_max
        try:
            with stranger.scope:
                await _shake_hands(stream, handshake)
        except (ProtocolError, AuthenticationError) as error:
            self._refused("handshake failed", stream.peer_address, error)
            return None
        except TransportError as error:  # a client that ended, or a probe of the port
            self._log.debug("no handshake", peer=stream.peer_address, error=error)
            return None
        finally:
            self._strangers.remove(stranger)
        if stranger.scope.cancelled_caught:
            if not stranger.is_ended:
                self._refused("handshake too slow", stream.peer_address)
            return None
        if handshake.no_place:
            self._refused(handshake.no_place, stream.peer_address)
            return None
        peer = _peer(handshake.hello, stream.peer_address)
        return peer, FrameStream(stream, handshake.parser)

    def _why_not(self, hello: Hello) -> str:
        if self._authenticated >= self._limits.connections_max:
            return too_many(self._authenticated)
        key = hello.key if isinstance(hello, KeyedHello) else 0
        if key and self._of_keys[key] >= self._limits.per_key_max:
            return f"this key has {self._of_keys[key]}, as many as one may"
        return self._limits.why_not(hello)

    async def _serve(self, peer: Peer, frames: FrameStream) -> None:
        self._authenticated += 1
        self._of_keys[peer.key] += 1
        try:
            await self._on_connection(peer, frames)
        # several, when the connection has several tasks
        except* (ProtocolError, TransportError) as group:
            error = first_exception(group)
            self._log.warning("connection ended", peer=peer.address, node=peer.node, error=error)
        except* Exception:
            self._log.exception(
                "connection ended: this is a bug", peer=peer.address, node=peer.node
            )
        finally:
            self._authenticated -= 1
            self._of_keys[peer.key] -= 1
            if not self._of_keys[peer.key]:
                del self._of_keys[peer.key]

    def _refused(self, why: str, address: str, error: Exception | None = None) -> None:
        suppressed = self._refusals.permit()
        if suppressed is not None:
            self._log.warning(
                "connection refused", why=why, peer=address, error=error, suppressed=suppressed
            )


@dataclass(eq=False, slots=True)
class _Stranger:
    host: str
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    is_ended: bool = False  # ended so that another stranger gets its place


class _Strangers:
    """Connections that have not proved themselves, in order of arrival."""

    def __init__(self) -> None:
        self._all: dict[_Stranger, None] = {}
        self._of_hosts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._all)

    def add(self, address: str) -> _Stranger:
        stranger = _Stranger(_host(address))
        self._all[stranger] = None
        self._of_hosts[stranger.host] += 1
        return stranger

    def remove(self, stranger: _Stranger) -> None:
        if stranger not in self._all:
            return
        del self._all[stranger]
        self._of_hosts[stranger.host] -= 1
        if not self._of_hosts[stranger.host]:
            del self._of_hosts[stranger.host]

    def end_one(self) -> str:
        """Ends the oldest stranger of the host with most strangers. Returns that host; "" when
        there is no stranger."""
        if not self._all:
            return ""
        most = max(self._of_hosts.values())
        chosen = next(one for one in self._all if self._of_hosts[one.host] == most)
        chosen.is_ended = True
        chosen.scope.cancel()
        self.remove(chosen)
        return chosen.host


def _host(address: str) -> str:
    """The key by which strangers are counted: a host, and on this host a user."""
    return _PROCESS.sub("", address) if _PROCESS.search(address) else address.rpartition(":")[0]


async def _shake_hands(stream: ByteStream, handshake: ServerHandshake) -> None:
    while handshake.state is not HandshakeState.DONE:
        received = await stream.receive()
        if not received:
            raise TransportError("closed by the peer")
        try:
            reply = handshake.receive(received)
        except AuthenticationError:
            await stream.send(handshake.refusal)
            raise
        if reply:
            await stream.send(reply)


def _peer(hello: Hello, address: str) -> Peer:
    return Peer(
        purpose=hello.purpose,
        node=hello.node,
        session=hello.session,
        connection=hello.connection,
        previous=hello.previous,
        address=address,
        key=hello.key if isinstance(hello, KeyedHello) else 0,
    )
