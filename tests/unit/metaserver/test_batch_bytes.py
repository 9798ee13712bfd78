"""However much is asked at once, a batch fits into one entry of a journal."""

import random
import time

import pytest

from fscommon.wire.messages import SetXattr
from fscommon.wire.ops import Op
from metaserver.context import BYTES_MAX
from metaserver.store.batches import pack_batch
from metaserver.store.journal import PAYLOAD_MAX
from metaserver.store.journaled import JournaledStore
from metaserver.store.journals.memory import MemoryJournal, MemoryLog
from metaserver.store.memory import MemoryStore
from metaserver.store.terms import ActiveLease

from .bench import ROOT, Bench, Client

VALUE = 64 << 10
COUNT = PAYLOAD_MAX // VALUE + 200  # more than one entry holds; they cannot be compressed


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


@pytest.fixture
def bench(log: MemoryLog) -> Bench:
    door = MemoryJournal(log)
    head = door.claim(door.sighting(), "meta1 h1:7400 p")
    below, lease = MemoryStore(), ActiveLease()
    return Bench(JournaledStore(below, door, head, lease=lease, clock=time.monotonic))


def ask_all(bench: Bench) -> list[Client]:
    """Values of many sessions, in one turn of the event loop; nobody waits for room."""
    values = random.Random(1)
    clients = [bench.client() for _ in range(40)]
    files = [client.create(ROOT, b"f%d" % index).ino for index, client in enumerate(clients)]
    bench.settle()
    for number in range(COUNT):
        client, ino = clients[number % 40], files[number % 40]
        name = b"user.%d" % (number // 40)
        client.send(Op.SETXATTR, SetXattr(ino, name, values.randbytes(VALUE), 0))
    return clients


def test_a_batch_is_bounded_by_its_bytes(bench: Bench, log: MemoryLog) -> None:
    clients = ask_all(bench)
    assert bench.engine.overfull, "connections pause"
    for _ in range(20):
        bench.commit()
        bench.engine.resume_after_commit(bench.time())
    assert not bench.engine.dirty and log.head.index > 2
    largest = max(len(entry.payload) for entry in log.entries.values())
    assert BYTES_MAX < largest < PAYLOAD_MAX
    answered = sum(len(client.connection.take()) > 0 for client in clients)
    assert answered == len(clients)


def test_all_of_it_is_answered_and_there(bench: Bench) -> None:
    clients = ask_all(bench)
    for _ in range(20):
        bench.commit()
        bench.engine.resume_after_commit(bench.time())
    snapshot = bench.store.snapshot()
    found = sum(key[:1] == b"X" for key, _ in snapshot.range(b"\0", b"\xff"))
    assert found == COUNT and clients
    assert bench.faults() == []


def test_many_small_changes_do_not_pause_for_their_bytes(bench: Bench) -> None:
    client = bench.client()
    for number in range(500):
        client.create(ROOT, b"f%d" % number)
    assert not bench.engine.overfull
    assert len(pack_batch(bench.engine.freeze())) < BYTES_MAX
