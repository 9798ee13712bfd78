"""Peers on one host connect by a local socket, and by TCP where that is not possible."""

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fscommon.net import nearby
from fscommon.net.address import Address
from fscommon.net.tcp import TcpListener, TcpStream, TcpTransport

LOCAL = Address("127.0.0.1", 0)
NOT_LOCAL = TcpTransport(is_local=False)


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "run"
    monkeypatch.setattr(nearby, "DIRECTORY", found)
    return found


def only_file(directory: Path) -> Path:
    (found,) = directory.iterdir()
    return found


@asynccontextmanager
async def listening(
    transport: TcpTransport, address: Address = LOCAL
) -> AsyncIterator[TcpListener]:
    listener = await transport.listen(address)
    try:
        yield listener
    finally:
        await listener.aclose()


async def family(dialing: TcpTransport, listener: TcpListener, host: str = LOCAL.host) -> int:
    """The address family by which the two connect; a byte has passed in each direction."""
    ours = await dialing.dial(Address(host, listener.address.port))
    theirs = await listener.accept()
    try:
        await ours.send(b"a")
        assert await theirs.receive() == b"a"
        await theirs.send(b"b")
        assert await ours.receive() == b"b"
        return _family(ours)
    finally:
        await ours.aclose()
        await theirs.aclose()


def _family(stream: TcpStream) -> int:
    sock = socket.socket(fileno=os.dup(stream.fileno()))
    with sock:
        return sock.family


async def test_by_a_local_socket_where_both_want_it() -> None:
    async with listening(TcpTransport()) as listener:
        assert await family(TcpTransport(), listener) == socket.AF_UNIX
        assert await family(NOT_LOCAL, listener) == socket.AF_INET
    async with listening(NOT_LOCAL) as listener:
        assert await family(TcpTransport(), listener) == socket.AF_INET


async def test_each_end_says_who_the_other_is() -> None:
    async with listening(TcpTransport()) as listener:
        ours = await TcpTransport().dial(listener.address)
        theirs = await listener.accept()
        assert ours.peer_address == str(listener.address)
        assert theirs.peer_address == f"this host (pid {os.getpid()}, uid {os.getuid()})"
        await ours.aclose()
        await theirs.aclose()


@pytest.mark.parametrize(
    ("wildcard", "host"), [("0.0.0.0", "127.0.0.1"), ("::", "127.0.0.1"), ("::", "::1")]
)
async def test_a_server_at_all_addresses_is_met_at_one_of_this_host(
    wildcard: str, host: str
) -> None:
    async with listening(TcpTransport(), Address(wildcard, 0)) as listener:
        assert await family(TcpTransport(), listener, host) == socket.AF_UNIX


def test_no_server_of_this_host_is_taken_for_one_elsewhere() -> None:
    """No host uses 192.0.2.0/24 (RFC 5737)."""
    beside = nearby.listen("0.0.0.0", 7411, 1)
    assert beside is not None
    try:
        assert nearby.connect(socket.AF_INET, "192.0.2.1", 7411) is None
        assert nearby.connect(socket.AF_INET, "127.0.0.1", 7412) is None
        near = nearby.connect(socket.AF_INET, "127.0.0.1", 7411)
        assert near is not None
        near.close()
    finally:
        beside.close()


async def test_nobody_is_met_where_others_may_make_files(directory: Path) -> None:
    async with listening(TcpTransport()) as listener:
        os.chmod(directory, 0o777)
        assert await family(TcpTransport(), listener) == socket.AF_INET
    async with listening(TcpTransport()) as listener:
        os.chmod(directory, 0o755)
        assert os.listdir(directory) == []
        assert await family(TcpTransport(), listener) == socket.AF_INET


async def test_what_a_killed_server_left_is_in_nobodys_way(directory: Path) -> None:
    async with listening(TcpTransport()) as listener:
        path, port = only_file(directory), listener.address.port
    assert os.listdir(directory) == []
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    async with listening(NOT_LOCAL, Address(LOCAL.host, port)) as listener:
        assert await family(TcpTransport(), listener) == socket.AF_INET
    async with listening(TcpTransport(), Address(LOCAL.host, port)) as listener:
        assert await family(TcpTransport(), listener) == socket.AF_UNIX


async def test_hosts_that_share_a_directory_do_not_meet(directory: Path) -> None:
    """Another network namespace has addresses of its own."""
    async with listening(TcpTransport()) as listener:
        path = only_file(directory)
        _, _, rest = path.name.partition("-")
        os.rename(path, directory / f"1-{rest}")
        assert await family(TcpTransport(), listener) == socket.AF_INET
