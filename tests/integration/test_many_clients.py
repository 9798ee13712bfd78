"""1,500 clients of one cluster at once, at the level of the protocol.

Each makes handshakes, a session, a recall connection, a few operations, and two connections to each
storage server. Servers are real processes; the clients are tasks of this one. The tests bound
memory; they print times, which `pytest -s` shows.
"""

import os
import resource
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio

from fscommon.auth.handshake import HelloFields
from fscommon.auth.key import load_key
from fscommon.errors import FsError, Status
from fscommon.layout.attributes import unpack_attributes
from fscommon.net.stream import FrameStream, connect
from fscommon.rpc.caller import Caller
from fscommon.types import ROOT_INO
from fscommon.wire.frame import encode_frame
from fscommon.wire.messages import Caller as Who
from fscommon.wire.messages import (
    Close,
    Create,
    Empty,
    GetAttr,
    Open,
    SessionOpen,
    SessionRenew,
    StatusReply,
)
from fscommon.wire.ops import Op
from tests.cluster.cluster import Cluster
from tests.cluster.plan import make_plan
from tests.cluster.process import Program

pytestmark = [pytest.mark.timeout(420), pytest.mark.expects_warnings]

CLIENTS = 1500
DATA_CONNECTIONS = 2  # the number for each client
AT_ONCE = 100
FILES = 20  # all clients read these files
DESCRIPTORS_MIN = CLIENTS * (DATA_CONNECTIONS + 2) + 1000
TIMEOUT_S = 120.0
# The bound of the metaserver's memory for each client, with its open files and leases.
SESSION_BYTES_MAX = 100_000
CONNECTION_BYTES_MAX = 100_000  # the bound of a storage server's memory for each connection
WHO = Who(0, 0, 0o022)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster without a mount."""
    cluster = Cluster(make_plan(tmp_path / "state", storage_servers=1, targets=2))
    cluster.start_servers()
    try:
        yield cluster
    finally:
        cluster.stop_servers()


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < DESCRIPTORS_MIN:
        pytest.skip(f"this process may have {hard} descriptors, {DESCRIPTORS_MIN} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@dataclass
class One:
    """One client."""

    number: int
    meta: Caller
    session: int = 0
    recalls: FrameStream | None = None
    data: list[FrameStream] = field(default_factory=list)

    async def ask(self, op: Op, message: object) -> object:
        return await self.meta.call(op, message, TIMEOUT_S)


@dataclass
class Crowd:
    cluster: Cluster
    key: bytes
    tasks: trio.Nursery
    clients: list[One] = field(default_factory=list)

    async def dial(self, purpose: str, number: int, session: int = 0) -> FrameStream:
        plan = self.cluster.plan
        is_data = purpose == "data"
        port = plan.storageservers[0].port if is_data else plan.metaserver.port
        hello = HelloFields(purpose, f"client-{number}", session=session)
        return await connect(f"127.0.0.1:{port}", key=self.key, hello=hello, timeout_s=TIMEOUT_S)

    async def each(self, work: Callable[[int], Awaitable[None]]) -> float:
        """Runs the work for all clients, AT_ONCE of them at a time; returns the duration in
        seconds."""
        limit = trio.CapacityLimiter(AT_ONCE)

        async def run(number: int) -> None:
            async with limit:
                await work(number)

        began = time.monotonic()
        async with trio.open_nursery() as nursery:
            for number in range(CLIENTS):
                nursery.start_soon(run, number)
        return time.monotonic() - began

    async def come(self, number: int) -> None:
        meta = Caller(await self.dial("meta", number))
        self.tasks.start_soon(meta.run)
        one = One(number, meta)
        while not one.session:
            try:
                opened = await meta.call(
                    Op.SESSION_OPEN, SessionOpen(0, f"client-{number}", (), 0), TIMEOUT_S
                )
                one.session = opened.session
            except FsError as error:
                assert error.status in (Status.NOT_READY, Status.BUSY), error
                await trio.sleep(0.05)
        one.recalls = await self.dial("recall", number, one.session)
        self.clients.append(one)

    async def open_data(self, number: int) -> None:
        one = self.clients[number]
        for _ in range(DATA_CONNECTIONS):
            stream = await self.dial("data", number, one.session)
            await stream.send(encode_frame(Op.PING, request_id=1))
            (reply,) = await stream.receive_batch()
            assert (reply.header.op, reply.header.status) == (Op.PING, 0)
            one.data.append(stream)

    async def leave(self, number: int) -> None:
        one = self.clients[number]
        await one.ask(Op.SESSION_CLOSE, Empty())
        for stream in (one.recalls, *one.data):
            if stream is not None:
                await stream.aclose()
        await one.meta.aclose()

    async def status(self) -> StatusReply:
        caller = Caller(await self.dial("admin", 0))
        self.tasks.start_soon(caller.run)
        reply: StatusReply = await caller.call(Op.STATUS, Empty(), TIMEOUT_S)
        await caller.aclose()
        return reply


def _memory(program: Program) -> int:
    pid = program.pid()
    assert pid is not None
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def _descriptors(program: Program) -> int:
    return len(os.listdir(f"/proc/{program.pid()}/fd"))


async def _make_files(crowd: Crowd) -> list[int]:
    one = crowd.clients[0]
    inos = []
    for number in range(FILES):
        opened = await one.meta.call(
            Op.CREATE, Create(ROOT_INO, b"%d" % number, 0o644, True, True, WHO), TIMEOUT_S
        )
        inos.append(unpack_attributes(opened.attributes).ino)
    await one.ask(Op.CLOSE, Close(tuple(inos)))
    return inos


@contextmanager
def _growth(program: Program, what: str, count: int, bytes_max: int) -> Iterator[None]:
    before = _memory(program)
    yield
    each = (_memory(program) - before) / count
    print(f"{what}: {each / 1024:.1f} KiB each")
    assert each < bytes_max


def test_1500_clients(servers: Cluster, many_descriptors: None) -> None:
    trio.run(_work, servers)


async def _work(cluster: Cluster) -> None:
    metaserver, (storage,) = cluster.metaserver, cluster.storageservers
    async with trio.open_nursery() as tasks:
        crowd = Crowd(cluster, load_key(cluster.plan.key_file), tasks)
        with _growth(metaserver, "a session at the metaserver", CLIENTS, SESSION_BYTES_MAX):
            seconds = await crowd.each(crowd.come)
            print(f"{CLIENTS} sessions: {seconds:.1f} s")
            inos = await _make_files(crowd)
            await _read_and_look(crowd, inos)
        with _growth(storage, "a connection", CLIENTS * DATA_CONNECTIONS, CONNECTION_BYTES_MAX):
            print(f"data connections: {await crowd.each(crowd.open_data):.1f} s")
        status = await crowd.status()
        assert len(status.clients) == CLIENTS and not status.recovering
        assert sum(client.opens for client in status.clients) == CLIENTS * FILES
        assert _descriptors(storage) > CLIENTS * DATA_CONNECTIONS
        await _everybody_still_works(crowd)
        print(f"all leave: {await crowd.each(crowd.leave):.1f} s")
        assert not (await crowd.status()).clients
        tasks.cancel_scope.cancel()


async def _read_and_look(crowd: Crowd, inos: list[int]) -> None:
    """All clients open the same files: the cost of an OPEN must not grow with the number of clients
    that hold one."""
    costs: list[float] = []

    async def use(number: int) -> None:
        one = crowd.clients[number]
        began = time.monotonic()
        for ino in inos:
            await one.ask(Op.OPEN, Open(ino, False))
        costs.append((time.monotonic() - began) / FILES)
        await one.ask(Op.GETATTR, GetAttr(inos[0]))
        await one.ask(Op.SESSION_RENEW, SessionRenew(0))

    seconds = await crowd.each(use)
    print(
        f"{CLIENTS * FILES} OPENs, the clients' own work in the same two cores: {seconds:.1f} s, "
        f"{seconds / CLIENTS / FILES * 1e6:.0f} us each"
    )


async def _everybody_still_works(crowd: Crowd) -> None:
    for number in (0, CLIENTS // 2, CLIENTS - 1):
        one = crowd.clients[number]
        await one.ask(Op.GETATTR, GetAttr(ROOT_INO))
        await one.data[0].send(encode_frame(Op.PING, request_id=2, body=b""))
        (reply,) = await one.data[0].receive_batch()
        assert reply.header.request_id == 2
