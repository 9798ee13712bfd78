"""The storage server around a fake chunk server: joining, heartbeats, admission, refusals."""

import contextlib
import ipaddress
import json
import logging
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from fsclient.cli.target_add import server_pid
from fscommon.auth.handshake import HelloFields
from fscommon.auth.key import create_key, session_secret
from fscommon.config.tls import OPTIONAL
from fscommon.errors import (
    AuthenticationError,
    BraidError,
    ConfigError,
    FsError,
    RefusedError,
    Status,
    TransportError,
)
from fscommon.native import EventKind
from fscommon.native_ports import ChunkServer
from fscommon.net.address import parse_address
from fscommon.net.rails import agree
from fscommon.net.rdma import Gid, GidKind, Port
from fscommon.net.stream import FrameStream, connect
from fscommon.net.tls import CERTIFICATE_METRIC, TlsTransport
from fscommon.tasks import sole_exception
from fscommon.wire.rdma import RdmaAnswer, RdmaOffer
from fscommon.wire.servers import DamagedObject
from storageserver.config import TargetConfig
from storageserver.connections import IDLE_MS
from tests.cluster.certificates import Certificates
from tests.unit.storageserver.fakes import (
    CLUSTER,
    OTHER_CLUSTER,
    FakeChunkServer,
    World,
    make_world,
)
from tests.unit.waiting import eventually


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with make_world(tmp_path) as made:
        yield made


@pytest.fixture
async def tcp_world(tmp_path: Path) -> AsyncIterator[World]:
    async with make_world(tmp_path, tcp=True) as made:
        yield made


def test_the_fake_fits_the_door() -> None:
    native: ChunkServer = FakeChunkServer()
    assert native.io_engine() == "fake"


async def test_the_first_start_joins_and_makes_targets(world: World) -> None:
    async with world.running():
        first, second = world.metaserver.registrations
        assert (first.node, first.cluster, first.targets) == (0, b"", ())
        assert (second.node, second.cluster, second.address) == (4, CLUSTER, "ss:7411")
        assert [report.bytes_free for report in second.targets] == [900, 900]
        assert [(one.files_total, one.files_free) for one in second.targets] == [(800, 700)] * 2
        assert [target.target for target in world.native.targets] == [1, 2]
        assert ("capability_key", b"K" * 32) in world.native.calls
    assert world.native.calls[-1] == ("stop",)
    state = json.loads((world.path / "state" / "node.json").read_text())
    assert state["targets"] == [str(world.path / "t1"), str(world.path / "t2")]
    assert (state["node"], state["cluster"]) == (4, CLUSTER.hex())


async def test_a_restart_finds_everything(world: World) -> None:
    async with world.running():
        uuids = [target.uuid for target in world.native.targets]
    again = World(world.path, world.metaserver, world.transport, world.address)
    world.metaserver.registrations.clear()
    world.metaserver.heartbeats.clear()
    async with again.running():
        assert [target.uuid for target in again.native.targets] == uuids
        (only,) = world.metaserver.registrations
        assert (only.node, only.cluster) == (4, CLUSTER)


def only(world: World, name: str) -> tuple[TargetConfig, ...]:
    return (TargetConfig(world.path / name),)


async def test_the_advertised_address(world: World) -> None:
    async with world.running(advertise="storage.example"):
        assert world.metaserver.registrations[-1].address == "storage.example:7411"


async def test_the_end_of_its_certificate_is_a_metric(
    tcp_world: World, certificates: Certificates
) -> None:
    transport = TlsTransport(certificates.settings(OPTIONAL))
    world = replace(tcp_world, transport=transport)
    async with world.running(listen="127.0.0.1:0"):
        shown = world.service.metrics.registry.get_sample_value(CERTIFICATE_METRIC)
        assert shown is not None and shown == transport.certificate_ends_s()


async def test_sessions_reach_native(world: World) -> None:
    world.metaserver.sessions = [1, 2]
    async with world.running():
        await world.metaserver.wait_heartbeats(2)
        assert world.native.live == [1, 2]
        assert world.metaserver.heartbeats[0].session_version == 0
        assert world.metaserver.heartbeats[1].session_version == 1


async def test_clients_are_served_for_a_lease_after_the_last_heartbeat(world: World) -> None:
    async with world.running():
        before_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        count = len(world.metaserver.heartbeats)
        await world.metaserver.wait_heartbeats(count + 2)
        lease_ns = 10 * 1_000_000_000
        now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        assert before_ns < world.native.until_ns - lease_ns < now_ns, "from when it left"


async def test_a_target_that_is_removed_is_no_end_of_the_others(world: World) -> None:
    async with world.running():
        (world.path / "t1").rename(world.path / "gone")
        count = len(world.metaserver.heartbeats)
        await world.metaserver.wait_heartbeats(count + 2)


async def test_a_target_that_has_left_the_cluster_serves_nobody(world: World) -> None:
    """Before clients are served: nobody keeps the names that were dropped there."""
    world.metaserver.removed = (2,)
    async with world.running():
        assert ("target_retire", 2, True) in world.native.calls


@pytest.mark.parametrize("failure", ["hang up", "forgotten"])
async def test_a_lost_metaserver_is_found_again(world: World, failure: str) -> None:
    async with world.running():
        registered = len(world.metaserver.registrations)
        if failure == "hang up":
            world.metaserver.hang_up = True
        else:
            world.metaserver.refuse = FsError(Status.NO_TARGET, "register")
        await world.metaserver.wait_heartbeats(4)
        assert len(world.metaserver.registrations) == registered + 1


async def expect_refusal(
    world: World, kind: type[BraidError], words: str, **changes: object
) -> None:
    """The program ends by itself with one sentence."""
    with trio.fail_after(20), pytest.raises(BaseException) as raised:
        await world.server(**changes).run()
    error: BaseException | None = raised.value
    if isinstance(error, BaseExceptionGroup):
        error = sole_exception(error)
    assert isinstance(error, kind)
    assert words in str(error)


async def test_a_foreign_cluster_is_refused(world: World) -> None:
    async with world.running():
        pass
    world.metaserver.cluster = OTHER_CLUSTER
    world.service.stopping = trio.Event()
    world.native.targets.clear()
    await expect_refusal(world, ConfigError, "belongs to cluster")


async def test_a_metaserver_that_refuses_ends_it(world: World) -> None:
    world.metaserver.refuse = FsError(Status.EINVAL, "another cluster")
    await expect_refusal(world, ConfigError, "refuses this storage server: EINVAL")


async def test_a_wrong_key_ends_it(world: World) -> None:
    create_key(world.path / "other")
    await expect_refusal(
        world, AuthenticationError, "refused this cluster key", key_file=world.path / "other"
    )


async def test_an_unmounted_device_is_refused(world: World) -> None:
    async with world.running():
        pass
    (world.path / "t2" / "superblock").unlink()
    world.service.stopping = trio.Event()
    world.native.targets.clear()
    said = f"is its device mounted? Of a new disk, braidfs target add {world.path}/t2 --replaced"
    await expect_refusal(world, ConfigError, said, targets=only(world, "t2"))


async def test_an_unopenable_target_leaves_the_others_served(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.running():
        uuids = [target.uuid for target in world.native.targets]
    (world.path / "t1" / "superblock").unlink()
    again = World(world.path, world.metaserver, world.transport, world.address)
    world.metaserver.registrations.clear()
    world.metaserver.heartbeats.clear()
    caplog.clear()
    with caplog.at_level(logging.ERROR, logger="braidfs"):
        async with again.running():
            (registration,) = world.metaserver.registrations
            assert [report.uuid for report in registration.targets] == uuids[1:]
            assert [target.target for target in again.native.targets] == [2]
    errors = [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]
    assert errors == ["a target is not served; repair it and reload"]
    assert not (world.path / "t1" / "superblock").exists(), "no new target in its place"


async def test_targets_of_a_configuration_that_is_read_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.service.config_file = file = world.path / "server.toml"
    (world.path / "t3").mkdir()
    async with world.running():
        assert world.service.reload is not None
        write_config(file, world, "t1", "t2", "t3", "missing")
        world.service.reload()
        await eventually(lambda: [one.target for one in world.native.targets] == [1, 2, 3])
        last = world.metaserver.registrations[-1]
        assert [report.target for report in last.targets] == [1, 2, 0]
        (world.path / "missing").mkdir()
        world.service.reload()  # the refused target is tried again
        await eventually(lambda: [one.target for one in world.native.targets] == [1, 2, 3, 4])
        file.write_text("[[[")
        caplog.clear()
        world.service.reload()
        await eventually(lambda: "the configuration was not read again" in caplog.messages)
        await world.metaserver.wait_heartbeats(len(world.metaserver.heartbeats) + 1)
        assert len(world.metaserver.heartbeats[-1].targets) == 4
    state = json.loads((world.path / "state" / "node.json").read_text())
    assert [Path(path).name for path in state["targets"]] == ["t1", "t2", "t3", "missing"]


def write_config(file: Path, world: World, *targets: str) -> None:
    tables = "".join(f'[[targets]]\npath = "{world.path / name}"\n' for name in targets)
    file.write_text(
        f'name = "ss-1"\nkey_file = "{world.path}/key"\nstate_directory = "{world.path}/state"\n'
        f'listen = "ss:7411"\nmetaservers = ["{world.address}"]\n{tables}'
    )


async def test_one_state_directory_has_one_server(world: World) -> None:
    (world.path / "state").mkdir()
    with held(world.path / "state" / "lock") as pid:
        assert server_pid(world.path / "state") == pid
        await expect_refusal(world, ConfigError, "another storage server has")
    assert server_pid(world.path / "state") is None


@contextlib.contextmanager
def held(path: Path) -> Iterator[int]:
    """Another process holds it."""
    holder = (
        "import fcntl, sys; file = open(sys.argv[1], 'ab'); fcntl.lockf(file, fcntl.LOCK_EX)\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", holder, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process.pid
        process.stdin.close()


async def test_a_foreign_target_is_refused(world: World) -> None:
    (world.path / "t1" / "superblock").write_bytes(b"BRAIDTGT" + bytes(8) + b"x" * 16 + b"u" * 16)
    await expect_refusal(
        world, ConfigError, "belongs to another cluster", targets=only(world, "t1")
    )


async def test_a_directory_of_something_else_is_refused(world: World) -> None:
    (world.path / "t1" / "superblock").write_bytes(b"something else" * 10)
    await expect_refusal(
        world, ConfigError, "not that of a BraidFS target", targets=only(world, "t1")
    )


async def test_a_missing_target_is_refused(world: World) -> None:
    (world.path / "t1").rmdir()
    await expect_refusal(world, ConfigError, "is not a directory", targets=only(world, "t1"))


async def test_a_damaged_state_is_refused(world: World) -> None:
    (world.path / "state").mkdir()
    for text in ("", "{}", '{"uuid": "00", "node": 1, "cluster": "", "targets": []}', "[]"):
        (world.path / "state" / "node.json").write_text(text)
        await expect_refusal(world, ConfigError, "is damaged")


async def dial(world: World, **hello: object) -> FrameStream:
    address = parse_address(world.metaserver.registrations[-1].address)
    fields = HelloFields("data", "client", **hello)  # type: ignore[arg-type]
    return await connect(address, key=world.metaserver.key, hello=fields, timeout_s=10)


async def test_connections_go_to_native(tcp_world: World) -> None:
    tcp_world.metaserver.sessions = [7]
    async with tcp_world.running():
        await dial(tcp_world, session=7, connection=70, previous=69)
        await tcp_world.native.adoption.wait()
        assert tcp_world.native.adopted == [("data", 7, 70, 69)]


async def test_a_session_that_is_new_is_asked_for(tcp_world: World) -> None:
    async with tcp_world.running():
        await tcp_world.metaserver.wait_heartbeats(1)
        tcp_world.metaserver.open_session(8)
        with trio.fail_after(0.8):  # this is less than the interval of heartbeats
            await dial(tcp_world, session=8)
            await tcp_world.native.adoption.wait()
        assert tcp_world.native.live == [8]


async def test_a_full_server_makes_room_or_says_so(
    tcp_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of these, 160 are for connections.
    monkeypatch.setattr(resource, "getrlimit", lambda which: (640, 640))
    native = tcp_world.native
    tcp_world.metaserver.sessions = [7]

    def room_made() -> list[tuple[object, ...]]:
        return [call for call in native.calls if call[0] == "close_idle"]

    async with tcp_world.running():
        native.connections = 100
        await dial(tcp_world, session=7)
        assert not room_made()
        native.connections = 155
        await dial(tcp_world, session=7)
        assert room_made() == [("close_idle", 10, IDLE_MS)]
        native.connections = 160
        with pytest.raises(RefusedError, match="it has 160, as many as its descriptors allow"):
            await dial(tcp_world, session=7)
        address = parse_address(tcp_world.metaserver.registrations[-1].address)
        hello = HelloFields("server", "metaserver")
        await connect(address, key=tcp_world.metaserver.key, hello=hello, timeout_s=10)
        assert len(room_made()) == 1, "once a second"
        native.connections = 140
        await dial(tcp_world, session=7)


async def test_an_unknown_session_is_left_to_native(tcp_world: World) -> None:
    async with tcp_world.running():
        await dial(tcp_world, session=99)
        await tcp_world.native.adoption.wait()
        assert tcp_world.native.live == []


async def test_a_client_with_a_key_of_its_own_proves_its_session(tcp_world: World) -> None:
    tcp_world.metaserver.sessions = [7, 8]
    secret = session_secret(b"K" * 32, 7)
    async with tcp_world.running():
        address = parse_address(tcp_world.metaserver.registrations[-1].address)

        async def prove(secret: bytes, **hello: object) -> None:
            fields = HelloFields(node="client", key=5, **hello)  # type: ignore[arg-type]
            await connect(address, key=secret, hello=fields, timeout_s=10)

        for purpose, session in (("data", 8), ("data", 0), ("server", 7), ("meta", 7)):
            with pytest.raises(AuthenticationError):
                await prove(secret, purpose=purpose, session=session)
        with pytest.raises(AuthenticationError):
            await prove(tcp_world.metaserver.key, purpose="data", session=7)
        await prove(secret, purpose="data", session=7, connection=70, previous=69)
        await tcp_world.native.adoption.wait()
        assert tcp_world.native.adopted == [("data", 7, 70, 69)]


async def dial_with_a_former_session(world: World) -> FrameStream:
    """Of a client that has a key of its own, and still knows the session's secret."""
    world.metaserver.sessions = [7]
    address = parse_address(world.metaserver.registrations[-1].address)
    fields = HelloFields("data", "client", session=6, key=5)
    secret = session_secret(b"K" * 32, 6)
    return await connect(address, key=secret, hello=fields, timeout_s=10)


def said(caplog: pytest.LogCaptureFixture, event: str) -> list[int]:
    """The levels of the lines with this event."""
    return [one.levelno for one in caplog.records if one.getMessage() == event]


async def test_a_session_that_ended_holds_no_connection(
    tcp_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with tcp_world.running():
        stream = await dial_with_a_former_session(tcp_world)
        with trio.fail_after(20):
            assert await stream.receive_batch() == []
        assert tcp_world.native.adopted == []
    assert said(caplog, "connection ended") == [logging.WARNING]


async def test_a_client_that_left_meanwhile_is_no_warning(
    tcp_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="braidfs")
    async with tcp_world.running():
        await (await dial_with_a_former_session(tcp_world)).aclose()
        await eventually(lambda: said(caplog, "client left") == [logging.DEBUG])
        assert tcp_world.native.adopted == []
    assert said(caplog, "connection ended") == []


def one_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one RDMA port, at 10.0.0.1."""
    gid = Gid(1, ipaddress.IPv6Address("::ffff:10.0.0.1"), GidKind.ROCE_V2_IPV4)
    port = Port("mlx5_0", 1, True, True, 100.0, -1, (gid,))
    monkeypatch.setattr("fscommon.net.rails.find_ports", lambda: [port])


async def offer_rdma(world: World, peer: bytes) -> RdmaAnswer:
    address = parse_address(world.metaserver.registrations[-1].address)
    fields = HelloFields("rdma", "client", session=7, connection=70)
    stream = await connect(address, key=world.metaserver.key, hello=fields, timeout_s=10)
    try:
        return await agree(stream, RdmaOffer(peer))
    finally:
        await stream.aclose()


async def test_an_offered_queue_pair_is_answered_and_adopted(
    tcp_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_port(monkeypatch)
    tcp_world.metaserver.sessions = [7]
    async with tcp_world.running():
        answer = await offer_rdma(tcp_world, b"c" * 40)
        await tcp_world.native.adoption.wait()
        assert answer.peer == b"s" * 40 and "mlx5_0:1" in answer.by
        assert tcp_world.native.adopted == [("data", 7, 70, 0)]
        assert tcp_world.native.rdma_tokens == [5]
        assert ("rdma_connect", 5, b"c" * 40) in tcp_world.native.calls


async def test_a_queue_pair_that_does_not_fit_is_refused_with_the_reason(
    tcp_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_port(monkeypatch)
    tcp_world.metaserver.sessions = [7]
    async with tcp_world.running():
        with pytest.raises(TransportError, match="no queue pair that fits"):
            await offer_rdma(tcp_world, b"bad" + bytes(37))
        assert ("rdma_drop", 5) in tcp_world.native.calls
        assert tcp_world.native.adopted == []


async def test_without_rdma_an_offer_is_told_why(
    tcp_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fscommon.net.rails.find_ports", list)
    tcp_world.metaserver.sessions = [7]
    async with tcp_world.running():
        with pytest.raises(TransportError, match="has no RDMA for us"):
            await offer_rdma(tcp_world, b"c" * 40)


async def test_a_question_gets_an_answer_and_no_queue_pair(
    tcp_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_port(monkeypatch)
    async with tcp_world.running():
        answer = await offer_rdma(tcp_world, b"")
        assert "10.0.0.1" in answer.by and answer.peer == b""
        assert tcp_world.native.adopted == []


async def test_other_purposes_are_closed(tcp_world: World) -> None:
    async with tcp_world.running():
        address = parse_address(tcp_world.metaserver.registrations[-1].address)
        stream = await connect(
            address, key=tcp_world.metaserver.key, hello=HelloFields("meta", "c"), timeout_s=10
        )
        assert await stream.receive_batch() == []
        assert tcp_world.native.adopted == []


async def test_damage_that_readers_meet_is_told_once(world: World) -> None:
    async with world.running():
        world.native.report((EventKind.CORRUPT, 3, 5, 1, 4096, b""))
        world.native.report((EventKind.CORRUPT, 3, 5, 1, 8192, b""))
        with trio.fail_after(20):
            await world.metaserver.wait_heartbeats(len(world.metaserver.heartbeats) + 3)
    told = [beat.damaged for beat in world.metaserver.heartbeats if beat.damaged]
    assert told == [(DamagedObject(3, 5, 1),)]


async def test_native_events_become_logs(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="braidfs"):
        async with world.running():
            world.native.report(
                (EventKind.LOG, 0, 0, 30, 0, b"from native \xff"),
                (EventKind.CORRUPT, 3, 5, 1, 4096, b""),
                (EventKind.CLOSED, 0, 0, 7, 70, b""),
            )
            await trio.testing.wait_all_tasks_blocked()
    events = [record.getMessage() for record in caplog.records]
    assert "from native \\xff" in events
    assert "connection closed" in events
    (corrupt,) = [r for r in caplog.records if "checksum" in r.getMessage()]
    fields = corrupt.__dict__["braid_fields"]
    assert fields == {"target": 3, "file_id": 5, "stripe_index": 1, "offset": 4096}
