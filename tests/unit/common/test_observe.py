"""Log lines, their limits, and the table of metrics."""

import io
import logging
import re
import urllib.request
from collections.abc import Iterator
from logging.handlers import WatchedFileHandler
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from fscommon.errors import ConfigError
from fscommon.observe.log import Log, RateLimit, request, start_logging
from fscommon.observe.metrics import TABLE, Kind, Metrics, MetricsEndpoint
from fscommon.observe.native_counters import ROWS


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    sink = io.StringIO()
    start_logging("info", stream=sink)
    yield sink
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_line(lines: io.StringIO) -> None:
    Log("net").warning("refused", peer="10.0.0.1:5", why="too many", code=5, key=b"\x01", none=None)
    line = lines.getvalue()
    assert re.match(r"time=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ", line)
    assert line.split(" ", 1)[1] == (
        'level=warning part=net event=refused peer=10.0.0.1:5 why="too many" code=5 key=01\n'
    )


def test_what_a_peer_sent_stays_one_value(lines: io.StringIO) -> None:
    Log("net").info("hello", node='x" level=error\nevent=forged \x1b[2J\\')
    (line,) = lines.getvalue().splitlines()
    assert line.endswith(r'node="x\" level=error\nevent=forged \x1b[2J\\"')


def test_long_values_are_cut(lines: io.StringIO) -> None:
    Log("net").info("hello", node="n" * 100_000)
    assert len(lines.getvalue()) < 3000


def _fail_deeply(depth: int) -> None:
    if depth:
        _fail_deeply(depth - 1) if depth % 2 else _fail_also_deeply(depth - 1)
    raise ValueError("what went wrong")


def _fail_also_deeply(depth: int) -> None:
    _fail_deeply(depth)


def test_a_long_traceback_still_names_the_exception(lines: io.StringIO) -> None:
    try:
        _fail_deeply(60)
    except ValueError:
        Log("net").exception("unexpected error: this is a bug")
    line = lines.getvalue()
    assert "ValueError: what went wrong" in line and "Traceback (most recent" in line
    assert "[...]" in line and len(line) < 3000


def test_a_log_file_may_be_moved_and_removed(
    lines: io.StringIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "braidfs.log"
    start_logging("info", file=str(file))
    log = Log("net")
    log.info("one")
    file.rename(tmp_path / "braidfs.log.1")
    log.info("two")
    assert "event=two" in file.read_text() and "event=one" not in file.read_text()
    file.unlink()
    log.info("three")
    assert "event=three" in file.read_text()
    (handler,) = logging.getLogger().handlers
    assert isinstance(handler, WatchedFileHandler) and handler.stream is not None
    handler.stream.close()
    handler.stream = open("/dev/full", "w")  # noqa: SIM115 - a disk that is full
    monkeypatch.setattr(handler, "reopenIfNeeded", lambda: None)
    log.info("nobody reads this, and nothing fails")


def test_request_ids(lines: io.StringIO) -> None:
    with request(17):
        Log("net").info("inside")
    Log("net").info("outside")
    inside, outside = lines.getvalue().splitlines()
    assert "request=17" in inside
    assert "request" not in outside


def test_levels(lines: io.StringIO) -> None:
    Log("net").debug("hidden")
    Log("net").at(40, "native")
    logging.getLogger("foreign").info("hidden")
    logging.getLogger("foreign").warning("shown")
    assert [re.findall(r"event=(\w+)", line) for line in lines.getvalue().splitlines()] == [
        ["native"],
        ["shown"],
    ]


def test_tracebacks_stay_on_one_line(lines: io.StringIO) -> None:
    try:
        raise KeyError("x")
    except KeyError:
        Log("net").exception("failed")
    (line,) = lines.getvalue().splitlines()
    assert "KeyError" in line and "traceback=" in line


def test_unknown_level() -> None:
    with pytest.raises(ConfigError, match="'loud' is not one of debug"):
        start_logging("loud")


def test_rate_limit() -> None:
    now = 0.0
    limit = RateLimit(60.0, clock=lambda: now)
    assert limit.permit() == 0
    assert [limit.permit() for _ in range(5)] == [None] * 5
    now = 60.0
    assert limit.permit() == 5
    assert limit.permit() is None
    now = 120.0
    assert limit.permit() == 1


def test_the_table_is_sound() -> None:
    assert len({row.name for row in TABLE}) == len(TABLE)
    for row in TABLE:
        assert row.name.startswith("braidfs_")
        assert row.name.endswith("_total") == (row.kind is Kind.COUNTER)
        assert bool(row.buckets) == (row.kind is Kind.HISTOGRAM)
        assert row.help


def test_every_row_can_be_made() -> None:
    metrics = Metrics("test")
    for row in TABLE:
        labels = dict.fromkeys(row.labels, "x")
        if row.kind is Kind.COUNTER:
            metrics.counter(row.name, **labels).inc()
        elif row.kind is Kind.GAUGE:
            metrics.gauge(row.name, **labels).set(1)
        else:
            metrics.histogram(row.name, **labels).observe(1)


def test_names_outside_the_table_are_bugs() -> None:
    with pytest.raises(KeyError):
        Metrics("test").counter("braidfs_nonsense_total")
    with pytest.raises(KeyError, match="gauge"):
        Metrics("test").counter("braidfs_up", program="test")


def test_native_counters_by_their_own_names() -> None:
    """The counters of a storage server and of a client, with the names that native gives them."""
    counters = {
        "reads": 4,
        "writes": 2,
        "read_bytes": 900,
        "written_bytes": 100,
        "in_flight": 3,
        "rdma_bytes_written": 300,
        "objects": 5,
        "seconds/READ/25": 1,
        "seconds/READ/1000": 2,
        "seconds/READ/more": 1,
        "seconds/READ/sum": 2_500_000,
    }
    metrics = Metrics("test")
    metrics.collect_native(lambda: counters)
    text = generate_latest(metrics.registry).decode()
    for line in (
        'braidfs_data_requests_total{op="READ"} 4.0',
        "braidfs_data_requests_in_flight 3.0",
        'braidfs_data_bytes_total{direction="written"} 100.0',
        'braidfs_transport_bytes_total{transport="rdma"} 300.0',
        'braidfs_transport_bytes_total{transport="tcp"} 700.0',
        'braidfs_native{counter="objects"} 5.0',
        'braidfs_data_request_seconds_bucket{le="2.5e-05",op="READ"} 1.0',
        'braidfs_data_request_seconds_bucket{le="0.001",op="READ"} 3.0',
        'braidfs_data_request_seconds_bucket{le="+Inf",op="READ"} 4.0',
        'braidfs_data_request_seconds_sum{op="READ"} 2.5',
    ):
        assert line in text.splitlines(), f"{line}\n{text}"
    # It is reported before the reply is counted: no counter falls.
    counters["rdma_bytes_written"] = 400
    assert 'transport="tcp"} 700.0' in generate_latest(metrics.registry).decode()
    client = {
        "bytes_read": 7,
        "fuse_answers": 10,
        "upcalls_answered": 4,
        "cache_hits": 3,
        "cache_misses": 1,
    }
    metrics = Metrics("test")
    metrics.collect_native(lambda: client)
    text = generate_latest(metrics.registry).decode()
    assert 'braidfs_kernel_requests_total{by="native"} 6.0' in text
    assert 'braidfs_cache_lookups_total{outcome="hit"} 3.0' in text
    assert "braidfs_transport" not in text


def test_every_native_counter_has_a_row_of_the_table() -> None:
    kinds = {row.name: row for row in TABLE}
    for row in ROWS.values():
        assert set(kinds[row.metric].labels) == set(row.labels)
        assert kinds[row.metric].kind is not Kind.HISTOGRAM


def test_endpoint() -> None:
    metrics = Metrics("test")
    metrics.counter("braidfs_requests_total", op="LOOKUP", status="OK").inc(3)
    metrics.collect_native(lambda: {"retries": 7})
    metrics.up(True)
    endpoint = MetricsEndpoint(metrics, "127.0.0.1", 0)
    try:
        url = f"http://127.0.0.1:{endpoint.port}/metrics"
        text = urllib.request.urlopen(url, timeout=10).read().decode()
        with pytest.raises(ConfigError, match="metrics_listen: cannot listen"):
            MetricsEndpoint(metrics, "127.0.0.1", endpoint.port)
    finally:
        endpoint.stop()
    assert 'braidfs_requests_total{op="LOOKUP",status="OK"} 3.0' in text
    assert 'braidfs_native{counter="retries"} 7.0' in text
    assert 'braidfs_up{program="test"} 1.0' in text
