"""Metaservers of before a restore or a recovery are refused, and their connections end."""

import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from fscommon.auth.handshake import HelloFields
from fscommon.errors import ConfigError, ProtocolError, RefusedError
from fscommon.net.address import parse_address
from fscommon.net.stream import connect
from fscommon.observe.log import Log
from storageserver.epochs import FORMER, Epochs

from .fakes import World, make_world

JUMP = 1 << 20


def epochs(directory: Path) -> Epochs:
    made = Epochs(directory, Log("storageserver"))
    made.load()
    return made


def test_epochs_of_today_come_in_any_order(tmp_path: Path) -> None:
    made = epochs(tmp_path)
    for epoch in (7, 5, 2000, 1, FORMER, 1):
        made.heard(epoch)
        assert made.why_not(epoch) == made.why_not(0) == ""


def test_what_is_of_before_a_jump_is_refused(tmp_path: Path) -> None:
    made = epochs(tmp_path)
    made.heard(500)
    made.heard(500 + JUMP)
    for again in (made, epochs(tmp_path)):  # also after a restart
        assert "of before a restore or a recovery" in again.why_not(900)
        assert str(tmp_path / "map_epoch") in again.why_not(900)
        with pytest.raises(ProtocolError):
            again.heard(900)
        assert again.why_not(500 + JUMP - 1024) == ""
    (tmp_path / "map_epoch").unlink()
    assert epochs(tmp_path).why_not(900) == ""


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "map_epoch").write_text("much")
    with pytest.raises(ConfigError, match="cannot read"):
        epochs(tmp_path)


def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The epoch counts, and is kept when there is room."""
    made = epochs(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", _no_room)
        made.heard(JUMP)
    assert made.why_not(5) and not epochs(tmp_path).why_not(5)
    made.heard(JUMP)
    assert epochs(tmp_path).why_not(5)


def _no_room(descriptor: int) -> None:
    raise OSError(28, "No space left on device")


def test_connections_of_before_are_ended(tmp_path: Path) -> None:
    made = epochs(tmp_path)
    made.heard(500)
    pairs = [socket.socketpair() for _ in range(3)]
    for (mine, _), epoch in zip(pairs, (500, 0, JUMP + 500), strict=True):
        made.connected(mine.fileno(), epoch)
    reused = pairs[0][0].fileno()
    made.heard(500 + JUMP)
    assert pairs[0][1].recv(1) == b"", "the former metaserver's"
    for _, peer in pairs[1:]:
        peer.setblocking(False)
        with pytest.raises(BlockingIOError):
            peer.recv(1)
    assert os.fstat(reused), "its owner closes it"
    for pair in pairs:
        for one in pair:
            one.close()


def test_a_descriptor_that_has_another_socket_is_left_alone(tmp_path: Path) -> None:
    made = epochs(tmp_path)
    former, _ = socket.socketpair()
    made.connected(former.fileno(), 500)
    mine, peer = socket.socketpair()
    os.dup2(mine.fileno(), former.fileno())
    made.heard(JUMP + 500)
    peer.setblocking(False)
    with pytest.raises(BlockingIOError):
        peer.recv(1)
    for one in (former, mine, peer):
        one.close()


# ---- the program -------------------------------------------------------------------------------


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with make_world(tmp_path, tcp=True) as made:
        yield made


@pytest.mark.trio
async def test_a_former_metaserver_is_left_for_the_next_one(world: World) -> None:
    world.metaserver.sessions = [7]
    async with world.running():
        await world.metaserver.wait_heartbeats(1)
        address = parse_address(world.metaserver.registrations[-1].address)

        async def dial(epoch: int) -> None:
            hello = HelloFields("server", "metaserver", session=epoch)
            await connect(address, key=world.metaserver.key, hello=hello, timeout_s=10)

        await dial(8)
        await world.native.adoption.wait()
        assert world.native.adopted[-1][:2] == ("server", 0)
        world.metaserver.map_epoch = 8 + JUMP
        await world.metaserver.wait_heartbeats(2)
        await trio.sleep(0.2)
        with pytest.raises(RefusedError, match="of before a restore"):
            await dial(9)
        await dial(8 + JUMP)
        until_ns, count = world.native.until_ns, len(world.metaserver.registrations)
        world.metaserver.map_epoch = 9
        with trio.fail_after(20):
            while len(world.metaserver.registrations) < count + 2:  # noqa: ASYNC110
                await trio.sleep(0.05)
        assert world.native.until_ns <= until_ns + 3 * 10**9, "it gives no lease any more"
