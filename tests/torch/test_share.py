"""Which pieces are shared and who owns them; and owners that end in the middle of their work."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from braidfs.checkpoint import torch_share
from braidfs.checkpoint.pieces import Inputs, cut, read_wants
from braidfs.checkpoint.torch_share import (
    FromNode,
    Offer,
    Own,
    Shared,
    Wanted,
    for_job,
    for_nodes,
    own_offer,
    rooms_of_groups,
)

PIECE = 10
FAR = 1 << 40


def _offer(node: str, room: int = FAR) -> Offer:
    return Offer(node, 1, 1, (0, 0), room)


def _whole(file: str, size: int) -> Wanted:
    return Wanted(file, 0, size, size)


def test_each_node_reads_what_its_ranks_all_want_once() -> None:
    wanted = [[_whole("a", 95), _whole("b", 12)]] * 4
    offers = [_offer("x"), _offer("y"), _offer("x"), _offer("y")]
    found = for_nodes(wanted, offers, PIECE)
    keys = [*(("a", number) for number in range(10)), ("b", 0), ("b", 1)]
    for rank, ranks in ((0, {0, 2}), (1, {1, 3})):
        assert [key for key, _ in found[rank].pieces] == keys
        assert {owner for _, owner in found[rank].pieces} == ranks
        assert found[rank].pieces == found[rank + 2].pieces
        assert len(found[rank].of(rank)) == len(keys) // 2
    assert [one.rank for one in found] == [0, 1, 2, 3]


def test_what_one_rank_wants_is_not_shared() -> None:
    wanted = [[_whole("a", 95), _whole("mine", 50)], [_whole("a", 95)]]
    for found in (for_nodes(wanted, [_offer("x")] * 2, PIECE), for_job(wanted, PIECE)):
        assert {file for one in found for (file, _), _ in one.pieces} == {"a"}


def test_slices_that_differ_are_not_shared() -> None:
    """Two halves of an item are read as they are; an item of which each rank wants most, once."""
    halves = [[Wanted("a", 0, 100, 50)], [Wanted("a", 0, 100, 50)]]
    most = [[Wanted("a", 0, 100, 80)], [Wanted("a", 0, 100, 80)]]
    assert all(one.pieces == () for one in for_job(halves, PIECE))
    assert all(len(one.pieces) == 10 for one in for_job(most, PIECE))


def test_ranks_of_a_node_share_what_there_is_room_for() -> None:
    wanted = [[_whole("a", 200)]] * 2
    found = for_nodes(wanted, [_offer("x", 75), _offer("x")], PIECE)
    assert [key for key, _ in found[0].pieces] == [("a", number) for number in range(7)]
    assert for_nodes(wanted, [_offer("x", 0), _offer("x")], PIECE)[0].pieces == ()
    assert for_nodes(wanted, [None, None], PIECE)[0].pieces == ()


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    found = Random(8).randbytes(95_000)
    (tmp_path / "a").write_bytes(found)
    return found


def _shared(offer: Offer) -> Shared:
    pieces = tuple((("a", number), 0) for number in range(10))
    return Shared(10_000, pieces, (offer,), 1)


def _read(folder: Path, shared: Shared) -> tuple[bytes, set[int]]:
    target = bytearray(95_000)
    inputs = FromNode(folder, shared)
    with inputs:
        inputs.open_owners()
        wants = list(cut("a", 0, memoryview(target), 7_000))
        read_wants(inputs, wants, threads=2, piece=30_000)
        return bytes(target), inputs.lost


def test_pieces_come_from_their_owner(tmp_path: Path, content: bytes) -> None:
    own = Own()
    shared = _shared(own_offer(own))
    with Inputs(tmp_path) as inputs:
        own.fill(inputs, replace(shared, rank=0), threads=2)
    (tmp_path / "a").write_bytes(bytes(95_000))  # so nobody else can have given them
    assert _read(tmp_path, shared) == (content, set())
    own.close()


def test_an_owner_that_gives_up_is_not_waited_for(tmp_path: Path, content: bytes) -> None:
    own = Own()
    shared = _shared(own_offer(own))
    own.give_up()
    assert _read(tmp_path, shared) == (content, {0})
    own.close()
    assert _read(tmp_path, shared) == (content, set())  # it is not even opened


def test_a_descriptor_that_is_another_file_now_is_not_read(tmp_path: Path, content: bytes) -> None:
    own = Own()
    shared = _shared(own_offer(own))
    own.close()
    other = os.open("/dev/zero", os.O_RDONLY)
    assert shared.offers[0] is not None
    shared = replace(shared, offers=(replace(shared.offers[0], fd=other),))
    assert _read(tmp_path, shared)[0] == content
    os.close(other)


OWNER = """
import os, sys
from braidfs.checkpoint.torch_share import Own, own_offer
own = Own()
offer = own_offer(own)
os.ftruncate(own.fd, 4096 + 100_000)
os.pwrite(own.fd, b"\\1", 3)
os.pwrite(own.fd, b"x" * 10_000, 4096 + 30_000)
print(offer.node, offer.pid, offer.fd, *offer.inode, sep="\\n", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def owner() -> "Iterator[tuple[subprocess.Popen[str], Offer]]":
    """A process whose fourth piece is there, and no other; it holds its lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    node, pid, fd, device, inode = (process.stdout.readline().strip() for _ in range(5))
    yield process, Offer(node, int(pid), int(fd), (int(device), int(inode)), FAR)
    process.kill()
    process.communicate(timeout=10)


def test_an_owner_that_is_killed_is_not_waited_for(
    tmp_path: Path, content: bytes, owner: "tuple[subprocess.Popen[str], Offer]"
) -> None:
    """What it had finished is taken (here: bytes that only it can have given), the rest read."""
    process, offer = owner
    inputs = FromNode(tmp_path, _shared(offer))
    with inputs:
        inputs.open_owners()
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        target = bytearray(95_000)
        read_wants(inputs, list(cut("a", 0, memoryview(target), 5_000)), threads=2, piece=20_000)
    assert bytes(target) == content[:30_000] + b"x" * 10_000 + content[40_000:]
    assert inputs.lost == {0}


def test_an_owner_that_is_stopped_is_not_waited_for(
    tmp_path: Path,
    content: bytes,
    owner: "tuple[subprocess.Popen[str], Offer]",
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It lives, and holds its lock."""
    monkeypatch.setattr(torch_share, "STALL_S", 0.2)
    process, offer = owner
    process.send_signal(signal.SIGSTOP)
    found, lost = _read(tmp_path, _shared(offer))
    assert found == content[:30_000] + b"x" * 10_000 + content[40_000:] and lost == {0}


def test_an_owner_that_is_slow_is_waited_for(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of its work takes longer than each piece may."""
    monkeypatch.setattr(torch_share, "STALL_S", 0.5)
    own = Own()
    shared = _shared(own_offer(own))

    class Slow(Inputs):
        def read(self, file: str, views: list[memoryview], offset: int) -> None:
            time.sleep(0.1)
            super().read(file, views, offset)

    with Slow(tmp_path) as inputs, ThreadPoolExecutor(1) as pool:
        filled = pool.submit(own.fill, inputs, replace(shared, rank=0), 1)
        assert _read(tmp_path, shared) == (content, set())
        filled.result(30)
    own.close()


def test_memory_is_what_the_container_has_left(tmp_path: Path) -> None:
    own, groups = tmp_path / "cgroup", tmp_path / "groups"
    job = groups / "slurm" / "job7"
    job.mkdir(parents=True)
    own.write_text("0::/slurm/job7\n")
    assert list(rooms_of_groups(own, groups)) == []
    for folder, limit in ((job, "max"), (groups / "slurm", "5000")):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text("4500\n")
        (folder / "memory.stat").write_text("anon 4000\ninactive_file 300\nactive_file 100\n")
    assert list(rooms_of_groups(own, groups)) == [800]
    (job / "memory.max").write_text("4000\n")
    assert list(rooms_of_groups(own, groups)) == [0, 800]
    own.write_text("0::/../../other\n")
    assert list(rooms_of_groups(own, groups)) == []
    own.unlink()
    assert list(rooms_of_groups(own, groups)) == []
