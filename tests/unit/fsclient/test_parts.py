"""The small parts: source, helper arguments, mount point, events, data connections, daemon."""

import os
import socket

import pytest
import trio

from fsclient import daemon, kernel
from fsclient.cli.mount_helper import parse_arguments, run
from fsclient.data_connections import DataConnections
from fsclient.reaper import Handlers, Reaper
from fsclient.source import Source, parse_source
from fscommon.auth.handshake import HelloFields
from fscommon.errors import ConfigError, TransportError
from fscommon.native import Event, EventKind
from fscommon.native_ports import EventRow, NativeTls
from fscommon.net.stream import FrameStream
from fscommon.wire.messages import ClusterMap, TargetEntry

from .unasked_ports import UnaskedCluster, UnaskedIo


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("meta:/", Source(("meta:7400",), ())),
        ("meta:/a/b", Source(("meta:7400",), (b"a", b"b"))),
        ("meta:71,other:/a//./b/", Source(("meta:71", "other:7400"), (b"a", b"b"))),
        ("[::1]:72,10.0.0.1:/x", Source(("[::1]:72", "10.0.0.1:7400"), (b"x",))),
        ("[fe80::1]:/", Source(("[fe80::1]:7400",), ())),
    ],
)
def test_source(text: str, source: Source) -> None:
    assert parse_source(text) == source


@pytest.mark.parametrize("text", ["", "meta", ":/", "meta:7400", "meta:x:/", "m:/a/../b", "a,,b:/"])
def test_bad_source(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_source(text)


def test_helper_arguments_as_mount_gives_them() -> None:
    request = parse_arguments(["m:/", "/mnt", "-v", "-o", "rw,noatime", "-o", "lanes=2"])
    assert (request.source, request.directory) == ("m:/", "/mnt")
    assert request.options == "rw,noatime,lanes=2"
    assert not request.is_fake


@pytest.mark.parametrize("arguments", [[], ["m:/"], ["m:/", "/mnt", "x"], ["m:/", "/mnt", "-Z"]])
def test_helper_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == daemon.EXIT_USAGE
    assert capsys.readouterr().err.count("\n") == 1


def test_unknown_option_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["m:/", "/mnt", "-o", "lane=3"]) == daemon.EXIT_USAGE
    assert "lanes" in capsys.readouterr().err


def test_fake_mounts_nothing() -> None:
    assert run(["-f", "m:/", "/nonexistent"]) == daemon.EXIT_OK


def test_mountpoint_must_be_a_directory(tmp_path: os.PathLike[str]) -> None:
    file = os.path.join(tmp_path, "file")
    with open(file, "w"):
        pass
    kernel.check_mountpoint(os.fspath(tmp_path))
    with pytest.raises(ConfigError, match="not a directory"):
        kernel.check_mountpoint(file)
    with pytest.raises(ConfigError, match="does not exist"):
        kernel.check_mountpoint(file + "x")


def test_child_that_dies_does_not_leave_the_parent_waiting(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reading, writing = os.pipe()
    os.close(writing)
    assert daemon._await_child(reading) == daemon.EXIT_SYSTEM
    assert "died" in capsys.readouterr().err


@pytest.mark.parametrize("is_ready", [True, False])
def test_reporter(is_ready: bool, capsys: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    reporter = daemon.Reporter(writing)
    if is_ready:
        reporter.ready()
    reporter.failed(32, "no such thing")
    reporter.ready()
    assert daemon._await_child(reading) == (0 if is_ready else 32)
    assert capsys.readouterr().err == ("" if is_ready else "no such thing\n")


class FakeSource(UnaskedIo):
    def __init__(self, events: list[EventRow]) -> None:
        self.events = events

    def reap(self, count_max: int) -> list[EventRow]:
        taken, self.events = self.events[:count_max], self.events[count_max:]
        return taken


def test_every_event_reaches_its_handler() -> None:
    seen: list[tuple[object, ...]] = []
    handlers = Handlers(
        connect=lambda *a: seen.append(("connect", *a)),
        commit=lambda *a: seen.append(("commit", *a)),
        interrupt=lambda *a: seen.append(("interrupt", *a)),
        release=lambda *a: seen.append(("release", *a)),
        done=lambda *a: seen.append(("done", *a)),
        unmounted=lambda: seen.append(("unmounted",)),
        reopen=lambda *a: seen.append(("reopen", *a)),
        ask=lambda *a: seen.append(("ask", *a)),
        call=lambda *a: seen.append(("call", *a)),
        write_inline=lambda *a: seen.append(("write_inline", *a)),
        changes_wait=lambda: seen.append(("changes_wait",)),
        cut=lambda *a: seen.append(("cut", *a)),
        drop_replicas=lambda *a: seen.append(("drop_replicas", *a)),
        synced=lambda *a: seen.append(("synced", *a)),
    )
    events: list[EventRow] = [
        Event(int(kind), 1, 2, 3, 4, b"p") for kind in EventKind if kind not in (9, 10)
    ]
    Reaper(FakeSource(events), handlers).reap_batch()
    assert seen == [
        ("connect", 3, 4),
        ("commit", 1, 2, 3, 4, b"p"),
        ("interrupt", 1),
        ("release", 3, 2),
        ("done", 1, 3, 4),
        ("unmounted",),
        ("reopen", 2, True),
        ("call", 1, 2, 3, 4, b"p"),
        ("ask", 2, 3),
        ("changes_wait",),
        ("cut", 1, 2, 3, 4, b"p"),
        ("write_inline", 2, 3, 4, b"p"),
        ("drop_replicas", 2, b"p"),
        ("synced", 2),
    ]


class FakeTable(UnaskedCluster):
    def __init__(self) -> None:
        self.nodes: list[int] = []
        self.targets: dict[int, int] = {}
        self.states: list[tuple[int, bool]] = []
        self.connections: list[tuple[int, int, int]] = []
        self.failures: list[tuple[int, int]] = []

    def node_put(self, node: int) -> None:
        self.nodes.append(node)

    def target_put(self, target: int, node: int) -> None:
        self.targets[target] = node

    def target_state(self, target: int, up: bool) -> None:
        self.states.append((target, up))

    def connection_put(
        self, lane: int, node: int, fd: int, rdma: int = 0, tls: NativeTls | None = None
    ) -> None:
        self.connections.append((lane, node, fd))

    def connection_failed(self, lane: int, node: int) -> None:
        self.failures.append((lane, node))


class FakeStream(FrameStream):
    tls = None

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()

    def detach(self) -> tuple[int, bytes]:
        return self.ours.detach(), b""


async def test_data_connections_name_their_predecessor() -> None:
    table, hellos = FakeTable(), []

    async def connect(address: str, hello: HelloFields) -> FrameStream:
        await trio.lowlevel.checkpoint()
        hellos.append((address, hello))
        if address == "down:1":
            raise TransportError("down")
        return FakeStream()

    data = DataConnections(table, connect, "test", lambda: 77)
    entries = (
        TargetEntry(1, 4, "up:1", "up", 0, 0),
        TargetEntry(2, 4, "up:1", "up", 0, 0),
        TargetEntry(3, 5, "down:1", "up", 0, 0),
    )
    data.map_changed(ClusterMap(1, b"", entries))
    data.map_changed(ClusterMap(2, b"", entries))
    assert table.nodes == [4, 5]
    assert table.targets == {1: 4, 2: 4, 3: 5}
    for _ in range(2):
        async with trio.open_nursery() as nursery:
            data.wanted(4, 0, nursery)
            data.wanted(4, 0, nursery)  # it is requested twice and made once
            data.wanted(5, 1, nursery)
            data.wanted(9, 0, nursery)  # it is not in the map
    first, second = (hello for address, hello in hellos if address == "up:1")
    assert (first.purpose, first.session, first.previous) == ("data", 77, 0)
    assert second.previous == first.connection
    assert [(lane, node) for lane, node, _ in table.connections] == [(0, 4), (0, 4)]
    assert sorted(table.failures) == [(0, 9), (0, 9), (1, 5), (1, 5)]
    for _, _, fd in table.connections:
        os.close(fd)


async def _no_connection(address: str, hello: HelloFields) -> FrameStream:
    raise AssertionError(address)


def test_lanes_are_told_once_which_targets_are_down() -> None:
    table = FakeTable()
    data = DataConnections(table, _no_connection, "test", lambda: 77)

    def change(epoch: int, *states: str) -> None:
        rows = (TargetEntry(7 + at, 4, "a:1", state, 0, 0) for at, state in enumerate(states))
        data.map_changed(ClusterMap(epoch, b"", tuple(rows)))

    change(1, "up", "full")
    assert table.states == []
    change(2, "down", "full")
    change(3, "down", "draining")
    assert table.states == [(7, False)]
    change(4, "up", "down")
    assert table.states == [(7, False), (7, True), (8, False)]
    assert table.targets == {7: 4, 8: 4}
