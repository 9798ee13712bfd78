"""A metaserver whose store turns out to be damaged when it is about to serve: it resigns, keeps the
store aside, and waits for a copy."""

import logging
from pathlib import Path

import lmdb
import pytest
import trio

from fscommon.auth.key import load_key
from fscommon.observe.metrics import Metrics
from fscommon.service import Service, ServiceSettings
from metaserver.config import MetaserverConfig
from metaserver.group import Group, Parts
from metaserver.own_store import OwnStore
from metaserver.records import all_of
from metaserver.state_directory import STORE
from metaserver.store.journaled import has_names
from metaserver.store.journals.memory import MemoryJournal, MemoryLog
from metaserver.store.lmdb import LmdbStore

from .bench import Bench

pytestmark = pytest.mark.trio
KEY = "0123456789abcdef" * 4


def damage_a_node(directory: Path) -> None:
    """A record that the metaserver reads when it begins to serve; LMDB itself is sound."""
    environment = lmdb.open(str(directory), max_dbs=0, map_size=1 << 30)
    with environment.begin(write=True) as transaction:
        cursor = transaction.cursor()
        assert cursor.set_range(all_of(b"N")[0])
        assert transaction.put(cursor.key(), b"x" + cursor.value()[1:])
    environment.close()


@pytest.fixture
def config(tmp_path: Path) -> MetaserverConfig:
    (tmp_path / "key").write_text(KEY)
    (tmp_path / "key").chmod(0o600)
    return MetaserverConfig(
        state_directory=tmp_path,
        key_file=tmp_path / "key",
        listen="127.0.0.1:0",
        journal="etcd://127.0.0.1:1/braidfs",
        name="meta1",
        address="127.0.0.1:7400",
    )


async def test_damage_that_is_found_when_it_is_to_serve(
    config: MetaserverConfig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    place = config.state_directory / STORE
    store = LmdbStore(place, size_max=1 << 20)
    Bench(store)
    store.close()
    damage_a_node(place)
    service = Service(ServiceSettings("test"), Metrics("test"))
    key = load_key(config.key_file)
    own = OwnStore(config, service.log, key=key, transport=None)
    own.open()  # as if reading had ended before it came to that record
    log = MemoryLog()
    parts = Parts(config, service, key, None, lambda: MemoryJournal(log), own)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Group(parts, own.store).run)
            while not own.lost:  # noqa: ASYNC110 - it has no event
                await trio.sleep(0.05)
            await trio.sleep(1.0)
            service.stopping.set()
    assert (log.head.index, log.head.owner) == (0, ""), "it has served nobody, and resigned"
    assert log.head.term == 2, "and has claimed nothing since"
    assert not has_names(own.store)
    said = [record.getMessage() for record in caplog.records]
    assert "the store is damaged: a copy is taken from the active metaserver" in said
    assert Path(own.kept).parent == config.state_directory
    own.close()
