"""The life of a server program, as a process: ready, signals, exit codes, messages."""

import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from fscommon.errors import ConfigError
from fscommon.native import NativeMissingError, make_chunk_server, reap
from fscommon.service import Service, Tool, parse_arguments, run_program
from fscommon.supervisor import (
    given_descriptors,
    notify_supervisor,
    supervisor_has_read,
    watchdog_seconds,
)

PROGRAM = """
import sys, trio
from fscommon.errors import ConfigError
from fscommon.service import ServiceSettings, parse_arguments, run_service

async def main(service):
    what = str(arguments.config)
    if what == "refuse":
        raise ConfigError("the key is wrong")
    if what == "bug":
        raise KeyError("x")
    service.ready()
    if what == "reload":
        service.reload = lambda: service.log.info("read again")
    await service.stopping.wait()
    if what == "hang":
        await trio.sleep_forever()
    service.log.info("drained")

arguments = parse_arguments("test", "A test.")
sys.exit(run_service(main, ServiceSettings("test", ready_fd=arguments.ready_fd)))
"""


def start(config: str, **environment: str) -> tuple["subprocess.Popen[str]", int]:
    """The program and the reading end of its ready pipe."""
    read_fd, write_fd = os.pipe()
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "--config", config, "--ready-fd", str(write_fd)],
        pass_fds=(write_fd,),
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        cwd=Path(__file__).parents[3],
    )
    os.close(write_fd)
    return program, read_fd


def wait_ready(fd: int) -> bytes:
    with os.fdopen(fd, "rb") as pipe:
        return pipe.read()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(number: int) -> None:
    program, ready = start("run")
    assert wait_ready(ready) == b"READY\n"
    program.send_signal(number)
    _, errors = program.communicate(timeout=20)
    assert program.returncode == 0
    assert "event=drained" in errors and "event=stopped" in errors


def test_a_second_signal_stops_at_once() -> None:
    program, ready = start("hang")
    wait_ready(ready)
    program.send_signal(signal.SIGTERM)
    assert program.stderr is not None
    while "event=stopping" not in program.stderr.readline():
        pass
    program.send_signal(signal.SIGTERM)
    _, errors = program.communicate(timeout=20)
    assert program.returncode == 0
    assert "second signal" in errors


@pytest.mark.parametrize(
    ("config", "event"), [("reload", "read again"), ("run", "nothing to reload")]
)
def test_sighup_reads_the_configuration_again_and_ends_nothing(config: str, event: str) -> None:
    program, ready = start(config)
    wait_ready(ready)
    program.send_signal(signal.SIGHUP)
    assert program.stderr is not None
    while event not in program.stderr.readline():
        assert program.poll() is None
    program.send_signal(signal.SIGTERM)
    program.communicate(timeout=20)
    assert program.returncode == 0


def test_a_failure_to_start_is_one_sentence() -> None:
    program, ready = start("refuse")
    assert wait_ready(ready) == b""
    _, errors = program.communicate(timeout=20)
    assert program.returncode == 1
    assert errors.splitlines()[-1] == "test: the key is wrong"
    assert "Traceback" not in errors


def test_a_bug_is_logged_and_ends_the_program() -> None:
    program, ready = start("bug")
    wait_ready(ready)
    _, errors = program.communicate(timeout=20)
    assert program.returncode == 1
    assert "this is a bug" in errors and "KeyError" in errors
    assert len(errors.splitlines()) == 1


def test_the_supervisor_is_told(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(path)
        sock.settimeout(20)
        program, ready = start("run", NOTIFY_SOCKET=path)
        wait_ready(ready)
        assert sock.recv(100) == b"READY=1"
        program.terminate()
        assert sock.recv(100) == b"STOPPING=1"
        program.communicate(timeout=20)


def test_the_supervisor_hears_that_the_loop_turns(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(path)
        sock.settimeout(20)
        program, ready = start("run", NOTIFY_SOCKET=path, WATCHDOG_USEC="20000")
        wait_ready(ready)
        heard = [sock.recv(100) for _ in range(6)]
        assert heard.count(b"WATCHDOG=1") >= 4 and b"READY=1" in heard
        program.terminate()
        program.communicate(timeout=20)


def test_a_watchdog_of_another_process_is_not_fed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "4000000")
    assert watchdog_seconds() == 4.0
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert watchdog_seconds() == 0.0
    monkeypatch.setenv("WATCHDOG_PID", "")
    monkeypatch.setenv("WATCHDOG_USEC", "soon")
    assert watchdog_seconds() == 0.0


def test_descriptors_are_those_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child must not take the descriptors of its parent."""
    monkeypatch.setenv("LISTEN_FDS", "2")
    monkeypatch.setenv("LISTEN_FDNAMES", "main:state-0")
    monkeypatch.setenv("LISTEN_PID", "1")
    assert given_descriptors() == []
    assert not {"LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"} & set(os.environ)


def test_a_barrier_is_passed_when_all_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(path)
        heard: list[bytes] = []

        def hear() -> None:
            for _ in range(2):
                octets, fds, _, _ = socket.recv_fds(sock, 100, 4)
                heard.append(octets)
                for fd in fds:
                    os.close(fd)

        listener = threading.Thread(target=hear)
        listener.start()
        notify_supervisor("STATUS=leaving")
        assert supervisor_has_read() and heard == [b"STATUS=leaving", b"BARRIER=1"]
        listener.join(20)


def test_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_arguments("p", "d", ["--config", "c"]).ready_fd == -1
    with pytest.raises(SystemExit):
        parse_arguments("p", "d", [])
    assert "--config" in capsys.readouterr().err


@dataclass(frozen=True, slots=True)
class _Config:
    level: str = "one"
    log_level: str = "info"
    log_file: str = ""
    metrics_listen: str = ""

    def http_certificate(self) -> None:
        return None


def test_a_tool_is_run_instead_of_the_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[bool] = []

    def run(config: _Config, asks_nothing: bool) -> str:
        asked.append(asks_nothing)
        if config.level != "one":
            raise ConfigError("not this one")
        return "done"

    async def serve(config: _Config, service: Service) -> None:
        raise AssertionError("it does not serve")

    tool = Tool("--mend", "Mends.", run)
    file = tmp_path / "config.toml"
    file.write_text("")

    def ended(*words: str) -> int:
        return run_program("p", "d", _Config, serve, ["--config", str(file), *words], tool)

    assert ended("--mend") == ended("--mend", "--yes") == 0
    assert asked == [False, True] and capsys.readouterr().out == "done\ndone\n"
    with pytest.raises(SystemExit):
        ended("--yes")
    assert "--yes is an answer to --mend" in capsys.readouterr().err
    file.write_text('level = "two"')
    assert ended("--mend") == 1
    assert capsys.readouterr().err == "p: not this one\n"
    with pytest.raises(SystemExit):
        parse_arguments("p", "d", ["--config", "c", "--mend"])


def test_without_native_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "_braidfs_native", None)
    with pytest.raises(NativeMissingError, match=r"build it with \./dev build"):
        make_chunk_server(lane_count=1, io="auto")


def test_reap_names_the_fields() -> None:
    class Source:
        def events_fd(self) -> int:
            return -1

        def reap(self, count_max: int) -> list[tuple[int, int, int, int, int, bytes]]:
            return [(7, 1, 2, 30, 4, b"x")]

    (event,) = reap(Source())
    assert (event.kind, event.token, event.ino, event.a, event.b, event.payload) == (
        7,
        1,
        2,
        30,
        4,
        b"x",
    )


@pytest.mark.parametrize("kind", ["closed", "file", "terminal"])
def test_a_ready_fd_that_is_no_pipe_is_refused(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "store").write_bytes(b"precious")
    fd = os.open({"file": tmp_path / "store"}.get(kind, Path("/dev/null")), os.O_RDWR)
    if kind == "closed":
        os.close(fd)
    with pytest.raises(SystemExit) as ended:
        parse_arguments("braidfs-test", "Tests.", ["--config", "x", "--ready-fd", str(fd)])
    assert ended.value.code == 2
    assert f"--ready-fd {fd} is no open pipe" in capsys.readouterr().err
    assert (tmp_path / "store").read_bytes() == b"precious"
    reader, writer = os.pipe()
    words = ["--config", "x", "--ready-fd", str(writer)]
    assert parse_arguments("braidfs-test", "Tests.", words).ready_fd == writer
    os.close(reader)
    os.close(writer)
    if kind != "closed":
        os.close(fd)
