"""client.toml: mounts do what it says, and so does each next process of a mount."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsclient.cli.restart import client_pid
from tests.cluster import mounts
from tests.cluster.cluster import Cluster, link_mount_helper
from tests.cluster.numbers import metrics
from tests.cluster.ports import free_port
from tests.cluster.process import wait_until
from tests.integration.test_cli import Cli

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]
UP = 'braidfs_up{program="client"} 1.0'


@pytest.fixture
def point(localdir: Path) -> Iterator[Path]:
    link_mount_helper()
    point = localdir / "point"
    point.mkdir()
    yield point
    while mounts.is_mounted(point):
        mounts.unmount(point, lazy=True)


def mounted(
    cluster: Cluster, point: Path, file: Path, more: str = ""
) -> "subprocess.CompletedProcess[str]":
    words = f"key_file={cluster.plan.key_file},config={file}{more}"
    command = mounts.mount_command(cluster.plan.source(), point, words)
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


def write(file: Path, **keys: object) -> None:
    file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items()))


def serves_metrics(port: int) -> bool:
    try:
        return UP in metrics(port)
    except OSError:
        return False


def test_metrics_and_log_are_those_of_the_file(cluster: Cluster, localdir: Path) -> None:
    port, log = free_port(), localdir / "own.log"
    settings = {"metrics_listen": f"127.0.0.1:{port}", "log_file": str(log), "log_level": "warning"}
    with cluster.second_client(localdir / "quiet", settings=settings):
        assert UP in metrics(port)
    assert log.read_text() == ""
    with cluster.second_client(localdir / "usual", settings={**settings, "log_level": "info"}):
        assert UP in metrics(port)
    assert "event=mounted" in log.read_text() and not serves_metrics(port)


def test_files_that_are_refused(cluster: Cluster, point: Path, localdir: Path) -> None:
    """Nothing is mounted; the one line names the file, the key, and what is allowed."""
    file = localdir / "client.toml"
    for text, told in (
        (None, f"cannot read {file}: No such file"),
        ("log_level = 'loud'\n", f"{file}: log_level must be one of debug, info, warning, error"),
        ("log_levle = 'info'\n", f"{file}: unknown key 'log_levle': did you mean 'log_level'?"),
        ("rdma_gid_index = 256\n", f"{file}: rdma_gid_index must be from -1 to 255"),
        ("tls = on\n", f"{file} is not TOML"),
    ):
        if text is not None:
            file.write_text(text)
        ended = mounted(cluster, point, file)
        assert ended.returncode == 32 and told in ended.stderr, ended.stderr
        assert len(ended.stderr.strip().splitlines()) == 1 and not mounts.is_mounted(point)


def test_a_second_mount_needs_another_address(
    cluster: Cluster, point: Path, localdir: Path
) -> None:
    file, listen = localdir / "client.toml", f"127.0.0.1:{cluster.plan.client_metrics_port}"
    write(file, metrics_listen=listen, log_file=str(localdir / "own.log"))
    ended = mounted(cluster, point, file)
    assert ended.returncode == 32 and not mounts.is_mounted(point)
    assert f"metrics_listen: cannot listen at {listen}: Address already in use" in ended.stderr
    assert "by -o config=FILE" in ended.stderr


def test_options_of_former_releases(cluster: Cluster, point: Path, localdir: Path) -> None:
    """They override the file for this mount, and the log says what to write there instead."""
    file, log = localdir / "client.toml", localdir / "given.log"
    port = free_port()
    write(file, log_file=str(localdir / "other.log"), log_level="error")
    words = f",log_file={log},log_level=info,metrics_listen=127.0.0.1:{port},keeper=0,keeper=1"
    assert mounted(cluster, point, file, words).returncode == 0
    assert UP in metrics(port) and not (localdir / "other.log").exists()
    (told,) = [line for line in log.read_text().splitlines() if "write=" in line]
    assert "level=warning" in told and f"file={file}" in told
    written = f'log_file = "{log}"; log_level = "info"; metrics_listen = "127.0.0.1:{port}"'
    assert written.replace('"', '\\"') in told
    assert log.read_text().count("keeper: each mount in the background has a keeper") == 1
    pid = mounts.client_pid(point)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    (point / "survived").touch()  # keeper=0 does nothing: the keeper starts the next process
    assert mounts.client_pid(point) not in (None, pid)


def test_each_next_process_reads_the_file_again(
    cluster: Cluster, point: Path, localdir: Path
) -> None:
    """A restart has what changed. A file that became wrong keeps the mount as it is, and once it is
    right again a killed client goes on."""
    file, cli = localdir / "client.toml", Cli(cluster)
    log, first, second = str(localdir / "own.log"), free_port(), free_port()
    write(file, metrics_listen=f"127.0.0.1:{first}", log_file=log)
    assert mounted(cluster, point, file).returncode == 0
    assert serves_metrics(first)
    write(file, metrics_listen=f"127.0.0.1:{second}", log_file=log)
    cli.run("client", "restart", point)
    assert wait_until(lambda: serves_metrics(second), 20) and not serves_metrics(first)
    file.write_text("wrong")
    ended = cli.run("client", "restart", point, "--timeout", 5, code=1)
    assert "goes on as it is" in ended.stderr
    (point / "file").write_bytes(b"bytes")
    pid = client_pid(str(point))
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    time.sleep(1)  # the keeper has tried to start the client
    write(file, metrics_listen=f"127.0.0.1:{first}", log_file=log)
    (point / "other").touch()  # this waits for the next process
    assert wait_until(lambda: serves_metrics(first), 20)
    (point / "file").unlink()


def test_config_shows_and_checks_it(cluster: Cluster, localdir: Path) -> None:
    """It is known by its name or its keys."""
    cli, file = Cli(cluster), localdir / "client.toml"
    write(file, log_level="debug", rdma_devices=["mlx5_0:1"])
    other = localdir / "train.toml"
    other.write_bytes(file.read_bytes())
    for path in (file, other):
        (seen,) = cli.json("config", "show", path)
        assert seen["program"] == "client" and seen["keys"]["log_level"] == "debug"
        assert seen["keys"]["rdma_devices"] == ["mlx5_0:1"]
        assert "tls" in seen["defaults"] and "log_level" not in seen["defaults"]
    file.write_text("# nothing\n")
    assert cli.json("config", "check", file) == [
        {"path": str(file), "program": "client", "errors": [], "warnings": []}
    ]
    assert f"{file} (client): sound" in cli.text("config", "check", file)
    listen = f"127.0.0.1:{cluster.plan.client_metrics_port}"
    write(file, metrics_listen=listen)
    (seen,) = cli.json("config", "check", file, code=3)
    assert f"{listen} is in use" in seen["warnings"][0]
    write(
        file,
        tls="required",
        tls_ca="/nonexistent/ca.crt",
        metrics_listen="192.0.2.77:9420",
        http_tls=True,
        tls_certificate="/nonexistent/c",
        tls_key="/nonexistent/k",
        log_file="/nonexistent/log",
    )
    (seen,) = cli.json("config", "check", file, code=1)
    for told in (
        "/nonexistent/ca.crt",
        "http_tls: /nonexistent/c cannot be read",
        "http_tls: /nonexistent/k cannot be read",
        "192.0.2.77:9420 is no address of this host",
        "log_file /nonexistent/log: /nonexistent is no directory",
    ):
        assert sum(told in error for error in seen["errors"]) == 1, (told, seen)
    file.write_text('"[/red]" = 1\n')
    assert "unknown key '[/red]'" in cli.text("config", "check", file, code=1)
    assert "No such file" in cli.text("config", "check", localdir / "none.toml", code=1)


def test_config_checks_the_file_of_a_service(cluster: Cluster, localdir: Path) -> None:
    """And what will have to be written into it when options of former releases are gone."""
    cli, point, file = Cli(cluster), localdir / "data", localdir / "client.toml"
    point.mkdir()
    service = localdir / (str(point)[1:].replace("-", "\\x2d").replace("/", "-") + ".conf")
    options = f"key_file={cluster.plan.key_file},config={file}"
    service.write_text(f"SOURCE=meta1:/\nOPTIONS={options}\n")
    (seen,) = cli.json("config", "check", service, code=1)
    assert seen["errors"] == [f"cannot read {file}: No such file or directory"]
    write(file, log_level="info")
    assert cli.json("config", "check", service)[0]["warnings"] == []
    service.write_text(f"SOURCE=meta1:/\nOPTIONS={options},tls_ca=/ca.crt,keeper=1\n")
    (seen,) = cli.json("config", "check", service, code=3)
    keeper, moved = seen["warnings"]
    assert "keeper: each mount in the background has a keeper" in keeper
    assert moved.endswith(f'write it into {file}: tls_ca = "/ca.crt"')
    (shown,) = cli.json("config", "show", service)
    assert shown["keys"]["tls_ca"] == "/ca.crt" and shown["keys"]["config"] == str(file)
