"""The data wire seen from Python: frames made by fscommon.wire against the native ChunkServer.

Each side was written from docs/INTERFACES.md; here Python's headers, block checksums and
capabilities meet the C++ ones over a socket. native/tests/server has the hostile frames and the
races.
"""

import os
import select
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fscommon import native
from fscommon.checksum import block_sums, xxh3_64
from fscommon.errors import Status
from fscommon.layout.capability import RIGHT_READ, RIGHT_WRITE, make_capability
from fscommon.layout.layout import Layout
from fscommon.limits import CHUNK_SIZE_DEFAULT
from fscommon.wire.header import (
    FLAG_CAPABILITY,
    FLAG_MUST_EXIST,
    FLAG_REPLY,
    FLAG_SUMS,
    HEADER_SIZE,
    Header,
    decode_header,
)
from fscommon.wire.ops import Op

KEY = bytes(range(32))
CLUSTER = b"c" * 16
UUID = b"t" * 16
SESSION = 2**64 - 5  # ids use all 64 bits
TARGET = 3
FILE = 2**63 + 11
PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class Reply:
    header: Header
    body: bytes
    payload: bytes

    @property
    def status(self) -> Status:
        return Status(self.header.status)


class Peer:
    """A blocking data connection, like that of a client's lane."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.settimeout(PATIENCE_S)

    def ask(self, header: Header, body: bytes = b"", payload: bytes = b"") -> Reply:
        checksum = xxh3_64(body) if body else 0
        sealed = header._replace(
            body_length=len(body), payload_length=len(payload), body_checksum=checksum
        )
        self.sock.sendall(sealed.encode() + body + payload)
        reply = self._receive()
        assert reply.header.request_id == header.request_id
        assert reply.header.op == header.op
        assert reply.header.flags & FLAG_REPLY
        return reply

    def ended(self) -> bool:
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True

    def _receive(self) -> Reply:
        header = decode_header(self._exactly(HEADER_SIZE))
        body = self._exactly(header.body_length)
        assert header.body_checksum == (xxh3_64(body) if body else 0)
        return Reply(header, body, self._exactly(header.payload_length))

    def _exactly(self, count: int) -> bytes:
        received = bytearray()
        while len(received) < count:
            more = self.sock.recv(count - len(received))
            if not more:
                raise EOFError
            received += more
        return bytes(received)


class Server:
    """A ChunkServer over one directory, and connections to it."""

    def __init__(self, directory: Path, *, create: bool = True, io: str = "auto") -> None:
        self.chunks = native.make_chunk_server(lane_count=2, io=io)
        self.index = self.chunks.target_open(
            str(directory), cluster=CLUSTER, uuid=UUID, capacity_bytes=0, create=create
        )
        self.chunks.target_assign(self.index, TARGET)
        self.chunks.capability_key(KEY)
        self.chunks.start()
        self.chunks.sessions([SESSION])
        self._next_connection = 2**63

    def connect(self, *, purpose: str = "data", session: int = SESSION, previous: int = 0) -> Peer:
        ours, theirs = socket.socketpair()
        self._next_connection += 1
        self.chunks.adopt(
            theirs.detach(),
            purpose=purpose,
            session=session,
            connection=self._next_connection,
            previous=previous,
        )
        return Peer(ours)

    @property
    def connection(self) -> int:
        return self._next_connection

    def wait_for(self, kind: native.EventKind) -> native.Event:
        poll = select.poll()
        poll.register(self.chunks.events_fd(), select.POLLIN)
        while poll.poll(PATIENCE_S * 1000):
            for event in native.reap(self.chunks):
                if event.kind == kind:
                    return event
        raise TimeoutError


@pytest.fixture(params=["syscall", "auto"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    try:
        native.load_module()
    except native.NativeMissingError as error:
        pytest.skip(str(error))
    made = Server(tmp_path, io=request.param)
    yield made
    made.chunks.stop(5000)


def _capability(file_id: int = FILE, *, rights: int = RIGHT_READ | RIGHT_WRITE) -> bytes:
    layout = Layout(file_id, CHUNK_SIZE_DEFAULT, 1, (TARGET,), truncate_epoch=9).pack()
    return make_capability(
        KEY, layout=layout, session=SESSION, rights=rights, map_epoch=1, ino=file_id
    )


def _header(op: Op, **fields: int) -> Header:
    return Header(op, request_id=41, file_id=FILE, target=TARGET)._replace(**fields)


def _packed(sums: list[int]) -> bytes:
    return struct.pack(f"<{len(sums)}Q", *sums)


def write(peer: Peer, offset: int, payload: bytes, *, epoch: int = 0) -> Reply:
    header = _header(
        Op.WRITE, flags=FLAG_CAPABILITY | FLAG_SUMS, offset=offset, length=len(payload), epoch=epoch
    )
    return peer.ask(header, _capability() + _packed(block_sums(offset, payload)), payload)


def read(peer: Peer, offset: int, length: int, *, flags: int = 0) -> Reply:
    header = _header(Op.READ, flags=FLAG_CAPABILITY | flags, offset=offset, length=length)
    return peer.ask(header, _capability())


def ask(peer: Peer, op: Op, **fields: int) -> Reply:
    return peer.ask(_header(op, flags=FLAG_CAPABILITY, **fields), _capability())


@pytest.mark.parametrize(
    ("offset", "length"), [(0, 1), (0, 4096), (4095, 2), (123_456, 1 << 20), (2**40, 70_000)]
)
def test_bytes_and_sums_come_back(server: Server, offset: int, length: int) -> None:
    peer = server.connect()
    payload = os.urandom(length)
    written = write(peer, offset, payload)
    assert written.status is Status.OK
    incarnation = server.chunks.target_info(server.index).incarnation
    assert written.header.offset == incarnation
    found = read(peer, offset, length)
    assert found.status is Status.OK
    assert found.payload == payload
    assert found.header.flags == FLAG_REPLY | FLAG_SUMS
    assert found.body == _packed(block_sums(offset, payload))
    assert ask(peer, Op.SYNC, offset=incarnation).status is Status.OK


def test_stat_truncate_punch_delete(server: Server) -> None:
    peer = server.connect()
    metaserver = server.connect(purpose="server", session=0)
    assert write(peer, 0, b"x" * 10_000).status is Status.OK
    assert ask(peer, Op.PUNCH, offset=100, length=50).status is Status.OK
    assert metaserver.ask(_header(Op.TRUNCATE, offset=5000, epoch=2)).status is Status.OK
    length, _, epoch, zero = struct.unpack("<QQII", ask(peer, Op.STAT).body)
    assert (length, epoch, zero) == (5000, 2, 0)
    assert read(peer, 0, 10_000).payload == b"x" * 100 + bytes(50) + b"x" * 4850
    assert write(peer, 0, b"late", epoch=1).status is Status.STALE_TRUNCATE_EPOCH
    assert metaserver.ask(_header(Op.DELETE)).status is Status.OK
    assert ask(peer, Op.STAT).status is Status.NO_OBJECT
    assert read(peer, 0, 4096).payload == b""
    assert read(peer, 0, 4096, flags=FLAG_MUST_EXIST).status is Status.NO_OBJECT


def test_stale_incarnation(server: Server) -> None:
    peer = server.connect()
    incarnation = write(peer, 0, b"bytes").header.offset
    assert ask(peer, Op.SYNC, offset=incarnation + 1).status is Status.STALE_INCARNATION


def test_forged_capability(server: Server) -> None:
    peer = server.connect()
    header = _header(Op.READ, flags=FLAG_CAPABILITY, length=4096)
    forged = bytearray(_capability(rights=RIGHT_WRITE))
    forged[16] |= RIGHT_READ
    assert peer.ask(header, bytes(forged)).status is Status.BAD_CAPABILITY
    assert peer.ask(header, _capability()).status is Status.OK


def test_damaged_payload(server: Server) -> None:
    peer = server.connect()
    header = _header(Op.WRITE, flags=FLAG_CAPABILITY | FLAG_SUMS, length=5000)
    body = _capability() + _packed(block_sums(0, b"a" * 5000))
    assert peer.ask(header, body, b"a" * 4999 + b"b").status is Status.CHECKSUM


def test_fence_closes_and_tells(server: Server) -> None:
    peer = server.connect()
    assert write(peer, 0, b"bytes").status is Status.OK
    metaserver = server.connect(purpose="server", session=0)
    assert metaserver.ask(_header(Op.FENCE, offset=SESSION)).status is Status.OK
    assert peer.ended()
    closed = server.wait_for(native.EventKind.CLOSED)
    assert closed.a == SESSION


def test_a_replaced_connection_is_closed(server: Server) -> None:
    old = server.connect()
    assert write(old, 0, b"old").status is Status.OK
    new = server.connect(previous=server.connection)
    assert read(new, 0, 3).payload == b"old"
    assert old.ended()


def test_bytes_survive_a_restart(server: Server, tmp_path: Path) -> None:
    payload = os.urandom(3_000_000)
    assert write(server.connect(), 777, payload).status is Status.OK
    server.chunks.stop(5000)
    again = Server(tmp_path, create=False)
    assert read(again.connect(), 777, len(payload)).payload == payload
    again.chunks.stop(5000)


def test_counters_are_integers(server: Server) -> None:
    peer = server.connect()
    assert write(peer, 0, b"x" * 4096).status is Status.OK
    counters = server.chunks.counters()
    assert counters["writes"] == 1
    assert counters["written_bytes"] == 4096
    assert counters["connections"] == 1
    assert all(isinstance(value, int) for value in counters.values())


def test_arguments_are_checked(server: Server, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="io is"):
        native.make_chunk_server(lane_count=1, io="magic")
    with pytest.raises(ValueError, match="16 bytes"):
        server.chunks.target_open(
            str(tmp_path), cluster=b"", uuid=UUID, capacity_bytes=0, create=False
        )
    with pytest.raises(OSError, match="absent"):
        server.chunks.target_open(
            str(tmp_path / "absent"), cluster=CLUSTER, uuid=UUID, capacity_bytes=0, create=True
        )
    with pytest.raises(ValueError, match="no such target"):
        server.chunks.target_info(9)
    with pytest.raises(ValueError, match=r"(?i)cluster|foreign"):
        native.make_chunk_server(lane_count=1, io="auto").target_open(
            str(_other_cluster(tmp_path)),
            cluster=CLUSTER,
            uuid=UUID,
            capacity_bytes=0,
            create=False,
        )


def _other_cluster(parent: Path) -> Path:
    directory = parent / "other"
    directory.mkdir()
    other = native.make_chunk_server(lane_count=1, io="auto")
    other.target_open(str(directory), cluster=b"o" * 16, uuid=UUID, capacity_bytes=0, create=True)
    other.stop(0)
    return directory
