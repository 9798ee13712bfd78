"""Connections of the native lanes to storage servers: made and authenticated here, used there.

A lane requests (CONNECT event) a connection to a node. This side looks up its address in the
cluster map, does the handshake, and passes the bare socket to the lane. HELLO names the lane's
previous connection to that node, whose requests the server then ends first (rule 23). Native
repeats with backoff: a failure is reported once, and the lane requests the connection again.
Touched by the client's trio thread only.
"""

import os
import random
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

import trio

from fscommon.auth.handshake import HelloFields
from fscommon.errors import (
    AuthenticationError,
    BraidError,
    ProtocolError,
    RefusedError,
    TransportError,
)
from fscommon.native_ports import ClusterPort, NativeTls
from fscommon.net.backoff import Backoff
from fscommon.net.near import pin_lanes
from fscommon.net.rails import Rail, Rails, agree
from fscommon.net.stream import FrameStream
from fscommon.observe.log import Log, RateLimit
from fscommon.wire.admin import NO_PATH, BytesPath
from fscommon.wire.messages import ClusterMap
from fscommon.wire.rdma import RdmaOffer

from .rdma import TransportPolicy

RDMA_TIMEOUT_S: Final = 10.0
ASK_S: Final = 1.0
RAILS_REFRESH_S: Final = 5.0
NEARBY: Final = "the server is on this host"

Connect = Callable[[str, HelloFields], Awaitable[FrameStream]]


@dataclass(frozen=True, slots=True)
class _Opened:
    """A socket for a lane. token: the queue pair that belongs to it; 0: none."""

    fd: int
    tls: NativeTls | None
    token: int = 0

    @property
    def is_local(self) -> bool:
        """Whether it is a local socket, to a server on this host."""
        sock = socket.socket(fileno=self.fd)
        try:
            return sock.family == socket.AF_UNIX
        finally:
            sock.detach()


class DataConnections:
    def __init__(
        self,
        cluster: ClusterPort,
        connect: Connect,
        name: str,
        session: Callable[[], int],
        rails: Rails | None = None,
    ) -> None:
        """name: of this client, for the servers' logs. session: returns the present one. rails:
        None means TCP only."""
        self._rails = rails
        self._policy = TransportPolicy(required=rails is not None and rails.required)
        self._by_tcp: set[tuple[int, int]] = set()  # lane and node of connections by TCP
        self._cluster = cluster
        self._connect = connect
        self._name = name
        self._session = session
        self._addresses: dict[int, str] = {}
        self._nodes_of_targets: dict[int, int] = {}
        self._down: set[int] = set()  # targets
        self._previous: dict[tuple[int, int], int] = {}
        self._wanted: set[tuple[int, int]] = set()
        self._log = Log("data")
        self._failures: dict[int, RateLimit] = {}
        self._backoffs: dict[int, Backoff] = {}  # native decides when to try again
        self._paths: dict[int, BytesPath] = {}
        self._refusals: dict[int, str] = {}  # nodes that refuse connections, with the reason
        self.path_changed: Callable[[], None] = lambda: None  # called when `paths` has changed
        self.made_count = 0
        self.failed_count = 0

    def map_changed(self, cluster_map: ClusterMap) -> None:
        """Tells the lanes of nodes and targets. The next CONNECT uses a node's new address."""
        for entry in cluster_map.targets:
            is_new = entry.node not in self._addresses
            self._addresses[entry.node] = entry.address
            if is_new:
                self._cluster.node_put(entry.node)
            if self._nodes_of_targets.get(entry.target) != entry.node:
                self._nodes_of_targets[entry.target] = entry.node
                self._cluster.target_put(entry.target, entry.node)
        self._tell_states(cluster_map)

    def _tell_states(self, cluster_map: ClusterMap) -> None:
        gone = ("down", "lost")
        down = {entry.target for entry in cluster_map.targets if entry.state in gone}
        for target in sorted(down ^ self._down):
            self._cluster.target_state(target, target not in down)
        self._down = down

    def wanted(self, node: int, lane: int, nursery: trio.Nursery) -> None:
        """A CONNECT event: opens the connection in a task."""
        if (lane, node) not in self._wanted:
            self._wanted.add((lane, node))
            nursery.start_soon(self._make, node, lane)

    async def _make(self, node: int, lane: int) -> None:
        try:
            opened = await self._open_best(node, lane)
        except BraidError as error:
            self._failed(node, lane, error)
        else:
            self.made_count += 1
            self._backoff(node).reset()
            if self._refusals.pop(node, None) is not None:
                self.path_changed()
            self._put(lane, node, opened)
        finally:
            self._wanted.discard((lane, node))

    def _put(self, lane: int, node: int, opened: _Opened) -> None:
        self._cluster.connection_put(lane, node, opened.fd, opened.token, opened.tls)

    async def _open_best(self, node: int, lane: int) -> _Opened:
        """Opens an authenticated socket, which the caller owns."""
        rails = self._rails
        if rails is None or not rails.wanted:
            opened = await self._open_tcp(node, lane)
            if opened.tls:
                self._goes(BytesPath(node, "tls", opened.tls.cipher()))
            else:
                self._goes(BytesPath(node, "tcp", "transport=tcp"))
            return opened
        now = trio.current_time()
        failure: BraidError | None = None
        if self._policy.use_rdma(node, lane, now):
            try:
                return await self._open_by_rail(node, lane, rails)
            except AuthenticationError:
                raise
            except BraidError as error:
                if rails.required:
                    self._policy.failed(node, lane, now)
                    raise
                failure = error
        # If this fails, too, the whole server is gone: then the failure of RDMA is not reported.
        opened = await self._open_tcp(node, lane)
        if failure is not None:
            self._policy.failed(node, lane, now)
        self._by_tcp.add((lane, node))
        why = failure or "RDMA failed a short while ago"
        self._say(node, *(("local socket", NEARBY) if opened.is_local else ("TCP", why)))
        return opened

    async def _open_by_rail(self, node: int, lane: int, rails: Rails) -> _Opened:
        rail = rails.of_lane(lane + self._policy.turn(node, lane))
        if rail is None:
            raise TransportError(rails.reason)
        opened = await self._open_rdma(node, lane, rail)
        self._by_tcp.discard((lane, node))
        self._policy.made(node, lane, trio.current_time())
        self._say(node, "RDMA", rail.choice.port.name)
        return opened

    def paths(self) -> tuple[BytesPath, ...]:
        """By which transport bytes go to each node, for the metaserver's status; also nodes that
        refuse this client."""
        refused = {node: BytesPath(node, NO_PATH, why) for node, why in self._refusals.items()}
        return tuple(path for _, path in sorted({**self._paths, **refused}.items()))

    def _goes(self, path: BytesPath) -> None:
        if self._paths.get(path.node) != path:
            self._paths[path.node] = path
            self.path_changed()

    def _say(self, node: int, transport: str, why: object) -> None:
        is_news = self._policy.is_news(node, transport)
        if is_news:
            self._goes(BytesPath(node, transport.lower().split()[0], str(why)))
            self._log.info(f"data goes by {transport}", node=node, because=why)

    async def _open_tcp(self, node: int, lane: int) -> _Opened:
        stream, hello = await self._greet(node, lane, "data")
        return self._detached(stream, hello, node, lane)

    async def _open_rdma(self, node: int, lane: int, rail: Rail) -> _Opened:
        stream, hello = await self._greet(node, lane, "rdma")
        token = 0
        try:
            offer = self._cluster.rdma_offer(rail.number, lane)
            token = offer.token
            with trio.fail_after(RDMA_TIMEOUT_S):
                answer = await agree(stream, RdmaOffer(offer.description))
            self._cluster.rdma_connect(token, answer.peer)
            return replace(self._detached(stream, hello, node, lane), token=token)
        except BaseException as error:
            self._cluster.rdma_drop(token)
            await stream.aclose()
            if isinstance(error, OSError | ValueError | trio.TooSlowError):
                if isinstance(error, OSError) and self._rails is not None:
                    self._rails.failed(rail, error)
                raise TransportError(f"{rail.choice.port.name}: {error}") from error
            raise

    async def _greet(self, node: int, lane: int, purpose: str) -> tuple[FrameStream, HelloFields]:
        address = self._addresses.get(node)
        if address is None:
            raise ProtocolError(f"node {node} is not in the cluster map")
        session = self._session()
        if not session:
            raise TransportError("the session was lost, the next one is not open yet")
        previous = self._previous.get((lane, node), 0)
        hello = HelloFields(purpose, self._name, session=session, previous=previous)
        patience_s = self._backoff(node).connect_s
        try:
            with trio.fail_after(patience_s):
                return await self._connect(address, hello), hello
        except trio.TooSlowError:
            raise TransportError(f"{address} did not answer within {patience_s:.1f} s") from None

    def _backoff(self, node: int) -> Backoff:
        return self._backoffs.setdefault(node, Backoff(delay_s_max=1.0))

    def _detached(self, stream: FrameStream, hello: HelloFields, node: int, lane: int) -> _Opened:
        tls = stream.tls
        fd, early = stream.detach()
        self._previous[lane, node] = hello.connection
        if hello.session != self._session():
            os.close(fd)
            raise TransportError("the session ended meanwhile")
        if early:
            os.close(fd)
            raise ProtocolError(f"{self._addresses[node]} sent bytes before any request")
        return _Opened(fd, tls)

    async def watch_rails(self) -> None:
        """Uses ports that come up, and moves connections back from TCP. Runs until cancelled."""
        rails = self._rails
        if rails is None or not rails.wanted:
            return
        while True:
            pin_lanes(rails)
            await trio.sleep(RAILS_REFRESH_S)
            rails.refresh()
            for lane, node in sorted(self._by_tcp) if rails.rails else ():
                if self._policy.may_return(node, trio.current_time()):
                    await self._move_back(node, lane)

    async def _move_back(self, node: int, lane: int) -> None:
        """Moves a lane's connection from TCP to RDMA, unless it is connecting anyway."""
        rails = self._rails
        if rails is None or (lane, node) in self._wanted:
            return
        self._wanted.add((lane, node))
        try:
            opened = await self._open_by_rail(node, lane, rails)
        except BraidError:
            self._policy.failed(node, lane, trio.current_time())
        else:
            self._put(lane, node, opened)
        finally:
            self._wanted.discard((lane, node))

    async def check(self, *, is_new: bool) -> None:
        """Checks the servers before the first request. is_new: the mount is a new one."""
        if is_new:
            await self._ask_one()
        await self._check_rdma()

    async def _ask_one(self) -> None:
        """Raises RefusedError if a storage server, any one, has no place for one more client: it is
        better to say that at once than to wait."""
        if not self._addresses:
            return
        address = random.choice(list(self._addresses.values()))
        hello = HelloFields("data", self._name, session=self._session())
        with trio.move_on_after(ASK_S):
            try:
                stream = await self._connect(address, hello)
            except RefusedError:
                raise
            except BraidError:  # the server may be down
                return
            await stream.aclose()

    async def _check_rdma(self) -> None:
        """For a mount that demands RDMA: raises TransportError if a server has none."""
        rails = self._rails
        if rails is None or not rails.required:
            return
        if not rails.rails:
            raise TransportError(f"transport=rdma, but {rails.reason}")
        for address in sorted(set(self._addresses.values())):
            hello = HelloFields("rdma", self._name, session=self._session())
            stream = await self._connect(address, hello)
            try:
                with trio.fail_after(RDMA_TIMEOUT_S):
                    await agree(stream, RdmaOffer(b""))
            except (BraidError, trio.TooSlowError) as error:
                raise TransportError(f"transport=rdma, but {address}: {error}") from error
            finally:
                await stream.aclose()

    def _failed(self, node: int, lane: int, error: BraidError) -> None:
        self.failed_count += 1
        self._backoff(node).failed()
        if isinstance(error, RefusedError) and node not in self._refusals:
            self._refusals[node] = str(error)
            self.path_changed()
        limit = self._failures.setdefault(node, RateLimit(10.0))
        suppressed = limit.permit()
        if suppressed is not None:
            report = (
                self._log.error if isinstance(error, AuthenticationError) else self._log.warning
            )
            report("no connection to a storage server", node=node, lane=lane, error=error)
        self._cluster.connection_failed(lane, node)
