"""Records of replicas: what fsck finds wrong in them, and what a restore makes of them."""

from pathlib import Path

import pytest

from fscommon.limits import GENERATION_MAX
from fscommon.types import Ino
from fscommon.wire.codec import encode
from metaserver import records
from metaserver.fsck import check
from metaserver.namespace.replicas import names_of
from metaserver.records import ObjectName
from metaserver.restore import Jumps, fill
from metaserver.store.lmdb import LmdbStore

from .bench import Client
from .mirrors import MirrorBench, created
from .test_copies import claim, degraded, planned

NOW_S = 1_790_000_000


@pytest.fixture
def bench() -> MirrorBench:
    return MirrorBench()


@pytest.fixture
def client(bench: MirrorBench) -> Client:
    client = bench.writer()
    bench.engine.attach(bench.connect("recall"), client.session)
    return client


def faults_with(bench: MirrorBench, *keys: bytes, value: bytes = b"") -> list[str]:
    """value: of the keys that do not have a number."""
    bench.settle()
    number = records.pack_number(1)
    bench.store.commit([(key, number if key[:1] in b"UY" else value) for key in keys])
    found = check(bench.store.snapshot())
    bench.store.commit([(key, None) for key in keys])
    assert bench.faults() == []
    return found


def test_what_fsck_finds(bench: MirrorBench, client: Client) -> None:
    ino = created(client)
    name = names_of(bench.layout(ino))[0]
    other = ObjectName(2, ino, 0x300)
    assert "only one of two" in faults_with(bench, records.dropped_key(other))[0]
    assert "only one of two" in faults_with(bench, records.dropped_of_file_key(other))[0]
    both = (records.dropped_key(name), records.dropped_of_file_key(name))
    assert faults_with(bench, *both) == [f"inode {ino} has {name}, which is gone or not made"]
    nobodys = ObjectName(2, 999, 0)
    both = (records.dropped_key(nobodys), records.dropped_of_file_key(nobodys))
    assert faults_with(bench, *both) == [f"{nobodys} was dropped from no file"]
    assert len(faults_with(bench, records.lone_key(name))) == 1
    assert faults_with(bench, records.lone_key(other)) == []
    assert "no replicas" in faults_with(bench, records.unsynced_key(1, 5))[0]
    record = encode(records.PlanRecord(ino, 1, (name.target,), (name.number,)))
    assert len(faults_with(bench, records.plan_key(ino), value=record)) == 1


def test_a_restore_gives_no_name_again(bench: MirrorBench, client: Client, tmp_path: Path) -> None:
    """Plans of the backup are given up; more may have been made since."""
    ino, single = degraded(bench, client), created(client, b"other")
    claim(bench, ino)
    made = planned(bench, ino)
    before = bench.layout(ino)
    dropped = bench.dropped_of(1)
    bench.settle()
    everything = list(bench.store.snapshot().range(b"\0", records.KEYS_END))
    fill(LmdbStore(tmp_path / "store", size_max=1 << 26), [everything], Jumps(NOW_S))
    store = LmdbStore(tmp_path / "store", size_max=1 << 26)
    assert check(store.snapshot()) == []
    after = MirrorBench(store, nodes=0)
    layout = after.layout(ino)
    assert names_of(layout) == names_of(before)
    assert layout.generation_last > 1 << 20 and after.layout(Ino(single)).generation_last
    assert layout.truncate_epoch > made.epoch
    assert after.records(b"C") == []
    assert {records.lone_name(key) for key, _ in after.records(b"L")} == set(made.names)
    after.join(1, 2)
    assert after.dropped_of(1) == dropped


def test_generations_last_for_long() -> None:
    later = Jumps(NOW_S + 20 * 366 * 86400)
    assert 0 < later.generation(0) < GENERATION_MAX
    assert Jumps(0).generation(5) > 5
    assert Jumps(NOW_S).generation(GENERATION_MAX - 1) == GENERATION_MAX - 1
    assert Jumps(NOW_S + 60).generation(0) > Jumps(NOW_S).generation(0)
