"""The cluster's web page, served by a real metaserver: by HTTP, and in a real browser.

The browser is headless Chromium, only with --full: Debian's package, which is installed if that is
allowed. The tests check the document's text after its scripts have run.
"""

import html
import http.client
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.ports import free_port
from tests.cluster.process import wait_until
from tests.conftest import ClusterMaker

from .test_cli import Cli

pytestmark = [pytest.mark.mount, pytest.mark.timeout(600)]
SCREENSHOT = os.environ.get("BRAIDFS_SCREENSHOT")  # where to write a screenshot, for docs/page.png
# A mount point is part of a client's name.
HOSTILE = "<img src=x onerror=document.title='taken'>"


@pytest.fixture
def served(make_cluster: ClusterMaker) -> tuple[Cluster, int]:
    settings = {"metaserver": {"page_listen": f"127.0.0.1:{free_port()}"}}
    cluster = make_cluster(storage_servers=2, targets=1, settings=settings)
    return cluster, port_of(cluster)


def port_of(cluster: Cluster) -> int:
    return int(str(cluster.plan.settings["metaserver"]["page_listen"]).rpartition(":")[2])


def ask(port: int, path: str, method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path)
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def status(port: int) -> Any:
    code, body = ask(port, "/status.json")
    assert code == 200
    return json.loads(body)


def test_the_page_by_http(cluster: Cluster, workdir: Path) -> None:
    port = port_of(cluster)
    code, body = ask(port, "/")
    assert code == 200 and b"page.js" in body
    assert ask(port, "/config/cluster.key")[0] == 404 and ask(port, "/", "POST")[0] == 501
    before = sum(node["written_bytes"] for node in status(port)["nodes"])
    (workdir / "file").write_bytes(b"x" * 3_000_000)
    seen = status(port)
    assert seen["health"] == "healthy" and len(seen["nodes"]) == 2 and len(seen["targets"]) == 4
    assert any(row["client"].endswith(str(cluster.mount_path)) for row in seen["clients"])
    assert [row["kind"] for row in seen["jobs"]][:2] == ["repair", "scrub"]

    def has_written() -> bool:
        return bool(sum(n["written_bytes"] for n in status(port)["nodes"]) - before >= 3_000_000)

    assert wait_until(has_written, 20)
    history = status(port)["history"]
    assert history["at_s"] and all(
        len(column) == len(history["at_s"])
        for name, column in history.items()
        if name != "sample_s"
    )


@pytest.mark.full
def test_the_hour_has_what_was_moved(served: tuple[Cluster, int]) -> None:
    cluster, port = served

    def has_been_seen() -> bool:
        (cluster.mount_path / "file").write_bytes(b"x" * 3_000_000)
        history = status(port)["history"]
        return bool(max(history["requests"]) > 0 and max(history["written_bytes"]) > 100_000)

    assert wait_until(has_been_seen, 60)


# ---- in a browser ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chromium() -> str:
    if shutil.which("chromium") is None:
        words = ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]
        said = subprocess.run(words, check=False, capture_output=True, text=True, timeout=500)
        if said.returncode:
            reason = (said.stderr.strip() or said.stdout.strip()).splitlines()[-1:]
            pytest.skip(f"Chromium is not installed and cannot be: {reason}")
    found = shutil.which("chromium")
    assert found is not None
    return found


def browse(chromium: str, profile: Path, *words: str) -> str:
    """The browser's output. It resolves no name but that of this host."""
    fixed = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={profile}",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        "--virtual-time-budget=4000",
        "--window-size=1180,1120",
    ]
    command = [chromium, *fixed, *words]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout


def text_of(document: str) -> str:
    body = document.partition("<body")[2].partition(">")[2]
    return html.unescape(re.sub(r"<[^>]*>", "\n", body))


@pytest.fixture
def hostile(served: tuple[Cluster, int], localdir: Path) -> Iterator[Path]:
    """A second client whose name is an attack on the page."""
    place = localdir / HOSTILE
    with served[0].second_client(place) as mounted:
        yield mounted


@pytest.mark.full
def test_the_page_in_a_browser(
    served: tuple[Cluster, int], hostile: Path, chromium: str, localdir: Path
) -> None:
    cluster, port = served
    (hostile / "file").write_bytes(os.urandom(8_000_000))
    url = f"http://127.0.0.1:{port}/"
    document = browse(chromium, localdir / "profile", "--dump-dom", url)
    text = text_of(document)
    for word in (
        "healthy",
        "storageserver-2",
        "Metadata requests a second",
        HOSTILE,
        str(cluster.mount_path),
    ):
        assert word in text, document[-4000:]
    assert "<title>BraidFS</title>" in document and "<img" not in document
    assert document.count("<svg") == 3 and 'id="lost" class="lost" hidden' in document
    if SCREENSHOT:
        browse(chromium, localdir / "profile", f"--screenshot={SCREENSHOT}", url)


@pytest.mark.full
@pytest.mark.expects_warnings  # the second one takes a copy
@pytest.mark.expects_log(r'^{"level":"(info|warn)"')  # etcd's own words
def test_metaservers_of_a_group_are_on_the_page(
    make_cluster: ClusterMaker, chromium: str, localdir: Path
) -> None:
    port = free_port()
    settings = {"metaserver": {"page_listen": f"127.0.0.1:{port}"}}
    cluster = make_cluster(storage_servers=1, targets=1, metaservers=2, settings=settings)
    names = [server.name for server in cluster.plan.metaservers]
    assert wait_until(lambda: len(status(port)["metaservers"]) == 2, 40)
    (cluster.mount_path / "file").write_bytes(b"x")
    text = text_of(
        browse(chromium, localdir / "profile", "--dump-dom", f"http://127.0.0.1:{port}/")
    )
    for word in (*names, "active", "standby", "etcd, term", "appends", "leader", "2.0 GiB"):
        assert word in text, text[-4000:]


@pytest.mark.full
@pytest.mark.expects_warnings
def test_what_is_wrong_is_on_the_page(
    served: tuple[Cluster, int], chromium: str, localdir: Path
) -> None:
    cluster, port = served
    Cli(cluster).run("job", "pause", 1)
    cluster.storageservers[1].kill()
    assert wait_until(lambda: status(port)["health"] == "failing", 40)
    text = text_of(
        browse(chromium, localdir / "profile", "--dump-dom", f"http://127.0.0.1:{port}/")
    )
    assert "storage server storageserver-2" in text and "start braidfs-storageserver" in text
    assert "failing" in text and "Replicas that files lack are made: it is paused" in text
    cluster.storageservers[1].start()
