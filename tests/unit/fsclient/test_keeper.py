"""The keeper, with a client that is killed and cannot be started again at that time."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fsclient import keeper
from tests.cluster.process import wait_until


def _start(tmp_path: Path, program: Path) -> "subprocess.Popen[bytes]":
    """A keeper whose client said that `program` continues its mount."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    script = (
        "import os, signal, subprocess, sys\n"
        "client = subprocess.Popen(['sleep', '60'])\n"
        "from fsclient import keeper\n"
        "keeper.DELAY_S_MAX = 0.05\n"
        "print(client.pid, flush=True)\n"
        f"keeper.main(['{theirs.fileno()}', str(client.pid), '/mnt'])\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, pass_fds=(theirs.fileno(),)
    )
    theirs.close()
    assert process.stdout is not None
    client = int(process.stdout.readline())
    said = {"version": 2, "words": [str(program)], "state": {"generation": 1}}
    fd = os.open(tmp_path, os.O_RDONLY)
    socket.send_fds(ours, [json.dumps(said).encode()], [fd, fd])
    os.close(fd)
    os.kill(client, signal.SIGKILL)
    return process


def test_a_program_that_comes_later_is_started(tmp_path: Path) -> None:
    """The program is being replaced, for example."""
    program, begun = tmp_path / "client", tmp_path / "begun"
    process = _start(tmp_path, program)
    fresh = tmp_path / "fresh"
    fresh.write_text(f"#!/bin/sh\ntouch {begun}\n")
    fresh.chmod(0o755)
    fresh.rename(program)
    assert wait_until(begun.exists, 10)
    assert process.wait(10) == 0, "the client ended by itself, so does the keeper"


def test_a_program_that_never_comes_is_the_end(tmp_path: Path) -> None:
    process = _start(tmp_path, tmp_path / "none")
    assert process.wait(10 + keeper.STARTS_MAX * 0.1) == 0


@pytest.mark.parametrize("words", [["bin/braidfs", "mount"], ["./braidfs"]])
def test_a_relative_program_is_found_from_elsewhere(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsclient import daemon  # noqa: PLC0415

    monkeypatch.setattr(sys, "argv", list(words))
    monkeypatch.setattr(os, "fork", lambda: 1)
    monkeypatch.setattr(daemon, "_await_child", lambda reading: 0)
    assert daemon.run_in_background(lambda reporter: None, "/mnt") == 0
    assert sys.argv == [os.path.abspath(words[0]), *words[1:]]
