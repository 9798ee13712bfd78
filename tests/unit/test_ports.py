"""Ports for servers that are about to start: nobody gets one that another has chosen."""

import socket
import subprocess
import sys

import pytest

from tests.cluster import ports
from tests.cluster.ports import HOST, NoPortError, free_port

FOUR = range(29_990, 29_994)
ONE_MORE = """
from tests.cluster import ports
ports.PORTS = range({0.start}, {0.stop})
try:
    print(ports.free_port())
except ports.NoPortError:
    print("none")
"""


def chosen_elsewhere() -> str:
    words = (sys.executable, "-c", ONE_MORE.format(FOUR))
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def test_each_port_is_chosen_once_by_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "PORTS", FOUR)
    with socket.create_server((HOST, FOUR[0])):
        mine = {free_port(), free_port()}
        left = set(FOUR[1:]) - mine
        assert len(mine) == 2
        assert {int(chosen_elsewhere()) for _ in range(3)} == left  # its end frees it
        assert free_port(mine) in left
        assert chosen_elsewhere() == "none"
        with pytest.raises(NoPortError):
            free_port()
