"""Keys of clients at the engine: a client that lies in each op gets nothing its key forbids."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest

from fscommon.errors import FsError, ProtocolError, Status
from fscommon.layout.attributes import (
    LEASE_DATA,
    LEASE_DATA_EXCLUSIVE,
    LEASE_META,
    unpack_attributes,
)
from fscommon.layout.capability import RIGHT_WRITE
from fscommon.types import Ino, SessionId
from fscommon.wire.admin import Place
from fscommon.wire.ahead import OpenAhead
from fscommon.wire.births import Birth, ChangeBatch, Delegate, Removal, Setting, Slot
from fscommon.wire.codec import decode, encode
from fscommon.wire.header import FLAG_REPLAY
from fscommon.wire.keys import (
    KEY_READ_ONLY,
    KEY_SQUASH_ROOT,
    KeyCreate,
    KeyList,
    KeyRevoke,
    KeyRow,
    MountRoot,
)
from fscommon.wire.leases import (
    LeaseQuery,
    LeaseRestore,
    LeaseReturn,
    LeaseTake,
    ReturnItem,
    SharedLease,
)
from fscommon.wire.locks import HeldLock, LockGet, LockRestore, LockSet
from fscommon.wire.messages import (
    COMMIT_SIZE,
    SET_MODE,
    SET_SIZE,
    Commit,
    Create,
    Empty,
    GetAttr,
    GetXattr,
    Link,
    ListXattr,
    Lookup,
    MkDir,
    MkNod,
    Open,
    Opened,
    ReadDir,
    ReadLink,
    RemoveXattr,
    Rename,
    Replay,
    RmDir,
    SessionOpen,
    SessionOpened,
    SetAttr,
    SetXattr,
    StatFs,
    Symlink,
    TmpFile,
    Unlink,
    WriteInline,
)
from fscommon.wire.ops import SPECS, Op
from fscommon.wire.quota import QuotaAssign
from fscommon.wire.replicas import DropReplicas
from metaserver.keys import ClientKey
from metaserver.ops.row import Access
from metaserver.ops.table import ROWS
from metaserver.store.memory import MemoryStore

from .bench import ROOT, USER, Bench, Client


class World:
    """/inside/{file,sub/deep} and /outside/{file,sub}; the trusted client may use all."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.bench = Bench(self.store)
        self.trusted = self.bench.client()
        self.admin = Client(self.bench, self.bench.connect("admin"), SessionId(0))
        self.inside = self.trusted.mkdir(ROOT, b"inside", 0o777)
        self.sub = self.trusted.mkdir(self.inside, b"sub", 0o777)
        self.file = self._file(self.inside, b"file")
        self.deep = self._file(self.sub, b"deep")
        self.outside = self.trusted.mkdir(ROOT, b"outside", 0o777)
        self.outside_sub = self.trusted.mkdir(self.outside, b"sub", 0o777)
        self.outside_file = self._file(self.outside, b"file")
        self.make_tree(self.inside)

    def _file(self, parent: int, name: bytes) -> int:
        return self.trusted.create(parent, name, 0o666).ino

    def make_tree(self, top: int) -> None:
        stack: tuple[Place, ...] = (Place(top, 0),)
        while stack:
            stack = self.ask(Op.QUOTA_ASSIGN, QuotaAssign(top, top, stack)).stack

    def ask(self, op: Op, request: Any) -> Any:
        return self.admin.call(op, request)

    def key(self, name: str = "guest", root: int = 0, flags: int = 0, expires: int = 0) -> int:
        wanted = KeyCreate(name, root or self.inside, ":/inside", flags, expires)
        return int(self.ask(Op.KEY_CREATE, wanted).id)

    def row(self, key_id: int) -> KeyRow:
        row: KeyRow = self.ask(Op.KEY_LIST, KeyList(key_id - 1, 1)).rows[0]
        return row

    def stranger(self, key_id: int, purpose: str = "meta") -> Client:
        """A connection that was authenticated with this key."""
        connection = self.bench.connect(purpose)
        connection.key = self.known(key_id)
        return Client(self.bench, connection)

    def known(self, key_id: int) -> ClientKey:
        key = self.bench.engine.services.keys.get(key_id)
        assert key is not None
        return key

    def client(self, key_id: int) -> Client:
        client = self.stranger(key_id)
        self.bench.now_s += 1
        self.bench.engine.sessions.end_sole(self.bench.now_s)
        opened: SessionOpened = client.call(Op.SESSION_OPEN, SessionOpen(0, "g", (), 0))
        client.session = SessionId(opened.session)
        return client

    def namespace(self) -> list[tuple[bytes, bytes]]:
        """Names and inodes, as they are durable."""
        self.bench.settle()
        return list(self.store.snapshot().range(b"D", b"J"))

    def restart(self) -> None:
        """The metaserver dies and starts again; no client has replayed yet."""
        self.bench.settle()
        self.bench = Bench(self.store, targets=0)
        self.admin = Client(self.bench, self.bench.connect("admin"), SessionId(0))


@pytest.fixture
def world() -> World:
    return World()


def refused(client: Client, op: Op, request: Any, **options: int) -> Status:
    with pytest.raises(FsError) as caught:
        client.call(op, request, **options)
    return caught.value.status


def setattr_of(ino: int, valid: int = SET_MODE) -> SetAttr:
    return SetAttr(ino, valid, 0o777, 0, 0, 0, 0, 0, 0, 0, 0)


# Requests of a client that name inodes; each field that names one is tried with one outside. d: a
# directory, f: a file.
Asks = Callable[[int, int], list[Any]]
REQUESTS: dict[Op, Asks] = {
    Op.LOOKUP: lambda d, f: [Lookup(d, b"file")],
    Op.GETATTR: lambda d, f: [GetAttr(f), GetAttr(d)],
    Op.SETATTR: lambda d, f: [setattr_of(f), setattr_of(f, SET_SIZE), setattr_of(d)],
    Op.MKNOD: lambda d, f: [MkNod(d, b"new", 0o010644, 0, USER)],
    Op.MKDIR: lambda d, f: [MkDir(d, b"new", 0o755, USER)],
    Op.SYMLINK: lambda d, f: [Symlink(d, b"new", b"to", USER)],
    Op.READLINK: lambda d, f: [ReadLink(f)],
    Op.UNLINK: lambda d, f: [Unlink(d, b"file")],
    Op.RMDIR: lambda d, f: [RmDir(d, b"sub")],
    Op.CREATE: lambda d, f: [
        Create(d, b"new", 0o644, True, True, USER),
        Create(d, b"file", 0o644, False, True, USER),
    ],
    Op.OPEN: lambda d, f: [Open(f, writable=False), Open(f, writable=True), Open(d, False)],
    Op.READDIR: lambda d, f: [ReadDir(d, 0, 100)],
    Op.WRITE_INLINE: lambda d, f: [WriteInline(f, f, 0, b".", 0, 0, False)],
    Op.DROP_REPLICAS: lambda d, f: [DropReplicas(f, f, 0, (0,), (1,))],
    Op.COMMIT: lambda d, f: [Commit(f, f, COMMIT_SIZE, 1 << 20, 0, 0, False)],
    Op.GETXATTR: lambda d, f: [GetXattr(f, b"user.a")],
    Op.SETXATTR: lambda d, f: [SetXattr(f, b"user.a", b"v", 0)],
    Op.LISTXATTR: lambda d, f: [ListXattr(f)],
    Op.REMOVEXATTR: lambda d, f: [RemoveXattr(f, b"user.a")],
    Op.TMPFILE: lambda d, f: [TmpFile(d, 0o600, True, USER)],
    Op.OPEN_AHEAD: lambda d, f: [OpenAhead(d, 0, 64)],
    Op.STATFS: lambda d, f: [StatFs(d), StatFs(f)],
    Op.LEASE_TAKE: lambda d, f: [LeaseTake(f, LEASE_META), LeaseTake(f, LEASE_DATA_EXCLUSIVE)],
    Op.LOCK_GET: lambda d, f: [LockGet(f, False, 1, 0, 10, 1)],
    Op.LOCK_SET: lambda d, f: [LockSet(f, False, 1, 0, 10, 1, 7, 0, False)],
}
# These are named in another way: they have tests of their own below.
OTHERWISE = {
    Op.RENAME,
    Op.LINK,
    Op.DELEGATE,
    Op.CHANGE_BATCH,
    Op.LOCK_RESTORE,
    Op.SESSION_OPEN,
    Op.LEASE_RETURN,
    Op.MOUNT_ROOT,
    Op.LEASE_RESTORE,
}
WITHOUT_INODES = {
    Op.PING,
    Op.CLOSE,
    Op.SYNCED,
    Op.BARRIER,
    Op.LOCK_EVENTS,
    Op.LOCK_CANCEL,
    Op.SESSION_RENEW,
    Op.SESSION_CLOSE,
    Op.REPLAY_DONE,
    Op.SESSION_GRANT,
    Op.CLUSTER_MAP,
}
NOT_FOR_CONFINED = {Op.STATUS, Op.LEASES}


def test_every_op_of_clients_is_thought_of() -> None:
    """A new op needs a line here that says what a client with a key may do with it."""
    of_clients = {op for op, row in ROWS.items() if row.access not in _OF_SERVERS}
    allowed = {op for op, row in ROWS.items() if row.names is not None}
    assert of_clients == allowed | NOT_FOR_CONFINED
    assert allowed == set(REQUESTS) | OTHERWISE | WITHOUT_INODES


_OF_SERVERS = (Access.SERVER, Access.ADMIN)


@pytest.mark.parametrize("op", REQUESTS)
def test_nothing_outside_of_the_tree_exists(world: World, op: Op) -> None:
    guest = world.client(world.key())
    before = world.namespace()
    for request in REQUESTS[op](world.outside, world.outside_file):
        assert refused(guest, op, request) is Status.ESTALE
    for request in REQUESTS[op](world.outside, 999_999):  # a missing inode looks the same
        assert refused(guest, op, request) is Status.ESTALE
    for request in REQUESTS[op](ROOT, ROOT):  # this is above it
        assert refused(guest, op, request) is Status.ESTALE
    assert world.namespace() == before


# WRITE_INLINE needs a file that is open and stored in its record: see test_inline.
@pytest.mark.parametrize("op", sorted(set(REQUESTS) - {Op.WRITE_INLINE}))
def test_within_the_tree_it_works(world: World, op: Op) -> None:
    guest = world.client(world.key())
    world.trusted.call(Op.SETXATTR, SetXattr(world.file, b"user.a", b"v", 0))
    world.trusted.call(Op.UNLINK, Unlink(world.sub, b"deep"))
    file = world.file
    if op is Op.READLINK:
        made = world.trusted.call(Op.SYMLINK, Symlink(world.inside, b"link", b"to", USER))
        file = unpack_attributes(made.attributes).ino
    for request in REQUESTS[op](world.inside, file):
        guest.call(op, request)


def test_names_cannot_be_carried_over_the_border(world: World) -> None:
    guest = world.client(world.key())
    inside, outside = world.inside, world.outside
    for request in (
        Rename(outside, b"file", inside, b"mine", 0),
        Rename(inside, b"file", outside, b"theirs", 0),
        Rename(inside, b"file", outside, b"file", 2),
        Rename(outside, b"file", outside, b"file2", 0),
        Rename(ROOT, b"outside", inside, b"mine", 0),
    ):
        assert refused(guest, Op.RENAME, request) is Status.ESTALE
    assert refused(guest, Op.LINK, Link(world.outside_file, inside, b"mine")) is Status.ESTALE
    assert refused(guest, Op.LINK, Link(world.file, outside, b"theirs")) is Status.ESTALE
    like = replace(setattr_of(world.file, SET_SIZE), like=world.outside_file)
    assert refused(guest, Op.SETATTR, like) is Status.ESTALE
    for name in (b"..", b".", b"a/../../outside"):
        assert refused(guest, Op.LOOKUP, Lookup(inside, name)) is Status.EINVAL
    guest.call(Op.RENAME, Rename(inside, b"file", world.sub, b"moved", 0))
    guest.call(Op.LINK, Link(world.file, inside, b"again"))


def test_a_tree_within_the_tree_is_inside(world: World) -> None:
    """A directory below the key's has a quota of its own."""
    world.make_tree(world.sub)
    guest = world.client(world.key())
    assert guest.lookup(world.sub, b"deep").ino == world.deep
    guest.call(Op.GETATTR, GetAttr(world.deep))
    inner = world.client(world.key("inner", world.sub))
    inner.call(Op.GETATTR, GetAttr(world.deep))
    assert refused(inner, Op.GETATTR, GetAttr(world.file)) is Status.ESTALE


def test_what_is_moved_out_is_out(world: World) -> None:
    guest = world.client(world.key())
    guest.call(Op.OPEN, Open(world.file, writable=False))
    world.trusted.call(Op.RENAME, Rename(world.inside, b"file", world.outside, b"taken", 0))
    assert refused(guest, Op.OPEN, Open(world.file, writable=True)) is Status.ESTALE
    assert refused(guest, Op.GETATTR, GetAttr(world.file)) is Status.ESTALE


def test_the_tree_of_a_key_is_not_dissolved(world: World) -> None:
    key_id = world.key()
    back = QuotaAssign(world.inside, 0, (Place(world.inside, 0),))
    assert refused(world.admin, Op.QUOTA_ASSIGN, back) is Status.EBUSY
    world.ask(Op.KEY_REVOKE, KeyRevoke(key_id))
    world.ask(Op.QUOTA_ASSIGN, back)


@pytest.mark.parametrize("op", [*REQUESTS, Op.RENAME, Op.LINK, Op.DELEGATE])
def test_a_read_only_key_changes_nothing(world: World, op: Op) -> None:
    guest = world.client(world.key(root=ROOT, flags=KEY_READ_ONLY))
    before = world.namespace()
    others: dict[Op, list[Any]] = {
        Op.RENAME: [Rename(world.inside, b"file", world.inside, b"n", 0)],
        Op.LINK: [Link(world.file, world.inside, b"n")],
        Op.DELEGATE: [Delegate(world.inside, 10), Delegate(0, 10)],
    }
    for request in REQUESTS[op](world.inside, world.file) if op in REQUESTS else others[op]:
        changes = SPECS[op].mutation or op in (Op.DELEGATE, Op.DROP_REPLICAS)
        changes |= bool(getattr(request, "writable", False))
        changes |= isinstance(request, LeaseTake) and request.flags == LEASE_DATA_EXCLUSIVE
        if changes:
            assert refused(guest, op, request) is Status.EROFS
        elif op not in (Op.GETXATTR, Op.READLINK):
            guest.call(op, request)
    assert world.namespace() == before


def test_a_reader_gets_no_right_to_write(world: World) -> None:
    guest = world.client(world.key(flags=KEY_READ_ONLY))
    opened: Opened = guest.call(Op.OPEN, Open(world.file, writable=False))
    assert int.from_bytes(opened.capability[16:20], "little") & RIGHT_WRITE == 0
    taken = guest.call(Op.LEASE_TAKE, LeaseTake(world.file, LEASE_DATA))
    assert unpack_attributes(taken.attributes).ino == world.file


def born(slot: Slot, parent: int, name: bytes) -> Birth:
    return Birth(slot.ino, parent, name, 0o666, 0, 0, 1, slot.layout, True)


def test_files_are_made_in_the_tree_of_slots_that_were_given(world: World) -> None:
    guest = world.client(world.key())
    given = guest.call(Op.DELEGATE, Delegate(world.inside, 2))
    assert len(given.slots) == 2 and unpack_attributes(given.attributes).ino == world.inside
    mine, other = given.slots
    batch = ChangeBatch((born(mine, world.inside, b"mine"),))
    assert guest.call(Op.CHANGE_BATCH, batch).errors == ()
    assert guest.lookup(world.inside, b"mine").ino == mine.ino
    assert refused(guest, Op.DELEGATE, Delegate(world.outside, 0)) is Status.ESTALE
    outside = ChangeBatch((born(other, world.outside, b"mine"),))
    assert refused(guest, Op.CHANGE_BATCH, outside) is Status.ESTALE
    theirs = Setting(world.outside_file, SET_MODE, 0o777, 0, 0, 0, 0, 0, 0)
    reply = guest.call(Op.CHANGE_BATCH, ChangeBatch((), (), (theirs,)))
    assert reply.setting_errors == (Status.ESTALE,)
    gone = Removal(world.inside, b"mine", world.outside_file, 1, 0)
    assert guest.call(Op.CHANGE_BATCH, ChangeBatch((), (gone,))).removal_errors == (Status.ESTALE,)


@pytest.mark.parametrize("flags", [KEY_SQUASH_ROOT, KEY_READ_ONLY])
def test_others_make_no_files_by_themselves(world: World, flags: int) -> None:
    guest = world.client(world.key(flags=flags))
    change = ChangeBatch((), (), (Setting(world.file, SET_MODE, 0o777, 0, 0, 0, 0, 0, 0),))
    if flags == KEY_READ_ONLY:
        assert refused(guest, Op.DELEGATE, Delegate(world.inside, 100)) is Status.EROFS
        assert refused(guest, Op.CHANGE_BATCH, change) is Status.EROFS
    else:
        given = guest.call(Op.DELEGATE, Delegate(world.inside, 100))
        assert not given.slots and not given.attributes
        assert refused(guest, Op.CHANGE_BATCH, change) is Status.EPERM


def test_no_files_are_made_on_credit(world: World) -> None:
    """Births with invented numbers, and replays of operations that never happened."""
    guest = world.client(world.key())
    layout = world.trusted.call(Op.OPEN, Open(world.outside_file, writable=False)).layout
    birth = Birth(world.outside_file, world.inside, b"mine", 0o666, 0, 0, 1, layout, True)
    reply = guest.call(Op.CHANGE_BATCH, ChangeBatch((birth,)))
    assert reply.errors == (Status.BAD_REQUEST,)
    assert refused(guest, Op.REPLAY_DONE, Empty(), flags=FLAG_REPLAY) is Status.BAD_REQUEST


def test_slots_of_before_a_restart_are_proved(world: World) -> None:
    """Files created in them are reported later, and proved by capabilities that only it has."""
    key_id = world.key()
    guest = world.client(key_id)
    mine, forged, early = guest.call(Op.DELEGATE, Delegate(world.inside, 3)).slots
    theirs = world.trusted.call(Op.DELEGATE, Delegate(0, 1)).slots[0]
    session = guest.session
    world.restart()
    again = world.stranger(key_id)
    again.session = session
    again.call(Op.SESSION_OPEN, SessionOpen(session, "g", (), 0))
    again.call(Op.REPLAY_DONE, Empty())
    trusted = Client(world.bench, world.bench.connect(), world.trusted.session)
    trusted.call(Op.SESSION_OPEN, SessionOpen(trusted.session, "t", (), 0))
    trusted.call(Op.REPLAY_DONE, Empty())
    births = tuple(born(s, world.inside, b"%d" % s.ino) for s in (mine, forged, early, theirs))
    proofs = (mine.capability, mine.capability, b"", theirs.capability)
    reply = again.call(Op.CHANGE_BATCH, ChangeBatch(births, proofs=proofs))
    refused_ = int(Status.BAD_REQUEST)
    assert reply.errors == (0, refused_, refused_, refused_)
    reply = again.call(Op.CHANGE_BATCH, ChangeBatch(births[:1], proofs=proofs[:1]))
    assert reply.errors != (), "it was made"


def test_a_forged_replay_is_refused(world: World) -> None:
    """After a restart a client replays its requests: this one lies, to get access to a file."""
    key_id = world.key()
    guest = world.client(key_id)
    victim: Opened = world.trusted.call(Op.OPEN, Open(world.outside_file, writable=False))
    session = guest.session
    world.restart()
    again = world.stranger(key_id)
    again.session = session
    again.call(Op.SESSION_OPEN, SessionOpen(session, "g", (world.outside_file,), 0))
    assert not world.bench.engine.sessions.is_open(Ino(world.outside_file))
    create = Create(world.inside, b"mine", 0o666, True, True, USER)
    lie = Replay(10**9, 0, encode(create), encode(victim))
    assert again.replay(Op.CREATE, lie, 77).header.status == Status.EPERM
    lock = HeldLock(world.outside_file, False, 1, 0, 10, 1, 7)
    assert refused(again, Op.LOCK_RESTORE, LockRestore((lock,))) is Status.ESTALE
    lease = SharedLease(world.outside_file, LEASE_DATA)
    assert refused(again, Op.LEASE_RESTORE, LeaseRestore((lease,))) is Status.ESTALE


@pytest.mark.parametrize("flags", [0, KEY_READ_ONLY])
def test_an_exclusive_lease_is_not_claimed_after_a_restart(world: World, flags: int) -> None:
    key_id = world.key(flags=flags)
    guest = world.client(key_id)
    session = guest.session
    world.restart()
    again = world.stranger(key_id)
    claimed = (world.outside_file, world.file)
    again.call(Op.SESSION_OPEN, SessionOpen(session, "g", (), 0, exclusive=claimed))
    held = world.bench.engine.services.leases.of(SessionId(session))
    assert [one.ino for one in held] == ([] if flags else [world.file])


def test_what_was_answered_is_durable(world: World) -> None:
    guest = world.client(world.key())
    guest.send(Op.MKDIR, MkDir(world.inside, b"new", 0o755, USER))
    assert guest.received() == []  # it does not come before the commit
    world.bench.settle()
    header = guest.take_frame().header
    assert header.status == 0 and header.file_id >= header.offset > 0


def test_returning_a_lease_opens_nothing_outside(world: World) -> None:
    guest = world.client(world.key())
    items = tuple(ReturnItem(ino, 0, 0, True) for ino in (world.outside_file, world.file))
    guest.call(Op.LEASE_RETURN, LeaseReturn(items))
    session = world.bench.engine.sessions.get(SessionId(guest.session))
    assert session is not None and set(session.opens) == {world.file}


def test_sessions_of_others_are_out_of_reach(world: World) -> None:
    key_id = world.key()
    guest, other = world.client(key_id), world.client(world.key("other"))
    for victim in (world.trusted.session, other.session):
        taking = SessionOpen(victim, "g", (), 0)
        assert refused(world.stranger(key_id), Op.SESSION_OPEN, taking) is Status.UNKNOWN_SESSION
        with pytest.raises(ProtocolError):
            world.bench.engine.attach(
                world.stranger(key_id, "recall").connection, SessionId(victim)
            )
    taking = SessionOpen(guest.session, "t", (), 0)
    assert refused(world.trusted, Op.SESSION_OPEN, taking) is Status.UNKNOWN_SESSION
    world.bench.engine.attach(world.stranger(key_id, "recall").connection, SessionId(guest.session))


@pytest.mark.parametrize("purpose", ["meta", "admin", "server", "data"])
def test_a_client_is_no_administrator_and_no_server(world: World, purpose: str) -> None:
    asked = {
        Op.KEY_CREATE: KeyCreate("mine", ROOT, ":/", 0, 0),
        Op.KEY_LIST: KeyList(0, 10),
        Op.KEY_REVOKE: KeyRevoke(1),
        Op.STATUS: Empty(),
        Op.LEASES: LeaseQuery(0, 0, 10),
        Op.QUOTA_ASSIGN: QuotaAssign(ROOT, 0, (Place(ROOT, 0),)),
    }
    for key_id in (world.key(), world.key("whole", ROOT)):
        guest = world.stranger(key_id, purpose)
        for op, request in asked.items():
            assert refused(guest, op, request) is Status.EPERM


def test_a_key_for_everything_is_as_good_as_ever(world: World) -> None:
    """It gets delegation and answers before the commit, as with the cluster key."""
    guest = world.client(world.key("whole", ROOT))
    guest.call(Op.GETATTR, GetAttr(world.outside_file))
    slot = guest.call(Op.DELEGATE, Delegate(0, 1)).slots[0]
    birth = Birth(slot.ino, ROOT, b"born", 0o644, 1, 1, 1, slot.layout, False)
    assert guest.call(Op.CHANGE_BATCH, ChangeBatch((birth,))).errors == ()


def test_revoked_at_once_and_after_a_restart(world: World) -> None:
    key_id = world.key()
    guest = world.client(key_id)
    assert world.row(key_id).sessions == (guest.session,)
    world.ask(Op.KEY_REVOKE, KeyRevoke(key_id))
    with pytest.raises(FsError, match="'guest' was revoked") as caught:
        guest.call(Op.GETATTR, GetAttr(world.file))
    assert caught.value.status is Status.EACCES
    assert refused(world.stranger(key_id), Op.SESSION_OPEN, SessionOpen(0, "g", (), 0)) is (
        Status.EACCES
    )
    expired = world.bench.engine.sessions.expired(world.bench.now_s, 1e9)
    assert [one.id for one in expired] == [guest.session]
    world.restart()
    assert world.row(key_id).revoked_ns
    assert refused(world.stranger(key_id), Op.PING, Empty()) is Status.EACCES


def test_expired(world: World) -> None:
    key_id = world.key(expires=world.bench.now_ns + 10**9)
    guest = world.client(key_id)
    guest.call(Op.GETATTR, GetAttr(world.file))
    world.bench.now_ns += 2 * 10**9
    assert refused(guest, Op.GETATTR, GetAttr(world.file)) is Status.EACCES
    world.bench.engine.sessions.condemn_refused(world.bench.now_ns)
    assert world.bench.engine.sessions.expired(world.bench.now_s, 1e9)


def test_sessions_keep_their_key_over_a_restart(world: World) -> None:
    key_id = world.key()
    guest = world.client(key_id)
    world.restart()
    kept = world.bench.engine.sessions.get(SessionId(guest.session))
    assert kept is not None and kept.key is world.known(key_id)


def test_wrong_keys_are_not_made(world: World) -> None:
    good = KeyCreate("guest", world.inside, ":/inside", 0, 0)
    for wrong, status in (
        (replace(good, name=""), Status.EINVAL),
        (replace(good, name="n" * 65), Status.EINVAL),
        (replace(good, name="a\nb"), Status.EINVAL),
        (replace(good, flags=1 << 20), Status.EINVAL),
        (replace(good, flags=-1), Status.BAD_REQUEST),
        (replace(good, expires_ns=1), Status.EINVAL),
        (replace(good, root=world.outside), Status.EINVAL),
        (replace(good, root=world.file), Status.ENOTDIR),
        (replace(good, root=12345), Status.ESTALE),
    ):
        assert refused(world.admin, Op.KEY_CREATE, wrong) is status
    world.ask(Op.KEY_CREATE, good)
    assert refused(world.admin, Op.KEY_CREATE, good) is Status.EEXIST
    assert refused(world.admin, Op.KEY_REVOKE, KeyRevoke(5)) is Status.ENOENT


def test_room_for_keys(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metaserver.keys.KEYS_MAX", 2)
    first, second = world.key("first"), world.key("second")
    assert refused(world.admin, Op.KEY_CREATE, KeyCreate("third", ROOT, ":/", 0, 0)) is (
        Status.ENOSPC
    )
    world.ask(Op.KEY_REVOKE, KeyRevoke(first))
    world.key("third")
    assert world.bench.engine.services.keys.get(first) is None
    world.restart()
    assert world.bench.engine.services.keys.get(first) is None
    assert world.row(second).name == "second"


def test_where_a_key_mounts(world: World) -> None:
    guest = world.client(world.key())
    found = guest.call(Op.MOUNT_ROOT, MountRoot((b"inside", b"sub")))
    assert unpack_attributes(found.attributes).ino == world.sub
    for names in ((), (b"outside",), (b"outside", b"sub"), (b"nothing",), (b"outside", b"none")):
        with pytest.raises(FsError, match="is for :/inside") as caught:
            guest.call(Op.MOUNT_ROOT, MountRoot(names))
        assert caught.value.status is Status.EACCES
    assert refused(guest, Op.MOUNT_ROOT, MountRoot((b"inside", b"none"))) is Status.ENOENT
    assert refused(guest, Op.MOUNT_ROOT, MountRoot((b"inside",) * 300)) is Status.ENAMETOOLONG


def test_the_secret_of_a_session_is_its_own(world: World) -> None:
    one, two = world.client(world.key()), world.client(world.key("two"))
    secrets = {client.call(Op.SESSION_GRANT, Empty()).data_key for client in (one, two)}
    assert len(secrets) == 2 and all(len(secret) == 32 for secret in secrets)
    assert world.trusted.call(Op.SESSION_GRANT, Empty()).data_key == b""


def test_a_record_of_before_keys_is_read(world: World) -> None:
    from metaserver.records import SessionRecord, unpack_session  # noqa: PLC0415

    assert unpack_session(msgpack.packb(["n", 5])) == SessionRecord("n", 5, 0, 0)
    assert unpack_session(msgpack.packb(["n", 5, 7])) == SessionRecord("n", 5, 7, 0)
    assert decode(SessionRecord, encode(SessionRecord("n", 5))).opened_ns == 5
    assert world.bench.faults() == []
