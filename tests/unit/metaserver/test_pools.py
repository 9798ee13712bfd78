"""DELEGATE of a directory with a layout of its own: pools, who gets slots of them, slots that are
returned, new directories, births of these slots over a restart."""

from typing import Any

import pytest

from fscommon.layout.attributes import LEASE_ENTRIES, LEASE_META, LEASE_NAMER
from fscommon.layout.layout import Layout, unpack_layout
from fscommon.layout.template import LAYOUT_XATTR, LayoutDefault
from fscommon.wire.births import Birth, ChangeBatch, Changed, Delegate, Delegated, Slot
from fscommon.wire.features import FEATURE_POOLS, FEATURE_REPLICAS
from fscommon.wire.messages import Create, Empty, RemoveXattr, SessionOpen, SetXattr
from fscommon.wire.ops import Op
from metaserver.sessions import SLOTS_MAX

from .bench import ROOT, USER, Bench, Client
from .test_leases import Cached
from .test_replicas import TWO_IF_ASKED, check_replicated, cluster, set_layout

FEATURES = FEATURE_REPLICAS | FEATURE_POOLS
DEFAULT_ACL = (
    b"\x02\0\0\0" + b"\x01\0\x07\0\xff\xff\xff\xff" + b"\x04\0\x05\0\xff\xff\xff\xff"
    b"\x20\0\x05\0\xff\xff\xff\xff"
)


@pytest.fixture
def bench() -> Bench:
    return cluster(TWO_IF_ASKED)


@pytest.fixture
def client(bench: Bench) -> Client:
    return bench.client(FEATURES)


def folder_of(client: Client, text: bytes, name: bytes = b"d", parent: int = ROOT) -> int:
    folder = client.mkdir(parent, name)
    set_layout(client, folder, text)
    return folder


def delegate(client: Client, *fields: Any) -> Delegated:
    reply: Delegated = client.call(Op.DELEGATE, Delegate(*fields))
    return reply


def layouts(reply: Delegated) -> list[Layout]:
    return [unpack_layout(slot.layout) for slot in reply.slots]


def birth(slot: Slot, name: bytes, parent: int) -> Birth:
    return Birth(slot.ino, parent, name, 0o640, 1000, 1001, 5, slot.layout, writable=True)


def test_slots_are_of_the_directorys_layout(client: Client) -> None:
    folder = folder_of(client, b"replicas=2,chunk_size=128KiB")
    reply = delegate(client, folder, 3, 5)
    assert len(reply.slots) == 5 and reply.pool
    for layout in layouts(reply):
        check_replicated(layout)
        assert layout.chunk_size == 128 << 10
    born = tuple(birth(slot, b"%d" % slot.ino, folder) for slot in reply.slots)
    changed: Changed = client.call(Op.CHANGE_BATCH, ChangeBatch(born))
    assert changed.errors == ()
    assert client.bench.faults() == []


def test_directories_with_the_same_layout_share_a_pool(client: Client) -> None:
    folders = [
        folder_of(client, text, b"%d" % number)
        for number, text in enumerate((b"replicas=2", b"replicas=2", b"chunk_size=64KiB"))
    ]
    one, two, other = (delegate(client, folder, 0, 0).pool for folder in folders)
    assert one == two and one and other not in (0, one)
    assert delegate(client, client.mkdir(ROOT, b"plain"), 2, 2).pool == 0
    assert delegate(client, 0, 2, 2).pool == 0


def test_pools_are_told_apart_by_every_number() -> None:
    defaults = [
        LayoutDefault(chunk, width, replicas)
        for chunk in (1 << 16, 1 << 17)
        for width in (1, 2)
        for replicas in (1, 2)
    ]
    pools = {default.pool() for default in defaults}
    assert len(pools) == len(defaults) and 0 not in pools


def test_a_directory_without_layout_has_slots_of_the_default(client: Client) -> None:
    reply = delegate(client, client.mkdir(ROOT, b"plain"), 3, 5)
    assert (len(reply.slots), reply.pool) == (3, 0)
    assert {layout.replica_count for layout in layouts(reply)} == {1}


def test_other_extended_attributes_take_the_old_way(client: Client) -> None:
    folder = folder_of(client, b"replicas=2")
    client.call(Op.SETXATTR, SetXattr(folder, b"system.posix_acl_default", DEFAULT_ACL, 0))
    assert delegate(client, folder, 0, 5).pool == 0
    client.call(Op.REMOVEXATTR, RemoveXattr(folder, b"system.posix_acl_default"))
    assert delegate(client, folder, 0, 5).pool
    client.call(Op.REMOVEXATTR, RemoveXattr(folder, LAYOUT_XATTR))
    client.call(Op.SETXATTR, SetXattr(folder, b"user.any", b"1", 0))
    assert delegate(client, folder, 0, 5).pool == 0


def test_a_client_that_does_not_know_pools_has_slots_as_ever(bench: Bench, client: Client) -> None:
    folder = folder_of(client, b"replicas=2")
    old = bench.client(FEATURE_REPLICAS)
    reply = delegate(old, folder, 3)
    assert (len(reply.slots), reply.pool) == (3, 0)
    assert {layout.replica_count for layout in layouts(reply)} == {1}


def test_slots_with_replicas_are_for_those_who_know_replicas(bench: Bench, client: Client) -> None:
    folder = folder_of(client, b"replicas=2")
    other = bench.client(FEATURE_POOLS)
    reply = delegate(other, folder, 3, 3)
    assert reply.slots == () and reply.pool


def test_returned_slots_make_room_and_are_void(client: Client) -> None:
    folder = folder_of(client, b"replicas=2")
    first = delegate(client, folder, 0, SLOTS_MAX)
    assert len(first.slots) == SLOTS_MAX
    assert delegate(client, 0, 1).slots == ()
    returned = tuple(slot.ino for slot in first.slots[:10])
    assert len(delegate(client, 0, 100, 0, (*returned, 1 << 40)).slots) == 10
    births = tuple(birth(slot, b"%d" % slot.ino, folder) for slot in first.slots[9:11])
    changed: Changed = client.call(Op.CHANGE_BATCH, ChangeBatch(births))
    assert [bool(error) for error in changed.errors] == [True, False]


@pytest.mark.parametrize(
    ("features", "lease"), [(FEATURES, LEASE_NAMER), (FEATURE_REPLICAS, LEASE_META | LEASE_ENTRIES)]
)
def test_a_new_directory_that_inherits_the_layout_is_its_makers(
    bench: Bench, features: int, lease: int
) -> None:
    me = Cached.of(bench, bench.client(features))
    folder = folder_of(me.client, b"replicas=2")
    delegate(me.client, folder, 4, 4)
    assert me.held(me.client.mkdir(folder, b"sub")) == lease


def test_a_new_directory_with_acls_is_nobodys(bench: Bench) -> None:
    me = Cached.of(bench, bench.client(FEATURES))
    folder = me.client.mkdir(ROOT, b"d")
    me.client.call(Op.SETXATTR, SetXattr(folder, b"system.posix_acl_default", DEFAULT_ACL, 0))
    delegate(me.client, 0, 4)
    assert me.held(me.client.mkdir(folder, b"sub")) == LEASE_META | LEASE_ENTRIES


def test_a_change_of_the_layout_takes_the_directory_back_first(bench: Bench) -> None:
    one = Cached.of(bench, bench.client(FEATURES))
    folder = folder_of(one.client, b"replicas=2")
    reply = delegate(one.client, folder, 0, 4)
    two = bench.client(FEATURES)
    two.send(Op.SETXATTR, SetXattr(folder, LAYOUT_XATTR, b"replicas=1", 0))
    bench.settle()
    assert not two.received()
    (item,) = one.recalled()
    assert item.flags & LEASE_NAMER == LEASE_NAMER & ~LEASE_ENTRIES
    births = ChangeBatch((birth(reply.slots[0], b"before", folder),))
    assert one.client.call(Op.CHANGE_BATCH, births).errors == ()
    one.answer(item)
    bench.settle()
    two.take()
    two.send(Op.CREATE, Create(folder, b"after", 0o644, True, True, USER))
    one.answer(*one.recalled())
    bench.settle()
    assert unpack_layout(two.take().layout).replica_count == 1


def test_slots_of_a_pool_outlive_the_metaserver(client: Client) -> None:
    bench = client.bench
    folder = folder_of(client, b"replicas=2")
    reply = delegate(client, folder, 0, 4)
    bench.settle()
    after = Bench(bench.store, targets=0)
    back = Client(after, after.connect(), client.session, client.request_id)
    back.send(Op.SESSION_OPEN, SessionOpen(client.session, "c", (), 0, (folder,), False, (), 3))
    back.take()
    back.call(Op.REPLAY_DONE, Empty())
    births = ChangeBatch((birth(reply.slots[0], b"before", folder),))
    assert back.call(Op.CHANGE_BATCH, births).errors == ()
    assert delegate(back, folder, 0, 4).pool == reply.pool
    assert after.faults() == []
