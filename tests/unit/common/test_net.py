"""Connecting and serving: every limit refuses, every failure has its message."""

import functools
import os
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
import trio

from fscommon.auth.handshake import HelloFields, KeyRing, ServerHandshake
from fscommon.errors import (
    AuthenticationError,
    ConfigError,
    ProtocolError,
    RefusedError,
    TransportError,
)
from fscommon.limits import CONNECTIONS_MAX
from fscommon.net.address import Address, parse_address
from fscommon.net.memory import MemoryTransport
from fscommon.net.serve import AcceptLimits, Peer, _Strangers, connections_max, serve, too_many
from fscommon.net.stream import FrameStream, connect
from fscommon.net.tcp import TcpListener, TcpStream, TcpTransport
from fscommon.net.transport import Listener, Transport
from fscommon.observe.log import Log
from fscommon.wire.frame import encode_frame
from fscommon.wire.header import FLAG_REPLY
from fscommon.wire.hello import Hello
from fscommon.wire.ops import Op

KEY = b"k" * 32
HELLO = HelloFields("meta", "node-1", session=9)
LOCAL = Address("127.0.0.1", 0)


class RecordedLog(Log):
    def __init__(self) -> None:
        super().__init__("test")
        self.events: list[tuple[str, object]] = []

    def warning(self, event: str, **fields: object) -> None:
        self.events.append((event, fields.get("why")))

    exception = warning


async def echo(peer: Peer, stream: FrameStream) -> None:
    while batch := await stream.receive_batch():
        for frame in batch:
            header = frame.header
            await stream.send(
                encode_frame(
                    header.op, flags=FLAG_REPLY, request_id=header.request_id, body=frame.body
                )
            )


@asynccontextmanager
async def serving(
    on_connection: Callable[[Peer, FrameStream], Awaitable[None]] = echo,
    *,
    limits: AcceptLimits | None = None,
    log: Log | None = None,
    transport: Transport | None = None,
    key: KeyRing | bytes = KEY,
) -> AsyncIterator[Address]:
    async with trio.open_nursery() as nursery:
        task = functools.partial(
            serve,
            LOCAL,
            key=key,
            on_connection=on_connection,
            limits=limits,
            log=log,
            transport=transport,
        )
        address: Address = await nursery.start(task)
        with trio.fail_after(20):
            yield address
        nursery.cancel_scope.cancel()


def dial(
    address: Address | str,
    key: bytes = KEY,
    timeout_s: float = 10,
    transport: Transport | None = None,
) -> Awaitable[FrameStream]:
    return connect(address, key=key, hello=HELLO, timeout_s=timeout_s, transport=transport)


async def test_connections_that_were_closed_here() -> None:
    """Each such connection reports that it was closed here, to every task that waits for
    it, too."""
    async with serving() as address:
        for _ in range(3):
            stream = await TcpTransport().dial(address)
            await stream.aclose()
            for wait in (stream.receive, stream.readable, stream.writable, stream.peek):
                with pytest.raises(TransportError, match="closed here"):
                    await wait()


@pytest.mark.parametrize("transport", [TcpTransport(), MemoryTransport()])
async def test_frames_go_and_come(transport: Transport) -> None:
    async with serving(transport=transport) as address:
        stream = await dial(address, transport=transport)
        await stream.send(encode_frame(Op.PING, request_id=1, body=b"abc"))
        (frame,) = await stream.receive_batch()
        assert (frame.header.request_id, frame.body) == (1, b"abc")
        await stream.aclose()


async def test_frames_of_many_tasks_do_not_interleave() -> None:
    async with serving() as address:
        stream = await dial(address)
        async with trio.open_nursery() as nursery:
            for request_id in range(40):
                body = bytes([request_id]) * 300_000
                nursery.start_soon(
                    stream.send, encode_frame(Op.PING, request_id=request_id, body=body)
                )
            left = set(range(40))
            while left:
                for frame in await stream.receive_batch():
                    left.remove(frame.header.request_id)
                    assert frame.body == bytes([frame.header.request_id]) * 300_000


async def test_a_cancelled_send_breaks_the_stream() -> None:
    async def ignores(peer: Peer, stream: FrameStream) -> None:
        await trio.sleep_forever()

    async with serving(ignores) as address:
        stream = await dial(address)
        with trio.move_on_after(0.1):
            while True:
                await stream.send(encode_frame(Op.PING, body=bytes(1 << 20)))
                await trio.lowlevel.checkpoint()
        with pytest.raises(TransportError, match="broken"):
            await stream.send(encode_frame(Op.PING))


async def test_the_server_knows_its_peer() -> None:
    seen: list[Peer] = []

    async def look(peer: Peer, stream: FrameStream) -> None:
        seen.append(peer)

    async with serving(look) as address:
        stream = await dial(address, transport=TcpTransport(is_local=False))
        assert await stream.receive_batch() == []
    (peer,) = seen
    assert (peer.purpose, peer.node, peer.session) == ("meta", "node-1", 9)
    assert peer.connection == HELLO.connection
    assert peer.address.startswith("127.0.0.1:")


async def test_another_key() -> None:
    log = RecordedLog()
    async with serving(log=log) as address:
        for _ in range(5):
            with pytest.raises(AuthenticationError, match="refused this cluster key"):
                await dial(address, b"o" * 32)
    assert log.events == [("connection refused", "handshake failed")]  # it is logged once a minute


async def test_a_peer_that_leaves_within_the_handshake_is_no_warning() -> None:
    log = RecordedLog()
    async with serving(log=log) as address:
        await (await TcpTransport().dial(address)).aclose()
        stream = await dial(address)  # it is accepted after that one
        await stream.aclose()
    assert log.events == []


async def test_a_server_that_ends_within_the_handshake() -> None:
    """The server refused nothing, so the client tries again. It ends at each step, by a close and
    by a reset."""
    for steps in range(2):
        listener = await TcpTransport().listen(LOCAL)

        async def answer(listener: Listener = listener, steps: int = steps) -> None:
            stream = await listener.accept()
            handshake = ServerHandshake(KEY)
            for _ in range(steps):
                await stream.send(handshake.receive(await stream.receive()))
            await stream.receive()
            await stream.aclose()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            with pytest.raises(TransportError, match=r"closed the connection"):
                await dial(listener.address)
            nursery.cancel_scope.cancel()
        await listener.aclose()


async def test_nobody_there() -> None:
    async with serving() as address:
        pass
    with pytest.raises(TransportError, match="nothing listens"):
        await dial(address)


async def test_a_name_that_is_none() -> None:
    with pytest.raises(TransportError, match=r"the name no\.such\.invalid cannot be resolved"):
        await dial("no.such.invalid:1")


@asynccontextmanager
async def stranger(first: bytes, *, stay: bool) -> AsyncIterator[Address]:
    """A server that sends some bytes and then waits or closes."""
    listener = await TcpTransport().listen(LOCAL)

    async def accept() -> None:
        stream = await listener.accept()
        await stream.receive()
        await stream.send(first)
        if stay:
            await trio.sleep_forever()
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        yield listener.address
        nursery.cancel_scope.cancel()
    await listener.aclose()


async def test_a_server_of_something_else() -> None:
    async with stranger(b"HTTP/1.1 400 Bad Request\r\n" + bytes(80), stay=True) as address:
        with pytest.raises(TransportError, match="not a BraidFS server"):
            await dial(address)


async def test_a_server_that_closes_at_once() -> None:
    async with stranger(b"", stay=False) as address:
        with pytest.raises(TransportError, match="closed the connection at once"):
            await dial(address)


async def test_a_server_that_is_silent() -> None:
    async with stranger(b"", stay=True) as address:
        with pytest.raises(TransportError, match=r"did not authenticate within 0\.1 s"):
            await dial(address, timeout_s=0.1)


async def read_to_end(address: Address, first: bytes) -> bytes:
    stream = await TcpTransport().dial(address)
    received = b""
    try:
        if first:
            await stream.send(first)
        while part := await stream.receive():
            received += part
    except TransportError:
        pass
    await stream.aclose()
    return received


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n\r\n" + bytes(80), b"BRID" + bytes(100)])
async def test_strangers_get_a_closed_connection_and_nothing_else(first: bytes) -> None:
    async with serving(log=RecordedLog()) as address:
        assert await read_to_end(address, first) == b""


async def test_slow_handshakes_are_cut() -> None:
    log = RecordedLog()
    limits = AcceptLimits(handshake_seconds_max=0.05)
    async with serving(limits=limits, log=log) as address:
        assert await read_to_end(address, b"BRID") == b""
    assert log.events == [("connection refused", "handshake too slow")]


async def test_strangers_shut_nobody_out() -> None:
    """Many peers connect and send nothing: the oldest of them are closed."""
    log = RecordedLog()
    async with serving(limits=AcceptLimits(unauthenticated_max=2), log=log) as address:
        waiting = [await TcpTransport().dial(address) for _ in range(5)]
        stream = await dial(address)
        for one in waiting[:4]:
            assert await one.receive() == b""
        await stream.send(encode_frame(Op.PING))
        assert len(await stream.receive_batch()) == 1
        assert log.events[0] == ("connection refused", "too many handshakes")
        await stream.aclose()
        for one in waiting:
            await one.aclose()


def test_of_strangers_the_host_goes_that_has_most() -> None:
    pool = _Strangers()
    single = pool.add("10.0.0.1:5")
    many = [pool.add(f"10.0.0.2:{port}") for port in range(3)]
    local = [pool.add(f"this host (pid {pid}, uid 7)") for pid in range(2)]
    assert pool.end_one() == "10.0.0.2" and many[0].is_ended
    assert {pool.end_one(), pool.end_one()} == {"10.0.0.2", "this host (uid 7)"}
    assert not single.is_ended
    pool.remove(many[0])  # removing it twice does no harm
    assert len(pool) == 3 and [one.is_ended for one in (many[2], local[1])] == [False, False]


class ShortOfDescriptors(TcpTransport):
    """accept() fails until a connection is closed here."""

    make_short: Callable[[], None]

    async def listen(self, address: Address) -> TcpListener:
        listener = await super().listen(address)
        accept = listener.accept

        async def fails_once() -> TcpStream:
            listener.accept = accept  # type: ignore[method-assign]
            await trio.lowlevel.wait_readable(listener._ready.fileno())
            raise TransportError("cannot accept connections: Too many open files")

        self.make_short = lambda: setattr(listener, "accept", fails_once)
        return listener


async def test_where_descriptors_are_short_a_stranger_goes() -> None:
    log, transport = RecordedLog(), ShortOfDescriptors()
    limits = AcceptLimits(handshake_seconds_max=1000)
    async with serving(log=log, transport=transport, limits=limits) as address:
        first = await TcpTransport().dial(address)
        await (await dial(address)).aclose()  # the server has seen the first one, too
        transport.make_short()
        stream = await dial(address)  # one accept may be in progress
        stream = await dial(address)
        assert await first.receive() == b""
        await stream.send(encode_frame(Op.PING))
        assert len(await stream.receive_batch()) == 1
    assert ("connection refused", "accept failed") in log.events


async def test_a_clients_key_has_its_share_of_connections() -> None:
    log = RecordedLog()
    ring = KeyRing(KEY, lambda hello: b"c" * 32)
    async with serving(limits=AcceptLimits(per_key_max=2), log=log, key=ring) as address:
        hello = HelloFields("meta", "node-1", key=5)
        kept = [await connect(address, key=b"c" * 32, hello=hello, timeout_s=10) for _ in range(2)]
        with pytest.raises(RefusedError, match="this key has 2, as many as one may"):
            await connect(address, key=b"c" * 32, hello=hello, timeout_s=10)
        assert log.events == [("connection refused", "this key has 2, as many as one may")]
        await (await dial(address)).aclose()
        await kept[0].aclose()
        more: FrameStream | None = None
        while more is None:  # it comes as soon as the server has seen the other one close
            with suppress(RefusedError):
                more = await connect(address, key=b"c" * 32, hello=hello, timeout_s=10)
        for one in (kept[1], more):
            await one.aclose()


async def test_too_many_connections_are_refused() -> None:
    log = RecordedLog()
    async with serving(limits=AcceptLimits(connections_max=2), log=log) as address:
        kept = [await dial(address) for _ in range(2)]
        with pytest.raises(RefusedError, match=f"{address} refuses .* it has 2, as many"):
            await dial(address)
        assert log.events == [("connection refused", too_many(2))]
        for one in kept:
            await one.aclose()


async def test_who_proves_nothing_is_not_told_that_a_server_is_full() -> None:
    async with serving(limits=AcceptLimits(connections_max=0), log=RecordedLog()) as address:
        with pytest.raises(AuthenticationError):
            await dial(address, b"o" * 32)


async def test_a_server_may_say_no_for_reasons_of_its_own() -> None:
    seen: list[str] = []

    def why_not(hello: Hello) -> str:
        seen.append(hello.purpose)
        return "it rests" if len(seen) == 1 else ""

    async with serving(limits=AcceptLimits(why_not=why_not), log=RecordedLog()) as address:
        with pytest.raises(RefusedError, match="it rests"):
            await dial(address)
        await (await dial(address)).aclose()
    assert seen == ["meta", "meta"]


@pytest.mark.parametrize(
    ("descriptors", "share", "expected"),
    [
        (1024, 0.25, 256),
        (4096, 0.75, 3072),
        (1 << 30, 0.25, CONNECTIONS_MAX),
        (resource.RLIM_INFINITY, 0.75, CONNECTIONS_MAX),
    ],
)
def test_bounds_follow_the_descriptors(
    monkeypatch: pytest.MonkeyPatch, descriptors: int, share: float, expected: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (descriptors, descriptors))
    assert connections_max(share) == expected


async def test_a_broken_peer_ends_its_connection_alone() -> None:
    log = RecordedLog()
    async with serving(log=log) as address:
        good, bad = await dial(address), await dial(address)
        await bad.send(b"nonsense" * 20)
        assert await bad.receive_batch() == []
        await good.send(encode_frame(Op.PING))
        assert len(await good.receive_batch()) == 1
    assert log.events == [("connection ended", None)]


async def test_a_connection_that_ends_within_a_frame() -> None:
    async def half(peer: Peer, stream: FrameStream) -> None:
        await stream.send(encode_frame(Op.PING, body=b"abc")[:-1])

    async with serving(half) as address:
        stream = await dial(address)
        with pytest.raises(TransportError, match="within a frame"):
            await stream.receive_batch()


async def _fails(error: Exception) -> None:
    await trio.lowlevel.checkpoint()
    raise error


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        ((KeyError("bug"),), "connection ended: this is a bug"),
        ((TransportError("reset"), TransportError("reset too")), "connection ended"),
        ((ProtocolError("wrong"), TransportError("reset")), "connection ended"),
    ],
)
async def test_what_fails_in_a_connection_ends_it_alone(
    errors: tuple[Exception, ...], said: str
) -> None:
    """This includes several tasks of a connection that fail together."""

    async def fails(peer: Peer, stream: FrameStream) -> None:
        async with trio.open_nursery() as nursery:
            for error in errors:
                nursery.start_soon(_fails, error)

    log = RecordedLog()
    async with serving(fails, log=log) as address:
        for _ in range(2):
            stream = await dial(address)
            assert await stream.receive_batch() == []
    assert [event for event, _ in log.events] == [said, said]


async def test_detach() -> None:
    sockets: list[tuple[int, bytes]] = []
    detached = trio.Event()

    async def detaches(peer: Peer, stream: FrameStream) -> None:
        sockets.append(stream.detach())
        detached.set()

    async with serving(detaches) as address:
        stream = await dial(address)
        await detached.wait()
        ((fd, early),) = sockets
        assert early == b""
        os.write(fd, encode_frame(Op.PING))
        assert len(await stream.receive_batch()) == 1
        os.close(fd)
        await stream.aclose()


async def test_sockets_are_set_up() -> None:
    async with serving() as address:
        stream = await dial(address, transport=TcpTransport(is_local=False))
        fd, _ = stream.detach()
        with socket.socket(fileno=fd) as sock:
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) > 0
            assert not sock.get_inheritable()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("host", Address("host", 7400)),
        ("host:1", Address("host", 1)),
        (" 10.0.0.1:7411 ", Address("10.0.0.1", 7411)),
        ("[::1]", Address("::1", 7400)),
        ("[fe80::1%eth0]:9", Address("fe80::1%eth0", 9)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":1",
        "host:",
        "host:x",
        "host:65536",
        "host:-1",
        "::1",
        "[::1",
        "[::1]x",
        "[host]:1",
        "a b",
        "a/b",
        "host:99999999999999999999",
        "host:000000123456",
        "a\0b:7400",
        "a\x1b[2Jb",
        "host:१",
    ],
)
def test_no_addresses(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_address(text)


async def test_a_stream_in_memory_has_no_descriptor() -> None:
    transport = MemoryTransport()
    async with serving(transport=transport) as address:
        stream = await dial(address, transport=transport)
        with pytest.raises(TransportError, match="no file descriptor"):
            stream.detach()


def test_protocol_errors_are_not_transport_errors() -> None:
    assert not issubclass(ProtocolError, TransportError)
