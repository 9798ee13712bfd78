"""The endpoint of a client's metrics, and an address that a killed process still has."""

import contextlib
import socket
import time
import urllib.request
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from fsclient.metrics import ClientMetrics
from fscommon.errors import ConfigError


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    sock = socket.create_server(("127.0.0.1", 0))
    yield sock
    sock.close()


def scraped(port: int) -> bool:
    """Whether the endpoint answers soon."""
    for _ in range(100):
        time.sleep(0.05)
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer,
        ):
            return b"braidfs_mutations_held" in answer.read()
    return False


def test_an_address_in_use_is_refused(taken: socket.socket) -> None:
    with pytest.raises(ConfigError, match="already in use"):
        ClientMetrics(f"127.0.0.1:{taken.getsockname()[1]}")


async def test_a_mount_that_goes_on_listens_when_it_is_free(taken: socket.socket) -> None:
    port = taken.getsockname()[1]
    metrics = ClientMetrics(f"127.0.0.1:{port}", is_patient=True)
    meta: Any = SimpleNamespace(core=SimpleNamespace(journal=()), connection_count=0)
    data: Any = SimpleNamespace(made_count=0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(metrics.run, meta, data)
        await trio.sleep(0.3)
        taken.close()
        assert await trio.to_thread.run_sync(scraped, port)
        nursery.cancel_scope.cancel()
    await trio.to_thread.run_sync(metrics.close)
    ClientMetrics(f"127.0.0.1:{port}").close()
