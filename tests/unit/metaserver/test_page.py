"""The cluster's web page: its hour of history, its JSON, and what HTTP serves and refuses."""

import http.client
import json
import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from fscommon.errors import ConfigError
from fscommon.net.address import Address
from fscommon.observe.endpoint import CONNECTIONS_MAX
from fscommon.observe.metrics import Metrics
from fscommon.rpc.silences import ENDED
from fscommon.types import NodeId
from fscommon.wire.admin import Traffic
from fscommon.wire.messages import SessionOpen, SessionRenew
from fscommon.wire.ops import Op
from metaserver.config import MetaserverConfig
from metaserver.membership import Node
from metaserver.page import endpoint as endpoints
from metaserver.page.endpoint import PageEndpoint
from metaserver.page.history import POINTS_MAX, History
from metaserver.page.source import ROWS_MAX, PageSource
from metaserver.server import Metaserver
from metaserver.store.journal import EngineHealth, EngineMember
from metaserver.store.memory import MemoryStore
from tests.unit.waiting import eventually

from .bench import Bench, Client
from .test_group_status import OTHER, World

HOSTILE = "<img src=x onerror=alert(1)>\u202e\"';--"


def node(heard_s: float, *counts: int, number: int = 1) -> Node:
    return Node(NodeId(number), b"u", "n", "a:1", heard_s, traffic=Traffic(*counts))


def test_rates_are_between_heartbeats() -> None:
    history = History()
    history.sample([node(10.0, 1000, 0, 5, 0)], 100, 12.0, 12 * 10**9)
    history.sample([node(14.0, 5000, 800, 9, 4)], 300, 22.0, 22 * 10**9)  # it is 4 s later, not 10
    seen = history.as_json()
    assert seen["at_s"] == [12, 22]
    assert seen["read_bytes"] == [0, 1000] and seen["written_bytes"] == [0, 200]
    assert seen["reads"] == [0, 1] and seen["writes"] == [0, 1]
    assert seen["requests"] == [0, 20]


def test_servers_that_are_silent_restarted_or_new() -> None:
    history = History()
    history.sample([node(10.0, 1000)], 0, 10.0, 0)
    history.sample([node(10.0, 1000)], 0, 20.0, 0)  # the node is silent
    history.sample([node(30.0, 10)], 0, 30.0, 0)  # the node counts from zero again
    history.sample([node(40.0, 110), node(40.0, 9000, number=2)], 0, 40.0, 0)
    history.sample([node(50.0, 210), node(50.0, 9100, number=2)], 0, 50.0, 0)
    assert history.as_json()["read_bytes"] == [0, 0, 0, 10, 20]


def test_an_hour_and_no_more() -> None:
    history = History()
    for number in range(POINTS_MAX + 50):
        history.sample([], number, float(number), number * 10**9)
    seen = history.as_json()
    assert {len(column) for column in seen.values()} == {POINTS_MAX}
    assert seen["at_s"][-1] == POINTS_MAX + 49


def test_what_is_shown() -> None:
    bench = Bench()
    client = Client(bench, bench.connect())
    client.send(Op.SESSION_OPEN, SessionOpen(0, HOSTILE, (), 0))
    bench.settle()
    client.session = client.take().session
    source = PageSource(bench.engine, bench.time)
    source.sample(0)
    seen = json.loads(source.json())
    (row,) = seen["clients"]
    assert row["client"] == HOSTILE and row["rates"]["read_bytes_per_s"] == 0
    assert seen["health"] == "healthy" and len(seen["targets"]) == 2
    assert len(seen["history"]["at_s"]) == 1
    assert source.json() == source.json(), "made once for all who ask within a second"
    bench.now_s += 4
    client.call(Op.SESSION_RENEW, SessionRenew(0, Traffic(1 << 30, 0, 1, 0)))
    (row,) = json.loads(source.json())["clients"]
    assert row["read_bytes"] == 1 << 30
    assert row["rates"]["read_bytes_per_s"] == (1 << 30) / 4


def test_its_own_certificate_ends_soon() -> None:
    bench = Bench()
    ends_s = bench.now_ns // 10**9 + 2 * 86400 + 60
    source = PageSource(bench.engine, bench.time, certificate_ends_s=lambda: ends_s)
    seen = json.loads(source.json())
    (problem,) = seen["problems"]
    assert problem["what"] == "the certificate of the metaserver ends in 2.0 days"
    assert seen["health"] == "degraded"


def test_metaservers_of_a_group() -> None:
    """A metaserver that is alone shows none; the rows are those of `braidfs status --json`."""
    bench = Bench()
    source = PageSource(bench.engine, bench.time)
    seen = json.loads(source.json())
    assert seen["journal"] is None and seen["metaservers"] == []
    world = World()
    world.look(OTHER)
    world.look(replace(OTHER, reports=2, name=HOSTILE, applied=90), index=130)
    world.view.appended(0.002)
    ill = EngineMember("g:2379", False, alarms=("no answer",))
    world.view.saw_engine(EngineHealth("etcd", (EngineMember("h:2379", True, True, 85, 100), ill)))
    bench.engine.services.group = world.view
    bench.now_s += 20
    seen = json.loads(source.json())
    own, other = seen["metaservers"]
    assert (own["name"], own["address"], own["role"], own["term"]) == ("a", "h1:7400", "active", 7)
    assert (other["name"], other["role"], other["term"]) == (HOSTILE, "standby", None)
    assert (other["applied"], other["behind"], other["behind_s"]) == (90, 40, 2.0)
    journal = seen["journal"]
    assert (journal["engine"], journal["term"], journal["index"]) == ("etcd", 7, 130)
    assert journal["append_p50_s"] == journal["append_p99_s"] == 0.002
    assert [one["reachable"] for one in journal["servers"]] == [True, False]
    said = {problem["what"] for problem in seen["problems"]}
    assert {"g:2379 of etcd is not reachable", "the store of etcd at h:2379 is 85% full"} <= said


async def test_why_a_standby_is_silent() -> None:
    """The metaserver tries its address, as `braidfs status` does."""
    bench, world = Bench(), World()
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    await listeners[0].aclose()
    world.look(replace(OTHER, address=f"127.0.0.1:{port}"))
    world.now_s += 40
    bench.now_s += 40
    bench.engine.services.group = world.view
    source = PageSource(bench.engine, bench.time)
    config = MetaserverConfig(Path("unused"), Path("unused"), listen="127.0.0.1:0")
    metrics = Metrics("metaserver")
    source.sample(0)
    server = Metaserver(config, MemoryStore(), metrics, key=b"k" * 32, engine=bench.engine)
    async with trio.open_nursery() as tasks:
        tasks.start_soon(server._ask_silent_standbys, source)
        await eventually(lambda: source.silences == {"b": ENDED})
        tasks.cancel_scope.cancel()
    (problem,) = json.loads(source.json())["problems"]
    assert f"b has not reported for 40 s, and {ENDED}" in problem["why"]


def test_each_element_that_the_script_looks_up_is_there() -> None:
    script = endpoints._read("page.js").decode()
    page = endpoints._read("index.html").decode()
    wanted = set(re.findall(r'(?:getElementById|table|say)\("([a-z-]+)"', script))
    assert {"metaservers", "journal", "journal-servers", "group", "nodes"} <= wanted
    assert wanted <= set(re.findall(r'id="([a-z-]+)"', page))


def test_many_clients_are_cut_short() -> None:
    bench = Bench()
    for _ in range(ROWS_MAX + 3):
        client = Client(bench, bench.connect())
        client.send(Op.SESSION_OPEN, SessionOpen(0, "c", (), 0))
        bench.settle()
        bench.now_s += 1
    seen = json.loads(PageSource(bench.engine, bench.time).json())
    assert len(seen["clients"]) == ROWS_MAX and seen["client_count"] == ROWS_MAX + 3


# ---- HTTP ------------------------------------------------------------------------------------


def ask(port: int, path: str, method: str = "GET") -> tuple[int, http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path)
        reply = connection.getresponse()
        return reply.status, reply, reply.read()
    finally:
        connection.close()


async def test_files_and_json() -> None:
    page = PageEndpoint(Address("127.0.0.1", 0), lambda: b'{"a": 1}')
    try:
        for path, kind, part in (
            ("/", "text/html", b"<title>BraidFS"),
            ("/page.js", "text/javascript", b"textContent"),
            ("/page.css", "text/css", b"body"),
            ("/status.json?x=1", "application/json", b'"a"'),
        ):
            status, reply, body = await trio.to_thread.run_sync(ask, page.port, path)
            assert status == 200 and part in body, path
            assert str(reply.headers["Content-Type"]).startswith(kind)
            assert "default-src 'none'" in str(reply.headers["Content-Security-Policy"])
            assert reply.headers["Server"] == "BraidFS"
        for path in ("/page", "/../server.py", "/etc/passwd", "//page.js/.."):
            assert (await trio.to_thread.run_sync(ask, page.port, path))[0] == 404
        for method in ("POST", "PUT", "DELETE"):
            assert (await trio.to_thread.run_sync(ask, page.port, "/", method))[0] == 501
    finally:
        await trio.to_thread.run_sync(page.stop)
    with pytest.raises(OSError, match="refused"):
        await trio.to_thread.run_sync(ask, page.port, "/")


def test_its_files_load_nothing_from_elsewhere() -> None:
    for name in ("index.html", "page.css", "page.js"):
        text = endpoints._read(name).decode().replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text and "https:" not in text and "@import" not in text
        assert "innerHTML" not in text and "document.write" not in text


async def test_connections_are_bounded() -> None:
    page = PageEndpoint(Address("127.0.0.1", 0), lambda: b"{}")
    idle = []
    try:
        for _ in range(CONNECTIONS_MAX):
            idle.append(socket.create_connection(("127.0.0.1", page.port), timeout=10))
        await eventually(lambda: page._server._slots._value == 0)
        with pytest.raises((OSError, http.client.HTTPException)):
            await trio.to_thread.run_sync(ask, page.port, "/")
        for one in idle:
            one.close()
        await eventually(lambda: page._server._slots._value > 0)
        assert (await trio.to_thread.run_sync(ask, page.port, "/"))[0] == 200
    finally:
        await trio.to_thread.run_sync(page.stop)


async def test_who_says_nothing_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints._Handler, "timeout", 0.2)
    page = PageEndpoint(Address("127.0.0.1", 0), lambda: b"{}")
    try:
        with socket.create_connection(("127.0.0.1", page.port), timeout=20) as idle:
            assert await trio.to_thread.run_sync(idle.recv, 1) == b""
    finally:
        await trio.to_thread.run_sync(page.stop)


async def test_an_address_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="page_listen: cannot listen"):
            PageEndpoint(Address("127.0.0.1", port), lambda: b"")
