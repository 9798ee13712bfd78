"""Names: mkdir, create, link, unlink, rmdir, rename, readdir and their effects on inodes."""

import stat

import pytest

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import Attributes, unpack_attributes
from fscommon.layout.layout import unpack_layout
from fscommon.types import Ino
from fscommon.wire.messages import (
    Caller,
    Close,
    Create,
    GetAttr,
    Link,
    Lookup,
    MkDir,
    MkNod,
    Open,
    ReadDir,
    ReadDirReply,
    ReadLink,
    Rename,
    RmDir,
    Symlink,
    Unlink,
)
from fscommon.wire.ops import Op
from metaserver.reaper import _remove
from metaserver.records import all_of

from .bench import ROOT, USER, Bench, Client


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def client(bench: Bench) -> Client:
    return bench.client()


def fails(client: Client, op: Op, message: object) -> Status:
    with pytest.raises(FsError) as caught:
        client.call(op, message)
    return caught.value.status


def attributes(client: Client, ino: int) -> Attributes:
    return unpack_attributes(client.call(Op.GETATTR, GetAttr(ino)).attributes)


def test_mkdir_counts_links_and_touches_the_parent(bench: Bench, client: Client) -> None:
    before = attributes(client, ROOT)
    ino = client.mkdir(ROOT, b"d")
    made, root = attributes(client, ino), attributes(client, ROOT)
    assert stat.S_ISDIR(made.mode) and made.nlink == 2 and made.parent == ROOT
    assert root.nlink == before.nlink + 1 and root.mtime_ns == root.ctime_ns == made.btime_ns
    assert root.change_version > before.change_version
    assert bench.faults() == []


def test_a_new_file_has_a_layout_over_the_targets(client: Client) -> None:
    opened = client.call(Op.CREATE, Create(ROOT, b"f", 0o666, True, True, USER))
    made, layout = unpack_attributes(opened.attributes), unpack_layout(opened.layout)
    assert layout.file_id == made.ino and layout.stripe_width == 2
    assert stat.S_IMODE(made.mode) == 0o644 and len(opened.capability) == 64


def test_files_start_on_different_targets(client: Client) -> None:
    firsts = {
        unpack_layout(
            client.call(Op.CREATE, Create(ROOT, b"%d" % i, 0o644, True, True, USER)).layout
        ).targets[0]
        for i in range(4)
    }
    assert firsts == {1, 2}


def test_create_of_what_exists(client: Client) -> None:
    ino = client.create(ROOT, b"f").ino
    assert fails(client, Op.CREATE, Create(ROOT, b"f", 0o644, True, True, USER)) is Status.EEXIST
    opened = client.call(Op.CREATE, Create(ROOT, b"f", 0o600, False, True, USER))
    assert unpack_attributes(opened.attributes).ino == ino
    client.mkdir(ROOT, b"d")
    assert fails(client, Op.CREATE, Create(ROOT, b"d", 0o644, False, True, USER)) is Status.EISDIR


@pytest.mark.parametrize(
    ("name", "status"),
    [
        (b"", Status.EINVAL),
        (b".", Status.EINVAL),
        (b"..", Status.EINVAL),
        (b"a/b", Status.EINVAL),
        (b"a\0b", Status.EINVAL),
        (b"n" * 256, Status.ENAMETOOLONG),
    ],
)
def test_names_that_are_none(client: Client, name: bytes, status: Status) -> None:
    assert fails(client, Op.MKDIR, MkDir(ROOT, name, 0o755, USER)) is status
    assert fails(client, Op.LOOKUP, Lookup(ROOT, name)) is status


def test_any_other_bytes_are_a_name(bench: Bench, client: Client) -> None:
    names = [b"n" * 255, b"\xff\xfe", b" ", b"...", bytes(range(1, 47)), "für".encode()]
    inos = [client.create(ROOT, name).ino for name in names]
    assert [client.lookup(ROOT, name).ino for name in names] == inos
    assert bench.faults() == []


def test_lookup_in_what_is_no_directory(client: Client) -> None:
    ino = client.create(ROOT, b"f").ino
    assert fails(client, Op.LOOKUP, Lookup(ino, b"x")) is Status.ENOTDIR
    assert fails(client, Op.LOOKUP, Lookup(ROOT, b"x")) is Status.ENOENT
    assert fails(client, Op.LOOKUP, Lookup(4711, b"x")) is Status.ESTALE


def test_numbers_that_no_inode_has_are_refused(client: Client) -> None:
    assert fails(client, Op.GETATTR, GetAttr(-1)) is Status.BAD_REQUEST
    assert fails(client, Op.READDIR, ReadDir(-1, 0, 1)) is Status.BAD_REQUEST
    assert fails(client, Op.READDIR, ReadDir(ROOT, -5, 0)) is Status.BAD_REQUEST


def test_symlinks(client: Client) -> None:
    entry = client.call(Op.SYMLINK, Symlink(ROOT, b"s", b"../x", USER))
    made = unpack_attributes(entry.attributes)
    assert stat.S_ISLNK(made.mode) and made.size == 4
    assert client.call(Op.READLINK, ReadLink(made.ino)).target == b"../x"
    assert fails(client, Op.READLINK, ReadLink(ROOT)) is Status.EINVAL
    long = Symlink(ROOT, b"l", b"x" * 4096, USER)
    assert fails(client, Op.SYMLINK, long) is Status.ENAMETOOLONG


@pytest.mark.parametrize("kind", [stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK])
def test_special_files(client: Client, kind: int) -> None:
    entry = client.call(Op.MKNOD, MkNod(ROOT, b"n", kind | 0o600, 0x105, USER))
    made = unpack_attributes(entry.attributes)
    assert stat.S_IFMT(made.mode) == kind and made.rdev == 0x105


def test_mknod_of_a_file_is_answered_when_durable(bench: Bench, client: Client) -> None:
    client.send(Op.MKNOD, MkNod(ROOT, b"n", stat.S_IFREG | 0o600, 0, USER))
    assert client.received() == []
    bench.commit()
    assert unpack_attributes(client.take().attributes).nlink == 1
    assert fails(client, Op.MKNOD, MkNod(ROOT, b"d", stat.S_IFDIR, 0, USER)) is Status.EINVAL


def test_links(bench: Bench, client: Client) -> None:
    ino = client.create(ROOT, b"f").ino
    linked = unpack_attributes(client.call(Op.LINK, Link(ino, ROOT, b"g")).attributes)
    assert linked.nlink == 2 and linked.ino == ino
    directory = client.mkdir(ROOT, b"d")
    assert fails(client, Op.LINK, Link(directory, ROOT, b"h")) is Status.EPERM
    assert fails(client, Op.LINK, Link(ino, ROOT, b"g")) is Status.EEXIST
    removed = unpack_attributes(client.call(Op.UNLINK, Unlink(ROOT, b"f")).attributes)
    assert removed.nlink == 1
    assert bench.faults() == []


def test_unlink_of_a_closed_file_dooms_its_objects(bench: Bench, client: Client) -> None:
    ino = client.create(ROOT, b"f").ino
    client.tell(Op.CLOSE, Close((ino,)))
    removed = unpack_attributes(client.call(Op.UNLINK, Unlink(ROOT, b"f")).attributes)
    assert removed.nlink == 0
    assert fails(client, Op.GETATTR, GetAttr(ino)) is Status.ESTALE
    assert bench.faults() == []
    assert len(bench.engine.stored(all_of(b"Z"), 10)) == 1


def test_unlink_of_an_open_file_leaves_an_orphan(bench: Bench, client: Client) -> None:
    ino = client.create(ROOT, b"f").ino
    other = bench.client()
    other.call(Op.OPEN, Open(ino, False))
    client.call(Op.UNLINK, Unlink(ROOT, b"f"))
    assert attributes(client, ino).nlink == 0
    client.tell(Op.CLOSE, Close((ino,)))
    assert bench.engine.sessions.reapable == set()
    other.tell(Op.CLOSE, Close((ino,)))
    assert bench.engine.sessions.reapable == {ino}
    assert bench.faults() == []
    bench.engine.system(lambda tx, context: _remove(tx, context, Ino(ino)))
    bench.engine.sessions.reaped(Ino(ino))
    assert bench.faults() == []
    assert fails(client, Op.GETATTR, GetAttr(ino)) is Status.ESTALE


def test_unlink_and_rmdir_know_what_they_remove(bench: Bench, client: Client) -> None:
    directory = client.mkdir(ROOT, b"d")
    client.create(directory, b"f")
    assert fails(client, Op.UNLINK, Unlink(ROOT, b"d")) is Status.EISDIR
    assert fails(client, Op.RMDIR, RmDir(ROOT, b"d")) is Status.ENOTEMPTY
    assert fails(client, Op.RMDIR, RmDir(directory, b"f")) is Status.ENOTDIR
    client.call(Op.UNLINK, Unlink(directory, b"f"))
    assert unpack_attributes(client.call(Op.RMDIR, RmDir(ROOT, b"d")).attributes).nlink == 0
    assert attributes(client, ROOT).nlink == 2
    assert bench.faults() == []


@pytest.mark.parametrize("commit", [False, True])
def test_renames(bench: Bench, client: Client, commit: bool) -> None:
    a, b = client.mkdir(ROOT, b"a"), client.mkdir(ROOT, b"b")
    sub = client.mkdir(a, b"sub")
    file = client.create(a, b"f").ino
    if commit:
        bench.settle()
    client.call(Op.RENAME, Rename(a, b"sub", b, b"moved", 0))
    assert client.lookup(b, b"moved").ino == sub and attributes(client, sub).parent == b
    assert attributes(client, a).nlink == 2 and attributes(client, b).nlink == 3
    client.call(Op.RENAME, Rename(a, b"f", b, b"f", 1))
    assert client.lookup(b, b"f").ino == file
    assert fails(client, Op.LOOKUP, Lookup(a, b"f")) is Status.ENOENT
    assert bench.faults() == []


def test_rename_over_something(bench: Bench, client: Client) -> None:
    directory, empty = client.mkdir(ROOT, b"d"), client.mkdir(ROOT, b"e")
    client.create(directory, b"x")
    file, other = client.create(ROOT, b"f"), client.create(ROOT, b"g")
    client.tell(Op.CLOSE, Close((file.ino, other.ino)))
    assert fails(client, Op.RENAME, Rename(ROOT, b"f", ROOT, b"g", 1)) is Status.EEXIST
    assert fails(client, Op.RENAME, Rename(ROOT, b"f", ROOT, b"d", 0)) is Status.EISDIR
    assert fails(client, Op.RENAME, Rename(ROOT, b"d", ROOT, b"f", 0)) is Status.ENOTDIR
    assert fails(client, Op.RENAME, Rename(ROOT, b"e", ROOT, b"d", 0)) is Status.ENOTEMPTY
    assert fails(client, Op.RENAME, Rename(ROOT, b"n", ROOT, b"d", 0)) is Status.ENOENT
    assert fails(client, Op.RENAME, Rename(ROOT, b"f", ROOT, b"g", 4)) is Status.EINVAL
    renamed = client.call(Op.RENAME, Rename(ROOT, b"f", ROOT, b"g", 0))
    assert unpack_attributes(renamed.attributes).ino == file.ino
    assert unpack_attributes(renamed.replaced).nlink == 0
    client.call(Op.RENAME, Rename(ROOT, b"d", ROOT, b"e", 0))
    assert client.lookup(ROOT, b"e").ino == directory != empty
    assert attributes(client, ROOT).nlink == 3
    assert bench.faults() == []


def test_rename_to_another_name_of_the_same_file_does_nothing(client: Client) -> None:
    ino = client.create(ROOT, b"f").ino
    client.call(Op.LINK, Link(ino, ROOT, b"g"))
    renamed = client.call(Op.RENAME, Rename(ROOT, b"f", ROOT, b"g", 0))
    assert renamed.replaced == b"" and client.lookup(ROOT, b"f").ino == ino


def test_exchange(bench: Bench, client: Client) -> None:
    a, b = client.mkdir(ROOT, b"a"), client.mkdir(ROOT, b"b")
    directory, file = client.mkdir(a, b"x"), client.create(b, b"y").ino
    client.call(Op.RENAME, Rename(a, b"x", b, b"y", 2))
    assert client.lookup(a, b"x").ino == file and client.lookup(b, b"y").ino == directory
    assert attributes(client, a).nlink == 2 and attributes(client, b).nlink == 3
    assert fails(client, Op.RENAME, Rename(a, b"x", b, b"none", 2)) is Status.ENOENT
    assert fails(client, Op.RENAME, Rename(b, b"y", ROOT, b"b", 2)) is Status.EINVAL
    assert bench.faults() == []


def test_a_directory_cannot_move_below_itself(bench: Bench, client: Client) -> None:
    a = client.mkdir(ROOT, b"a")
    b = client.mkdir(a, b"b")
    c = client.mkdir(b, b"c")
    assert fails(client, Op.RENAME, Rename(ROOT, b"a", c, b"x", 0)) is Status.EINVAL
    assert fails(client, Op.RENAME, Rename(ROOT, b"a", a, b"x", 0)) is Status.EINVAL
    client.call(Op.RENAME, Rename(a, b"b", ROOT, b"b", 0))
    assert bench.faults() == []


def last_cookie(page: ReadDirReply) -> int:
    return int.from_bytes(page.cookies[-8:], "little")


@pytest.mark.parametrize("committed", [0, 1, 2])
def test_readdir_in_pages(bench: Bench, client: Client, committed: int) -> None:
    directory = client.mkdir(ROOT, b"d")
    names = {b"%d" % i for i in range(100)}
    for index, name in enumerate(sorted(names)):
        client.create(directory, name)
        if committed == 2 or (committed == 1 and index == 50):
            bench.settle()
    seen, cookie, end = [], 0, False
    while not end:
        page = client.call(Op.READDIR, ReadDir(directory, cookie, 7))
        seen += page.names
        if page.names:
            cookie = last_cookie(page)
            assert cookie >= 3
        end = page.end
    assert len(seen) == len(names) and set(seen) == names


def test_readdir_is_stable_while_entries_come_and_go(bench: Bench, client: Client) -> None:
    stays = {b"s%d" % i for i in range(50)}
    for name in stays | {b"g%d" % i for i in range(50)}:
        client.create(ROOT, name)
    bench.settle()
    seen: list[bytes] = []
    cookie, turn, end = 0, 0, False
    while not end:
        page = client.call(Op.READDIR, ReadDir(ROOT, cookie, 5))
        seen += page.names
        cookie = last_cookie(page) if page.names else cookie
        end = page.end
        if turn < 50:
            client.call(Op.UNLINK, Unlink(ROOT, b"g%d" % turn))
            client.create(ROOT, b"new%d" % turn)
        turn += 1
    assert len(seen) == len(set(seen)) and stays <= set(seen)


def test_set_group_id_directories(client: Client) -> None:
    root = Caller(0, 50, 0o022)
    directory = client.mkdir(ROOT, b"d", 0o2775, root)
    file = client.create(directory, b"f", 0o644)
    assert file.gid == 50
    sub = attributes(client, client.mkdir(directory, b"s"))
    assert sub.gid == 50 and sub.mode & stat.S_ISGID
    assert not client.create(directory, b"x", 0o2775).mode & stat.S_ISGID
    member = Caller(1000, 1000, 0o022, (50,))
    assert client.create(directory, b"y", 0o2775, member).mode & stat.S_ISGID


def test_no_target_is_no_space() -> None:
    bench = Bench(targets=0)
    client = bench.client()
    assert fails(client, Op.CREATE, Create(ROOT, b"f", 0o644, True, True, USER)) is Status.ENOSPC
    bench.register(1, free=1)
    assert fails(client, Op.CREATE, Create(ROOT, b"f", 0o644, True, True, USER)) is Status.ENOSPC
    bench.register(1, node=2)
    client.create(ROOT, b"f")
