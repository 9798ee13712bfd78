"""Bytes of extended attributes (names and values) count for the accounts of their inode.

Whatever happens to an inode, fsck counts everything again and finds the same.
"""

import random
from collections.abc import Callable

import pytest

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import unpack_attributes
from fscommon.layout.quota import QuotaKind
from fscommon.layout.template import LAYOUT_XATTR
from fscommon.wire.messages import (
    COMMIT_KILL_SUIDGID,
    COMMIT_MTIME,
    SET_GID,
    SET_MODE,
    SET_SIZE,
    SET_UID,
    Close,
    Commit,
    Link,
    RemoveXattr,
    Rename,
    RmDir,
    SetAttr,
    SetXattr,
    TmpFile,
    Unlink,
)
from fscommon.wire.ops import Op
from metaserver.namespace.acl import ACCESS, DEFAULT
from metaserver.records import QUOTA_KEY, all_of, pack_quota, quota_account, unpack_quota

from .bench import ROOT, USER, Bench
from .test_attributes import WITH_USER
from .test_quota import GID, UID, World

NAME = b"user.x"
CAPABILITY = b"security.capability"
OTHERS = (QuotaKind.USER, 2000)


@pytest.fixture
def world() -> World:
    return World()


def put(world: World, ino: int, value: bytes, name: bytes = NAME) -> None:
    world.call(Op.SETXATTR, SetXattr(ino, name, value, 0))


def chown(ino: int, uid: int, gid: int = 1000, more: int = 0) -> SetAttr:
    return SetAttr(ino, SET_UID | SET_GID | more, 0o640, uid, gid, 0, 0, 0, 0, 0, 0)


def test_set_replaced_and_removed(world: World) -> None:
    ino = world.file(b"f", 100)
    put(world, ino, b"v" * 50)
    assert world.used(UID) == world.used(GID) == (100 + len(NAME) + 50, 1)
    put(world, ino, b"v" * 10)
    assert world.used(UID) == (100 + len(NAME) + 10, 1)
    world.call(Op.REMOVEXATTR, RemoveXattr(ino, NAME))
    assert world.used(UID) == (100, 1)
    put(world, ino, b"")
    assert world.used(UID) == (100 + len(NAME), 1)
    world.call(Op.UNLINK, Unlink(ROOT, b"f"))
    world.bench.settle()
    assert world.used(UID) == (0, 0)
    assert world.bench.faults() == []


@pytest.mark.parametrize("name", [NAME, b"trusted.x", b"security.x", ACCESS, DEFAULT])
def test_beyond_the_limit_is_refused(world: World, name: bytes) -> None:
    """This holds for every kind of xattr; making one smaller is always allowed."""
    ino = world.mkdir(b"d")
    value = WITH_USER if name in (ACCESS, DEFAULT) else b"v" * 50
    world.limit(UID, bytes_hard=len(name) + len(value) - 1)
    assert world.refused(Op.SETXATTR, SetXattr(ino, name, value, 0)) is Status.EDQUOT
    assert world.used(UID) == (0, 1)
    world.limit(UID, bytes_hard=len(name) + len(value))
    put(world, ino, value, name)
    assert world.used(UID) == (len(name) + len(value), 1)
    world.limit(UID, bytes_hard=1)
    assert world.refused(Op.SETXATTR, SetXattr(ino, NAME + b"y", b"", 0)) is Status.EDQUOT
    world.call(Op.REMOVEXATTR, RemoveXattr(ino, name))
    assert world.used(UID) == (0, 1)
    assert world.bench.faults() == []


def test_a_tree_has_those_of_its_inodes(world: World) -> None:
    top = world.mkdir(b"top")
    put(world, top, b"v" * 20)
    inside = world.file(b"f", 0, parent=top)
    put(world, inside, b"v" * 30)
    each = len(NAME)
    tree = world.tree(top, bytes_hard=2 * each + 50)
    assert world.used(tree) == (2 * each + 50, 2)
    assert world.refused(Op.SETXATTR, SetXattr(inside, NAME, b"v" * 31, 0)) is Status.EDQUOT
    outside = world.file(b"g", 0)
    put(world, outside, b"v")
    assert world.refused(Op.RENAME, Rename(ROOT, b"g", top, b"g", 0)) is Status.EDQUOT
    world.call(Op.RENAME, Rename(top, b"f", ROOT, b"f", 0))
    assert world.used(tree) == (each + 20, 1)
    world.call(Op.RENAME, Rename(ROOT, b"g", top, b"g", 0))
    assert world.used(tree) == (2 * each + 21, 2)
    world.assign(top, 0)
    assert world.bench.faults() == []


def test_what_is_inherited_counts_for_the_new_inode(world: World) -> None:
    top = world.mkdir(b"top")
    put(world, top, WITH_USER, DEFAULT)
    before = world.used(UID)[0]
    world.mkdir(b"inside", parent=top)
    inherited = world.used(UID)[0] - before
    assert inherited >= len(DEFAULT) + len(WITH_USER)
    world.limit(UID, bytes_hard=world.used(UID)[0] + inherited - 1)
    with pytest.raises(FsError, match="EDQUOT"):
        world.mkdir(b"another", parent=top)
    assert world.bench.faults() == []


def test_another_owner_has_them(world: World) -> None:
    ino = world.file(b"f", 100)
    put(world, ino, b"v" * 50)
    put(world, ino, b"c" * 20, CAPABILITY)
    world.call(Op.SETATTR, chown(ino, 2000, 2000))
    assert world.used(UID) == world.used(GID) == (0, 0)
    assert world.used(OTHERS) == (100 + len(NAME) + 50, 1), "the capability went"
    put(world, ino, b"c" * 20, CAPABILITY)
    flags = COMMIT_MTIME | COMMIT_KILL_SUIDGID
    world.call(Op.COMMIT, Commit(ino, ino, flags, 0, 1, 0, False))
    assert world.used(OTHERS) == (100 + len(NAME) + 50, 1)
    assert world.bench.faults() == []


def test_a_store_that_did_not_count_them_is_counted_once(world: World) -> None:
    """Limits stay, and so do accounts that have only limits."""
    ino = world.file(b"f", 100)
    put(world, ino, b"v" * 50)
    world.limit(UID, bytes_soft=120, bytes_hard=1000)
    world.limit(OTHERS, bytes_hard=7)
    world.bench.settle()
    store = world.bench.store
    snapshot = store.snapshot()
    accounts = {key: unpack_quota(value) for key, value in snapshot.range(*all_of(b"Q"))}
    lessened = []
    for key, record in accounts.items():
        if record.bytes:
            old = type(record)(100, record.inodes, record.limits, 0, 0)
            lessened.append((key, pack_quota(old)))
    store.commit([(QUOTA_KEY, b""), *lessened])
    after = Bench(store, targets=0)
    quotas = after.engine.services.quotas
    for key, record in accounts.items():
        account = quotas.get(quota_account(key))
        assert (account.bytes, account.inodes) == (record.bytes, record.inodes)
        assert account.limits == record.limits
    assert quotas.get(UID).bytes_since_ns > 0, "it is over its soft limit from now on"
    assert after.faults() == []
    again = Bench(store, targets=0)
    assert again.engine.services.quotas.get(UID) == quotas.get(UID)
    assert again.faults() == []


class Walk:
    """Random ops on a few names in two trees and outside of them."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.chance = random.Random(seed)
        self.places = [ROOT, world.mkdir(b"one"), world.mkdir(b"two")]
        for top in self.places[1:]:
            world.tree(top, bytes_hard=1500, inodes_hard=12)
        self.names: dict[tuple[int, bytes], int] = {}

    def step(self) -> None:
        step: Callable[[], None] = self.chance.choice(
            [self.make, self.set, self.set, self.remove, self.move, self.unlink, self.change]
        )
        try:
            step()
        except FsError as error:
            assert error.status in {
                Status.EDQUOT,
                Status.EXDEV,
                Status.EEXIST,
                Status.ENODATA,
                Status.EACCES,
                Status.EISDIR,
                Status.ENOTDIR,
                Status.ENOTEMPTY,
                Status.EINVAL,
                Status.EOPNOTSUPP,
            }, error

    def make(self) -> None:
        place, name = self.chance.choice(self.places), self.chance.choice([b"a", b"b", b"c"])
        if (place, name) in self.names:
            return
        how = self.chance.choice(["file", "directory", "nameless"])
        if how == "file":
            ino = self.world.file(name, self.chance.randrange(200), parent=place)
        elif how == "directory":
            ino = self.world.mkdir(name, parent=place)
        else:
            made = self.world.call(Op.TMPFILE, TmpFile(ROOT, 0o600, True, USER))
            ino = unpack_attributes(made.attributes).ino
            put(self.world, ino, b"v" * self.chance.randrange(100))
            try:
                self.world.call(Op.LINK, Link(ino, place, name))
            finally:
                self.world.call(Op.CLOSE, Close((ino,)))
        self.names[place, name] = ino

    def set(self) -> None:
        name = self.chance.choice([NAME, b"trusted.y", CAPABILITY, ACCESS, DEFAULT, LAYOUT_XATTR])
        value = b"v" * self.chance.randrange(300)
        if name in (ACCESS, DEFAULT):
            value = WITH_USER
        elif name == LAYOUT_XATTR:
            value = b"stripe_width=1"
        put(self.world, self._any(), value, name)

    def remove(self) -> None:
        name = self.chance.choice([NAME, b"trusted.y", CAPABILITY, ACCESS, DEFAULT])
        self.world.call(Op.REMOVEXATTR, RemoveXattr(self._any(), name))

    def move(self) -> None:
        if not self.names:
            return
        (place, name), ino = self.chance.choice(list(self.names.items()))
        to = self.chance.choice(self.places), self.chance.choice([b"a", b"b", b"c"])
        if to == (place, name):
            return
        self.world.call(Op.RENAME, Rename(place, name, *to, 0))
        del self.names[place, name]
        self.names[to] = ino

    def unlink(self) -> None:
        if not self.names:
            return
        place, name = self.chance.choice(list(self.names))
        try:
            self.world.call(Op.UNLINK, Unlink(place, name))
        except FsError as error:
            if error.status is not Status.EISDIR:
                raise
            self.world.call(Op.RMDIR, RmDir(place, name))
        del self.names[place, name]

    def change(self) -> None:
        ino, uid = self._any(), self.chance.choice([1000, 2000])
        more = self.chance.choice([0, SET_MODE])
        self.world.call(Op.SETATTR, chown(ino, uid, self.chance.choice([1000, 2000]), more))
        if self.chance.random() < 0.3:
            self.world.call(Op.SETATTR, SetAttr(ino, SET_SIZE, 0, 0, 0, 50, 0, 0, 0, 0, 0))

    def _any(self) -> int:
        return self.chance.choice([*self.names.values(), *self.places[1:]])


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_the_accounts_are_right(world: World, seed: int) -> None:
    walk = Walk(world, seed)
    for number in range(200):
        walk.step()
        if number % 20 == 0:
            world.bench.settle()
            assert world.bench.faults() == []
    assert world.bench.faults() == []
