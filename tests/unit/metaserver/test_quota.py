"""Quotas: every op charges what it changes, limits refuse, and no restart changes an account.

`faults()` is fsck, which counts everything again and compares: each test ends with it.
"""

from typing import Any

import pytest

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import (
    LEASE_DATA,
    LEASE_ENTRIES,
    LEASE_META,
    LEASE_NAMER,
    unpack_attributes,
)
from fscommon.layout.quota import NO_LIMITS, Limits, QuotaKind
from fscommon.types import SessionId
from fscommon.wire.admin import Place
from fscommon.wire.births import Birth, ChangeBatch, Delegate, Delegated, Slot
from fscommon.wire.leases import LeaseReturn, ReturnItem
from fscommon.wire.messages import (
    COMMIT_SIZE,
    SET_SIZE,
    SET_UID,
    Caller,
    Close,
    Commit,
    Create,
    Link,
    MkDir,
    Open,
    Rename,
    RmDir,
    SetAttr,
    StatFs,
    StatFsReply,
    Symlink,
    TmpFile,
    Unlink,
)
from fscommon.wire.ops import Op
from fscommon.wire.quota import QuotaAssign, QuotaList, QuotaRow, QuotaSet, QuotaTell, QuotaTold
from metaserver.namespace.charges import OWNERS_MAX

from .bench import ROOT, USER, Bench, Client
from .test_leases import Cached

OTHER = Caller(uid=2000, gid=2000, umask=0o022)
UID, GID = (QuotaKind.USER, 1000), (QuotaKind.GROUP, 1000)
MIB = 1 << 20


class World:
    def __init__(self) -> None:
        self.bench = Bench()
        self.client = self.bench.client()
        self.admin = Client(self.bench, self.bench.connect("admin"), SessionId(0))

    def call(self, op: Op, request: Any) -> Any:
        return self.client.call(op, request)

    def refused(self, op: Op, request: Any) -> Status:
        with pytest.raises(FsError) as caught:
            self.call(op, request)
        return caught.value.status

    def ask(self, op: Op, request: Any) -> Any:
        self.admin.send(op, request)
        self.bench.settle()
        return self.admin.take()

    def mkdir(self, name: bytes, parent: int = ROOT, caller: Caller = USER) -> int:
        made = self.call(Op.MKDIR, MkDir(parent, name, 0o777, caller))
        return unpack_attributes(made.attributes).ino

    def create(self, name: bytes, parent: int = ROOT, caller: Caller = USER) -> int:
        made = self.call(Op.CREATE, Create(parent, name, 0o644, True, True, caller))
        return unpack_attributes(made.attributes).ino

    def file(self, name: bytes, size: int, parent: int = ROOT, caller: Caller = USER) -> int:
        """A file that is no longer open."""
        ino = self.create(name, parent, caller)
        self.commit(ino, size)
        self.call(Op.CLOSE, Close((ino,)))
        return ino

    def commit(self, ino: int, size: int) -> Any:
        return self.call(Op.COMMIT, Commit(ino, ino, COMMIT_SIZE, size, 0, 0, False))

    def resize(self, ino: int, size: int) -> SetAttr:
        return SetAttr(ino, SET_SIZE, 0, 0, 0, size, 0, 0, 0, 0, 0)

    def limit(self, account: tuple[int, int], **limits: int) -> None:
        self.ask(Op.QUOTA_SET, QuotaSet(*account, Limits(**limits)))

    def tree(self, top: int, **limits: int) -> tuple[int, int]:
        self.assign(top, top)
        account = (QuotaKind.TREE, top)
        self.limit(account, **limits)
        return account

    def assign(self, top: int, tree: int) -> int:
        stack: tuple[Place, ...] = (Place(top, 0),)
        steps = 0
        while stack:
            stack = self.ask(Op.QUOTA_ASSIGN, QuotaAssign(top, tree, stack)).stack
            steps += 1
        return steps

    def row(self, account: tuple[int, int]) -> QuotaRow | None:
        kind, number = account
        rows = self.ask(Op.QUOTA_LIST, QuotaList(kind, number - 1, False, 1)).rows
        return rows[0] if rows and (rows[0].kind, rows[0].number) == account else None

    def used(self, account: tuple[int, int]) -> tuple[int, int]:
        row = self.row(account)
        return (row.used_bytes, row.used_inodes) if row else (0, 0)


@pytest.fixture
def world() -> World:
    return World()


def test_every_op_charges_what_it_changes(world: World) -> None:
    top = world.mkdir(b"d")
    ino = world.file(b"f", 5000, top)
    world.call(Op.SYMLINK, Symlink(top, b"s", b"f", USER))
    assert world.used(UID) == world.used(GID) == (5000, 3)
    world.call(Op.SETATTR, world.resize(ino, 9000))
    assert world.used(UID) == (9000, 3)
    world.client.send(Op.SETATTR, world.resize(ino, 100))
    world.bench.finish_truncates()
    world.client.take()
    assert world.used(UID) == (100, 3)
    world.call(Op.SETATTR, SetAttr(ino, SET_UID, 0, 2000, 0, 0, 0, 0, 0, 0, 0))
    assert world.used(UID) == (0, 2)
    assert world.used((QuotaKind.USER, 2000)) == (100, 1)
    assert world.used(GID) == (100, 3)
    world.call(Op.LINK, Link(ino, ROOT, b"second"))
    world.call(Op.UNLINK, Unlink(ROOT, b"second"))
    assert world.used(GID) == (100, 3)
    world.call(Op.UNLINK, Unlink(top, b"f"))
    world.call(Op.UNLINK, Unlink(top, b"s"))
    world.call(Op.RMDIR, RmDir(ROOT, b"d"))
    assert world.row(UID) is world.row(GID) is None, "an empty account without limits goes"
    assert world.bench.faults() == []


def test_an_op_that_failed_charges_nothing(world: World) -> None:
    world.mkdir(b"d")
    assert world.refused(Op.MKDIR, MkDir(ROOT, b"d", 0o777, USER)) is Status.EEXIST
    assert world.used(UID) == (0, 1)
    assert world.bench.faults() == []


def test_an_open_file_counts_until_it_is_closed(world: World) -> None:
    ino = world.create(b"f")
    world.commit(ino, 777)
    world.call(Op.UNLINK, Unlink(ROOT, b"f"))
    assert world.used(UID) == (777, 1)
    assert world.bench.faults() == []


def test_inodes_beyond_the_hard_limit_are_refused(world: World) -> None:
    world.limit(UID, inodes_hard=2)
    world.mkdir(b"a")
    world.create(b"b")
    assert world.refused(Op.CREATE, Create(ROOT, b"c", 0o644, True, True, USER)) is Status.EDQUOT
    assert world.refused(Op.MKDIR, MkDir(ROOT, b"c", 0o777, USER)) is Status.EDQUOT
    world.create(b"of another", caller=OTHER)
    world.call(Op.RMDIR, RmDir(ROOT, b"a"))
    world.create(b"c")
    assert world.bench.faults() == []


def test_a_truncate_beyond_the_limit_is_refused(world: World) -> None:
    world.limit(GID, bytes_hard=10_000)
    ino = world.file(b"f", 4000)
    world.file(b"g", 4000)
    assert world.refused(Op.SETATTR, world.resize(ino, 6001)) is Status.EDQUOT
    world.call(Op.SETATTR, world.resize(ino, 6000))
    assert world.used(GID) == (10_000, 2)


def test_a_writer_is_told_how_far_the_file_may_grow(world: World) -> None:
    ino = world.file(b"f", 4000)
    assert world.call(Op.OPEN, Open(ino, True)).size_limit == -1
    world.limit(UID, bytes_hard=10_000)
    assert world.call(Op.OPEN, Open(ino, True)).size_limit == 10_000
    assert world.commit(ino, 6000).size_limit == 10_000
    world.file(b"g", 3500)
    assert world.commit(ino, 6000).size_limit == 6500
    assert world.commit(ino, 9000).size_limit == 6500, "what was written is taken all the same"
    assert world.commit(ino, 9000).size_limit == 9000
    assert world.used(UID) == (12_500, 2)
    reply = world.call(Op.CREATE, Create(ROOT, b"new", 0o644, True, True, USER))
    assert reply.size_limit == 0
    assert world.call(Op.OPEN, Open(ino, False)).size_limit == -1, "readers need none"


def test_a_soft_limit_refuses_after_its_grace_time(world: World) -> None:
    world.limit(UID, inodes_soft=1, bytes_soft=1000, grace_s=60)
    world.mkdir(b"a")
    row = world.row(UID)
    assert row is not None and row.inodes_left_s == -1
    world.mkdir(b"b")
    row = world.row(UID)
    assert row is not None and 59 < row.inodes_left_s <= 60
    world.bench.now_ns += 59 * 10**9
    world.mkdir(b"c")
    world.bench.now_ns += 2 * 10**9
    assert world.refused(Op.MKDIR, MkDir(ROOT, b"d", 0o777, USER)) is Status.EDQUOT
    for name in (b"a", b"b"):
        world.call(Op.RMDIR, RmDir(ROOT, name))
    world.mkdir(b"d")  # its time starts again
    assert world.bench.faults() == []


def test_a_tree_counts_what_is_there_and_what_comes(world: World) -> None:
    top = world.mkdir(b"t")
    below = world.mkdir(b"below", top)
    world.file(b"f", 300, below)
    for number in range(600):
        world.call(Op.SYMLINK, Symlink(below, b"s%d" % number, b"x", USER))
    tree = world.tree(top, inodes_hard=605)
    assert world.used(tree) == (300, 603)
    world.file(b"g", 200, below, OTHER)
    assert world.used(tree) == (500, 604)
    row = world.row(tree)
    assert row is not None and row.names == (b"t",)
    world.mkdir(b"last", top)
    assert world.refused(Op.MKDIR, MkDir(below, b"more", 0o777, OTHER)) is Status.EDQUOT
    world.mkdir(b"outside")
    assert world.bench.faults() == []


def test_a_walk_is_in_steps_and_may_be_repeated(world: World) -> None:
    top = world.mkdir(b"t")
    for number in range(10):
        below = world.mkdir(b"%d" % number, top)
        for name in range(60):
            world.call(Op.SYMLINK, Symlink(below, b"s%d" % name, b"x", USER))
    assert world.assign(top, top) > 2
    tree = (QuotaKind.TREE, top)
    assert world.used(tree) == (0, 611)
    world.assign(top, top)
    assert world.used(tree) == (0, 611)
    world.assign(top, 0)
    assert world.row(tree) is None
    assert world.bench.faults() == []


def test_a_tree_within_a_tree_counts_for_itself(world: World) -> None:
    outer = world.mkdir(b"outer")
    inner = world.mkdir(b"inner", outer)
    world.file(b"f", 100, inner)
    within = world.tree(inner)
    around = world.tree(outer)
    assert (world.used(around), world.used(within)) == ((0, 1), (100, 2))
    world.assign(inner, 0)
    assert (world.used(around), world.used(within)) == ((100, 3), (0, 0))
    assert world.bench.faults() == []


def test_files_move_between_trees_and_directories_do_not(world: World) -> None:
    top = world.mkdir(b"t")
    tree = world.tree(top, bytes_hard=1000)
    world.mkdir(b"d")
    world.file(b"f", 600)
    world.file(b"large", 1001)
    assert world.refused(Op.RENAME, Rename(ROOT, b"d", top, b"d", 0)) is Status.EXDEV
    world.call(Op.RENAME, Rename(ROOT, b"f", top, b"f", 0))
    assert world.used(tree) == (600, 2)
    assert world.refused(Op.RENAME, Rename(ROOT, b"large", top, b"l", 0)) is Status.EDQUOT
    world.call(Op.RENAME, Rename(top, b"f", ROOT, b"back", 0))
    assert world.used(tree) == (0, 1)
    world.call(Op.RENAME, Rename(ROOT, b"t", ROOT, b"renamed", 0))
    aside = world.mkdir(b"aside")
    world.call(Op.RENAME, Rename(ROOT, b"renamed", aside, b"t", 0))  # the whole tree moves
    world.file(b"g", 10, top)
    assert world.used(tree) == (10, 2)
    assert world.bench.faults() == []


def test_names_of_a_file_are_in_one_tree(world: World) -> None:
    top = world.mkdir(b"t")
    world.tree(top)
    ino = world.file(b"f", 10)
    assert world.refused(Op.LINK, Link(ino, top, b"l")) is Status.EXDEV
    world.call(Op.LINK, Link(ino, ROOT, b"l"))
    assert world.refused(Op.RENAME, Rename(ROOT, b"f", top, b"f", 0)) is Status.EXDEV
    assert world.bench.faults() == []


def test_the_limits_of_a_tree_go_with_it(world: World) -> None:
    top = world.mkdir(b"t")
    tree = world.tree(top, bytes_hard=1)
    world.call(Op.RMDIR, RmDir(ROOT, b"t"))
    assert world.row(tree) is None
    assert world.bench.faults() == []


def test_a_restart_finds_every_account(world: World) -> None:
    top = world.mkdir(b"t")
    world.tree(top, bytes_hard=5000, bytes_soft=100)
    world.file(b"f", 300, top)
    world.bench.settle()
    before = [world.row(account) for account in (UID, GID, (QuotaKind.TREE, top))]
    world.bench = Bench(world.bench.store, targets=0)
    assert world.bench.engine.progress.recovering
    world.admin = Client(world.bench, world.bench.connect("admin"), SessionId(0))
    after = [world.row(account) for account in (UID, GID, (QuotaKind.TREE, top))]
    assert [(r.used_bytes, r.used_inodes, r.limits) for r in before if r] == [
        (r.used_bytes, r.used_inodes, r.limits) for r in after if r
    ]
    assert after[2] is not None and after[2].bytes_left_s >= 0
    with pytest.raises(FsError, match="NOT_READY"):
        world.limit(UID, bytes_hard=1)


def test_what_was_not_committed_is_not_counted(world: World) -> None:
    world.mkdir(b"kept")
    world.bench.settle()
    world.client.send(Op.MKDIR, MkDir(ROOT, b"lost", 0o777, USER))
    after = Bench(world.bench.store, targets=0)
    assert after.faults() == []
    assert after.engine.services.quotas.get(UID).inodes == 1


def test_a_store_without_accounts_is_counted_once(world: World) -> None:
    world.file(b"f", 300)
    world.bench.settle()
    from metaserver.records import QUOTA_KEY, all_of  # noqa: PLC0415

    snapshot = world.bench.store.snapshot()
    keys = [key for key, _ in snapshot.range(*all_of(b"Q"))]
    world.bench.store.commit([(key, None) for key in [QUOTA_KEY, *keys]])
    after = Bench(world.bench.store, targets=0)
    assert after.engine.services.quotas.get(UID).bytes == 300
    assert after.faults() == []


@pytest.mark.parametrize(
    ("account", "limits"),
    [
        ((9, 1), NO_LIMITS),
        ((QuotaKind.USER, 0), Limits(bytes_hard=1)),
        ((QuotaKind.TREE, ROOT), NO_LIMITS),
        ((QuotaKind.TREE, 12345), Limits(bytes_hard=1)),
        (UID, Limits(bytes_hard=-1)),
        (UID, Limits(bytes_hard=1 << 63)),
        (UID, Limits(bytes_soft=2, bytes_hard=1)),
        (UID, Limits(grace_s=-1)),
    ],
)
def test_limits_that_mean_nothing_are_refused(
    world: World, account: tuple[int, int], limits: Limits
) -> None:
    with pytest.raises(FsError, match=r"EINVAL|BAD_REQUEST"):
        world.ask(Op.QUOTA_SET, QuotaSet(*account, limits))


def test_only_administrators_ask(world: World) -> None:
    assert world.refused(Op.QUOTA_LIST, QuotaList(0, 0, False, 10)) is Status.EPERM


def test_the_listing_comes_in_pages(world: World) -> None:
    for uid in range(100, 120):
        world.create(b"f%d" % uid, caller=Caller(uid=uid, gid=7, umask=0))
    world.limit((QuotaKind.USER, 105), bytes_hard=1)
    first = world.ask(Op.QUOTA_LIST, QuotaList(0, 0, False, 12))
    last = first.rows[-1]
    rest = world.ask(Op.QUOTA_LIST, QuotaList(last.kind, last.number, False, 100))
    numbers = [(row.kind, row.number) for row in (*first.rows, *rest.rows)]
    users = [(QuotaKind.USER, uid) for uid in (0, *range(100, 120))]
    assert numbers == [*users, (QuotaKind.GROUP, 0), (QuotaKind.GROUP, 7)]
    assert (first.end, rest.end) == (False, True)
    limited = world.ask(Op.QUOTA_LIST, QuotaList(0, 0, True, 100)).rows
    assert [(row.kind, row.number) for row in limited] == [(QuotaKind.USER, 105)]


# ---- writers -----------------------------------------------------------------------------------


def test_a_writer_gets_a_share_of_what_there_is_and_asks_again(world: World) -> None:
    world.limit(UID, bytes_hard=80 * MIB)
    ino = world.create(b"f")
    assert world.call(Op.OPEN, Open(ino, True)).size_limit == 10 * MIB
    assert world.call(Op.OPEN, Open(ino, True, 30 * MIB)).size_limit == 30 * MIB
    assert world.call(Op.OPEN, Open(ino, True, 1 << 62)).size_limit == 80 * MIB
    assert world.commit(ino, 72 * MIB).size_limit == 10 * MIB, "as if nothing was written yet"
    assert world.commit(ino, 72 * MIB).size_limit == 73 * MIB
    assert world.commit(ino, 80 * MIB).size_limit == 73 * MIB
    assert world.commit(ino, 80 * MIB).size_limit == 80 * MIB


def test_a_file_that_counts_for_another_asks_before_it_grows(world: World) -> None:
    world.limit((QuotaKind.USER, 2000), bytes_hard=MIB)
    ino = world.create(b"f")
    assert world.call(Op.OPEN, Open(ino, True)).size_limit == -1
    owner = SetAttr(ino, SET_UID, 0, 2000, 0, 0, 0, 0, 0, 0, 0)
    assert world.call(Op.SETATTR, owner).size_limit == 0
    assert world.call(Op.OPEN, Open(ino, True)).size_limit == MIB


def test_sizes_beyond_what_64_bits_hold_are_counted(world: World) -> None:
    inos = [world.create(b"%d" % number) for number in range(3)]
    for ino in inos:
        world.call(Op.SETATTR, world.resize(ino, (1 << 63) - 1))
    row = world.row(UID)
    assert row is not None
    assert row.used_bytes == (1 << 64) - 1, "what the wire carries"
    after = Bench(world.bench.store, targets=0)
    assert after.engine.services.quotas.get(UID).bytes == 3 * ((1 << 63) - 1)
    world.limit((QuotaKind.GROUP, 1000), bytes_hard=(1 << 63) - 1)
    assert world.call(Op.OPEN, Open(inos[0], True)).size_limit == (1 << 63) - 1
    assert world.bench.faults() == []


def test_a_file_without_a_name_goes_into_the_tree_of_its_first(world: World) -> None:
    top = world.mkdir(b"t")
    tree = world.tree(top, bytes_hard=1000)
    for size, status in ((1000, None), (1, Status.EDQUOT)):
        made = world.call(Op.TMPFILE, TmpFile(ROOT, 0o600, True, USER))
        ino = unpack_attributes(made.attributes).ino
        world.commit(ino, size)
        if status is None:
            world.call(Op.LINK, Link(ino, top, b"%d" % size))
        else:
            assert world.refused(Op.LINK, Link(ino, top, b"%d" % size)) is status
    assert world.used(tree) == (1000, 2)
    assert world.bench.faults() == []


# ---- files that clients create by themselves ---------------------------------------------------


def birth(slot: Slot, parent: int, name: bytes) -> Birth:
    return Birth(slot.ino, parent, name, 0o600, 1000, 1000, 1, slot.layout, True)


def test_births_are_counted_and_never_refused(world: World) -> None:
    top = world.mkdir(b"t")
    reply = world.call(Op.DELEGATE, Delegate(top, 2))
    one, two = reply.slots
    tree = world.tree(top, inodes_hard=2)
    world.limit(UID, inodes_hard=1)
    births = (birth(one, top, b"a"), birth(two, top, b"b"))
    assert world.call(Op.CHANGE_BATCH, ChangeBatch(births)).errors == ()
    assert world.used(tree) == (0, 3)
    assert world.used(UID) == (0, 3)
    assert world.bench.faults() == []


def test_clients_make_no_files_where_one_could_be_refused(world: World) -> None:
    free, top = world.mkdir(b"free"), world.mkdir(b"t")
    world.tree(top, inodes_hard=100)
    world.limit(UID, bytes_hard=1 << 40)
    world.limit((QuotaKind.GROUP, 7), inodes_soft=5)
    reply = world.call(Op.DELEGATE, Delegate(top, 1))
    assert (reply.attributes, reply.files) == (b"", 0), "nearly full"
    reply = world.call(Op.DELEGATE, Delegate(free, 1))
    assert unpack_attributes(reply.attributes).ino == free
    assert (reply.uids, reply.gids) == ((1000,), (7,))
    for uid in range(1, OWNERS_MAX + 1):
        world.bench.engine.services.quotas.set_limits((QuotaKind.USER, uid), Limits(1), 0)
    reply = world.call(Op.DELEGATE, Delegate(free, 1))
    assert reply.attributes == b"", "too many to tell"


def test_room_in_a_tree_is_what_its_limit_leaves(world: World) -> None:
    top = world.mkdir(b"t")
    world.file(b"f", 5 * MIB, top)
    whole: StatFsReply = world.call(Op.STATFS, StatFs())
    assert world.call(Op.STATFS, StatFs(top)) == whole
    world.tree(top, bytes_hard=100 * MIB, inodes_hard=50)
    inside: StatFsReply = world.call(Op.STATFS, StatFs(top))
    assert (inside.bytes_total, inside.bytes_free) == (100 * MIB, 95 * MIB)
    assert inside.bytes_available == 95 * MIB
    assert (inside.inodes_total, inside.inodes_free) == (50, 48)
    assert world.call(Op.STATFS, StatFs(ROOT)) == world.call(Op.STATFS, StatFs()) == whole
    assert world.call(Op.STATFS, StatFs(1 << 60)) == whole, "an inode that is gone"
    world.limit((QuotaKind.TREE, top), bytes_soft=3 * MIB)
    inside = world.call(Op.STATFS, StatFs(top))
    assert (inside.bytes_total, inside.bytes_free) == (3 * MIB, 0)
    assert inside.inodes_total == whole.inodes_total


def test_clients_make_their_share_of_a_limit(world: World) -> None:
    """An eighth of what is left beside the shares of others.

    A share ends for the part that is reported as used, and for a directory that no client holds any
    more.
    """
    me, other = Cached.of(world.bench), Cached.of(world.bench)
    top = world.mkdir(b"t")
    sub = world.mkdir(b"sub", top)
    world.tree(top, inodes_hard=802, bytes_hard=800 * MIB)
    first: Delegated = me.client.call(Op.DELEGATE, Delegate(top, 128))
    assert unpack_attributes(first.attributes).ino == top
    assert (first.files, first.size_limit) == (100, MIB)
    second: Delegated = other.client.call(Op.DELEGATE, Delegate(sub, 1))
    assert (second.files, second.size_limit) == (700 // 8, 700 * MIB // 8 // (700 // 8))
    births = tuple(birth(slot, top, b"%d" % slot.ino) for slot in first.slots[:60])
    assert me.client.call(Op.CHANGE_BATCH, ChangeBatch(births)).errors == ()
    more: Delegated = me.client.call(Op.DELEGATE, Delegate(top, 0))
    out = 40 + second.files
    assert more.files == (740 - out) // 8
    me.client.tell(Op.LEASE_RETURN, LeaseReturn((ReturnItem(top, LEASE_ENTRIES, 0),)))
    again: Delegated = me.client.call(Op.DELEGATE, Delegate(top, 0))
    assert again.files == (740 - second.files) // 8


def test_what_is_told_never_exceeds_a_limit_alone(world: World) -> None:
    """However often shares are requested, in whatever directories."""
    me = Cached.of(world.bench)
    top = me.client.mkdir(ROOT, b"t")
    folders = [top, *(me.client.mkdir(top, b"%d" % number) for number in range(20))]
    world.tree(top, bytes_hard=1000 * MIB, inodes_hard=10_000)
    told = [
        me.client.call(Op.DELEGATE, Delegate(folder, 0)) for _ in range(10) for folder in folders
    ]
    assert told[0].files == 1024 and told[-1].files == 0 and told[-1].attributes == b""
    assert sum(one.files for one in told) <= 10_000
    assert sum(one.files * one.size_limit for one in told) <= 1000 * MIB


def test_new_directories_are_not_delegated_where_a_file_could_be_refused(world: World) -> None:
    me = Cached.of(world.bench)
    me.client.call(Op.DELEGATE, Delegate(0, 4))
    top = me.client.mkdir(ROOT, b"t")
    assert me.held(top) == LEASE_NAMER
    world.tree(top, inodes_hard=1000)
    for item in me.recalled():
        me.answer(item)
    assert me.held(me.client.mkdir(top, b"in the tree")) == LEASE_META | LEASE_ENTRIES
    assert me.held(me.client.mkdir(ROOT, b"outside")) == LEASE_NAMER
    world.limit(UID, bytes_hard=1 << 40)
    assert me.held(me.client.mkdir(ROOT, b"nowhere")) == LEASE_META | LEASE_ENTRIES


def test_clients_at_work_learn_of_limits(world: World) -> None:
    one, two = Cached.of(world.bench), Cached.of(world.bench)
    folder = one.client.mkdir(ROOT, b"folder")
    one.client.call(Op.DELEGATE, Delegate(folder, 4))
    two.client.send(Op.CREATE, Create(ROOT, b"mine", 0o644, True, True, USER))
    for item in one.recalled():
        one.answer(item)
    world.bench.settle()
    mine = unpack_attributes(two.client.take().attributes).ino
    account = UID
    told = world.ask(Op.QUOTA_TELL, QuotaTell(*account, True, 0, ()))
    assert folder in told.inos
    world.admin.send(Op.QUOTA_TELL, QuotaTell(*account, True, told.after, told.inos))
    world.bench.settle()
    assert world.admin.received() == []
    (item,) = (item for item in one.recalled() if item.ino == folder)
    for other in two.recalled():
        two.answer(other)
    one.answer(item)
    world.bench.settle()
    assert world.admin.take() == QuotaTold((), 0)
    assert one.held(folder) == LEASE_META | LEASE_ENTRIES, "what is shared is kept"
    told = world.ask(Op.QUOTA_TELL, QuotaTell(*account, False, 0, ()))
    assert told.inos == (mine,)
    world.admin.send(Op.QUOTA_TELL, QuotaTell(*account, False, told.after, told.inos))
    (item,) = two.recalled()
    two.answer(item)
    world.bench.settle()
    assert world.admin.take() == QuotaTold((), 0)
    assert two.held(mine) == LEASE_META | LEASE_DATA
    other_user = QuotaTell(QuotaKind.USER, 4321, False, 0, ())
    assert world.ask(Op.QUOTA_TELL, other_user).inos == ()
