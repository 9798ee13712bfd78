"""`braidfs fsck`: each kind of fault, and what looks like one and is none."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from fsclient.check.tables import Fault, ObjectId, Tables
from fscommon.errors import BraidError, Status
from fscommon.layout.layout import Layout
from fscommon.wire.fsck import Named
from fscommon.wire.objects import directory_of

from .fsck_world import DAY_S, MIB, TARGETS, Held, World, found, name_row

STRAY: Final = ObjectId(1, 77, 0)
Change = Callable[[World], object]


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tables]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    made = Tables()
    assert list(tmp_path.iterdir())
    yield made
    made.close()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def world() -> World:
    """Files of all kinds, all of them sound."""
    made = World()
    made.add(3, (1,))
    made.add(4, (1, 2), (2, 3), size=3 * MIB)
    made.add(5, (2, 3), durable=1)
    made.add(6, (1,), held=False)  # nothing but a hole
    made.add(7, (1, 2), held=False)
    made.add(9, (1, 2), held=False)
    made.inline.add(9)
    made.add(1 << 40, (3,), (2,), (1,), durable=7, size=1 << 30)
    return made


async def test_a_sound_cluster(world: World, tables: Tables) -> None:
    looks = await world.check(tables)
    assert found(tables) == {} and looks.unread == {}
    counts = tables.counts
    assert (counts.files, counts.objects) == (6, 10) and counts.lacking == (0, 0)
    assert world.begun == 1, "one look is enough if nothing looks wrong"
    assert len(world.listed) == 256 * len(TARGETS)


async def test_replicas_that_files_lack(world: World, tables: Tables) -> None:
    world.add(20, (1, 0), (2, 3), size=MIB)
    world.add(21, (3, 0), (2, 0), size=MIB)
    await world.check(tables)
    assert found(tables) == {} and tables.counts.lacking == (2, 3)


async def test_not_while_the_metaserver_recovers(world: World, tables: Tables) -> None:
    world.is_recovering = True
    with pytest.raises(BraidError, match="recovers"):
        await world.check(tables)


async def test_targets_that_are_not_read(world: World, tables: Tables) -> None:
    world.deaf.add(2)
    world.add(30, (9,), durable=1, held=False)
    world.add(31, (8,), held=False)
    world.inline.add(31)  # so it is not to be looked for on its former target
    del world.objects[ObjectId(2, 5, 0)]
    world.objects[ObjectId(2, 99, 0)] = Held(5)
    looks = await world.check(tables)
    assert found(tables) == {}
    assert looks.unread == {2: "nothing listens there", 9: "the cluster has no such target"}


# ---- orphans ------------------------------------------------------------------------------------


async def test_orphans(world: World, tables: Tables) -> None:
    strays = [STRAY, ObjectId(2, (1 << 64) - 5, 1), ObjectId(3, 4, 0x501), ObjectId(3, 3, 0)]
    for name in strays:
        world.objects[name] = Held(5)
    await world.check(tables)
    assert set(found(tables)[Fault.ORPHAN]) == set(strays)
    (one,) = (one for one in tables.found(Fault.ORPHAN, 0) if one.name.number == 0x501)
    assert (one.stripe, one.generation, one.age_s, one.bytes) == (1, 5, 2 * DAY_S, 8192)
    assert tables.bytes_of(Fault.ORPHAN) == 4 * 8192
    again = world.listed[256 * len(TARGETS) :]
    assert set(again) == {(name.target, directory_of(name.file_id)) for name in strays}


@pytest.mark.parametrize(
    "kind", [Named.LONE, Named.PLANNED, Named.DROPPED, Named.DOOMED, Named.INTENT]
)
async def test_what_a_record_names_is_no_orphan(world: World, tables: Tables, kind: Named) -> None:
    world.objects[STRAY] = Held(5)
    is_layout = kind in (Named.DOOMED, Named.INTENT)
    row = Layout(77, MIB, 1, (1,)).pack() if is_layout else name_row(STRAY)
    world.rows.append((kind, row))
    await world.check(tables)
    assert found(tables) == {}


async def test_an_inline_file_may_have_objects(world: World, tables: Tables) -> None:
    world.objects[ObjectId(1, 9, 0)] = Held(5)
    await world.check(tables)
    assert found(tables) == {}


async def test_young_orphans_are_left_out(world: World, tables: Tables) -> None:
    world.objects[STRAY] = Held(5, age_s=DAY_S - 1)
    await world.check(tables)
    assert found(tables) == {} and tables.counts.young == (1, 8192) and world.begun == 1


def _told(world: World) -> None:
    world.add(77, (1,))


def _removed(world: World) -> None:
    del world.objects[STRAY]


def _written(world: World) -> None:
    world.objects[STRAY].age_s = 3


def _copied(world: World) -> None:
    world.rows.append((Named.PLANNED, name_row(STRAY)))


@pytest.mark.parametrize("meanwhile", [_told, _removed, _written, _copied])
async def test_an_orphan_that_is_none_when_looked_at_again(
    world: World, tables: Tables, meanwhile: Change
) -> None:
    world.objects[STRAY] = Held(5)
    world.objects[ObjectId(1, 78, 0)] = Held(5)
    world.again = lambda: meanwhile(world)
    await world.check(tables)
    assert found(tables) == {Fault.ORPHAN: [ObjectId(1, 78, 0)]}
    counts = tables.counts
    assert counts.changed + counts.young[0] == 1


async def test_files_that_clients_may_have_made(world: World, tables: Tables) -> None:
    world.objects[STRAY] = Held(5, age_s=5 * DAY_S)
    world.slots = {76, 77}
    await world.check(tables, older_s=0)
    assert found(tables) == {} and tables.counts.being_made == 1


async def test_slots_from_before_a_restart_are_not_known(world: World, tables: Tables) -> None:
    for file_id, age_s in ((77, 100), (78, 2 * DAY_S), (1 << 41, 100), ((1 << 64) - 1, 100)):
        world.objects[ObjectId(1, file_id, 0)] = Held(5, age_s=age_s)
    world.former_end = 1 << 30
    await world.check(tables, older_s=0)
    assert {name.file_id for name in found(tables)[Fault.ORPHAN]} == {78, 1 << 41, (1 << 64) - 1}
    assert tables.counts.young[0] == 1


async def test_only_orphans(world: World, tables: Tables) -> None:
    world.objects[STRAY] = Held(5)
    del world.objects[ObjectId(2, 5, 0)]
    await world.check(tables, only_orphans=True)
    assert found(tables) == {Fault.ORPHAN: [STRAY]}


# ---- missing ------------------------------------------------------------------------------------

DURABLE: Final = ObjectId(2, 5, 0)
LONELY: Final = ObjectId(2, 1 << 40, 1)
ANY: Final = ObjectId(2, 4, 0)  # it was never synced


async def test_what_was_durable_must_be_there(world: World, tables: Tables) -> None:
    for name in (DURABLE, LONELY):
        del world.objects[name]
    world.rows.append((Named.WRITTEN, 5))
    await world.check(tables)
    assert found(tables) == {Fault.MISSING: [DURABLE, LONELY]}
    first, second = tables.found(Fault.MISSING, 0)
    assert first.has_other and not second.has_other
    assert tables.path_of(first.ino) == (b"f5",)


async def test_what_another_replica_has_must_be_there(world: World, tables: Tables) -> None:
    del world.objects[ANY]
    await world.check(tables)
    assert found(tables) == {Fault.MISSING: [ANY]}


async def test_a_server_that_knows_nothing_of_the_file_on_its_disk(
    world: World, tables: Tables
) -> None:
    world.objects[DURABLE] = Held(0, status=Status.NO_OBJECT)
    await world.check(tables)
    assert found(tables) == {Fault.MISSING: [DURABLE]}


def _is_being_written(world: World) -> None:
    world.rows.append((Named.WRITTEN, 4))


def _is_being_cut(world: World) -> None:
    for ino in (4, 5):
        layout = Layout(ino, MIB, 1, (2,)).pack()
        world.rows.append((Named.INTENT, layout))


def _has_changed(world: World) -> None:
    world.change(4, mtime_ns=5)
    _drop(world, 5)


def _drop(world: World, *inos: int) -> None:
    for ino in inos:
        world.relayout(ino, Layout(ino, MIB, 1, (0, 3), 2, durable_stripes=1))


def _has_come_back(world: World) -> None:
    for name in (ANY, DURABLE):
        world.objects[name] = Held(3 * MIB)


def _is_gone(world: World) -> None:
    for ino in (4, 5):
        del world.files[ino]


def _deaf(world: World) -> None:
    world.deaf.add(2)


@pytest.mark.parametrize(
    "meanwhile", [_is_being_cut, _has_changed, _has_come_back, _is_gone, _deaf]
)
async def test_what_is_missing_only_once(world: World, tables: Tables, meanwhile: Change) -> None:
    for name in (ANY, DURABLE):
        del world.objects[name]
    world.again = lambda: meanwhile(world)
    await world.check(tables)
    assert found(tables) == {}


@pytest.mark.parametrize("meanwhile", [_is_being_written, _is_being_cut])
async def test_what_may_be_missing(world: World, tables: Tables, meanwhile: Change) -> None:
    del world.objects[ANY]
    meanwhile(world)
    await world.check(tables)
    assert found(tables) == {} and world.begun == 1


async def test_a_writer_that_came_meanwhile(world: World, tables: Tables) -> None:
    del world.objects[ANY]
    world.again = lambda: _is_being_written(world)
    await world.check(tables)
    assert found(tables) == {}


# ---- too short ----------------------------------------------------------------------------------


async def test_shorter_than_another_replica(world: World, tables: Tables) -> None:
    world.objects[ANY].length = 2 * MIB - 1
    world.objects[ObjectId(3, 4, 1)].length = MIB - 1  # of 1 MiB that the stripe has
    world.objects[ObjectId(2, 4, 1)].length = 9 * MIB  # what is behind the end does not matter
    await world.check(tables)
    assert found(tables) == {Fault.SHORT: [ANY, ObjectId(3, 4, 1)]}
    one, _ = tables.found(Fault.SHORT, 0)
    assert (one.has, one.wanted, one.has_other) == (2 * MIB - 1, 2 * MIB, True)


async def test_replicas_that_are_alike(world: World, tables: Tables) -> None:
    """They end in a hole, or what differs is behind the file's end."""
    for name in (ANY, ObjectId(1, 4, 0)):
        world.objects[name].length = 5
    world.objects[DURABLE].length = 50_000
    await world.check(tables)
    assert found(tables) == {} and world.begun == 1


async def test_replicas_of_a_file_that_is_written(world: World, tables: Tables) -> None:
    world.objects[ANY].length = 5
    _is_being_written(world)
    await world.check(tables)
    assert found(tables) == {} and tables.counts.being_written == 1


@pytest.mark.parametrize("ino", [4, 1 << 40])
async def test_a_file_that_was_cut_on_the_disk(world: World, tables: Tables, ino: int) -> None:
    """Also of one replica, and while it is written."""
    name = ObjectId(2, ino, int(ino > 4))
    world.objects[name] = Held(2 * MIB, end=5000, is_cut=True)
    world.rows.append((Named.WRITTEN, ino))
    await world.check(tables)
    assert found(tables) == {Fault.SHORT: [name]}
    (one,) = tables.found(Fault.SHORT, 0)
    assert one.has == 8192 and one.has_other == (ino == 4)


async def test_records_that_cannot_be_read(world: World, tables: Tables) -> None:
    world.objects[ANY] = Held(0, status=Status.CORRUPT)
    await world.check(tables)
    (one,) = tables.found(Fault.SHORT, 0)
    assert (one.name, one.has, one.has_other) == (ANY, 0, True)


async def test_a_hole_at_the_end(world: World, tables: Tables) -> None:
    """The object's file ends early, and nothing of it is gone."""
    for name in (ObjectId(1, 3, 0), ObjectId(3, 1 << 40, 0)):
        world.objects[name] = Held(1 << 30, end=0)
    await world.check(tables)
    assert found(tables) == {} and world.begun == 1


async def test_an_answer_that_is_none(world: World, tables: Tables) -> None:
    world.objects[ANY] = Held(0, status=Status.BUSY)
    await world.check(tables)
    assert found(tables) == {}


# ---- doubly named -------------------------------------------------------------------------------


async def test_two_layouts(world: World, tables: Tables) -> None:
    world.change(7, layout=world.files[5].layout)
    await world.check(tables)
    assert found(tables) == {Fault.DOUBLE: [DURABLE, ObjectId(3, 5, 0)]}
    assert sorted(tables.namers(DURABLE)) == [(Named.FILE, 5), (Named.FILE, 7)]


@pytest.mark.parametrize("kind", [Named.LONE, Named.PLANNED, Named.DROPPED])
async def test_a_layout_and_a_record(world: World, tables: Tables, kind: Named) -> None:
    world.rows.append((kind, name_row(DURABLE)))
    await world.check(tables)
    assert found(tables) == {Fault.DOUBLE: [DURABLE]}
    assert (kind, 0) in tables.namers(DURABLE)


async def test_a_file_whose_objects_are_being_deleted(world: World, tables: Tables) -> None:
    world.rows.append((Named.DOOMED, world.files[3].layout))
    await world.check(tables)
    assert found(tables) == {Fault.DOUBLE: [ObjectId(1, 3, 0)]}


async def test_records_that_go_together(world: World, tables: Tables) -> None:
    world.rows.append((Named.INTENT, world.files[5].layout))
    dropped = ObjectId(1, 5, 0)
    world.rows += [(kind, name_row(dropped)) for kind in (Named.DROPPED, Named.LONE)]
    await world.check(tables)
    assert found(tables) == {}


async def test_doubly_named_only_once(world: World, tables: Tables) -> None:
    world.rows.append((Named.LONE, name_row(DURABLE)))
    world.again = world.rows.clear
    await world.check(tables)
    assert found(tables) == {}


# ---- mending ------------------------------------------------------------------------------------


async def test_orphans_are_deleted(world: World, tables: Tables) -> None:
    kept, deaf = ObjectId(2, 78, 0), ObjectId(3, 79, 0)
    before = dict(world.objects)
    for name in (STRAY, kept, deaf, *(ObjectId(1, 1000 + n, 0) for n in range(600))):
        world.objects[name] = Held(5)
    world.stubborn.add(kept)
    await world.repair(tables, before=lambda: world.deaf.add(3))
    assert world.objects == {**before, kept: Held(5), deaf: Held(5)}
    why = {one.name: one.why for one in tables.found(Fault.ORPHAN, 0) if not one.is_done}
    assert why == {kept: "the target did not delete it", deaf: "nothing listens there"}
    assert tables.count(Fault.ORPHAN, is_done=True) == 601


async def test_lost_replicas_are_dropped(world: World, tables: Tables) -> None:
    del world.objects[DURABLE], world.objects[LONELY]
    world.objects[ANY].length = 5
    del world.objects[ObjectId(3, 4, 1)]
    await world.repair(tables)
    requests = {request.ino: request for request in world.dropped}
    assert set(requests) == {4, 5}
    assert sorted(zip(requests[4].targets, requests[4].objects, strict=True)) == [(2, 0), (3, 1)]
    assert (requests[5].targets, requests[5].objects) == ((2,), (0,))
    left = [one for fault in Fault for one in tables.found(fault, 0) if not one.is_done]
    assert [(one.name, one.why) for one in left] == [
        (LONELY, "no other replica has what it should have")
    ]


async def test_a_file_that_changed_lately_is_left_alone(world: World, tables: Tables) -> None:
    world.add(10, (1, 2), durable=1, age_s=DAY_S - 5)
    del world.objects[ObjectId(1, 10, 0)]
    await world.repair(tables)
    (one,) = tables.found(Fault.MISSING, 0)
    assert not one.is_done and one.why == "its file has changed lately"
    assert world.dropped == []


async def test_both_replicas_are_missing(world: World, tables: Tables) -> None:
    del world.objects[DURABLE], world.objects[ObjectId(3, 5, 0)]
    await world.repair(tables)
    assert world.dropped == [] and tables.count(Fault.MISSING) == 2


async def test_the_other_replica_must_be_whole(world: World, tables: Tables) -> None:
    """What is too short has bytes that the other one may have lost. What is missing has none."""
    world.objects[ANY].length = 5
    world.objects[ObjectId(1, 4, 0)].is_damaged = True
    del world.objects[DURABLE]
    world.objects[ObjectId(3, 5, 0)].is_damaged = True
    await world.repair(tables)
    assert [request.ino for request in world.dropped] == [5]
    (one,) = tables.found(Fault.SHORT, 0)
    assert one.why == "no other replica can be read from its beginning to its end"


async def test_the_metaserver_has_the_last_word(world: World, tables: Tables) -> None:
    del world.objects[DURABLE]
    world.keeps = True
    await world.repair(tables)
    (one,) = tables.found(Fault.MISSING, 0)
    assert not one.is_done and one.why == "the file has changed, or no other replica is up"


async def test_what_is_doubly_named_is_left_alone(world: World, tables: Tables) -> None:
    world.rows.append((Named.LONE, name_row(DURABLE)))
    before = dict(world.objects)
    await world.repair(tables)
    assert world.dropped == [] and world.objects == before
    assert tables.count(Fault.DOUBLE) == 1
