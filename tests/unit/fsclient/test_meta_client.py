"""The trio part of the session: callers, reconnecting, cancellation, the first connection."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from fsclient.meta.client import BREACHES_MAX, CLOSE_TIMEOUT_S, Events, MetaClient
from fsclient.meta.hooks import SessionRefusedError
from fscommon.errors import FsError, Status, TransportError
from fscommon.wire.frame import Frame
from fscommon.wire.messages import Caller, ClusterMap, Empty, Entry, GetAttr, MkDir
from fscommon.wire.ops import Op

from .memory_metaserver import MemoryMetaserver

CALLER = Caller(0, 0, 0)


class MemoryStream:
    """A connection to a MemoryMetaserver; the server answers while the client sends."""

    def __init__(self, server: MemoryMetaserver) -> None:
        self.server = server
        self.inbox, self.outbox = trio.open_memory_channel[Frame](math.inf)[::-1]
        self.is_mute = False
        self.is_held = False  # no answer comes until release()
        self.is_closed = self.is_cut = False
        self.forgets: Op | None = None
        self._held: list[Frame] = []

    async def send(self, octets: bytes) -> None:
        await trio.lowlevel.checkpoint()
        if self.is_cut:
            raise TransportError("cut")
        for reply in self.server.receive(octets):
            if self.is_held:
                self._held.append(reply)
            elif not self.is_mute and reply.header.op != self.forgets:
                self.outbox.send_nowait(reply)

    def release(self) -> None:
        self.is_held = False
        for reply in self._held:
            self.outbox.send_nowait(reply)

    async def receive_batch(self) -> list[Frame]:
        try:
            return [await self.inbox.receive()]
        except trio.EndOfChannel:
            return []

    async def aclose(self) -> None:
        self.is_closed = True
        self.outbox.close()

    def cut(self) -> None:
        self.is_cut = True
        self.server.disconnect()
        self.outbox.close()


class World:
    def __init__(self) -> None:
        self.server = MemoryMetaserver()
        self.streams: list[MemoryStream] = []
        self.dialed: list[str] = []
        self.dead: set[str] = set()
        self.failure: type[TransportError] = TransportError
        self.mutes_next = False
        self.maps: list[ClusterMap] = []
        self.evictions: list[int] = []
        self.orphans: list[Op] = []
        self.logged: list[str] = []
        self.refusals: list[str] = []

    async def connect(self, address: str, session: int) -> MemoryStream:
        await trio.lowlevel.checkpoint()
        self.dialed.append(address)
        if address in self.dead:
            raise self.failure(f"nothing listens at {address}")
        self.streams.append(MemoryStream(self.server))
        self.streams[-1].is_mute, self.mutes_next = self.mutes_next, False
        return self.streams[-1]

    def client(self, *addresses: str, timeout_s: float = 60.0) -> MetaClient:
        events = Events(
            tuple,
            self.maps.append,
            self.evictions.append,
            lambda op, _body: self.orphans.append(op),
            self.logged.append,
            refused=self.refusals.append,
        )
        return MetaClient(
            addresses or ("one:1",), self.connect, events, node="test", timeout_s=timeout_s
        )

    @asynccontextmanager
    async def running(self, client: MetaClient) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            await nursery.start(client.run)
            yield
            nursery.cancel_scope.cancel()


@pytest.fixture
def world() -> World:
    return World()


def mkdir(name: bytes) -> MkDir:
    return MkDir(1, name, 0o755, CALLER)


async def test_call_and_map(world: World, autojump_clock: trio.testing.MockClock) -> None:
    client = world.client()
    async with world.running(client):
        reply = await client.call(Op.MKDIR, mkdir(b"a"), Entry)
        assert reply.attributes == b"a"
        with pytest.raises(FsError, match="ENOENT"):
            await client.call(Op.MKDIR, mkdir(b"missing"), Entry)
    assert [cluster_map.epoch for cluster_map in world.maps] == [1]


async def test_what_changed_is_told_soon_and_together(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    client = world.client()
    async with world.running(client):
        for _ in range(8):
            await trio.sleep(1)
            client.renew_soon()
            client.renew_soon()
        await trio.sleep(0.9)
        renewals = [op for op, *_ in world.server.seen if op is Op.SESSION_RENEW]
    assert len(renewals) == 9  # there is one for each second, and the first


async def test_many_callers(world: World, autojump_clock: trio.testing.MockClock) -> None:
    client = world.client()
    names = [b"%d" % index for index in range(3000)]
    async with world.running(client), trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(client.call, Op.MKDIR, mkdir(name), Entry)
    assert sorted(world.server.now.applied) == sorted(names)


async def test_next_address_is_tried(world: World, autojump_clock: trio.testing.MockClock) -> None:
    world.dead = {"one:1"}
    client = world.client("one:1", "two:2")
    async with world.running(client):
        await client.call(Op.GETATTR, GetAttr(1), Entry)
    assert world.dialed == ["one:1", "two:2"]


async def test_first_failure_is_told(world: World, autojump_clock: trio.testing.MockClock) -> None:
    world.dead = {"one:1", "two:2"}
    with pytest.RaisesGroup(TransportError):
        async with world.running(world.client("one:1", "two:2")):
            pass


async def test_a_key_that_is_good_no_more(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """No request waits without end, also with `hard`; retries get rarer; a new key ends this."""
    client = world.client(timeout_s=math.inf)
    async with world.running(client):
        await client.call(Op.MKDIR, mkdir(b"a"), Entry)
        world.server.is_refusing = True
        world.server.evict(client.number)
        world.streams[-1].cut()
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(3):
            with pytest.raises(FsError) as caught, trio.fail_after(2.0):
                await client.call(Op.GETATTR, GetAttr(1), Entry)
            assert caught.value.status is Status.EACCES
        asked = len(world.dialed)
        await trio.sleep(600)
        assert 600 / 60 <= len(world.dialed) - asked <= 600 / 60 + 8
        assert world.refusals and world.evictions == []
        world.server.is_refusing = False
        await trio.sleep(61)
        await client.call(Op.GETATTR, GetAttr(1), Entry)
        assert len(world.evictions) == 1


async def test_a_first_refusal_is_told(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    world.server.is_refusing = True
    with pytest.RaisesGroup(SessionRefusedError):
        async with world.running(world.client()):
            pass


async def test_reconnect_replays(world: World, autojump_clock: trio.testing.MockClock) -> None:
    client = world.client()
    async with world.running(client):
        await client.call(Op.MKDIR, mkdir(b"a"), Entry)
        world.server.crash()
        world.dead = {"one:1"}
        world.streams[-1].cut()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call, Op.MKDIR, mkdir(b"b"), Entry)
            await trio.sleep(20)
            assert not client.is_ready
            world.dead = set()
    assert world.server.now.applied == [b"a", b"b"]


async def test_all_addresses_are_tried_between_two_waits(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    async with world.running(world.client("one:1", "two:2")):
        world.dead = {"one:1", "two:2"}
        world.streams[0].cut()
        await trio.sleep(0.12)  # the first wait is 0.1 s at most, and the next one 0.1 s at least
        assert world.dialed == ["one:1", "one:1", "two:2"]
        world.dead = {"one:1"}
        await trio.sleep(0.2)
        assert world.dialed[3:] == ["one:1", "two:2"] and len(world.streams) == 2


async def test_answers_that_make_no_sense(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """The request with such an answer gets EIO, soon, also with `hard`; everything else goes on."""
    client = world.client(timeout_s=math.inf)
    world.server.lies_about = {b"lied"}
    async with world.running(client):
        await client.call(Op.MKDIR, mkdir(b"before"), Entry)
        with pytest.raises(FsError) as caught, trio.fail_after(30.0):
            await client.call(Op.MKDIR, mkdir(b"lied"), Entry)
        assert caught.value.status is Status.EIO
        with trio.fail_after(30.0):
            await client.call(Op.MKDIR, mkdir(b"after"), Entry)
        assert len(world.dialed) == 1 + BREACHES_MAX
        await trio.sleep(600)
        assert len(world.dialed) == 1 + BREACHES_MAX, "it is at rest"
    assert any("were invalid 5 times in a row" in line for line in world.logged)


async def test_a_metaserver_that_makes_no_sense_at_all(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """All requests get EIO, and the metaserver is tried at growing intervals, until its answers
    make sense again."""
    client = world.client(timeout_s=math.inf)
    async with world.running(client):
        await client.call(Op.MKDIR, mkdir(b"a"), Entry)
        world.server.is_lying = True
        world.streams[-1].cut()
        await trio.sleep(20)
        for _ in range(3):
            with pytest.raises(FsError) as caught, trio.fail_after(3.0):
                await client.call(Op.GETATTR, GetAttr(1), Entry)
            assert caught.value.status is Status.EIO
        asked, lines = len(world.dialed), len(world.logged)
        await trio.sleep(600)
        assert len(world.dialed) - asked <= 600 / 60 + 8
        assert len(world.logged) - lines <= 3 * (600 / 60 + 8)
        world.server.is_lying = False
        await trio.sleep(61)
        await client.call(Op.GETATTR, GetAttr(1), Entry)


async def test_a_reply_that_cannot_be_read(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    client = world.client()
    async with world.running(client):
        with pytest.raises(FsError, match="EIO"):
            await client.call(Op.MKDIR, mkdir(b"a"), ClusterMap)
    assert any("reply to MKDIR is invalid" in line for line in world.logged)


async def test_timeout(world: World, autojump_clock: trio.testing.MockClock) -> None:
    client = world.client(timeout_s=5.0)
    async with world.running(client):
        world.streams[-1].forgets = Op.GETATTR
        began = trio.current_time()
        with pytest.raises(FsError) as caught:
            await client.call(Op.GETATTR, GetAttr(1), Entry)
        assert caught.value.status is Status.ETIMEDOUT
        assert 5.0 <= trio.current_time() - began < 6.0


async def test_silent_peer_is_left(world: World, autojump_clock: trio.testing.MockClock) -> None:
    client = world.client(timeout_s=math.inf)
    async with world.running(client):
        world.streams[-1].is_mute = True
        await client.call(Op.GETATTR, GetAttr(1), Entry)
    assert len(world.streams) == 2


async def test_cancelled_call_is_followed(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    client = world.client()
    async with world.running(client):
        with trio.move_on_after(0) as scope:
            await client.call(Op.MKDIR, mkdir(b"never sent"), Entry)
        assert scope.cancelled_caught
        await client.call(Op.BARRIER, Empty(), Empty)
    assert world.server.now.applied == []


async def test_eviction(world: World, autojump_clock: trio.testing.MockClock) -> None:
    client = world.client()
    async with world.running(client):
        first = client.core.session
        world.server.evict(first)
        await client.call(Op.GETATTR, GetAttr(1), Entry)
        assert world.evictions == [client.core.session]
        assert client.core.session != first


async def test_refused_session_fails_the_mount(
    world: World, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = world.server
    monkeypatch.setattr(server, "_open", lambda frame: server._fail(frame.header, Status.EPERM))
    with pytest.RaisesGroup(SessionRefusedError):
        async with world.running(world.client()):
            pass


async def test_close_makes_everything_durable(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    client = world.client()
    async with world.running(client):
        await client.call(Op.MKDIR, mkdir(b"a"), Entry)
        await client.close()
    assert world.server.kept.applied == [b"a"]


@pytest.mark.parametrize("timeout_s", [2.0, math.inf])
async def test_close_gives_up_and_says_what_is_uncertain(
    world: World, autojump_clock: trio.testing.MockClock, timeout_s: float
) -> None:
    client = world.client(timeout_s=timeout_s)
    async with world.running(client):
        await client.call(Op.MKDIR, mkdir(b"a"), Entry)
        assert client.core.uncertain_count() == 1
        for stream in world.streams:
            stream.is_mute = True
        world.dead.add("one:1")
        client.post(Op.MKDIR, mkdir(b"b"), lambda error, body: None)
        assert client.core.uncertain_count() == 2
        started = trio.current_time()
        await client.close()
        assert trio.current_time() - started <= CLOSE_TIMEOUT_S
        (said,) = [line for line in world.logged if "was not closed" in line]
        assert "2 changes may be lost" in said


async def test_abort(world: World, autojump_clock: trio.testing.MockClock) -> None:
    client = world.client(timeout_s=math.inf)
    async with world.running(client):
        world.streams[-1].is_mute = True

        async def expect_abort() -> None:
            with pytest.raises(FsError, match="ABORTED"):
                await client.call(Op.GETATTR, GetAttr(1), Entry)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(expect_abort)
            await trio.testing.wait_all_tasks_blocked()
            assert client.abort() >= 1  # a heartbeat may wait, too
