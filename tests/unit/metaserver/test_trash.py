"""The trash: what goes there, what can be restored, what expires, and that no restart changes it.

`faults()` is fsck, which compares entries, ages, inodes and counts: each test ends with it.
"""

from functools import partial
from typing import Any

import pytest

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import Attributes, unpack_attributes
from fscommon.layout.quota import Limits, QuotaKind
from fscommon.types import Ino, SessionId
from fscommon.wire.admin import Place
from fscommon.wire.births import Birth, ChangeBatch, Delegate, Removal
from fscommon.wire.messages import (
    RENAME_EXCHANGE,
    Close,
    Create,
    GetAttr,
    Link,
    Lookup,
    MkDir,
    Open,
    Rename,
    RmDir,
    SessionOpen,
    Symlink,
    TmpFile,
    Unlink,
)
from fscommon.wire.ops import Op
from fscommon.wire.quota import QuotaAssign, QuotaList, QuotaSet
from fscommon.wire.trash import (
    EXPIRY_S_MAX,
    TRASH_ITEMS_MAX,
    TRASH_TREES_MAX,
    TrashByAge,
    TrashEntry,
    TrashItem,
    TrashList,
    TrashMark,
    TrashPurge,
    TrashRestore,
    TrashSet,
    TrashTree,
    TrashTrees,
)
from metaserver.records import aged_until, all_of
from metaserver.trash import TrashTable
from metaserver.trash_expiry import _discard_all, _forget

from .bench import ROOT, USER, Bench, Client
from .test_leases import Cached

DAY_S = 86400


class World:
    def __init__(self, bench: Bench | None = None) -> None:
        self.bench = bench or Bench()
        self.refused_entries: list[str] = []
        self.client = self.bench.client()
        self.greet()

    def greet(self) -> None:
        self.admin = Client(self.bench, self.bench.connect("admin"), SessionId(0))

    def call(self, op: Op, request: Any) -> Any:
        return self.client.call(op, request)

    def ask(self, op: Op, request: Any) -> Any:
        self.admin.send(op, request)
        self.bench.settle()
        return self.admin.take()

    def refused(self, op: Op, request: Any) -> Status:
        with pytest.raises(FsError) as caught:
            self.ask(op, request)
        return caught.value.status

    def mkdir(self, name: bytes, parent: int = ROOT) -> int:
        return ino_of(self.call(Op.MKDIR, MkDir(parent, name, 0o777, USER)))

    def file(self, name: bytes, parent: int = ROOT) -> int:
        """A file that is no longer open."""
        ino = ino_of(self.call(Op.CREATE, Create(parent, name, 0o644, True, True, USER)))
        self.call(Op.CLOSE, Close((ino,)))
        return ino

    def unlink(self, name: bytes, parent: int = ROOT) -> Attributes:
        return unpack_attributes(self.call(Op.UNLINK, Unlink(parent, name)).attributes)

    def enable(self, ino: int, expiry_s: int = DAY_S) -> None:
        self.ask(Op.TRASH_SET, TrashSet(ino, True, expiry_s))

    def disable(self, ino: int) -> None:
        self.ask(Op.TRASH_SET, TrashSet(ino, False, 0))

    def entries(self, directory: int, name: bytes = b"") -> list[TrashEntry]:
        return list(self.ask(Op.TRASH_LIST, TrashList(directory, name, 0, 0, 1000)).entries)

    def names(self, directory: int) -> set[bytes]:
        return {entry.name for entry in self.entries(directory)}

    def trees(self) -> dict[int, TrashTree]:
        return {tree.ino: tree for tree in self.ask(Op.TRASH_TREES, TrashTrees(0, 100)).trees}

    def restore(self, entry: TrashEntry, directory: int = 0, name: bytes = b"") -> Status | None:
        item = TrashItem(entry.name, entry.ino, name or entry.name)
        request = TrashRestore(entry.directory, directory or entry.directory, (item,))
        (error,) = self.ask(Op.TRASH_RESTORE, request).errors
        return Status(error) if error else None

    def purge(self, *entries: TrashEntry) -> int:
        marks = tuple(TrashMark(one.directory, one.name, one.ino) for one in entries)
        count: int = self.ask(Op.TRASH_PURGE, TrashPurge(marks)).count
        return count

    def expire(self, tree: int, until_ns: int) -> int:
        """Does what the task does: expires what is due by then, of the durable records."""
        self.bench.settle()
        due = self.bench.engine.stored(aged_until(tree, until_ns), 1000)
        discard = partial(_discard_all, due, self.refused_entries.append)
        self.bench.engine.system(discard, self.bench.time())
        return len(due)

    def look(self, name: bytes, parent: int = ROOT) -> int:
        """The inode, or 0 if there is no such name."""
        try:
            return ino_of(self.call(Op.LOOKUP, Lookup(parent, name)))
        except FsError as error:
            assert error.status is Status.ENOENT
            return 0

    def is_there(self, ino: int) -> bool:
        try:
            self.call(Op.GETATTR, GetAttr(ino))
        except FsError as error:
            assert error.status is Status.ESTALE
            return False
        return True

    def doomed(self) -> int:
        self.bench.settle()
        return len(self.bench.engine.stored(all_of(b"Z"), 1000))

    def restart(self) -> None:
        """Only durable records are left; the client comes back and has nothing to replay."""
        now_ns = self.bench.now_ns
        self.bench = Bench(self.bench.store, targets=0)
        self.bench.now_ns = now_ns
        session = self.client.session
        number = self.client.request_id
        self.client = Client(self.bench, self.bench.connect(), session, number, number)
        self.client.call(Op.SESSION_OPEN, SessionOpen(session, "c", (), 0))
        self.greet()

    def came_back(self) -> None:
        from fscommon.wire.messages import Empty  # noqa: PLC0415

        self.client.call(Op.REPLAY_DONE, Empty())
        self.look(b"x")  # with this, all replies have arrived


def ino_of(reply: Any) -> int:
    return unpack_attributes(reply.attributes).ino


@pytest.fixture
def world() -> World:
    return World()


# ---- what goes to the trash -------------------------------------------------------------------


def test_of_two_entries_it_is_known_which_is_newer() -> None:
    """This holds also within one tick of the clock, and when the clock is set back."""
    table = TrashTable()
    stamps = [table.stamp(now_ns) for now_ns in (5, 5, 5, 3, 100, 100)]
    assert stamps == [5, 6, 7, 8, 100, 101]


def test_without_a_trash_nothing_is_kept(world: World) -> None:
    ino = world.file(b"f")
    world.unlink(b"f")
    assert not world.is_there(ino) and world.doomed() == 1
    assert world.trees() == {} and world.entries(ROOT) == []
    assert world.bench.faults() == []


def test_a_last_name_is_kept_and_comes_back_as_it_was(world: World) -> None:
    top = world.mkdir(b"top")
    world.enable(top)
    ino = world.file(b"f", top)
    before = unpack_attributes(world.call(Op.GETATTR, GetAttr(ino)).attributes)
    assert world.unlink(b"f", top).nlink == 0, "an open file sees what it sees everywhere"
    assert world.look(b"f", top) == 0 and world.is_there(ino)
    (entry,) = world.entries(top)
    assert (entry.name, entry.ino, entry.directory, entry.tree) == (b"f", ino, top, top)
    assert world.trees()[top].inodes == 1 and world.doomed() == 0
    assert world.restore(entry) is None
    assert world.look(b"f", top) == ino
    after = unpack_attributes(world.call(Op.GETATTR, GetAttr(ino)).attributes)
    assert (after.nlink, after.mtime_ns, after.uid, after.mode, after.size) == (
        1,
        before.mtime_ns,
        before.uid,
        before.mode,
        before.size,
    )
    assert world.entries(top) == [] and world.trees()[top].inodes == 0
    assert world.restore(entry) is Status.ENOENT, "once"
    assert world.bench.faults() == []


def test_every_kind_of_removal_and_of_file(world: World) -> None:
    world.enable(ROOT)
    world.call(Op.SYMLINK, Symlink(ROOT, b"symlink", b"to", USER))
    world.unlink(b"symlink")
    world.mkdir(b"directory")
    world.call(Op.RMDIR, RmDir(ROOT, b"directory"))
    for name in (b"new", b"replaced"):
        world.file(name)
    world.call(Op.RENAME, Rename(ROOT, b"new", ROOT, b"replaced", 0))
    world.mkdir(b"moved"), world.mkdir(b"empty")
    world.call(Op.RENAME, Rename(ROOT, b"moved", ROOT, b"empty", 0))
    assert world.names(ROOT) == {b"symlink", b"directory", b"replaced", b"empty"}
    for entry in world.entries(ROOT):
        assert world.restore(entry, name=b"back " + entry.name) is None
    root = unpack_attributes(world.call(Op.GETATTR, GetAttr(ROOT)).attributes)
    assert root.nlink == 2 + 3, "directory, empty and what was empty"
    assert world.bench.faults() == []


def test_nothing_goes_there_but_what_lost_its_last_name(world: World) -> None:
    world.enable(ROOT)
    ino = world.file(b"a")
    world.call(Op.LINK, Link(ino, ROOT, b"b"))
    assert world.unlink(b"a").nlink == 1 and world.entries(ROOT) == []
    world.file(b"c")
    world.call(Op.RENAME, Rename(ROOT, b"b", ROOT, b"c", RENAME_EXCHANGE))
    assert world.entries(ROOT) == []
    made = world.call(Op.TMPFILE, TmpFile(ROOT, 0o600, True, USER))
    world.call(Op.CLOSE, Close((ino_of(made),)))
    assert world.entries(ROOT) == []
    world.unlink(b"c")
    assert [entry.ino for entry in world.entries(ROOT)] == [ino], "the last of its names"
    assert world.bench.engine.sessions.reapable == {ino_of(made)}
    world.bench.engine.sessions.reaped(Ino(ino_of(made)))


def test_a_file_that_is_open_goes_on(world: World) -> None:
    world.enable(ROOT)
    ino = world.file(b"f")
    world.call(Op.OPEN, Open(ino, True))
    world.unlink(b"f")
    with pytest.raises(FsError) as caught:
        world.call(Op.LINK, Link(ino, ROOT, b"again"))
    assert caught.value.status is Status.ENOENT, "lost is lost, but for a restore"
    (entry,) = world.entries(ROOT)
    assert world.purge(entry) == 1
    assert world.is_there(ino), "purged, but open"
    assert ino in world.bench.engine.sessions.orphans
    world.call(Op.CLOSE, Close((ino,)))
    world.bench.settle()
    assert world.bench.engine.sessions.reapable == {ino}
    assert world.bench.faults() == []


def test_an_open_file_that_is_back_is_no_orphan(world: World) -> None:
    world.enable(ROOT)
    ino = world.file(b"f")
    world.call(Op.OPEN, Open(ino, True))
    world.unlink(b"f")
    (entry,) = world.entries(ROOT)
    assert world.restore(entry) is None
    world.call(Op.CLOSE, Close((ino,)))
    world.bench.settle()
    assert world.bench.engine.sessions.reapable == set()
    assert world.look(b"f") == ino
    assert world.bench.faults() == []


# ---- trees -------------------------------------------------------------------------------------


def test_the_nearest_tree_counts(world: World) -> None:
    a = world.mkdir(b"a")
    b = world.mkdir(b"b", a)
    c = world.mkdir(b"c", b)
    for folder in (a, b, c):
        world.file(b"1", folder), world.file(b"2", folder), world.file(b"3", folder)
    world.enable(a, 100)
    for folder in (a, b, c):
        world.unlink(b"1", folder)
    world.disable(b)
    for folder in (a, b, c):
        world.unlink(b"2", folder)
    world.enable(c, 500)
    for folder in (a, b, c):
        world.unlink(b"3", folder)
    kept = {folder: {(e.name, e.tree) for e in world.entries(folder)} for folder in (a, b, c)}
    assert kept == {a: {(b"1", a), (b"2", a), (b"3", a)}, b: {(b"1", a)}, c: {(b"1", a), (b"3", c)}}
    rows = world.trees()
    assert {ino: (row.on, row.expiry_s, row.inodes) for ino, row in rows.items()} == {
        a: (True, 100, 5),
        b: (False, 0, 0),
        c: (True, 500, 1),
    }
    assert rows[c].names == (b"a", b"b", b"c")
    assert world.bench.faults() == []


def test_a_directory_that_moves_is_where_it_is(world: World) -> None:
    top, other = world.mkdir(b"top"), world.mkdir(b"other")
    folder = world.mkdir(b"folder", other)
    deep = world.mkdir(b"deep", folder)
    world.enable(top)
    for name in (b"1", b"2", b"3"):
        world.file(name, deep)
    world.unlink(b"1", deep)
    world.call(Op.RENAME, Rename(other, b"folder", top, b"folder", 0))
    world.unlink(b"2", deep)
    world.call(Op.RENAME, Rename(top, b"folder", other, b"folder", 0))
    world.unlink(b"3", deep)
    assert world.names(deep) == {b"2"}
    assert world.bench.faults() == []


def test_a_tree_that_ends_keeps_what_it_has(world: World) -> None:
    top = world.mkdir(b"top")
    world.enable(top, 1000)
    world.file(b"1", top), world.file(b"2", top)
    world.unlink(b"1", top)
    world.disable(top)
    assert world.refused(Op.TRASH_SET, TrashSet(world.mkdir(b"other"), False, 0)) is Status.ENOENT
    world.unlink(b"2", top)
    assert world.names(top) == {b"1"}
    row = world.trees()[top]
    assert (row.on, row.expiry_s, row.inodes) == (False, 1000, 1)
    world.purge(*world.entries(top))
    assert world.trees() == {}
    world.bench.engine.system(partial(_forget, top), world.bench.time())
    assert world.bench.engine.services.trash.trees == {}
    assert world.bench.faults() == []


def test_a_tree_whose_directory_is_gone(world: World) -> None:
    top = world.mkdir(b"top")
    world.enable(top)
    world.file(b"1", top)
    world.unlink(b"1", top)
    world.call(Op.RMDIR, RmDir(ROOT, b"top"))
    assert world.trees()[top].names == ()
    (entry,) = world.entries(top)
    assert (
        world.refused(Op.TRASH_RESTORE, TrashRestore(top, top, (TrashItem(b"1", entry.ino, b"1"),)))
        is Status.ENOENT
    )
    world.bench.engine.system(partial(_forget, top), world.bench.time())
    assert world.restore(entry, ROOT) is None
    world.bench.engine.system(partial(_forget, top), world.bench.time())
    assert world.trees() == {}
    assert world.bench.faults() == []


def test_what_is_asked_for_is_checked(world: World) -> None:
    ino = world.file(b"f")
    for request, status in (
        (TrashSet(ino, True, 5), Status.ENOTDIR),
        (TrashSet(4711, True, 5), Status.ESTALE),
        (TrashSet(ROOT, True, 0), Status.EINVAL),
        (TrashSet(ROOT, True, EXPIRY_S_MAX + 1), Status.EINVAL),
        (TrashSet(ROOT, True, -5), Status.EINVAL),
        (TrashSet(-1, True, 5), Status.BAD_REQUEST),
    ):
        assert world.refused(Op.TRASH_SET, request) is status, request
    assert world.refused(Op.TRASH_LIST, TrashList(1, b"", 0, 0, 0)) is Status.EINVAL
    assert world.refused(Op.TRASH_LIST, TrashList(1, b"", -1, 0, 1)) is Status.BAD_REQUEST
    assert world.refused(Op.TRASH_BY_AGE, TrashByAge(1, 0, 0, 0)) is Status.EINVAL
    assert world.refused(Op.TRASH_TREES, TrashTrees(0, 0)) is Status.EINVAL
    assert world.refused(Op.TRASH_PURGE, TrashPurge(())) is Status.EINVAL
    assert world.refused(Op.TRASH_RESTORE, TrashRestore(1, 1, ())) is Status.EINVAL
    items = (TrashItem(b"f", ino, b"f"),) * (TRASH_ITEMS_MAX + 1)
    assert world.refused(Op.TRASH_RESTORE, TrashRestore(1, 1, items)) is Status.EINVAL
    assert world.refused(Op.TRASH_RESTORE, TrashRestore(1, ino, items[:1])) is Status.ENOTDIR
    bad = TrashRestore(1, ROOT, (TrashItem(b"f", -1, b"f"),))
    assert world.refused(Op.TRASH_RESTORE, bad) is Status.BAD_REQUEST
    assert world.purge(TrashEntry(ROOT, b"f", ino, 0, 0, b"")) == 0, "no entry, nothing gone"
    assert world.look(b"f") == ino
    with pytest.raises(FsError) as caught:
        world.call(Op.TRASH_PURGE, TrashPurge((TrashMark(1, b"f", ino),)))
    assert caught.value.status is Status.EPERM, "for administrators"
    for number in range(TRASH_TREES_MAX):
        world.bench.engine.services.trash.trees[1000 + number] = None  # type: ignore[assignment]
    assert world.refused(Op.TRASH_SET, TrashSet(ROOT, True, 5)) is Status.ENOSPC
    world.bench.engine.services.trash.trees.clear()
    assert world.bench.faults() == []


# ---- restore -----------------------------------------------------------------------------------


def test_a_tree_comes_back_from_the_top(world: World) -> None:
    world.enable(ROOT)
    folder = world.mkdir(b"folder")
    sub = world.mkdir(b"sub", folder)
    file = world.file(b"f", sub)
    world.unlink(b"f", sub)
    world.call(Op.RMDIR, RmDir(folder, b"sub"))
    world.call(Op.RMDIR, RmDir(ROOT, b"folder"))
    (lower,) = world.entries(sub)
    item = TrashItem(b"f", file, b"f")
    assert world.refused(Op.TRASH_RESTORE, TrashRestore(sub, sub, (item,))) is Status.ENOENT
    (top,), (middle,) = world.entries(ROOT), world.entries(folder)
    assert world.restore(top, name=b"renamed") is None
    assert world.restore(middle) is None
    assert world.restore(lower) is None
    assert world.look(b"renamed") == folder
    assert world.look(b"f", world.look(b"sub", folder)) == file
    assert world.bench.faults() == []


def test_items_fail_alone(world: World) -> None:
    world.enable(ROOT)
    inos = {name: world.file(name) for name in (b"taken", b"good", b"bad")}
    for name in inos:
        world.unlink(name)
    world.file(b"taken")
    items = (
        TrashItem(b"taken", inos[b"taken"], b"taken"),
        TrashItem(b"good", inos[b"good"], b"good"),
        TrashItem(b"bad", inos[b"bad"], b"a/b"),
        TrashItem(b"bad", inos[b"good"], b"x"),
        TrashItem(b"bad", inos[b"bad"], b"n" * 256),
        TrashItem(b"good", inos[b"good"], b"twice"),
    )
    reply = world.ask(Op.TRASH_RESTORE, TrashRestore(ROOT, ROOT, items))
    assert [Status(error) for error in reply.errors] == [
        Status.EEXIST,
        Status.OK,
        Status.EINVAL,
        Status.ENOENT,
        Status.ENAMETOOLONG,
        Status.ENOENT,
    ]
    assert world.look(b"good") == inos[b"good"]
    assert world.names(ROOT) == {b"taken", b"bad"}
    assert world.bench.faults() == []


def test_versions_of_a_name(world: World) -> None:
    world.enable(ROOT)
    inos = []
    for _ in range(3):
        inos.append(world.file(b"f"))
        world.unlink(b"f")
    found = world.entries(ROOT, b"f")
    assert sorted(entry.ino for entry in found) == inos
    assert sorted(found, key=lambda entry: entry.removed_ns) == sorted(found, key=lambda e: e.ino)
    assert world.entries(ROOT, b"g") == []
    page = world.ask(Op.TRASH_LIST, TrashList(ROOT, b"f", 0, 0, 2))
    assert len(page.entries) == 2 and not page.end
    page = world.ask(Op.TRASH_LIST, TrashList(ROOT, b"f", page.after, page.after_ino, 2))
    assert len(page.entries) == 1 and page.end
    page = world.ask(Op.TRASH_BY_AGE, TrashByAge(ROOT, 0, 0, 2))
    assert [entry.ino for entry in page.entries] == inos[:2] and not page.end
    page = world.ask(Op.TRASH_BY_AGE, TrashByAge(ROOT, page.after, page.after_ino, 2))
    assert [entry.ino for entry in page.entries] == inos[2:] and page.end
    assert world.bench.faults() == []


def test_quotas_count_what_is_in_the_trash(world: World) -> None:
    one, two = world.mkdir(b"one"), world.mkdir(b"two")
    for top in (one, two):
        world.ask(Op.QUOTA_ASSIGN, QuotaAssign(top, top, (Place(top, 0),)))
    limits = Limits(inodes_hard=2)
    world.ask(Op.QUOTA_SET, QuotaSet(QuotaKind.TREE, two, limits))
    world.ask(Op.QUOTA_SET, QuotaSet(QuotaKind.TREE, one, limits))
    world.enable(ROOT)
    world.file(b"f", one)
    folder_of_two = world.mkdir(b"folder", two)
    world.unlink(b"f", one)
    with pytest.raises(FsError) as caught:
        world.file(b"g", one)
    assert caught.value.status is Status.EDQUOT, "its bytes are still there"
    (entry,) = world.entries(one)
    assert world.restore(entry, two) is Status.EDQUOT
    assert world.restore(entry, ROOT) is Status.EDQUOT or world.look(b"f") == entry.ino
    world.call(Op.RMDIR, RmDir(two, b"folder"))
    (folder,) = world.entries(two)
    assert folder.ino == folder_of_two
    assert world.restore(folder, one) is Status.EXDEV
    assert world.purge(folder) == 1
    rows = world.ask(Op.QUOTA_LIST, QuotaList(0, 0, False, 100)).rows
    assert {row.number: row.used_inodes for row in rows if row.kind == 1} == {one: 1, two: 1}
    assert world.bench.faults() == []


# ---- clients without knowledge of the trash ----------------------------------------------------


def test_removals_that_a_client_made_by_itself(world: World) -> None:
    """Delegated: the client answered the unlinks, and the batch makes the entries, with the
    metaserver's clock."""
    world.enable(ROOT)
    slots = world.call(Op.DELEGATE, Delegate(ROOT, 2)).slots
    births = tuple(
        Birth(slot.ino, ROOT, b"%d" % n, 0o640, 0, 0, 5, slot.layout, writable=False)
        for n, slot in enumerate(slots)
    )
    removals = tuple(
        Removal(ROOT, b"%d" % n, slot.ino, time_ns, 2)
        for n, (slot, time_ns) in enumerate(zip(slots, (7, 1 << 62), strict=True))
    )
    assert world.call(Op.CHANGE_BATCH, ChangeBatch(births, removals)).removal_errors == ()
    found = world.entries(ROOT)
    assert {entry.ino for entry in found} == {slot.ino for slot in slots}
    assert all(abs(entry.removed_ns - world.bench.now_ns) < 10**9 for entry in found)
    for entry in found:
        assert world.restore(entry) is None
    assert world.bench.faults() == []


def test_a_restore_asks_whoever_holds_leases(world: World) -> None:
    world.enable(ROOT)
    one = Cached.of(world.bench, world.client)
    folder = world.mkdir(b"folder")
    ino = world.file(b"f", folder)
    world.unlink(b"f", folder)
    (entry,) = world.entries(folder)
    one.client.call(Op.DELEGATE, Delegate(folder, 1))
    item = TrashItem(b"f", ino, b"f")
    world.admin.send(Op.TRASH_RESTORE, TrashRestore(folder, folder, (item,)))
    world.bench.settle()
    assert world.admin.received() == [], "the directory is the client's"
    items = one.recalled()
    assert folder in {item.ino for item in items}
    for each in items:
        one.answer(each)
    world.bench.settle()
    assert world.admin.take().errors == (0,)
    assert entry.ino == world.look(b"f", folder)
    assert world.bench.faults() == []
