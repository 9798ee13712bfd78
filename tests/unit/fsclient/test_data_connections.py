"""How a lane's connection is made: by RDMA if possible, else by TCP, and back; it is logged
once.
"""

import errno
import ipaddress
import os
import socket
from collections.abc import Callable

import pytest
import trio

from fsclient.data_connections import NEARBY, DataConnections
from fscommon.auth.handshake import HelloFields
from fscommon.errors import RefusedError, TransportError
from fscommon.native_ports import NativeTls, OfferRow
from fscommon.net.rails import Rails, RdmaSettings
from fscommon.net.rdma import Gid, GidKind, Port
from fscommon.net.stream import FrameStream
from fscommon.observe.log import Log
from fscommon.wire.admin import NO_PATH
from fscommon.wire.messages import ClusterMap, TargetEntry
from fscommon.wire.rdma import RdmaAnswer, RdmaOffer
from tests.unit.common.test_rdma import FakeNative

from .native_rows import Offer
from .unasked_ports import UnaskedCluster

NODE = 4
PEER = b"p" * 40


class FakeLanes(FakeNative, UnaskedCluster):
    """The native functions that rails and connections need."""

    def __init__(self) -> None:
        super().__init__()
        self.put: list[tuple[int, int, int]] = []  # each entry has lane, node and token
        self.failed: list[tuple[int, int]] = []
        self.dropped: list[int] = []
        self.unreachable: set[int] = set()  # they are unreachable by these rails
        self.up: list[bool] = []  # what was told of target 1
        self.changed = trio.Event()

    def node_put(self, node: int) -> None: ...
    def target_put(self, target: int, node: int) -> None: ...

    def target_state(self, target: int, up: bool) -> None:
        self.up.append(up)

    def connection_put(
        self, lane: int, node: int, fd: int, rdma: int = 0, tls: NativeTls | None = None
    ) -> None:
        os.close(fd)
        self.put.append((lane, node, rdma))
        self.changed.set()

    def connection_failed(self, lane: int, node: int) -> None:
        self.failed.append((lane, node))
        self.changed.set()

    def rdma_offer(self, rail: int, lane: int) -> OfferRow:
        if rail in self.unreachable:
            raise OSError(errno.EHOSTUNREACH, "no route")
        return Offer(77, PEER)

    def rdma_drop(self, token: int) -> None:
        self.dropped.append(token)


class FakeStream(FrameStream):
    tls = None

    def __init__(self, family: int) -> None:
        self._family = family

    def detach(self) -> tuple[int, bytes]:
        return socket.socket(self._family).detach(), b""

    async def aclose(self) -> None: ...


class World:
    """One lane, one node, one port; the server answers offers as `answer` says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, transport: str = "auto") -> None:
        gid = Gid(1, ipaddress.IPv6Address("::ffff:10.0.0.1"), GidKind.ROCE_V2_IPV4)
        self.ports = [Port("mlx5_0", 1, True, True, 100.0, -1, (gid,))]
        self.refusal = ""
        self.greeted: Callable[[], None] = lambda: None
        self.purposes: list[str] = []
        monkeypatch.setattr("fscommon.net.rails.find_ports", lambda: list(self.ports))
        monkeypatch.setattr("fsclient.data_connections.agree", self._agree)
        self.lanes = FakeLanes()
        self.rails = Rails(self.lanes, RdmaSettings(transport), Log("rdma"))
        self.rails.refresh()
        self.session = 9
        self.family = socket.AF_INET
        self.data = DataConnections(
            self.lanes, self._connect, "c", lambda: self.session, self.rails
        )
        entry = TargetEntry(1, NODE, "127.0.0.1:1", "up", 1, 1)
        self.changes = 0
        self.data.path_changed = self._path_changed
        self.data.map_changed(ClusterMap(1, bytes(16), (entry,)))

    def _path_changed(self) -> None:
        self.changes += 1

    async def _connect(self, _address: str, hello: HelloFields) -> FrameStream:
        self.purposes.append(hello.purpose)
        self.greeted()
        return FakeStream(self.family)

    async def _agree(self, _stream: FrameStream, offer: RdmaOffer) -> RdmaAnswer:
        if self.refusal:
            raise TransportError(self.refusal)
        assert offer.peer in (PEER, b"")
        return RdmaAnswer(PEER, by="there")

    async def ask(self, nursery: trio.Nursery) -> None:
        """The lane requests a connection, and gets one or the message that there is none."""
        self.lanes.changed = trio.Event()
        self.data.wanted(NODE, 0, nursery)
        with trio.fail_after(5):
            await self.lanes.changed.wait()


Make = Callable[..., World]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    return lambda transport="auto": World(monkeypatch, transport)


async def test_lanes_avoid_a_target_that_is_down_or_lost(make: Make) -> None:
    world = make()
    for state in ("down", "lost", "lost", "up", "draining", "lost"):
        entry = TargetEntry(1, NODE, "127.0.0.1:1", state, 1, 1)
        world.data.map_changed(ClusterMap(1, bytes(16), (entry,)))
    assert world.lanes.up == [False, True, False], "lost is no better than down"


async def test_rdma_is_used_where_both_ends_have_it(make: Make) -> None:
    world = make()
    async with trio.open_nursery() as nursery:
        await world.ask(nursery)
    assert world.lanes.put == [(0, NODE, 77)] and world.purposes == ["rdma"]
    assert [(one.transport, one.because) for one in world.data.paths()] == [("rdma", "mlx5_0:1")]


async def test_tcp_is_the_fallback_with_its_reason(make: Make) -> None:
    world = make()
    world.refusal = "the port is down"
    async with trio.open_nursery() as nursery:
        await world.ask(nursery)
        await world.ask(nursery)
    assert world.lanes.put == [(0, NODE, 0)] * 2
    assert world.purposes == ["rdma", "data", "data"], "the second did not try RDMA: it rests"
    assert world.lanes.dropped == [77]
    [path] = world.data.paths()
    assert path.transport == "tcp" and "port is down" in path.because
    assert world.changes == 1, "the second went the same way"


async def test_a_server_of_this_host_is_met_by_a_local_socket(make: Make) -> None:
    world = make()
    world.refusal, world.family = "the port is down", socket.AF_UNIX
    async with trio.open_nursery() as nursery:
        await world.ask(nursery)
    assert [(one.transport, one.because) for one in world.data.paths()] == [("local", NEARBY)]


async def test_without_a_port_nobody_is_asked(make: Make) -> None:
    world = make()
    world.ports.clear()
    world.rails.refresh()
    async with trio.open_nursery() as nursery:
        await world.ask(nursery)
    assert world.purposes == ["data"] and world.lanes.put == [(0, NODE, 0)]


async def test_a_mount_that_demands_rdma_gets_no_tcp(make: Make) -> None:
    world = make("rdma")
    world.refusal = "no"
    async with trio.open_nursery() as nursery:
        await world.ask(nursery)
    assert world.lanes.failed == [(0, NODE)] and not world.lanes.put
    with pytest.raises(TransportError, match=r"transport=rdma, but 127\.0\.0\.1:1: no"):
        await world.data.check(is_new=False)


async def test_connections_move_back_when_the_rail_returns(
    make: Make, autojump_clock: trio.testing.MockClock
) -> None:
    world = make()
    world.refusal = "the port is down"
    async with trio.open_nursery() as nursery:
        await world.ask(nursery)
        nursery.start_soon(world.data.watch_rails)
        await trio.sleep(60)
        assert world.lanes.put == [(0, NODE, 0)], "still refused"
        world.refusal = ""
        await trio.sleep(600)
        nursery.cancel_scope.cancel()
    assert world.lanes.put == [(0, NODE, 0), (0, NODE, 77)]
    assert [path.transport for path in world.data.paths()] == ["rdma"]


async def test_where_one_rail_does_not_reach_another_is_used(
    make: Make, autojump_clock: trio.testing.MockClock
) -> None:
    world = make()
    gid = Gid(1, ipaddress.IPv6Address("::ffff:10.1.0.1"), GidKind.ROCE_V2_IPV4)
    world.ports.append(Port("mlx5_1", 1, True, True, 100.0, -1, (gid,)))
    world.rails.refresh()
    world.lanes.unreachable = {0}
    async with trio.open_nursery() as nursery:
        await world.ask(nursery)
        assert world.lanes.put == [(0, NODE, 0)], "TCP meanwhile"
        nursery.start_soon(world.data.watch_rails)
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    assert world.lanes.put == [(0, NODE, 0), (0, NODE, 77)]
    assert [path.because for path in world.data.paths()] == ["mlx5_1:1"]


async def test_no_connection_is_made_for_a_session_that_is_gone(make: Make) -> None:
    """It would be refused without end, and the lane would wait for it."""
    world = make("tcp")
    async with trio.open_nursery() as nursery:
        world.session = 0
        await world.ask(nursery)
        assert world.purposes == []
        world.session = 9
        world.greeted = lambda: setattr(world, "session", 10)
        await world.ask(nursery)
    assert world.lanes.put == []
    assert world.lanes.failed == [(0, NODE), (0, NODE)]


# ---- a server that is full ----------------------------------------------------------------------


class Full(World):
    """Its server refuses so many connections."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refusals: int) -> None:
        super().__init__(monkeypatch, "tcp")
        self.refusals = refusals

    async def _connect(self, address: str, hello: HelloFields) -> FrameStream:
        if self.refusals:
            self.refusals -= 1
            raise RefusedError(f"{address} refuses the connection: it has 7")
        return await super()._connect(address, hello)


async def test_a_refusal_is_told_until_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Full(monkeypatch, refusals=2)
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            await world.ask(nursery)
            (path,) = world.data.paths()
            assert (path.node, path.transport) == (NODE, NO_PATH) and "it has 7" in path.because
        assert world.changes == 1 and world.lanes.failed == [(0, NODE)] * 2
        await world.ask(nursery)
    assert world.changes >= 2 and [one.transport for one in world.data.paths()] == ["tcp"]


async def test_a_mount_is_told_that_a_server_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RefusedError, match="it has 7"):
        await Full(monkeypatch, refusals=1).data.check(is_new=True)
    await Full(monkeypatch, refusals=1).data.check(is_new=False)
    await Full(monkeypatch, refusals=0).data.check(is_new=True)
