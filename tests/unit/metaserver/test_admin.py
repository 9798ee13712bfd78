"""Administration: inspect, list, sum, evict; layouts of directories; what is refused."""

from typing import Any

import pytest

from fscommon.errors import FsError, ProtocolError, Status
from fscommon.layout.attributes import unpack_attributes
from fscommon.layout.layout import unpack_layout
from fscommon.layout.template import unpack_default
from fscommon.wire.admin import (
    SUM_INODES_MAX,
    BytesPath,
    Evict,
    Inspect,
    InspectList,
    Place,
    Traffic,
    TreeSum,
    TreeSummed,
)
from fscommon.wire.messages import (
    SET_SIZE,
    Close,
    Create,
    Empty,
    GetXattr,
    Link,
    ListXattr,
    Open,
    RemoveXattr,
    SessionRenew,
    SetAttr,
    SetXattr,
    Symlink,
)
from fscommon.wire.ops import Op
from metaserver.eviction import forget

from .bench import ROOT, USER, Bench, Client

NAME = b"braidfs.layout"
ADMIN_OPS = (Op.INSPECT, Op.INSPECT_LIST, Op.TREE_SUM, Op.EVICT)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def client(bench: Bench) -> Client:
    return bench.client()


@pytest.fixture
def admin(bench: Bench) -> Client:
    return Client(bench, bench.connect("admin"))


@pytest.mark.parametrize("purpose", ["meta", "server", "data", ""])
@pytest.mark.parametrize("op", ADMIN_OPS)
def test_only_administrators_may_ask(bench: Bench, op: Op, purpose: str) -> None:
    stranger = Client(bench, bench.connect(purpose))
    request: Any = {
        Op.INSPECT: Inspect(ROOT, ()),
        Op.INSPECT_LIST: InspectList(ROOT, 0, 1),
        Op.TREE_SUM: TreeSum((Place(ROOT, 0),)),
        Op.EVICT: Evict(1),
    }[op]
    stranger.send(op, request)
    with pytest.raises(FsError, match="EPERM"):
        stranger.take()


def test_an_administrator_has_no_session(admin: Client) -> None:
    admin.send(Op.SETXATTR, SetXattr(ROOT, b"user.a", b"b", 0))
    with pytest.raises(FsError, match="UNKNOWN_SESSION"):
        admin.take()


def test_inspect_walks_names(client: Client, admin: Client) -> None:
    folder = client.mkdir(ROOT, b"d")
    file = client.create(folder, b"f")
    client.call(Op.SYMLINK, Symlink(folder, b"l", b"target", USER))
    seen = admin.call(Op.INSPECT, Inspect(ROOT, (b"d", b"f")))
    assert unpack_attributes(seen.attributes).ino == file.ino
    assert unpack_layout(seen.layout).file_id == file.ino
    assert [(one.session, one.writable) for one in seen.openers] == [(client.session, True)]
    seen = admin.call(Op.INSPECT, Inspect(folder, (b"l",)))
    assert (seen.link, seen.layout, seen.inherited) == (b"target", b"", b"")
    seen = admin.call(Op.INSPECT, Inspect(ROOT, ()))
    assert unpack_default(seen.inherited).stripe_width == 4 and not seen.own


@pytest.mark.parametrize(
    ("ino", "names", "status"),
    [
        (ROOT, (b"none",), Status.ENOENT),
        (ROOT, (b"f", b"x"), Status.ENOTDIR),
        (ROOT, (b"..",), Status.EINVAL),
        (ROOT, (b"",), Status.EINVAL),
        (ROOT, (b"a/b",), Status.EINVAL),
        (ROOT, (b"x" * 256,), Status.ENAMETOOLONG),
        (ROOT, (b"a",) * 257, Status.ENAMETOOLONG),
        (99, (), Status.ESTALE),
        (-1, (), Status.BAD_REQUEST),
        (1 << 64, (), Status.BAD_REQUEST),
    ],
)
def test_inspect_refuses(
    client: Client, admin: Client, ino: int, names: tuple[bytes, ...], status: Status
) -> None:
    client.create(ROOT, b"f")
    try:
        with pytest.raises(FsError) as caught:
            admin.call(Op.INSPECT, Inspect(ino, names))
        assert caught.value.status is status
    except ProtocolError:
        assert ino == 1 << 64  # the wire cannot even represent it


def test_lists_are_pages_with_layouts(client: Client, admin: Client) -> None:
    for number in range(25):
        client.create(ROOT, b"%d" % number)
    client.mkdir(ROOT, b"d")
    names: set[bytes] = set()
    cookie, end = 0, False
    while not end:
        page = admin.call(Op.INSPECT_LIST, InspectList(ROOT, cookie, 7))
        assert 0 < len(page.entries) <= 7
        for entry in page.entries:
            assert entry.name not in names
            assert bool(entry.layout) == (entry.name != b"d")
            names.add(entry.name)
        cookie, end = page.entries[-1].cookie, page.end
    assert len(names) == 26


@pytest.mark.parametrize(
    "request_",
    [
        InspectList(ROOT, 0, 0),
        InspectList(ROOT, 0, -5),
        InspectList(98, 0, 5),
        InspectList(ROOT, -1, 5),
    ],
)
def test_lists_refuse(admin: Client, request_: InspectList) -> None:
    with pytest.raises(FsError):
        admin.call(Op.INSPECT_LIST, request_)


def _sum(admin: Client, ino: int) -> list[TreeSummed]:
    parts: list[TreeSummed] = []
    stack: tuple[Place, ...] = (Place(ino, 0),)
    while stack:
        parts.append(admin.call(Op.TREE_SUM, TreeSum(stack)))
        stack = parts[-1].stack
    return parts


def test_a_tree_is_summed_in_bounded_parts(client: Client, admin: Client) -> None:
    for outer in range(6):
        folder = client.mkdir(ROOT, b"d%d" % outer)
        for number in range(200):
            client.create(folder, b"%d" % number)
        client.mkdir(folder, b"empty")
    first = client.create(ROOT, b"several")
    client.call(Op.LINK, Link(first.ino, ROOT, b"names"))
    client.call(Op.SYMLINK, Symlink(ROOT, b"l", b"12345", USER))
    parts = _sum(admin, ROOT)
    assert len(parts) > 2
    for part in parts:
        assert part.files + part.directories + part.others <= SUM_INODES_MAX
    assert sum(part.files for part in parts) == 1200
    assert sum(part.directories for part in parts) == 12
    assert sum(part.others for part in parts) == 1
    assert sum(part.bytes for part in parts) == 5
    assert [one.ino for part in parts for one in part.linked] == [first.ino] * 2


@pytest.mark.parametrize(
    "stack", [(), (Place(ROOT, 0),) * 5000, (Place(-1, 0),), (Place(ROOT, 1 << 63), Place(-7, 0))]
)
def test_sums_refuse_and_survive_hostile_stacks(admin: Client, stack: tuple[Place, ...]) -> None:
    with pytest.raises(FsError) as caught:
        admin.call(Op.TREE_SUM, TreeSum(stack))
    assert caught.value.status in (Status.EINVAL, Status.BAD_REQUEST)


def test_a_stack_of_things_that_are_gone_is_empty_work(admin: Client) -> None:
    part = admin.call(Op.TREE_SUM, TreeSum((Place(98, 0), Place(99, 5))))
    assert (part.files, part.stack) == (0, ())


def test_a_condemned_session_expires_though_it_renews(bench: Bench, admin: Client) -> None:
    client = bench.client()
    admin.call(Op.EVICT, Evict(client.session))
    client.call(Op.SESSION_RENEW, SessionRenew(0))
    expired = bench.engine.sessions.expired(bench.now_s, 30.0)
    assert [one.id for one in expired] == [client.session]
    bench.engine.system(lambda tx, context: forget(tx, context, expired[0]), bench.time())


@pytest.mark.parametrize("session", [0, 1, (1 << 63) - 1])
def test_evict_of_nobody(admin: Client, session: int) -> None:
    with pytest.raises(FsError, match="UNKNOWN_SESSION"):
        admin.call(Op.EVICT, Evict(session))


def test_status_has_traffic_requests_and_defaults(client: Client, admin: Client) -> None:
    client.call(Op.SESSION_RENEW, SessionRenew(0, Traffic(1, 2, 3, 4)))
    seen = admin.call(Op.STATUS, Empty())
    assert seen.clients[0].traffic == Traffic(1, 2, 3, 4)
    assert seen.clients[0].requests >= 1 and seen.clients[0].seconds_since_report >= 0
    assert (seen.chunk_size, seen.stripe_width_max) == (1 << 20, 4)
    assert [one.name for one in seen.nodes] == ["n"] and len(seen.health) == 2


def test_status_has_the_ways_that_bytes_go_within_bounds(client: Client, admin: Client) -> None:
    ways = tuple(BytesPath(node, "tcp", "x" * 1000) for node in range(2000))
    client.call(Op.SESSION_RENEW, SessionRenew(0, paths=ways))
    kept = admin.call(Op.STATUS, Empty()).clients[0].paths
    assert len(kept) == 1024 and kept[0] == BytesPath(0, "tcp", "x" * 200)


# ---- layouts ---------------------------------------------------------------------------------


def _set(client: Client, ino: int, text: bytes) -> None:
    client.call(Op.SETXATTR, SetXattr(ino, NAME, text, 0))


def _layout(client: Client, parent: int, name: bytes) -> Any:
    opened = client.call(Op.CREATE, Create(parent, name, 0o644, True, True, USER))
    return unpack_layout(opened.layout)


def test_new_files_and_directories_inherit(client: Client) -> None:
    folder = client.mkdir(ROOT, b"d")
    before = client.mkdir(folder, b"before")
    _set(client, folder, b"chunk_size=256KiB,stripe_width=1")
    child = client.mkdir(folder, b"child")
    grandchild = client.mkdir(child, b"grandchild")
    for parent in (folder, child, grandchild):
        layout = _layout(client, parent, b"f")
        assert (layout.chunk_size, layout.stripe_width) == (262144, 1)
    assert _layout(client, before, b"f").chunk_size == 1 << 20
    assert client.bench.faults() == []


def test_a_default_is_hidden_from_lists_and_can_be_forgotten(client: Client) -> None:
    folder = client.mkdir(ROOT, b"d")
    with pytest.raises(FsError, match="ENODATA"):
        client.call(Op.GETXATTR, GetXattr(folder, NAME))
    _set(client, folder, b"stripe_width=2")
    value = client.call(Op.GETXATTR, GetXattr(folder, NAME)).value
    assert value == b"chunk_size=1048576,stripe_width=2,replicas=1"
    assert client.call(Op.LISTXATTR, ListXattr(folder)).names == ()
    client.call(Op.REMOVEXATTR, RemoveXattr(folder, NAME))
    assert _layout(client, folder, b"f").stripe_width == 2  # there are only so many targets
    with pytest.raises(FsError, match="ENODATA"):
        client.call(Op.REMOVEXATTR, RemoveXattr(folder, NAME))


def test_a_file_can_be_laid_out_until_it_is_written(client: Client) -> None:
    file = client.create(ROOT, b"f")
    with pytest.raises(FsError, match="EBUSY"):
        _set(client, file.ino, b"stripe_width=1")
    client.tell(Op.CLOSE, Close((file.ino,)))
    _set(client, file.ino, b"stripe_width=1")
    opened = client.call(Op.OPEN, Open(file.ino, True))
    layout = unpack_layout(opened.layout)
    assert (layout.stripe_width, layout.file_id) == (1, file.ino)
    value = client.call(Op.GETXATTR, GetXattr(file.ino, NAME)).value
    assert value == b"chunk_size=1048576,stripe_width=1,replicas=1,targets=%d" % layout.targets[0]
    size = SetAttr(file.ino, SET_SIZE, 0, 0, 0, 5, 0, 0, 0, 0, 0)
    client.call(Op.SETATTR, size)
    client.tell(Op.CLOSE, Close((file.ino,)))
    with pytest.raises(FsError, match="EINVAL"):
        _set(client, file.ino, b"stripe_width=2")


def test_a_truncated_file_keeps_its_form(client: Client) -> None:
    folder = client.mkdir(ROOT, b"d")
    _set(client, folder, b"chunk_size=128KiB,stripe_width=1")
    file = client.create(folder, b"f")
    reply = client.call(Op.SETATTR, SetAttr(file.ino, SET_SIZE, 0, 0, 0, 0, 0, 0, 0, 9, 1))
    layout = unpack_layout(reply.layout)
    assert (layout.chunk_size, layout.stripe_width) == (131072, 1)
    assert layout.file_id != file.ino


@pytest.mark.parametrize(
    "text", [b"", b"stripe_width=0", b"chunk_size=1", b"colour=blue", b"\xff\0", b"x" * 65536]
)
def test_wrong_layouts_are_refused(client: Client, text: bytes) -> None:
    folder = client.mkdir(ROOT, b"d")
    with pytest.raises(FsError, match="EINVAL"):
        _set(client, folder, text)


def test_links_have_no_layout(client: Client) -> None:
    entry = client.call(Op.SYMLINK, Symlink(ROOT, b"l", b"t", USER))
    ino = unpack_attributes(entry.attributes).ino
    with pytest.raises(FsError, match="EOPNOTSUPP"):
        _set(client, ino, b"stripe_width=1")
    with pytest.raises(FsError, match="ENODATA"):
        client.call(Op.GETXATTR, GetXattr(ino, NAME))


def test_a_layout_is_durable_before_it_is_answered(bench: Bench, client: Client) -> None:
    folder = client.mkdir(ROOT, b"d")
    client.send(Op.SETXATTR, SetXattr(folder, NAME, b"stripe_width=1", 0))
    assert not client.received()
    bench.settle()
    client.take()
    assert bench.engine.progress.durable == bench.engine.progress.txn


def test_sums_of_sparse_files_end_at_what_the_wire_carries(bench: Bench, admin: Client) -> None:
    client = bench.client()
    for number in range(3):
        ino = client.create(ROOT, b"%d" % number).ino
        change = SetAttr(
            ino=ino,
            valid=SET_SIZE,
            mode=0,
            uid=0,
            gid=0,
            size=(1 << 63) - 1,
            atime_ns=0,
            mtime_ns=0,
            ctime_ns=0,
            written_size=0,
            written_mtime_ns=0,
        )
        client.call(Op.SETATTR, change)
    summed = admin.call(Op.TREE_SUM, TreeSum((Place(ROOT, 0),)))
    assert (summed.files, summed.bytes) == (3, (1 << 64) - 1)
