"""Takes the guest's rails down and up again, as tests/rdma/vm/guest.sh made them."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

RAILS = ("rail0", "rail1")
PATIENCE_S = 300.0


def _run(*words: str) -> None:
    subprocess.run(words, check=True, timeout=PATIENCE_S)


def _give_addresses(rail: str) -> None:
    number = rail[-1]
    for host in (1, 2):
        _run("ip", "addr", "replace", f"10.77.{number}.{host}/24", "dev", rail)
    # It is removed with the link; a link-local address alone would not be enough for any program.
    _run("ip", "addr", "replace", f"fd77:{number}::1/64", "dev", rail, "nodad")


def set_links(state: str) -> None:
    for rail in RAILS:
        _run("ip", "link", "set", rail, state)
        if state == "up":
            _give_addresses(rail)


@contextmanager
def ports_down() -> Iterator[None]:
    set_links("down")
    try:
        yield
    finally:
        set_links("up")


@contextmanager
def no_addresses() -> Iterator[None]:
    for rail in RAILS:
        _run("ip", "addr", "flush", "dev", rail, "scope", "global")
    try:
        yield
    finally:
        for rail in RAILS:
            _give_addresses(rail)


@contextmanager
def no_devices() -> Iterator[None]:
    for rail in RAILS:
        _run("rdma", "link", "delete", rail.replace("rail", "rxe"))
    try:
        yield
    finally:
        for rail in RAILS:
            _run("rdma", "link", "add", rail.replace("rail", "rxe"), "type", "rxe", "netdev", rail)
