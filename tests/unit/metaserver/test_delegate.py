"""DELEGATE and CHANGE_BATCH: slots, births, invalid requests, recalls, replay, restart."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import (
    LEASE_ENTRIES,
    LEASE_META,
    LEASE_NAMER,
    LEASE_WRITER,
    unpack_attributes,
)
from fscommon.layout.layout import unpack_layout
from fscommon.layout.quota import QuotaKind
from fscommon.layout.template import LAYOUT_XATTR
from fscommon.types import Ino, SessionId
from fscommon.wire.admin import Inspect, InspectList, Place, TreeSum
from fscommon.wire.births import Birth, ChangeBatch, Changed, Delegate, Delegated, Slot
from fscommon.wire.codec import encode
from fscommon.wire.messages import (
    SET_MODE,
    Close,
    Empty,
    GetAttr,
    Lookup,
    Replay,
    SessionOpen,
    SetAttr,
    SetXattr,
    Unlink,
)
from fscommon.wire.ops import Op
from fscommon.wire.trash import TrashList
from metaserver.sessions import EMPTY_MAX, EMPTY_S, SLOTS_MAX

from .bench import ROOT, SETTINGS, Bench, Client
from .test_leases import Cached

TIME_NS = 5_000_000_000_000


@pytest.fixture
def bench() -> Bench:
    return Bench()


def slots_of(client: Client, count: int = 4, ino: int = ROOT) -> tuple[Slot, ...]:
    reply: Delegated = client.call(Op.DELEGATE, Delegate(ino, count))
    return reply.slots


def birth(slot: Slot, name: bytes, parent: int = ROOT) -> Birth:
    return Birth(slot.ino, parent, name, 0o640, 1000, 1001, TIME_NS, slot.layout, writable=True)


def test_slots_are_files_to_be(bench: Bench) -> None:
    client = bench.client()
    slots = slots_of(client, 3)
    assert len({slot.ino for slot in slots}) == 3
    for slot in slots:
        assert unpack_layout(slot.layout).file_id == slot.ino
        assert slot.capability
    assert len(slots_of(client, SLOTS_MAX, 0)) == SLOTS_MAX - 3
    assert slots_of(client, 1, 0) == ()


def test_births_are_files(bench: Bench) -> None:
    client = bench.client()
    before = unpack_attributes(client.call(Op.GETATTR, GetAttr(ROOT)).attributes)
    one, two, *_ = slots_of(client)
    reply: Changed = client.call(Op.CHANGE_BATCH, ChangeBatch((birth(one, b"a"), birth(two, b"b"))))
    assert reply.errors == ()
    found = client.lookup(ROOT, b"a")
    assert (found.ino, found.mode, found.uid, found.gid) == (one.ino, 0o100640, 1000, 1001)
    assert {found.atime_ns, found.mtime_ns, found.ctime_ns, found.btime_ns} == {TIME_NS}
    after = unpack_attributes(client.call(Op.GETATTR, GetAttr(ROOT)).attributes)
    assert (after.mtime_ns, after.ctime_ns, after.nlink) == (TIME_NS, TIME_NS, before.nlink)
    assert after.change_version == before.change_version + 2
    assert bench.engine.progress.inodes == 3
    assert bench.faults() == []
    again = client.call(Op.CHANGE_BATCH, ChangeBatch((birth(one, b"c"),)))
    assert again.errors == (Status.BAD_REQUEST,), "a slot is used once"


def test_a_birth_tells_what_was_written_since(bench: Bench) -> None:
    client = bench.client()
    one, two, *_ = slots_of(client)
    written = replace(birth(one, b"a"), changes=3, size=4097, mtime_ns=TIME_NS + 9)
    client.call(Op.CHANGE_BATCH, ChangeBatch((written, birth(two, b"b"))))
    found = client.lookup(ROOT, b"a")
    assert (found.size, found.blocks, found.data_version, found.change_version) == (4097, 9, 4, 4)
    assert found.mtime_ns == found.ctime_ns == TIME_NS + 9
    assert (found.atime_ns, found.btime_ns) == (TIME_NS, TIME_NS)
    assert client.lookup(ROOT, b"b").size == 0
    quotas = bench.engine.services.quotas
    account = quotas.get((QuotaKind.USER, 1000))
    assert (account.bytes, account.inodes) == (4097, 2)
    assert bench.faults() == []


@pytest.mark.parametrize(
    "wrong", [{"size": -1}, {"size": 1 << 63}, {"mtime_ns": 1 << 63}, {"changes": 1 << 32}]
)
def test_numbers_that_do_not_fit_do_nothing(bench: Bench, wrong: dict[str, int]) -> None:
    client = bench.client()
    (slot,) = slots_of(client, 1)
    asked = replace(birth(slot, b"a"), **{"changes": 1, **wrong})  # type: ignore[arg-type]
    with pytest.raises(FsError) as refused:
        client.call(Op.CHANGE_BATCH, ChangeBatch((asked,)))
    assert refused.value.status is Status.BAD_REQUEST
    assert client.call(Op.CHANGE_BATCH, ChangeBatch((birth(slot, b"a"),))).errors == ()


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        ({"ino": 1 << 40}, Status.BAD_REQUEST),
        ({"layout": b""}, Status.BAD_REQUEST),
        ({"layout": b"\1" * 40}, Status.BAD_REQUEST),
        ({"name": b"a/b"}, Status.EINVAL),
        ({"name": b""}, Status.EINVAL),
        ({"name": b"n" * 256}, Status.ENAMETOOLONG),
        ({"name": b"there"}, Status.EEXIST),
        ({"parent": 1 << 40}, Status.ESTALE),
    ],
)
def test_a_wrong_birth_fails_alone(bench: Bench, wrong: dict[str, object], status: Status) -> None:
    client = bench.client()
    client.create(ROOT, b"there")
    one, two, *_ = slots_of(client)
    bad = replace(birth(one, b"bad"), **wrong)  # type: ignore[arg-type]
    reply = client.call(Op.CHANGE_BATCH, ChangeBatch((bad, birth(two, b"good"))))
    assert reply.errors == (status, 0)
    assert client.lookup(ROOT, b"good").ino == two.ino
    assert bench.faults() == []


def test_slots_of_another_session_are_not_ones_own(bench: Bench) -> None:
    one, two = bench.client(), bench.client()
    slot = slots_of(one)[0]
    reply = two.call(Op.CHANGE_BATCH, ChangeBatch((birth(slot, b"x"),)))
    assert reply.errors == (Status.BAD_REQUEST,)


def test_the_names_are_held_exclusively_until_they_are_wanted(bench: Bench) -> None:
    one, two = Cached.of(bench), Cached.of(bench)
    folder = one.client.mkdir(ROOT, b"folder")
    reply: Delegated = one.client.call(Op.DELEGATE, Delegate(folder, 4))
    assert unpack_attributes(reply.attributes).lease_flags == LEASE_NAMER
    slot = reply.slots[0]
    one.client.call(Op.CHANGE_BATCH, ChangeBatch((birth(slot, b"a", folder),)))
    assert one.held(slot.ino) == LEASE_WRITER
    assert one.held(folder) == LEASE_NAMER
    two.client.send(Op.LOOKUP, Lookup(folder, b"a"))
    assert two.client.received() == []
    (item,) = one.recalled()
    assert item.flags & LEASE_NAMER == item.flags
    assert item.flags & ~(LEASE_META | LEASE_ENTRIES) == item.flags, "reading leaves what is shared"
    one.answer(item)
    bench.settle()
    assert unpack_attributes(two.client.take().attributes).ino == slot.ino
    assert one.held(folder) == LEASE_META | LEASE_ENTRIES


def test_a_new_directory_is_held_exclusively_by_who_made_it(bench: Bench) -> None:
    one, two = Cached.of(bench), Cached.of(bench)
    before = one.client.mkdir(ROOT, b"before")
    assert one.held(before) == LEASE_META | LEASE_ENTRIES, "who has no slots makes no files"
    slot = slots_of(one.client, 2, 0)[0]
    folder = one.client.mkdir(ROOT, b"folder")
    assert one.held(folder) == LEASE_NAMER
    one.client.call(Op.CHANGE_BATCH, ChangeBatch((birth(slot, b"a", folder),)))
    two.client.send(Op.LOOKUP, Lookup(folder, b"a"))
    (item,) = one.recalled()
    one.answer(item)
    bench.settle()
    assert unpack_attributes(two.client.take().attributes).ino == slot.ino
    assert one.held(folder) == LEASE_META | LEASE_ENTRIES
    assert bench.faults() == []


def test_a_new_directory_in_which_lanes_would_make_no_files_is_not(bench: Bench) -> None:
    me = Cached.of(bench)
    slots_of(me.client, 2, 0)
    plain = me.client.mkdir(ROOT, b"plain")
    assert me.held(plain) == LEASE_NAMER
    me.client.call(Op.SETATTR, SetAttr(plain, SET_MODE, 0o2755, 0, 0, 0, 0, 0, 0, 0, 0))
    assert me.held(me.client.mkdir(plain, b"group")) == LEASE_META | LEASE_ENTRIES
    me.client.call(Op.SETXATTR, SetXattr(ROOT, LAYOUT_XATTR, b"chunk_size=65536,stripe_width=1", 0))
    assert me.held(me.client.mkdir(ROOT, b"layout")) == LEASE_META | LEASE_ENTRIES


def test_directories_that_stay_empty_are_not_held_without_end(bench: Bench) -> None:
    me = Cached.of(bench)
    slot = slots_of(me.client, 2, 0)[0]
    made = [me.client.mkdir(ROOT, b"%d" % number) for number in range(EMPTY_MAX)]
    assert {me.held(ino) for ino in made} == {LEASE_NAMER}
    assert me.held(me.client.mkdir(ROOT, b"more")) == LEASE_META | LEASE_ENTRIES
    me.client.call(Op.CHANGE_BATCH, ChangeBatch((birth(slot, b"a", made[7]),)))
    assert me.held(me.client.mkdir(ROOT, b"in its place")) == LEASE_NAMER
    assert me.held(me.client.mkdir(ROOT, b"and more")) == LEASE_META | LEASE_ENTRIES
    bench.now_s += EMPTY_S + 1
    assert me.held(me.client.mkdir(ROOT, b"later")) == LEASE_NAMER


@pytest.mark.parametrize(
    ("op", "look"),
    [
        (Op.INSPECT, lambda ino: Inspect(ROOT, (b"folder", b"a"))),
        (Op.INSPECT_LIST, lambda ino: InspectList(ino, 0, 10)),
        (Op.TREE_SUM, lambda ino: TreeSum((Place(ROOT, 0), Place(ino, 0)))),
        (Op.TRASH_LIST, lambda ino: TrashList(ino, b"", 0, 0, 10)),
    ],
)
def test_administrators_see_what_a_client_made_a_moment_ago(
    bench: Bench, op: Op, look: Callable[[int], object]
) -> None:
    one, admin = Cached.of(bench), Client(bench, bench.connect("admin"))
    folder = one.client.mkdir(ROOT, b"folder")
    reply: Delegated = one.client.call(Op.DELEGATE, Delegate(folder, 4))
    admin.send(op, look(folder))
    assert admin.received() == []
    one.client.call(Op.CHANGE_BATCH, ChangeBatch((birth(reply.slots[0], b"a", folder),)))
    (item,) = one.recalled()
    assert item.flags == 0, "it only asks"
    one.answer(item)
    bench.settle()
    admin.take()
    assert one.held(folder) == LEASE_NAMER


def test_a_sum_ends_before_names_that_only_a_client_knows(bench: Bench) -> None:
    one, admin = Cached.of(bench), Client(bench, bench.connect("admin"))
    folders = [one.client.mkdir(ROOT, b"%d" % number) for number in range(3)]
    one.client.call(Op.DELEGATE, Delegate(folders[1], 1))
    stack: tuple[Place, ...] = (Place(ROOT, 0),)
    while stack[-1].ino != folders[1]:
        stack = admin.call(Op.TREE_SUM, TreeSum(stack)).stack
        assert stack
    admin.send(Op.TREE_SUM, TreeSum(stack))
    assert admin.received() == []
    one.answer(*one.recalled())
    bench.settle()
    assert admin.take().stack == ()


def test_a_stat_of_the_directory_only_asks(bench: Bench) -> None:
    one, two = Cached.of(bench), Cached.of(bench)
    folder = one.client.mkdir(ROOT, b"folder")
    one.client.call(Op.DELEGATE, Delegate(folder, 1))
    two.client.send(Op.GETATTR, GetAttr(folder))
    (item,) = one.recalled()
    assert item.flags == 0
    one.answer(item)
    bench.settle()
    assert unpack_attributes(two.client.take().attributes).ino == folder
    assert one.held(folder) == LEASE_NAMER


def test_delegating_recalls_those_who_look(bench: Bench) -> None:
    one, two = Cached.of(bench), Cached.of(bench)
    folder = one.client.mkdir(ROOT, b"folder")
    two.client.send(Op.LOOKUP, Lookup(ROOT, b"folder"))
    for item in one.recalled():
        one.answer(item)
    bench.settle()
    two.client.take()
    two.client.call(Op.GETATTR, GetAttr(folder))
    assert two.held(folder) & LEASE_META
    one.client.send(Op.DELEGATE, Delegate(folder, 1))
    for item in two.recalled():
        two.answer(item)
    bench.settle()
    assert unpack_attributes(one.client.take().attributes).lease_flags == LEASE_NAMER


def test_a_repeat_is_answered_once_more(bench: Bench) -> None:
    client = bench.client()
    slot = slots_of(client)[0]
    request = ChangeBatch((birth(slot, b"a"),))
    sent = client.send(Op.CHANGE_BATCH, request)
    first = client.take_frame()
    client.send(Op.CHANGE_BATCH, request, request_id=sent)
    bench.settle()
    assert client.take_frame().body == first.body
    assert bench.engine.progress.inodes == 2


def test_an_unlinked_birth_that_is_open_stays(bench: Bench) -> None:
    client = bench.client()
    slot = slots_of(client)[0]
    client.call(Op.CHANGE_BATCH, ChangeBatch((birth(slot, b"a"),)))
    client.call(Op.UNLINK, Unlink(ROOT, b"a"))
    assert bench.engine.sessions.is_open(Ino(slot.ino))
    client.tell(Op.CLOSE, Close((slot.ino,)))
    assert slot.ino in bench.engine.sessions.reapable


def test_births_survive_a_restart_by_replay_and_slots_of_before_are_good(bench: Bench) -> None:
    client = bench.client()
    folder = client.mkdir(ROOT, b"folder")
    bench.settle()
    one, two, *_ = slots_of(client, ino=folder)
    request = ChangeBatch((birth(one, b"a", folder),))
    sent = client.send(Op.CHANGE_BATCH, request)
    frame = client.take_frame()  # it is answered, and not committed

    after = Bench(bench.store, targets=0)
    back = Client(after, after.connect(), client.session, client.request_id)
    back.send(Op.SESSION_OPEN, SessionOpen(client.session, "c", (one.ino,), 0, (folder, one.ino)))
    back.take()
    leases = after.engine.services.leases.of(SessionId(client.session))
    held = {lease.ino: lease.flags for lease in leases}
    assert held == {folder: LEASE_NAMER, one.ino: LEASE_WRITER}
    replay = Replay(frame.header.offset, 0, encode(request), frame.body)
    assert back.replay(Op.CHANGE_BATCH, replay, sent).header.status == 0
    back.call(Op.REPLAY_DONE, Empty())
    assert back.lookup(folder, b"a").mtime_ns == TIME_NS
    reply = back.call(Op.CHANGE_BATCH, ChangeBatch((birth(two, b"b", folder),)))
    assert reply.errors == ()
    assert after.faults() == []


def test_births_above_the_bound_of_leases_make_the_oldest_return() -> None:
    bench = Bench(settings=replace(SETTINGS, leases_max=10))
    me = Cached.of(bench)
    folder = me.client.mkdir(ROOT, b"folder")
    slots = slots_of(me.client, 200, folder)
    for number, slot in enumerate(slots):
        me.client.call(Op.CHANGE_BATCH, ChangeBatch((birth(slot, b"%d" % number, folder),)))
        me.client.tell(Op.CLOSE, Close((slot.ino,)))
        for item in me.recalled():
            me.answer(item)
    assert len(bench.engine.services.leases.of(SessionId(me.client.session))) < 20
