"""Users and groups with other ids at a client: shown and requested with its own ids, stored with
the cluster's.

Other tests have a client that names other ids, or requests what none of its users may have.
"""

import struct
from dataclasses import replace
from typing import Any, get_type_hints

import pytest

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import ATTRIBUTES_SIZE, LEASE_DATA, Attributes, unpack_attributes
from fscommon.wire.ahead import OpenAhead
from fscommon.wire.codec import encode
from fscommon.wire.keys import (
    KEY_MAPS_IDS,
    KEY_READ_ONLY,
    KEY_SQUASH_ALL,
    KEY_SQUASH_ROOT,
    NO_IDS,
    IdMap,
    IdRange,
    KeyCreate,
    MountRoot,
    SessionGrant,
)
from fscommon.wire.leases import LeaseTake
from fscommon.wire.messages import (
    BODIES,
    COMMIT_SIZE,
    SET_GID,
    SET_MODE,
    SET_MTIME,
    SET_SIZE,
    SET_UID,
    Caller,
    Close,
    Commit,
    Create,
    Empty,
    GetAttr,
    GetXattr,
    Link,
    Lookup,
    MkDir,
    MkNod,
    Open,
    ReadDir,
    RemoveXattr,
    Rename,
    SetAttr,
    SetXattr,
    Symlink,
    TmpFile,
    Unlink,
)
from fscommon.wire.ops import Op
from metaserver.identity import NOBODY, Mapped, check_map, who_of
from metaserver.namespace import acl
from metaserver.ops.table import ROWS
from metaserver.records import KeyRecord, unpack_key
from metaserver.shown import RECORDS

from .bench import ROOT, Client
from .test_keys import World, refused

MAP = IdMap(
    (IdRange(1000, 21000, 100), IdRange(7, 70007, 1)),
    (IdRange(100, 500, 1), IdRange(1000, 21000, 100)),
)
HERE, THERE = Caller(1001, 100, 0, (100, 1002)), Caller(21001, 500, 0, (500, 21002))
# This user of the cluster has the numbers of HERE, and is another user.
STRANGER = Caller(1001, 100, 0)


class Mapping(World):
    """/open, 0777 of root; in it ours (0640 of THERE) and theirs (0640 of STRANGER). guest: a
    client with MAP; alike: one all of whose users are THERE."""

    def __init__(self) -> None:
        super().__init__()
        self.open = self.trusted.mkdir(ROOT, b"open", 0o777, Caller(0, 0, 0))
        self.ours = self.file_of(b"ours", THERE)
        self.theirs = self.file_of(b"theirs", STRANGER)
        self.guest = self.client(self.mapped_key("guest", MAP))
        self.alike = self.client(self.mapped_key("alike", IdMap((), (), (21001, 500))))

    def file_of(self, name: bytes, caller: Caller, mode: int = 0o640) -> int:
        ino = self.trusted.create(self.open, name, mode, caller).ino
        self.trusted.call(Op.COMMIT, Commit(ino, ino, COMMIT_SIZE, 100, 0, 0, False))
        self.trusted.call(Op.CLOSE, Close((ino,)))
        return ino

    def mapped_key(self, name: str, ids: IdMap, flags: int = 0, root: int = ROOT) -> int:
        return int(self.ask(Op.KEY_CREATE, KeyCreate(name, root, ":/", flags, 0, ids)).id)

    def truly(self, ino: int) -> tuple[int, int]:
        return owners(self.trusted.call(Op.GETATTR, GetAttr(ino)))


def owners(reply: Any, field: str = "attributes") -> tuple[int, int]:
    seen = unpack_attributes(getattr(reply, field)[:ATTRIBUTES_SIZE])
    return seen.uid, seen.gid


@pytest.fixture
def world() -> Mapping:
    return Mapping()


def changed(ino: int, valid: int, **fields: int) -> SetAttr:
    return replace(SetAttr(ino, valid, 0, 0, 0, 0, 0, 0, 0, 0, 0), **fields)


def denied(client: Client, status: Status, op: Op, *requests: Any) -> None:
    for request in requests:
        assert refused(client, op, request) is status, request


# ---- maps ---------------------------------------------------------------------------------------


def test_both_ways() -> None:
    ids = Mapped(MAP.uids)
    assert [ids.to_cluster(n) for n in (999, 1000, 1099, 1100, 7, 0, NOBODY)] == [
        None,
        21000,
        21099,
        None,
        70007,
        None,
        NOBODY,
    ]
    assert [ids.to_client(n) for n in (21000, 21099, 70007, 21100, 1000, 0, NOBODY)] == [
        1000,
        1099,
        7,
        NOBODY,
        NOBODY,
        NOBODY,
        NOBODY,
    ]
    for number in range(20_990, 21_110):
        assert ids.may_be(number) == (ids.to_client(number) != NOBODY)


@pytest.mark.parametrize(
    ("flags", "ids", "said"),
    [
        (0, IdMap((IdRange(10, 20, 5), IdRange(14, 90, 1))), "users of the client in common"),
        (0, IdMap((), (IdRange(10, 20, 5), IdRange(90, 24, 9))), "groups of the cluster in common"),
        (0, IdMap((IdRange(65000, 1, 1000),)), "65534 is nobody"),
        (0, IdMap((IdRange(1, 65534, 1),)), "65534 is nobody"),
        (0, IdMap((IdRange(1, 0xFFFFFFFF, 1),)), "numbers are"),
        (0, IdMap((IdRange(1, 2, 0),)), "numbers are"),
        (KEY_SQUASH_ROOT, IdMap((IdRange(0, 0, 10),)), "one of both"),
        (0, IdMap((), (), (0, 5)), "neither of which is root's"),
        (0, IdMap((), (), (5,)), "one user with a group"),
        (KEY_SQUASH_ROOT, IdMap((), (), (5, 5)), "nobody else"),
        (0, IdMap(MAP.uids, (), (5, 5)), "nobody else"),
    ],
)
def test_unsound_maps(flags: int, ids: IdMap, said: str) -> None:
    with pytest.raises(FsError, match=said) as caught:
        check_map(flags, ids)
    assert caught.value.status is Status.EINVAL
    world = World()
    assert refused(world.admin, Op.KEY_CREATE, KeyCreate("k", ROOT, ":/", flags, 0, ids)) is (
        Status.EINVAL
    )


def test_who_a_key_allows() -> None:
    assert who_of(0, NO_IDS) is None and who_of(KEY_READ_ONLY, NO_IDS) is None
    squashed = who_of(KEY_SQUASH_ROOT, NO_IDS)
    assert squashed is not None and not squashed.translates and not squashed.may_be_root
    groups_alone = who_of(0, IdMap((), MAP.gids))
    assert groups_alone is not None and groups_alone.may_be_root and groups_alone.translates
    users_alone = who_of(0, IdMap(MAP.uids))
    assert users_alone is not None and not users_alone.may_be_root
    assert users_alone.gids.may_be(77) and not users_alone.gids.may_be(0)


def test_a_key_outlives_the_metaserver(world: Mapping) -> None:
    row = world.row(world.guest.connection.key.id)  # type: ignore[union-attr]
    assert row.ids == MAP and row.flags == KEY_MAPS_IDS
    grant: SessionGrant = world.alike.call(Op.SESSION_GRANT, Empty())
    assert grant.flags == KEY_SQUASH_ALL
    plain = world.key("plain", flags=KEY_READ_ONLY)
    assert type(world.known(plain).record()) is KeyRecord  # it is unchanged
    assert unpack_key(encode(world.known(plain).record())) == world.known(plain).record()
    world.restart()
    assert world.row(row.id).ids == MAP and world.known(row.id).who is not None


# ---- new files and what is shown ----------------------------------------------------------------


def test_what_is_made_is_the_users_own(world: Mapping) -> None:
    for client, seen in ((world.guest, (1001, 100)), (world.alike, (21001, 500))):
        for number, (op, request) in enumerate(makings(world, HERE)):
            reply = client.call(op, request)
            assert owners(reply) == seen and world.truly(ino_in(reply)) == (21001, 500), op
            if op is not Op.TMPFILE:
                client.call(
                    Op.RENAME,
                    Rename(world.open, request.name, world.open, b"%d-%d" % (number, seen[0]), 0),
                )
    for op, request in makings(world, Caller(0, 0, 0)):
        made = world.guest.call(op, request)
        assert owners(made) == (NOBODY, NOBODY) == world.truly(ino_in(made))


def makings(world: Mapping, caller: Caller) -> list[tuple[Op, Any]]:
    return [
        (Op.CREATE, Create(world.open, b"f", 0o644, True, True, caller)),
        (Op.MKDIR, MkDir(world.open, b"d", 0o755, caller)),
        (Op.SYMLINK, Symlink(world.open, b"s", b"to", caller)),
        (Op.MKNOD, MkNod(world.open, b"p", 0o010644, 0, caller)),
        (Op.TMPFILE, TmpFile(world.open, 0o600, True, caller)),
    ]


def ino_in(reply: Any) -> int:
    return unpack_attributes(reply.attributes).ino


def test_what_every_reply_shows(world: Mapping) -> None:
    guest, ours = world.guest, world.ours
    for op, request in (
        (Op.LOOKUP, Lookup(world.open, b"ours")),
        (Op.GETATTR, GetAttr(ours)),
        (Op.OPEN, Open(ours, True)),
        (Op.LEASE_TAKE, LeaseTake(ours, LEASE_DATA)),
        (Op.SETATTR, changed(ours, SET_MTIME)),
        (Op.SETXATTR, SetXattr(ours, b"user.a", b"1", 0)),
        (Op.REMOVEXATTR, RemoveXattr(ours, b"user.a")),
        (Op.COMMIT, Commit(ours, ours, COMMIT_SIZE, 200, 0, 0, False)),
        (Op.LINK, Link(ours, world.open, b"link")),
        (Op.RENAME, Rename(world.open, b"link", world.open, b"moved", 0)),
        (Op.UNLINK, Unlink(world.open, b"moved")),
    ):
        assert owners(guest.call(op, request)) == (1001, 100), op
    guest.call(Op.CREATE, Create(world.open, b"new", 0o644, True, True, HERE))
    replaced = guest.call(Op.RENAME, Rename(world.open, b"ours", world.open, b"new", 0))
    assert owners(replaced, "replaced") == (1001, 100)
    page = guest.call(Op.READDIR, ReadDir(world.open, 0, 10))
    seen = dict(zip(page.names, rows(page.attributes), strict=True))
    assert seen[b"new"].uid == 1001 and seen[b"theirs"].uid == NOBODY == seen[b"theirs"].gid
    assert owners(guest.call(Op.MOUNT_ROOT, MountRoot((b"open",)))) == (NOBODY, NOBODY)


def rows(records: bytes) -> list[Attributes]:
    starts = range(0, len(records), ATTRIBUTES_SIZE)
    return [unpack_attributes(records[at : at + ATTRIBUTES_SIZE]) for at in starts]


def test_what_is_opened_ahead(world: Mapping) -> None:
    found = world.guest.call(Op.OPEN_AHEAD, OpenAhead(world.open, 0, 64))
    # (): other clients hold the names; a foreign name never appears.
    assert found.names in ((b"ours",), ())
    assert all((row.uid, row.gid) == (1001, 100) for row in rows(found.attributes))


def test_a_repeat_shows_the_same(world: Mapping) -> None:
    """The stored reply has the cluster's ids."""
    request = MkDir(world.open, b"again", 0o755, HERE)
    number = world.guest.send(Op.MKDIR, request)
    world.bench.settle()
    first = world.guest.take()
    world.guest.send(Op.MKDIR, request, request_id=number)
    assert owners(world.guest.take()) == owners(first) == (1001, 100)


def test_every_reply_is_thought_of() -> None:
    """The list has all bytes in replies that are not records; each of them must be in it."""
    others = {
        ("Opened", "layout"),
        ("Opened", "capability"),
        ("OpenedAhead", "capabilities"),
        ("ReadDirReply", "cookies"),
        ("ReadLinkReply", "target"),
        ("XattrValue", "value"),
        ("ClusterMap", "cluster"),
        ("SessionGrant", "data_key"),
        ("Changed", "parents"),  # CHANGE_BATCH is refused to clients with mapped users
    }
    for op, row in ROWS.items():
        if row.names is None:
            continue
        kind = BODIES[op][1]
        fields = {name for name, hint in get_type_hints(kind).items() if hint is bytes}
        known = set(RECORDS.get(kind, ()))
        unknown = {(kind.__name__, name) for name in fields - known}
        assert known <= fields and unknown <= others, op


# ---- owners -------------------------------------------------------------------------------------


def test_changing_owners(world: Mapping) -> None:
    guest, ours, theirs = world.guest, world.ours, world.theirs
    reply = guest.call(Op.SETATTR, changed(ours, SET_UID | SET_GID, uid=1050, gid=1002))
    assert owners(reply) == (1050, 1002) and world.truly(ours) == (21050, 21002)
    for wanted in (0, 21001, 500, 1100, 4_000_000_000):  # these are not in the map
        denied(
            guest,
            Status.EINVAL,
            Op.SETATTR,
            changed(ours, SET_UID, uid=wanted),
            changed(ours, SET_GID, gid=wanted or 21002),
        )
    denied(
        guest,
        Status.EPERM,
        Op.SETATTR,
        changed(theirs, SET_UID, uid=1001),
        changed(theirs, SET_GID, gid=100),
        changed(theirs, SET_MODE, mode=0o666),
    )
    assert world.truly(theirs) == (1001, 100)
    guest.call(Op.SETATTR, changed(ours, SET_UID, uid=NOBODY))
    assert world.truly(ours) == (NOBODY, 21002)
    alike = world.alike
    mine = world.file_of(b"mine", THERE)
    # The caller is that user.
    alike.call(Op.SETATTR, changed(mine, SET_UID | SET_GID, uid=0, gid=0))
    assert world.truly(mine) == (21001, 500)
    denied(alike, Status.EPERM, Op.SETATTR, changed(theirs, SET_UID, uid=21001))


def test_a_key_that_squashes_root_beside_the_map(world: Mapping) -> None:
    guest = world.client(world.mapped_key("both", MAP, KEY_SQUASH_ROOT))
    denied(guest, Status.EPERM, Op.SETATTR, changed(world.ours, SET_UID, uid=1050))
    # The owner stays the same.
    guest.call(Op.SETATTR, changed(world.ours, SET_UID | SET_GID, uid=1001, gid=100))
    assert world.truly(world.ours) == (21001, 500)


def test_root_that_is_mapped_stays_root(world: Mapping) -> None:
    guest = world.client(world.mapped_key("rooted", IdMap((IdRange(0, 0, 1),))))
    guest.call(Op.SETATTR, changed(world.theirs, SET_MODE, mode=0o600))
    guest.call(Op.OPEN, Open(world.theirs, True))
    guest.call(Op.MKNOD, MkNod(world.open, b"null", 0o020666, 0x103, Caller(0, 0, 0)))


# ---- files of others ----------------------------------------------------------------------------


def test_what_is_others_is_reached_as_others_may(world: Mapping) -> None:
    theirs = world.theirs
    for client in (world.guest, world.alike):
        denied(client, Status.EACCES, Op.OPEN, Open(theirs, False), Open(theirs, True))
        denied(client, Status.EACCES, Op.SETATTR, changed(theirs, SET_SIZE))
        denied(
            client, Status.EACCES, Op.COMMIT, Commit(theirs, theirs, COMMIT_SIZE, 5, 0, 0, False)
        )
        denied(client, Status.EACCES, Op.LEASE_TAKE, LeaseTake(theirs, LEASE_DATA))
        denied(
            client,
            Status.EACCES,
            Op.CREATE,
            Create(world.open, b"theirs", 0, False, False, STRANGER),
        )
        denied(
            client,
            Status.EPERM,
            Op.SETXATTR,
            SetXattr(theirs, b"trusted.a", b"v", 0),
            SetXattr(theirs, acl.ACCESS, b"", 0),
        )
        denied(client, Status.EPERM, Op.MKNOD, MkNod(world.open, b"dev", 0o060666, 5, HERE))
        client.call(Op.OPEN, Open(world.ours, True))
        client.call(Op.CLOSE, Close((world.ours,)))
    # Its mode is 0640, and the group is one of theirs.
    world.trusted.call(Op.SETATTR, changed(theirs, SET_GID, gid=500))
    for client in (world.guest, world.alike):
        client.call(Op.OPEN, Open(theirs, False))
        denied(client, Status.EACCES, Op.OPEN, Open(theirs, True))


def test_names_in_a_sticky_directory_of_others(world: Mapping) -> None:
    sticky = world.trusted.mkdir(ROOT, b"sticky", 0o1777, Caller(0, 0, 0))
    for name, caller in ((b"a", STRANGER), (b"b", THERE)):
        world.trusted.create(sticky, name, 0o666, caller)
    for client, own in ((world.guest, b"b"), (world.alike, b"c")):
        denied(client, Status.EPERM, Op.UNLINK, Unlink(sticky, b"a"))
        world.trusted.create(sticky, b"c", 0o666, THERE) if own == b"c" else None
        client.call(Op.UNLINK, Unlink(sticky, own))


def test_a_group_of_others_is_lent_to_nobody(world: Mapping) -> None:
    """The directory passes on its group, and the client claims to be in that group."""
    lent = world.trusted.mkdir(ROOT, b"lent", 0o2777, Caller(0, 4444, 0))
    wanted = Create(lent, b"tool", 0o2644, True, True, replace(HERE, groups=(4444,)))
    made = unpack_attributes(world.guest.call(Op.CREATE, wanted).attributes)
    assert made.gid == NOBODY and world.truly(made.ino) == (21001, 4444)
    for op, request in (
        (Op.SETATTR, changed(made.ino, SET_MODE, mode=0o2755)),
        (Op.SETXATTR, SetXattr(made.ino, acl.ACCESS, acl_of((2, 7, 1005)), 0)),
    ):
        world.trusted.call(Op.SETATTR, changed(made.ino, SET_MODE, mode=0o2644))
        world.guest.call(op, request)
        mode = unpack_attributes(world.trusted.call(Op.GETATTR, GetAttr(made.ino)).attributes).mode
        assert not mode & 0o2000, op
    # It is a group of its own.
    world.guest.call(Op.SETATTR, changed(world.ours, SET_MODE, mode=0o2755))
    shown = unpack_attributes(world.guest.call(Op.GETATTR, GetAttr(world.ours)).attributes)
    assert shown.mode & 0o7777 == 0o2755


# ---- ACLs ---------------------------------------------------------------------------------------


def acl_of(*named: tuple[int, int, int]) -> bytes:
    """rw for the owner, and these (tag, permissions, id) within a mask of 7."""
    single = [(acl.USER_OBJ, 6), (acl.GROUP_OBJ, 4), (acl.OTHER, 0)]
    entries = [acl.AclEntry(tag, bits) for tag, bits in single]
    entries += [acl.AclEntry(acl.MASK, 7)] if named else []
    return acl.pack_acl(tuple(entries + [acl.AclEntry(*item) for item in named]))


def named_in(value: bytes) -> set[tuple[int, int, int]]:
    return {
        (entry.tag, entry.permissions, entry.id)
        for entry in acl.unpack_acl(value)
        if entry.tag in (acl.USER, acl.GROUP)
    }


@pytest.mark.parametrize("name", [acl.ACCESS, acl.DEFAULT])
def test_acls(world: Mapping, name: bytes) -> None:
    place = world.ours
    if name == acl.DEFAULT:
        place = world.trusted.mkdir(world.open, b"ours-too", 0o755, THERE)
    guest = world.guest
    guest.call(
        Op.SETXATTR, SetXattr(place, name, acl_of((2, 6, 1005), (8, 4, 100), (2, 1, NOBODY)), 0)
    )
    stored = world.trusted.call(Op.GETXATTR, GetXattr(place, name)).value
    assert named_in(stored) == {(2, 6, 21005), (8, 4, 500), (2, 1, NOBODY)}
    seen = guest.call(Op.GETXATTR, GetXattr(place, name)).value
    assert named_in(seen) == {(2, 6, 1005), (8, 4, 100), (2, 1, NOBODY)}
    denied(
        guest,
        Status.EINVAL,
        Op.SETXATTR,
        SetXattr(place, name, acl_of((2, 7, 21005)), 0),
        SetXattr(place, name, acl_of((8, 7, 0)), 0),
    )
    # Entries whose id the client does not have are not shown, and stay.
    world.trusted.call(Op.SETXATTR, SetXattr(place, name, acl_of((2, 6, 21005), (2, 7, 4)), 0))
    assert named_in(guest.call(Op.GETXATTR, GetXattr(place, name)).value) == {(2, 6, 1005)}
    guest.call(Op.SETXATTR, SetXattr(place, name, acl_of((2, 4, 1006)), 0))
    stored = world.trusted.call(Op.GETXATTR, GetXattr(place, name)).value
    assert named_in(stored) == {(2, 4, 21006), (2, 7, 4)}
    guest.call(Op.SETXATTR, SetXattr(place, name, acl_of(), 0))
    if name == acl.DEFAULT:
        assert not named_in(world.trusted.call(Op.GETXATTR, GetXattr(place, name)).value)


def test_what_an_acl_gives(world: Mapping) -> None:
    """An ACL on a file of others gives rights to users that the client can be, and to no others."""
    for entry, may_open in (
        ((2, 4, 21003), True),
        ((2, 4, 1003), False),
        ((8, 4, 500), True),
        ((8, 4, 100), False),
    ):
        world.trusted.call(Op.SETXATTR, SetXattr(world.theirs, acl.ACCESS, acl_of(entry), 0))
        status = Status.OK
        try:
            world.guest.call(Op.OPEN, Open(world.theirs, False))
        except FsError as error:
            status = error.status
        assert status is (Status.OK if may_open else Status.EACCES), entry
        denied(world.guest, Status.EACCES, Op.OPEN, Open(world.theirs, True))


def test_a_torn_acl(world: Mapping) -> None:
    for value in (b"x", struct.pack("<I", 2) + b"xyz", struct.pack("<I", 2)):
        denied(world.guest, Status.EINVAL, Op.SETXATTR, SetXattr(world.ours, acl.ACCESS, value, 0))
