"""Every command of `braidfs` against a running cluster: text and JSON, errors and exit codes.

Most commands run in this process, through the function that the program calls, because starting a
program takes half a second. Only what needs a process (signals, pipes, questions) starts one.
"""

import contextlib
import fcntl
import io
import json
import os
import signal
import subprocess
import tarfile
import threading
import time
import unittest.mock
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fsclient.cli.frame import run_cli
from fsclient.cli.main import cli as program
from tests.cluster import mounts
from tests.cluster.cluster import BIN, Cluster
from tests.cluster.mounts import cached_bytes
from tests.cluster.plan import SHORT_SESSIONS
from tests.cluster.process import wait_until
from tests.conftest import ClusterMaker

pytestmark = [pytest.mark.mount, pytest.mark.timeout(600)]


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    stdout: str
    stderr: str


class _Standard(io.TextIOWrapper):
    """A standard stream that behaves like a pipe."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", errors="surrogateescape")

    def text(self) -> str:
        self.seek(0)
        return self.read()


class Cli:
    """`braidfs` as a user types it; the environment names its cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.environment = {
            **os.environ,
            "BRAIDFS_METASERVER": cluster.plan.metaserver_address,
            "BRAIDFS_KEY_FILE": str(cluster.plan.key_file),
            "BRAIDFS_ADMIN_CONFIG": "/nonexistent",
        }

    def end(self, *words: object) -> Ended:
        out, err = _Standard(), _Standard()
        with (
            unittest.mock.patch.dict(os.environ, self.environment),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            place = self.cluster.plan.client_place
            code = place.call(lambda: run_cli(program, [*map(str, words)]))
        return Ended(code, out.text(), err.text())

    def run(self, *words: object, code: int = 0) -> Ended:
        ended = self.end(*words)
        assert ended.code == code, f"{words}: {ended}"
        return ended

    def process(self, *words: object, code: int = 0) -> "subprocess.CompletedProcess[str]":
        command = [str(BIN / "braidfs"), *map(str, words)]
        result = subprocess.run(
            command, check=False, capture_output=True, text=True, env=self.environment, timeout=120
        )
        assert result.returncode == code, f"{command}: {result}"
        assert "Traceback" not in result.stderr
        return result

    def text(self, *words: object, code: int = 0) -> str:
        return self.run(*words, code=code).stdout

    def json(self, *words: object, code: int = 0) -> Any:
        return json.loads(self.text(*words, "--json", code=code))


@pytest.fixture
def cli(cluster: Cluster) -> Cli:
    return Cli(cluster)


@pytest.fixture
def tree(workdir: Path) -> Path:
    (workdir / "sub").mkdir()
    (workdir / "large").write_bytes(os.urandom(3_000_000))
    (workdir / "sub" / "small").write_bytes(b"x" * 10)
    os.link(workdir / "sub" / "small", workdir / "also small")
    (workdir / "link").symlink_to("large")
    return workdir


def test_status(cli: Cli) -> None:
    seen = cli.json("status")
    assert seen["health"] == "healthy" and seen["problems"] == []
    assert len(seen["nodes"]) == 2 and len(seen["targets"]) == 4
    assert all(row["state"] == "up" for row in seen["targets"])
    assert seen["clients"] and seen["space"]["bytes_total"] > 0
    text = cli.process("status").stdout
    assert "healthy" in text and "storageserver-2" in text


def test_status_says_how_bytes_go(make_cluster: ClusterMaker) -> None:
    """This holds soon after the first bytes were sent, because they cause an extra heartbeat."""
    slow = {"metaserver": {"session_timeout_s": 600, "lease_duration_s": 600}}
    cluster = make_cluster(storage_servers=2, settings=slow)
    cli = Cli(cluster)

    def ways() -> list[str]:
        (client,) = cli.json("status")["clients"]
        return [path["transport"] for path in client["paths"]]

    (cluster.mount_path / "file").write_bytes(os.urandom(4 << 20))
    assert wait_until(lambda: ways() == ["local", "local"], 10), ways()


@pytest.mark.expects_warnings
def test_status_says_what_is_wrong(make_cluster: ClusterMaker) -> None:
    cluster = make_cluster(storage_servers=2)
    cli = Cli(cluster)
    cluster.storageservers[1].kill()
    assert wait_until(lambda: cli.end("status").code == 3, 40)
    seen = cli.json("status", code=3)
    assert seen["health"] == "failing"
    assert "storageserver-2" in seen["problems"][0]["what"]
    text = cli.text("status", code=3)
    assert "is down" in text and "start braidfs-storageserver" in text
    assert "storageserver-2" in cli.text("node", "ping", code=3)
    cluster.storageservers[1].start()
    assert wait_until(lambda: cli.end("status").code == 0, 40)


def test_nodes_and_targets(cli: Cli) -> None:
    nodes = cli.json("node", "list")
    assert [row["name"] for row in nodes] == ["storageserver-1", "storageserver-2"]
    assert "heartbeat" in cli.text("node", "list")
    pings = cli.json("node", "ping", "--count", 3)
    assert len(pings) == 3 and all(row["median_us"] > 0 for row in pings)
    assert len(cli.json("node", "ping", "storageserver-1")) == 1
    assert "nobody" in cli.run("node", "ping", "nobody", code=2).stderr
    assert len(cli.json("target", "list")) == 4
    assert len(cli.json("target", "list", "--node", "storageserver-1", "--state", "up")) == 2
    assert cli.json("target", "list", "--state", "full") == []
    assert "objects" in cli.text("target", "list")
    cli.run("target", "list", "--node", "nobody", code=2)


def test_locks(cli: Cli, tree: Path) -> None:
    path = tree / "locked"
    with path.open("wb") as one, path.open("rb") as two:
        fcntl.flock(one, fcntl.LOCK_EX)
        waiting = threading.Thread(target=fcntl.flock, args=(two, fcntl.LOCK_SH))
        waiting.start()
        mine = ("lock", "list", "--inode", path.stat().st_ino)
        assert wait_until(lambda: len(cli.json(*mine)) == 2, 20)
        held, waits = cli.json(*mine)
        assert (held["kind"], held["type"]) == ("flock", "write")
        assert (held["start"], held["end"]) == (0, None)
        assert (held["pid"], held["state"]) == (os.getpid(), "held")
        assert (waits["type"], waits["state"]) == ("read", "waiting")
        assert cli.json(*mine, "--waiting") == [waits]
        assert str(path.stat().st_ino) in cli.text("lock", "list")
        fcntl.flock(one, fcntl.LOCK_UN)
        waiting.join(20)
        assert not waiting.is_alive()
    assert wait_until(lambda: cli.json(*mine) == [], 20)


def test_clients(cli: Cli, tree: Path) -> None:
    rows = cli.json("client", "list")
    mine = [row for row in rows if row["client"].endswith(str(cli.cluster.mount_path))]
    assert len(mine) == 1 and mine[0]["requests"] > 0
    host = mine[0]["client"].partition(":")[0]
    assert len(cli.json("client", "list", "--host", host)) == len(rows)
    assert cli.json("client", "list", "--host", "nobody") == []
    stats = cli.json("client", "stats", "--sort", "requests")
    assert stats[0]["requests"] == max(row["requests"] for row in stats)
    assert "reported" in cli.text("client", "stats") and "session" in cli.text("client", "list")


def test_leases_of_clients(cli: Cli, tree: Path) -> None:
    assert (tree / "large").read_bytes()  # the file is now leased and in the page cache
    inode = (tree / "large").stat().st_ino
    (mine,) = [
        row
        for row in cli.json("client", "leases")
        if row["client"].endswith(str(cli.cluster.mount_path))
    ]
    assert mine["is_cached"] and mine["inodes"] > 0
    held = {row["inode"]: row for row in cli.json("client", "leases", mine["session"])}
    assert {"meta", "data"} <= set(held[inode]["holds"])
    assert len(cli.json("client", "leases", mine["session"], "--limit", 1)) == 1
    assert str(inode) in cli.text("client", "leases", mine["session"], "--limit", 100_000)
    assert mine["session"] in cli.text("client", "leases")
    assert "session" in cli.run("client", "leases", "ffffffffffffff00", code=1).stderr
    assert "client list" in cli.run("client", "leases", "no number", code=2).stderr


def test_prefetch_fills_the_page_cache(cli: Cli, tree: Path, localdir: Path) -> None:
    with cli.cluster.second_client(localdir / "cold") as cold:
        folder = cold / tree.name
        seen = cli.json("prefetch", folder)
        assert (seen["files"], seen["bytes"], seen["failed"]) == (3, 3_000_020, 0)
        assert cached_bytes(folder / "large") >= 3_000_000
        listed = localdir / "list"
        listed.write_text(f"{folder}/large\n{folder}/gone\n")
        again = cli.run("prefetch", "--manifest", listed, "--jobs", 2, code=1)
        assert "gone: No such file" in again.stderr
        assert "1 files, 2.9 MiB" in again.stdout and "1 could not be read" in again.stdout
    cli.run("prefetch", code=2)


@pytest.mark.expects_warnings
def test_evicted_client_is_fenced_and_comes_back(
    make_cluster: ClusterMaker, localdir: Path
) -> None:
    cli = Cli(make_cluster(settings=SHORT_SESSIONS))
    point = localdir / "mnt"
    point.mkdir()
    cli.process("mount", cli.cluster.plan.source(), point, "-o", cli.cluster.plan.options())
    try:
        (point / "kept").write_bytes(b"stored")
        rows = cli.json("client", "list")
        session = next(row["session"] for row in rows if str(point) in row["client"])
        # The standard input is at its end, so the question gets no answer.
        result = cli.process("client", "evict", session, code=130)
        assert "End 1 mounts" in result.stderr
        assert cli.json("client", "evict", session, "--yes") == {"evicted": [session]}
        assert session not in [row["session"] for row in cli.json("client", "list")]
        assert (point / "kept").read_bytes() == b"stored"
        (point / "kept").unlink()
    finally:
        mounts.unmount(point)
    assert "no session" in cli.run("client", "evict", session, "--yes", code=2).stderr
    cli.run("client", "evict", "--host", "nobody", "--yes", code=2)


def test_stat(cli: Cli, tree: Path) -> None:
    seen = cli.json("stat", tree / "large")
    assert seen["type"] == "file" and seen["size"] == 3_000_000
    assert sum(one["bytes"] for one in seen["objects"]) == 3_000_000
    assert {one["state"] for one in seen["objects"][:3]} == {"present"}
    assert seen["ino"] == (tree / "large").stat().st_ino
    inside = f":/{tree.name}/large"
    assert cli.json("stat", inside)["ino"] == seen["ino"]
    assert cli.json("stat", tree / "link")["link"] == "large"
    assert cli.json("stat", tree)["new_files"]["set_here"] is False
    assert "chunks of" in cli.text("stat", tree / "large")
    unasked = cli.json("stat", inside, "--no-objects")["objects"]
    assert {one["state"] for one in unasked} == {"not asked"}
    assert "none" in cli.run("stat", tree / "none", code=1).stderr
    assert "/etc" in cli.run("stat", "/etc", code=2).stderr


def test_df_and_du(cli: Cli, tree: Path) -> None:
    seen = cli.json("df")
    assert len(seen["nodes"]) == 2 and 0 < seen["bytes_available"] <= seen["bytes_total"]
    assert "available" in cli.text("df")
    (row,) = cli.json("du", tree)
    assert (row["files"], row["directories"], row["others"]) == (2, 2, 1)
    assert row["bytes"] == 3_000_000 + 10 + len("large")
    assert [one["path"] for one in cli.json("du", tree / "large", ":/")] == [
        str(tree / "large"),
        ":/",
    ]
    assert "directories" in cli.text("du", tree)
    cli.run("du", tree / "none", code=1)


def test_find(cli: Cli, tree: Path) -> None:
    def found(*words: object) -> set[str]:
        return set(cli.text("find", tree, *words).splitlines())

    everything = {str(tree), *(str(path) for path in tree.rglob("*"))}
    assert found() == everything and len(everything) == 6
    assert found("--type", "d") == {str(tree), str(tree / "sub")}
    assert found("--size", "+1M") == {str(tree / "large")}
    assert found("--name", "*small") == {str(tree / "also small"), str(tree / "sub" / "small")}
    assert found("--depth", 0) == {str(tree)}
    assert found("--mtime", "+1d") == set() and found("--mtime", "-1d") == everything
    assert found("--uid", 4242) == set()
    raw = cli.text("find", tree, "--type", "l", "-0")
    assert raw == f"{tree / 'link'}\0"
    rows = [json.loads(line) for line in cli.text("find", tree, "--json").splitlines()]
    assert {row["path"] for row in rows} == everything
    targets = next(row["targets"] for row in rows if row["path"] == str(tree / "large"))
    assert str(tree / "large") in found("--target", targets[0])
    cli.run("find", tree / "none", code=1)


def test_layout(cli: Cli, workdir: Path) -> None:
    assert cli.json("layout", "get", workdir)["of"] == "cluster"
    cli.run("layout", "set", workdir, "--chunk-size", "256K", "--stripe-width", 1)
    seen = cli.json("layout", "get", workdir)
    assert (seen["of"], seen["chunk_size"], seen["stripe_width"]) == ("directory", 262144, 1)
    (workdir / "file").touch()
    assert len(cli.json("layout", "get", workdir / "file")["targets"]) == 1
    cli.run("layout", "set", workdir / "file", "--stripe-width", 2)
    assert len(cli.json("layout", "get", workdir / "file")["targets"]) == 2
    (workdir / "file").write_bytes(b"x" * 1000)
    assert (
        "written already"
        in cli.run("layout", "set", workdir / "file", "--stripe-width", 1, code=1).stderr
    )
    assert "(set here or above)" in cli.text("layout", "get", workdir)
    cli.run("layout", "set", workdir, "--default")
    cli.run("layout", "set", workdir, "--default")
    assert cli.json("layout", "get", workdir)["of"] == "cluster"
    cli.run("layout", "set", workdir, "--chunk-size", "3K", code=1)
    inside = f":/{workdir.name}/file"
    cli.run("layout", "set", f":/{workdir.name}", "--stripe-width", 1)
    assert cli.json("layout", "get", f":/{workdir.name}")["stripe_width"] == 1
    assert "does not exist" in cli.run("layout", "set", f"{inside}0", "--default", code=2).stderr
    assert "'..'" in cli.run("layout", "set", ":/a/../b", "--default", code=2).stderr
    cli.run("layout", "set", workdir, "--default")
    cli.run("layout", "set", "/tmp", "--stripe-width", 1, code=1)


def test_config(cli: Cli, localdir: Path) -> None:
    plan = cli.cluster.plan
    files = [plan.config_path(server) for server in plan.servers]
    seen = cli.json("config", "show", *files)
    assert [one["program"] for one in seen] == ["metaserver", "storageserver", "storageserver"]
    assert seen[1]["keys"]["lanes"] == 0 and "lanes" in seen[1]["defaults"]
    assert 'name = "storageserver-1"' in cli.text("config", "show", files[1])
    checked = cli.json("config", "check", *files, code=3)
    assert all(not one["errors"] for one in checked)
    assert "in use" in cli.text("config", "check", files[0], code=3)
    broken = localdir / "storage.toml"
    broken.write_text(files[1].read_text().replace("lisen", "").replace("listen =", "lisen ="))
    assert "did you mean 'listen'" in cli.text("config", "check", broken, code=1)
    broken.write_text("[[[")
    assert cli.json("config", "check", broken, code=1)[0]["errors"]
    foreign = files[0].read_text().replace("127.0.0.1", "192.0.2.77")
    broken.write_text(foreign)
    assert "no address of this host" in cli.text(
        "config", "check", broken, "--program", "metaserver", code=1
    )


def test_config_of_a_mount_that_is_a_service(cli: Cli, tmp_path: Path) -> None:
    """The service's name is its mount point."""
    point = tmp_path / "with-dash"
    escaped = str(point)[1:].replace("-", "\\x2d").replace("/", "-")
    file = tmp_path / f"{escaped}.conf"
    key = cli.cluster.plan.key_file
    file.write_text(f"# of jobs\nSOURCE=meta1,meta2:/train\nOPTIONS='timeout=120,key_file={key}'\n")
    (seen,) = cli.json("config", "show", file)
    assert seen["program"] == "mount" and seen["keys"]["directory"] == str(point)
    assert seen["keys"]["timeout"] == 120 and "lanes" in seen["defaults"]
    assert "is not a directory" in cli.text("config", "check", file, code=1)
    point.mkdir()
    assert "sound" in cli.text("config", "check", file)
    for text, told in (
        ("SOURCE=meta1:/\nOPTION=ro\n", "did you mean 'OPTIONS'"),
        ("OPTIONS=ro\n", "no SOURCE="),
        ("SOURCE=meta1:/\nOPTIONS=timeuot=3\n", "did you mean 'timeout'"),
        ("SOURCE=meta1:/\nOPTIONS=key_file=/none\n", "/none"),
    ):
        file.write_text(text)
        assert told in cli.text("config", "check", file, code=1)


def test_top(cli: Cli, tree: Path) -> None:
    seen = cli.json("top", "--count", 1, "--interval", 0.2)
    assert {row["name"] for row in seen["nodes"]} == {"storageserver-1", "storageserver-2"}
    assert "metadata/s" in cli.text("top", "--count", 1, "--interval", 0.2)


def test_top_ends_on_interrupt(cli: Cli) -> None:
    # A test run in the background ignores SIGINT, and programs that it starts would ignore it too.
    env = ["env", "--default-signal=INT"]
    words = [*env, str(BIN / "braidfs"), "top", "--interval", "0.2", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=cli.environment) as process:
        assert process.stdout is not None and process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(30) == 130


def test_support_bundle_holds_no_key(cli: Cli, localdir: Path) -> None:
    path = localdir / "bundle.tar.gz"
    plan = cli.cluster.plan
    pem = "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMG\n-----END PRIVATE KEY-----\n"
    (localdir / "extra.log").write_text(f"a line with {plan.key_file.read_text()}{pem}the end")
    seen = cli.json("support", "bundle", "-o", path, "--log", plan.state / "log", "--log", localdir)
    assert path.stat().st_mode & 0o777 == 0o600
    key = plan.key_file.read_text().strip().encode()
    with tarfile.open(path) as archive:
        names = {member.name.removeprefix("braidfs-support/") for member in archive}
        assert names == set(seen["parts"])
        assert {"status.json", "host/facts.json", "logs/metaserver.log"} <= names
        for member in archive.getmembers():
            opened = archive.extractfile(member)
            assert opened is not None
            octets = opened.read()
            assert key not in octets and b"MIGHAgEAMBMG" not in octets
            assert not member.name.endswith("extra.log") or octets.endswith(b"the end")
    assert "exists" in cli.run("support", "bundle", "-o", path, code=1).stderr.lower()


def test_pipes_that_close_are_no_error_message(cli: Cli, tree: Path) -> None:
    script = f"{BIN}/braidfs find {tree} | head -1"
    result = subprocess.run(
        ["bash", "-c", script], check=False, capture_output=True, text=True, env=cli.environment
    )
    assert result.stdout.strip() == str(tree) and "Traceback" not in result.stderr


def test_unreachable_metaserver_is_code_4(cli: Cli) -> None:
    result = cli.process("status", "-s", "127.0.0.1:1", code=4)
    assert "is --metaserver right?" in result.stderr
    without_key = cli.run("status", "-k", "/nonexistent/key", code=2)
    assert "/nonexistent/key" in without_key.stderr


def test_second_metaserver_address_is_tried(cli: Cli) -> None:
    both = f"127.0.0.1:1,{cli.environment['BRAIDFS_METASERVER']}"
    assert cli.json("df", "-s", both)["bytes_total"] > 0


@pytest.mark.expects_log("connection refused.*handshake failed")
def test_wrong_key_is_told(cli: Cli, localdir: Path) -> None:
    cli.run("key", "create", localdir / "other.key")
    result = cli.process("status", "-k", localdir / "other.key", code=1)
    assert "key" in result.stderr and len(result.stderr.splitlines()) == 1


@pytest.fixture
def slow_walk(cli: Cli, workdir: Path) -> Iterator[Path]:
    for outer in range(4):
        (workdir / f"{outer}").mkdir()
        for number in range(300):
            (workdir / f"{outer}" / f"{number}").touch()
    yield workdir


def test_walks_of_many_pages(cli: Cli, slow_walk: Path) -> None:
    (row,) = cli.json("du", slow_walk)
    assert (row["files"], row["directories"]) == (1200, 5)
    started = time.monotonic()
    assert len(cli.text("find", slow_walk, "--type", "f").splitlines()) == 1200
    assert time.monotonic() - started < 60
