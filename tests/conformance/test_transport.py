"""What every Transport must do; run against local sockets, TCP, TLS and memory."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from fscommon.errors import TransportError
from fscommon.net.address import Address
from fscommon.net.memory import MemoryTransport
from fscommon.net.tcp import TcpTransport
from fscommon.net.tls import TlsTransport
from fscommon.net.transport import ByteStream, Listener, Transport
from tests.cluster.certificates import Certificates

LOCAL = Address("127.0.0.1", 0)


@pytest.fixture(params=["local", "tcp", "tls", "memory"])
def transport(request: pytest.FixtureRequest, certificates: Certificates) -> Transport:
    if request.param == "tls":
        return TlsTransport(certificates.settings())
    if request.param == "memory":
        return MemoryTransport()
    return TcpTransport(is_local=request.param == "local")


@asynccontextmanager
async def connected(transport: Transport) -> AsyncIterator[tuple[ByteStream, ByteStream]]:
    listener = await transport.listen(LOCAL)
    client = await transport.dial(listener.address)
    server = await listener.accept()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:  # with TLS both ends must send first
            nursery.start_soon(client.send, b"!")
            assert await server.receive() == b"!"
        yield client, server
    for thing in (client, server, listener):
        await thing.aclose()


async def receive_exactly(stream: ByteStream, count: int) -> bytes:
    received = b""
    while len(received) < count:
        part = await stream.receive()
        assert part
        received += part
    assert len(received) == count
    return received


async def test_the_waist(transport: Transport) -> None:
    assert isinstance(transport, Transport)
    async with connected(transport) as (client, server):
        assert isinstance(client, ByteStream)
        assert isinstance(server, ByteStream)
        assert client.peer_address and server.peer_address


async def test_bytes_arrive_in_order(transport: Transport) -> None:
    async with connected(transport) as (client, server):
        await client.send(b"one")
        await client.send(b"two")
        assert await receive_exactly(server, 6) == b"onetwo"
        await server.send(b"three")
        assert await receive_exactly(client, 5) == b"three"


async def test_large_sends_arrive_whole(transport: Transport) -> None:
    sent = bytes(range(256)) * (8 << 12)
    async with connected(transport) as (client, server), trio.open_nursery() as nursery:
        nursery.start_soon(client.send, sent)
        assert await receive_exactly(server, len(sent)) == sent


async def test_both_directions_at_once(transport: Transport) -> None:
    sent = bytes(4 << 20)
    async with connected(transport) as (client, server), trio.open_nursery() as nursery:
        nursery.start_soon(client.send, sent)
        nursery.start_soon(server.send, sent)
        nursery.start_soon(receive_exactly, client, len(sent))
        nursery.start_soon(receive_exactly, server, len(sent))


async def test_a_sender_that_nobody_reads_waits(transport: Transport) -> None:
    async with connected(transport) as (client, _server):
        with trio.move_on_after(0.2) as scope:
            while True:
                await client.send(bytes(1 << 20))
                await trio.lowlevel.checkpoint()
        assert scope.cancelled_caught


async def test_end_of_stream(transport: Transport) -> None:
    async with connected(transport) as (client, server):
        await client.send(b"last")
        await client.aclose()
        assert await receive_exactly(server, 4) == b"last"
        assert await server.receive() == b""
        assert await server.receive() == b""


async def test_sending_to_a_peer_that_closed(transport: Transport) -> None:
    async with connected(transport) as (client, server):
        await server.aclose()
        with pytest.raises(TransportError):
            while True:
                await client.send(bytes(65536))
                await trio.lowlevel.checkpoint()


async def test_closing_wakes_who_waits(transport: Transport) -> None:
    async with connected(transport) as (client, _server), trio.open_nursery() as nursery:

        async def receives() -> None:
            with pytest.raises(TransportError):
                await client.receive()

        nursery.start_soon(receives)
        await trio.testing.wait_all_tasks_blocked()
        await client.aclose()


async def test_a_closed_stream_is_unusable_and_may_be_closed_again(transport: Transport) -> None:
    async with connected(transport) as (client, _server):
        await client.aclose()
        await client.aclose()
        with pytest.raises(TransportError):
            await client.send(b"x")
        with pytest.raises(TransportError):
            await client.receive()


async def test_nobody_listens(transport: Transport) -> None:
    listener = await transport.listen(LOCAL)
    await listener.aclose()
    with pytest.raises(TransportError, match=r"nothing listens at .*refused"):
        await transport.dial(listener.address)


async def test_an_address_in_use(transport: Transport) -> None:
    listener: Listener = await transport.listen(LOCAL)
    with pytest.raises(TransportError, match=r"cannot listen at .*in use"):
        await transport.listen(listener.address)
    await listener.aclose()


async def test_closing_a_listener_wakes_who_accepts(transport: Transport) -> None:
    listener = await transport.listen(LOCAL)
    async with trio.open_nursery() as nursery:

        async def accepts() -> None:
            with pytest.raises(TransportError):
                await listener.accept()

        nursery.start_soon(accepts)
        await trio.testing.wait_all_tasks_blocked()
        await listener.aclose()


async def test_a_receive_can_be_cancelled(transport: Transport) -> None:
    async with connected(transport) as (client, server):
        with trio.move_on_after(0.01):
            await server.receive()
        await client.send(b"later")
        assert await receive_exactly(server, 5) == b"later"
