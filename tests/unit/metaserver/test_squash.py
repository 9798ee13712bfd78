"""Root squash at the engine: files of root, operations that only root may do, and a client that
lies.
"""

from dataclasses import replace
from typing import Any

import pytest

from fscommon.errors import Status
from fscommon.layout.attributes import (
    INODE_IMMUTABLE,
    LEASE_DATA,
    LEASE_DATA_EXCLUSIVE,
    LEASE_META,
    unpack_attributes,
)
from fscommon.wire.ahead import OpenAhead
from fscommon.wire.keys import KEY_SQUASH_ROOT
from fscommon.wire.leases import LeaseTake
from fscommon.wire.locks import LockSet
from fscommon.wire.messages import (
    COMMIT_SIZE,
    SET_FLAGS,
    SET_GID,
    SET_MODE,
    SET_MTIME,
    SET_SIZE,
    SET_UID,
    Caller,
    Close,
    Commit,
    Create,
    GetAttr,
    GetXattr,
    Link,
    Lookup,
    MkDir,
    MkNod,
    Open,
    ReadDir,
    Rename,
    RmDir,
    SetAttr,
    SetXattr,
    Symlink,
    TmpFile,
    Unlink,
)
from fscommon.wire.ops import Op
from metaserver.identity import NOBODY
from metaserver.ops.table import ROWS

from .bench import ROOT, USER, Client
from .test_keys import World, refused

BOSS = Caller(0, 0, 0, (0, 5))


class Squashed(World):
    """/open (0777, root's) with files of root: none 0600, seen 0644, all 0666; and mine (a user's,
    0600). /shut (0700, root's) with a file 0666; /sticky (1777, root's)."""

    def __init__(self) -> None:
        super().__init__()
        self.open = self.directory(b"open", 0o777)
        self.shut = self.directory(b"shut", 0o700)
        self.sticky = self.directory(b"sticky", 0o1777)
        self.none, self.seen = (
            self.file_of(self.open, b"none", 0o600),
            self.file_of(self.open, b"seen", 0o644),
        )
        self.all = self.file_of(self.open, b"all", 0o666)
        self.mine = self.file_of(self.open, b"mine", 0o600, USER)
        self.hidden = self.file_of(self.shut, b"hidden", 0o666)
        self.roots = self.file_of(self.sticky, b"roots", 0o666)
        self.users = self.file_of(self.sticky, b"users", 0o600, USER)
        self.guest = self.client(self.key("guest", ROOT, KEY_SQUASH_ROOT))

    def directory(self, name: bytes, mode: int) -> int:
        made = self.trusted.call(Op.MKDIR, MkDir(ROOT, name, mode, BOSS))
        return unpack_attributes(made.attributes).ino

    def file_of(self, parent: int, name: bytes, mode: int, caller: Caller = BOSS) -> int:
        wanted = Create(parent, name, mode, True, True, replace(caller, umask=0))
        ino = unpack_attributes(self.trusted.call(Op.CREATE, wanted).attributes).ino
        self.trusted.call(Op.COMMIT, Commit(ino, ino, COMMIT_SIZE, 100, 0, 0, False))
        self.trusted.call(Op.CLOSE, Close((ino,)))
        return ino


@pytest.fixture
def world() -> Squashed:
    return Squashed()


# A client that cannot be every user may send these, and nothing needs a check.
UNCHECKED = {
    Op.PING,
    Op.GETATTR,
    Op.READLINK,
    Op.CLOSE,
    Op.SYNCED,
    Op.LISTXATTR,
    Op.STATFS,
    Op.BARRIER,
    Op.DELEGATE,  # it gets no directory
    Op.CHANGE_BATCH,  # it is refused
    Op.LOCK_GET,
    Op.LOCK_EVENTS,
    Op.LOCK_CANCEL,
    Op.SESSION_OPEN,
    Op.SESSION_RENEW,
    Op.SESSION_CLOSE,
    Op.REPLAY_DONE,
    Op.SESSION_GRANT,
    Op.MOUNT_ROOT,
    Op.CLUSTER_MAP,
    Op.LEASE_RETURN,
    Op.LEASE_RESTORE,
}


def test_every_op_is_thought_of() -> None:
    checked = {op for op, row in ROWS.items() if row.squash is not None}
    assert checked | UNCHECKED == {op for op, row in ROWS.items() if row.names is not None}
    assert not checked & UNCHECKED


def changed(ino: int, valid: int, **fields: int) -> SetAttr:
    return replace(SetAttr(ino, valid, 0, 0, 0, 0, 0, 0, 0, 0, 0), **fields)


def allowed(client: Client, op: Op, *requests: Any) -> None:
    for request in requests:
        client.call(op, request)


def denied(client: Client, status: Status, op: Op, *requests: Any) -> None:
    for request in requests:
        assert refused(client, op, request) is status, request


def test_what_is_made_is_nobodys(world: Squashed) -> None:
    for op, request in (
        (Op.CREATE, Create(world.open, b"f", 0o644, True, True, BOSS)),
        (Op.MKDIR, MkDir(world.open, b"d", 0o755, BOSS)),
        (Op.SYMLINK, Symlink(world.open, b"s", b"to", BOSS)),
        (Op.MKNOD, MkNod(world.open, b"p", 0o010644, 0, BOSS)),
        (Op.TMPFILE, TmpFile(world.open, 0o600, True, BOSS)),
    ):
        made = unpack_attributes(world.guest.call(op, request).attributes)
        assert (made.uid, made.gid) == (NOBODY, NOBODY)
    made = world.guest.call(Op.MKDIR, MkDir(world.open, b"u", 0o755, USER))
    assert unpack_attributes(made.attributes).uid == USER.uid
    for kind in (0o020666, 0o060666):
        denied(world.guest, Status.EPERM, Op.MKNOD, MkNod(world.open, b"dev", kind, 5, USER))


def test_files_of_root(world: Squashed) -> None:
    guest, no = world.guest, Status.EACCES
    denied(guest, no, Op.OPEN, Open(world.none, False), Open(world.none, True))
    denied(guest, no, Op.OPEN, Open(world.seen, True))
    allowed(guest, Op.OPEN, Open(world.seen, False), Open(world.all, True), Open(world.mine, True))
    denied(
        guest,
        no,
        Op.CREATE,
        Create(world.open, b"seen", 0, False, True, BOSS),
        Create(world.open, b"none", 0, False, False, BOSS),
    )
    denied(guest, no, Op.COMMIT, Commit(world.seen, world.seen, COMMIT_SIZE, 5, 0, 0, False))
    denied(guest, no, Op.LINK, Link(world.seen, world.open, b"link"))
    denied(guest, no, Op.LOCK_SET, LockSet(world.none, False, 1, 0, 10, 1, 7, 0, False))
    denied(
        guest,
        no,
        Op.LEASE_TAKE,
        LeaseTake(world.none, LEASE_DATA),
        LeaseTake(world.seen, LEASE_DATA_EXCLUSIVE),
    )
    allowed(guest, Op.LEASE_TAKE, LeaseTake(world.none, LEASE_META))
    denied(guest, no, Op.GETXATTR, GetXattr(world.none, b"user.a"))
    allowed(guest, Op.GETATTR, GetAttr(world.none))


def test_what_is_opened_ahead(world: Squashed) -> None:
    found = world.guest.call(Op.OPEN_AHEAD, OpenAhead(world.open, 0, 64)).names
    assert set(found) <= {b"seen", b"all", b"mine"}


def test_directories_of_root(world: Squashed) -> None:
    guest, no = world.guest, Status.EACCES
    denied(guest, no, Op.LOOKUP, Lookup(world.shut, b"hidden"))
    denied(guest, no, Op.READDIR, ReadDir(world.shut, 0, 10))
    denied(guest, no, Op.OPEN_AHEAD, OpenAhead(world.shut, 0, 10))
    denied(guest, no, Op.UNLINK, Unlink(world.shut, b"hidden"))
    denied(guest, no, Op.MKDIR, MkDir(world.shut, b"d", 0o777, USER), MkDir(ROOT, b"d", 0, USER))
    denied(guest, no, Op.CREATE, Create(world.shut, b"hidden", 0, False, False, USER))
    denied(
        guest,
        no,
        Op.RENAME,
        Rename(world.shut, b"hidden", world.open, b"h", 0),
        Rename(world.open, b"all", world.shut, b"a", 0),
        Rename(ROOT, b"shut", world.open, b"s", 0),
    )
    denied(guest, no, Op.RMDIR, RmDir(ROOT, b"shut"))
    denied(guest, no, Op.TMPFILE, TmpFile(world.shut, 0o600, True, USER))
    allowed(guest, Op.UNLINK, Unlink(world.open, b"none"))  # any user may do that
    denied(guest, Status.EPERM, Op.UNLINK, Unlink(world.sticky, b"roots"))
    denied(
        guest,
        Status.EPERM,
        Op.RENAME,
        Rename(world.sticky, b"roots", world.open, b"r", 0),
        Rename(world.sticky, b"users", world.sticky, b"roots", 0),
    )
    allowed(guest, Op.UNLINK, Unlink(world.sticky, b"users"))


def test_attributes(world: Squashed) -> None:
    guest, no = world.guest, Status.EPERM
    for ino in (world.seen, world.mine):
        denied(
            guest,
            no,
            Op.SETATTR,
            changed(ino, SET_UID, uid=2000),
            changed(ino, SET_GID, gid=0) if ino == world.mine else changed(ino, SET_GID, gid=5),
        )
        denied(guest, no, Op.SETATTR, changed(ino, SET_FLAGS, inode_flags=INODE_IMMUTABLE))
        denied(
            guest,
            no,
            Op.SETXATTR,
            SetXattr(ino, b"security.capability", b"v", 0),
            SetXattr(ino, b"trusted.a", b"v", 0),
        )
    denied(guest, no, Op.SETATTR, changed(world.all, SET_MODE, mode=0o4777))
    denied(guest, no, Op.SETXATTR, SetXattr(world.all, b"system.posix_acl_access", b"", 0))
    grown = changed(world.seen, 0, written_size=1 << 30)
    denied(
        guest,
        Status.EACCES,
        Op.SETATTR,
        changed(world.seen, SET_SIZE),
        changed(world.seen, SET_MTIME),
        grown,
    )
    denied(guest, Status.EACCES, Op.SETXATTR, SetXattr(world.seen, b"user.a", b"v", 0))
    allowed(
        guest,
        Op.SETATTR,
        changed(world.all, SET_SIZE),
        changed(world.all, SET_MTIME),
        changed(world.mine, SET_MODE, mode=0o600),
        changed(world.mine, SET_UID, uid=USER.uid),
        changed(world.mine, SET_GID, gid=7),
    )
    allowed(
        guest,
        Op.SETXATTR,
        SetXattr(world.all, b"user.a", b"v", 0),
        SetXattr(world.mine, b"user.a", b"v", 0),
    )


def test_a_group_that_is_not_roots(world: Squashed) -> None:
    world.trusted.call(Op.SETATTR, changed(world.none, SET_MODE, mode=0o640))
    denied(world.guest, Status.EACCES, Op.OPEN, Open(world.none, False))
    world.trusted.call(Op.SETATTR, changed(world.none, SET_GID, gid=100))
    allowed(world.guest, Op.OPEN, Open(world.none, False))
    denied(world.guest, Status.EACCES, Op.OPEN, Open(world.none, True))
