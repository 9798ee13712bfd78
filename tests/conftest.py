"""Fixtures of every test that needs a mounted BraidFS, and the switch between quick and full form.

`workdir` is a new folder on the mount of one cluster that the whole session shares; with
BRAIDFS_TEST_DIR=DIR it is a folder there instead, so that a test of POSIX can be tried on ext4.
`localdir` is one on the local disk, or in BRAIDFS_TEST_LOCAL_DIR. `make_cluster` gives a test a
cluster of its own, which it may break. A signal cannot interrupt a request that hangs in the
kernel, so a watchdog kills the clients of a test that exceeds its own timeout: the test's system
call then ends with ENOTCONN, and the test fails instead of hanging.
"""

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Unpack

import pytest

from tests.cluster import mounts
from tests.cluster.certificates import Certificates, make_certificates
from tests.cluster.cluster import Cluster
from tests.cluster.logs import Expected, LogReader, complaint
from tests.cluster.mounts import end_keeper
from tests.cluster.plan import PlanWishes, Settings, make_plan
from tests.cluster.ports import free_port
from tests.cluster.process import stop_pid

ROOT = Path(__file__).resolve().parents[1]
STATES = ROOT / ".build" / "test-states"
LOCAL_DIRECTORY = os.environ.get("BRAIDFS_TEST_DIR")
LOCAL_DISK = Path(os.environ.get("BRAIDFS_TEST_LOCAL_DIR", STATES))
LOW_PERCENT = 15  # of the disk: with less free, pytest's first lines say so
HANG_GRACE_SECONDS = 20.0  # pytest-timeout acts first, if a signal can reach the test

_clusters: list[Cluster] = []
_shared: list[Cluster] = []  # it has at most one entry
_logs: dict[Path, LogReader] = {}
_FAILED: pytest.StashKey[frozenset[str]] = pytest.StashKey()


def pytest_configure() -> None:
    """Restores SIGINT: a shell that starts tests in the background makes all their processes ignore
    it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str | None:
    """A cluster is degraded when less than a tenth of its room is free, and its room is here."""
    disk = shutil.disk_usage(ROOT)
    if disk.free * 100 >= disk.total * LOW_PERCENT:
        return None
    free = f"only {disk.free * 100 // disk.total} % of {disk.total >> 30} GiB are free"
    return f"{ROOT}: {free}; tests of clusters in good health fail below 10 %"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="the long form of every test")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    unable = _why_no_mount()
    for item in items:
        if "full" in item.keywords and not config.getoption("--full"):
            item.add_marker(pytest.mark.skip(reason="only in ./dev test --full"))
        if unable and "mount" in item.keywords:
            item.add_marker(pytest.mark.skip(reason=unable))


def _why_no_mount() -> str | None:
    if LOCAL_DIRECTORY:
        return None
    if os.geteuid() != 0:
        return "needs root: mounts a file system"
    if not Path("/dev/fuse").exists():
        return "needs /dev/fuse"
    return None


@pytest.fixture(scope="session")
def full(pytestconfig: pytest.Config) -> bool:
    """True for ./dev test --full."""
    return bool(pytestconfig.getoption("--full"))


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates for servers on 127.0.0.1; tests that change them take a copy."""
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="session")
def sized(full: bool) -> Callable[[int, int], int]:
    """sized(quick, full): the size of this run."""
    return lambda quick, long: long if full else quick


def _new_state() -> Path:
    STATES.mkdir(parents=True, exist_ok=True)
    state = Path(tempfile.mkdtemp(prefix="cluster-", dir=STATES))
    state.chmod(0o755)  # tests become other users on its mount
    return state


def _kill_clients() -> None:
    for cluster in _clusters:
        pid = cluster.client_pid()
        if pid is not None:
            print(f"watchdog: killing the client of {cluster.mount_path} (pid {pid})")
            end_keeper(pid)
            stop_pid(pid)


def hang_seconds(timeout: pytest.Mark | None, default: float) -> float:
    """When the watchdog acts: after the test's own timeout, never before."""
    if timeout is None:
        return default + HANG_GRACE_SECONDS
    limit = timeout.args[0] if timeout.args else timeout.kwargs["timeout"]
    return float(limit) + HANG_GRACE_SECONDS


@pytest.fixture(autouse=True)
def watchdog(request: pytest.FixtureRequest) -> Iterator[None]:
    if "mount" not in request.keywords:
        yield
        return
    default = float(request.config.getoption("timeout") or request.config.getini("timeout"))
    seconds = hang_seconds(request.node.get_closest_marker("timeout"), default)
    timer = threading.Timer(seconds, _kill_clients)
    timer.daemon = True
    timer.start()
    yield
    timer.cancel()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.session.stash[_FAILED] = item.session.stash.get(_FAILED, frozenset()) | {item.nodeid}
        item.stash[_FAILED] = frozenset({item.nodeid})
    return report


def _check_logs(item: pytest.Item, cluster: Cluster) -> None:
    """Fails the test when a program of the cluster logged what the test did not declare."""
    folder = cluster.plan.state / "log"
    reader = _logs.setdefault(folder, LogReader(folder))
    marks = [str(word) for mark in item.iter_markers("expects_log") for word in mark.args]
    warnings = item.get_closest_marker("expects_warnings") is not None
    lines = reader.unexpected(Expected(tuple(marks), warnings))
    if lines and item.stash.get(_FAILED, None) is None:
        item.session.stash[_FAILED] = item.session.stash.get(_FAILED, frozenset()) | {item.nodeid}
        item.stash[_FAILED] = frozenset({item.nodeid})
        pytest.fail(complaint(lines), pytrace=False)


@pytest.fixture(autouse=True)
def shared_cluster_logs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Checks the shared cluster's logs after every test of a mount, however it got the cluster:
    some tests get it through fixtures of a whole module or folder."""
    yield
    if "mount" in request.keywords:
        for cluster in _shared:
            _check_logs(request.node, cluster)


def _stop_and_remove(cluster: Cluster, failed: bool) -> None:
    """Its state is kept for inspection when a test failed, or when BRAIDFS_TEST_KEEP is set."""
    _clusters.remove(cluster)
    cluster.stop()
    if failed or "BRAIDFS_TEST_KEEP" in os.environ:
        print(f"the cluster's state and logs: {cluster.plan.state}")
    elif not mounts.is_mounted(cluster.mount_path):
        shutil.rmtree(cluster.plan.state)


@pytest.fixture(scope="session")
def shared_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """One cluster for all tests that leave it intact: two storage servers, two targets each."""
    if LOCAL_DIRECTORY:
        pytest.skip("BRAIDFS_TEST_DIR is set: no cluster")
    page: Settings = {"metaserver": {"page_listen": f"127.0.0.1:{free_port()}"}}
    cluster = Cluster(make_plan(_new_state(), storage_servers=2, targets=2, settings=page))
    _clusters.append(cluster)
    try:
        cluster.start()
        _shared.append(cluster)
        yield cluster
    finally:
        _shared.clear()
        _stop_and_remove(cluster, failed=_FAILED in request.session.stash)


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """The shared cluster, repaired when an earlier test broke it."""
    expected = len(shared_cluster.programs) + 1
    if len(shared_cluster.running()) != expected:
        if shared_cluster.client_pid() is None:
            shared_cluster.unmount(lazy=True)
        shared_cluster.start()
    return shared_cluster


@pytest.fixture
def workdir(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A new, empty folder on the file system under test; emptied afterwards."""
    if LOCAL_DIRECTORY:
        base = Path(LOCAL_DIRECTORY)
    else:
        base = request.getfixturevalue("cluster").mount_path
    folder = Path(tempfile.mkdtemp(prefix="test-", dir=base))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def localdir() -> Iterator[Path]:
    """A new, empty folder on the local disk: the oracle, or a source of bytes."""
    LOCAL_DISK.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="local-", dir=LOCAL_DISK))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


ClusterMaker = Callable[..., Cluster]


@pytest.fixture
def make_cluster(request: pytest.FixtureRequest) -> Iterator[ClusterMaker]:
    """make_cluster(**plan): a started cluster of this test's own. Logs are kept if the test
    fails."""
    if LOCAL_DIRECTORY:
        pytest.skip("BRAIDFS_TEST_DIR is set: no cluster")
    mine: list[Cluster] = []

    def make(**wishes: Unpack[PlanWishes]) -> Cluster:
        cluster = Cluster(make_plan(_new_state(), **wishes))
        mine.append(cluster)
        _clusters.append(cluster)
        cluster.start()
        return cluster

    yield make
    try:
        for cluster in mine:
            _check_logs(request.node, cluster)
    finally:
        for cluster in mine:
            _stop_and_remove(cluster, failed=_FAILED in request.node.stash)
