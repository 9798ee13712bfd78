"""OPEN_AHEAD: which files of a directory it grants to a session, and that no holder is recalled for
it.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import (
    ATTRIBUTES_SIZE,
    LEASE_ALL,
    LEASE_CHILDREN,
    LEASE_DATA,
    LEASE_ENTRIES,
    LEASE_META,
    OPEN_ELSEWHERE,
    Attributes,
    unpack_attributes,
)
from fscommon.layout.capability import CAPABILITY_SIZE
from fscommon.layout.template import LAYOUT_XATTR
from fscommon.limits import OPEN_AHEAD_MAX
from fscommon.types import Ino, SessionId
from fscommon.wire.ahead import OpenAhead, OpenedAhead
from fscommon.wire.leases import LeaseReturn, ReturnItem
from fscommon.wire.messages import (
    COMMIT_SIZE,
    SET_MODE,
    Close,
    Commit,
    Create,
    Empty,
    Entry,
    GetAttr,
    Link,
    Lookup,
    Open,
    Opened,
    ReadDir,
    SessionOpen,
    SetAttr,
    SetXattr,
    Symlink,
    Unlink,
)
from fscommon.wire.ops import Op

from .bench import ROOT, SETTINGS, USER, Bench, Client
from .test_leases import Cached

READER = LEASE_META | LEASE_DATA
NAMES = LEASE_META | LEASE_ENTRIES


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def maker(bench: Bench) -> Client:
    """The client that creates the files; it is granted nothing."""
    return bench.client()


@pytest.fixture
def me(bench: Bench, maker: Client) -> Cached:
    return Cached.of(bench)


def make(client: Client, parent: int, name: bytes, size: int = 5) -> int:
    """A file of that size, closed."""
    attributes = client.create(parent, name)
    commit = Commit(attributes.ino, attributes.ino, COMMIT_SIZE, size, 0, 0, False)
    client.call(Op.COMMIT, commit)
    client.call(Op.CLOSE, Close((attributes.ino,)))
    return attributes.ino


def ask(me: Cached, ino: int = ROOT, cookie: int = 0, count: int = OPEN_AHEAD_MAX) -> OpenedAhead:
    reply: OpenedAhead = me.client.call(Op.OPEN_AHEAD, OpenAhead(ino, cookie, count))
    return reply


def rows(reply: OpenedAhead) -> dict[bytes, Attributes]:
    size = ATTRIBUTES_SIZE
    assert len(reply.layouts) == len(reply.names)
    assert len(reply.capabilities) == CAPABILITY_SIZE * len(reply.names)
    records = [reply.attributes[at : at + size] for at in range(0, len(reply.attributes), size)]
    return dict(zip(reply.names, map(unpack_attributes, records), strict=True))


def is_open(bench: Bench, me: Cached, ino: int) -> bool:
    return (me.client.session, False) in bench.engine.sessions.openers(Ino(ino))


def is_covered(bench: Bench, me: Cached, ino: int) -> bool:
    return bench.engine.services.leases.children.covers(SessionId(me.client.session), Ino(ino))


def test_it_brings_what_open_does(bench: Bench, maker: Client, me: Cached) -> None:
    ino = make(maker, ROOT, b"f")
    reply = ask(me)
    found = rows(reply)[b"f"]
    assert (found.ino, found.size) == (ino, 5)
    assert found.lease_flags & LEASE_ALL == READER and found.lease_ns == 30e9
    assert is_covered(bench, me, ino) and reply.end
    assert not is_open(bench, me, ino) and not me.held(ino), "nothing is kept for each file"
    assert unpack_attributes(reply.parents).lease_flags == NAMES
    assert me.held(ROOT) == NAMES | LEASE_CHILDREN
    opened: Opened = me.client.call(Op.OPEN, Open(ino, False))
    assert (reply.layouts, reply.capabilities) == ((opened.layout,), opened.capability)


def test_pages_follow_each_other(bench: Bench, maker: Client, me: Cached) -> None:
    made = {b"%d" % number: make(maker, ROOT, b"%d" % number) for number in range(10)}
    found: dict[bytes, Attributes] = {}
    cookie, end, pages = 0, False, 0
    while not end:
        reply = ask(me, cookie=cookie, count=4)
        assert len(reply.names) <= 4
        found |= rows(reply)
        cookie, end = reply.cookie, reply.end
        pages += 1
    assert {name: row.ino for name, row in found.items()} == made and pages == 3


def test_what_does_not_qualify_is_left_out(bench: Bench, maker: Client, me: Cached) -> None:
    make(maker, ROOT, b"plain")
    twice = make(maker, ROOT, b"twice")
    maker.call(Op.LINK, Link(twice, ROOT, b"again"))
    maker.mkdir(ROOT, b"directory")
    maker.call(Op.SYMLINK, Symlink(ROOT, b"symlink", b"plain", USER))
    maker.call(Op.CREATE, Create(ROOT, b"written", 0o644, True, True, USER))
    assert list(rows(ask(me))) == [b"plain"]


def test_an_empty_file_is_granted(bench: Bench, maker: Client, me: Cached) -> None:
    ino = make(maker, ROOT, b"empty", size=0)
    assert list(rows(ask(me))) == [b"empty"] and is_covered(bench, me, ino)
    request = SetXattr(ino, LAYOUT_XATTR, b"stripe_width=1", 0)
    maker.send(Op.SETXATTR, request)
    assert [item.ino for item in me.recalled()] == [ino], "its layout is one of its attributes"


def test_what_is_open_here_is_left_out(bench: Bench, maker: Client, me: Cached) -> None:
    """A CLOSE in flight would close what this opened."""
    ino = make(maker, ROOT, b"f")
    me.client.call(Op.OPEN, Open(ino, False))
    assert rows(ask(me)) == {}
    me.client.call(Op.CLOSE, Close((ino,)))
    assert me.held(ino) == READER
    assert list(rows(ask(me))) == [b"f"]
    assert me.held(ino) == 0 and is_covered(bench, me, ino), "now by the directory"


def test_nobody_is_asked_for_a_lease(bench: Bench, maker: Client, me: Cached) -> None:
    ino = make(maker, ROOT, b"f")
    make(maker, ROOT, b"g")
    writer = Cached.of(bench)
    writer.client.call(Op.OPEN, Open(ino, True))
    assert list(rows(ask(me))) == [b"g"]
    assert writer.recalled() == [] and not is_covered(bench, me, ino)


def test_what_somebody_waits_for_is_left_out(bench: Bench, maker: Client, me: Cached) -> None:
    ino = make(maker, ROOT, b"f")
    holder, waiter = Cached.of(bench), Cached.of(bench)
    holder.client.call(Op.OPEN, Open(ino, False))
    waiter.client.send(Op.OPEN, Open(ino, True))
    assert waiter.waits()
    assert rows(ask(me)) == {}


def test_a_directory_that_another_changes_is_left_alone(
    bench: Bench, maker: Client, me: Cached
) -> None:
    other = Cached.of(bench)
    parent = maker.mkdir(ROOT, b"d")
    make(maker, parent, b"f")
    for number in range(2):  # it is recalled twice within a second
        other.client.call(Op.READDIR, ReadDir(parent, 0, 10))
        request = Create(parent, b"%d" % number, 0o644, True, False, USER)
        request_id = maker.send(Op.CREATE, request)
        (item,) = other.recalled()
        assert item.ino == parent
        other.answer(item)
        bench.settle()
        assert maker.take_frame().header.request_id == request_id
    reply = ask(me, parent)
    assert reply.names == () and reply.cookie == 0 and not reply.end


def test_another_client_recalls_it_like_any_lease(bench: Bench, maker: Client, me: Cached) -> None:
    ino = make(maker, ROOT, b"f")
    ask(me)
    maker.send(Op.UNLINK, Unlink(ROOT, b"f"))
    recalls = me.recalled()
    assert {item.ino for item in recalls} == {ROOT, ino}
    for item in recalls:
        me.answer(item)
    bench.settle()
    assert maker.take_frame().header.status == 0
    assert ino not in bench.engine.sessions.orphans, "nobody has it open"


def test_it_leaves_room_for_other_leases(maker: Client) -> None:
    bench = Bench(settings=replace(SETTINGS, leases_max=8))
    maker, me = bench.client(), Cached.of(bench)
    for number in range(20):
        make(maker, ROOT, b"%d" % number)
    reply = ask(me)
    assert len(reply.names) == 20 and reply.end, "a directory counts as one"
    for number in range(7):
        me.client.mkdir(ROOT, b"d%d" % number)
    assert ask(me).names == () and me.recalled() == []


def test_without_a_recall_connection_nothing_is_opened(bench: Bench, maker: Client) -> None:
    make(maker, ROOT, b"f")
    client = bench.client()
    reply: OpenedAhead = client.call(Op.OPEN_AHEAD, OpenAhead(ROOT, 0, 10))
    assert reply.names == () and reply.cookie == 0 and not reply.end


def test_a_lost_reply_is_repeated(bench: Bench, maker: Client, me: Cached) -> None:
    make(maker, ROOT, b"f")
    request_id = me.client.send(Op.OPEN_AHEAD, OpenAhead(ROOT, 0, 10))
    me.client.received().clear()
    me.client.connection = bench.connect()
    me.client.call(Op.SESSION_OPEN, SessionOpen(me.client.session, "c", (), 0))
    again = me.client.call(Op.OPEN_AHEAD, OpenAhead(ROOT, 0, 10), request_id=request_id)
    assert list(rows(again)) == [b"f"]


def test_looking_at_a_file_leaves_it_with_its_directory(
    bench: Bench, maker: Client, me: Cached
) -> None:
    ino = make(maker, ROOT, b"f")
    ask(me)
    me.client.call(Op.LOOKUP, Lookup(ROOT, b"f"))
    me.client.call(Op.READDIR, ReadDir(ROOT, 0, 10))
    me.client.call(Op.GETATTR, GetAttr(ino))
    assert me.held(ino) == 0 and is_covered(bench, me, ino)


@pytest.mark.parametrize(
    "change", [lambda ino: (Op.SETATTR, chmod(ino)), lambda ino: (Op.OPEN, Open(ino, False))]
)
def test_what_its_holder_changes_or_opens_it_holds_by_itself(
    bench: Bench, maker: Client, me: Cached, change: Callable[[int], tuple[Op, object]]
) -> None:
    ino = make(maker, ROOT, b"f")
    ask(me)
    me.client.call(*change(ino))
    assert me.held(ino) == READER and not is_covered(bench, me, ino)


def test_a_directory_given_up_gives_its_files_up(bench: Bench, maker: Client, me: Cached) -> None:
    ino = make(maker, ROOT, b"f")
    ask(me)
    me.client.tell(Op.LEASE_RETURN, LeaseReturn((ReturnItem(ROOT, LEASE_CHILDREN, 0),)))
    assert not is_covered(bench, me, ino) and me.held(ROOT) == NAMES
    assert len(bench.engine.services.leases.children) == 0
    maker.call(Op.SETATTR, chmod(ino))
    assert me.recalled() == []


def test_its_remover_is_asked_whether_it_is_open(bench: Bench, maker: Client, me: Cached) -> None:
    """Lanes open such a file without a request: the metaserver cannot know whether it is open."""
    inos = [make(maker, ROOT, name) for name in (b"open", b"closed")]
    ask(me)
    me.client.call(Op.UNLINK, Unlink(ROOT, b"open"))
    me.client.call(Op.UNLINK, Unlink(ROOT, b"closed"))
    bench.settle()
    recalls = [item for item in me.recalled() if item.ino in inos]
    assert [item.ino for item in recalls] == inos
    assert set(inos) <= bench.engine.sessions.orphans
    answers = [ReturnItem(inos[0], 0, 0, is_open=True)]
    answers += [ReturnItem(item.ino, item.flags, item.recall) for item in recalls]
    me.client.tell(Op.LEASE_RETURN, LeaseReturn(tuple(answers)))
    assert is_open(bench, me, inos[0]) and not is_open(bench, me, inos[1])
    assert not bench.engine.services.leases.is_recalled(Ino(inos[1]))


def test_it_may_be_open_elsewhere(bench: Bench, maker: Client, me: Cached) -> None:
    make(maker, ROOT, b"f")
    other = Cached.of(bench)
    ask(me)
    entry: Entry = other.client.call(Op.LOOKUP, Lookup(ROOT, b"f"))
    assert unpack_attributes(entry.attributes).lease_flags & OPEN_ELSEWHERE


def test_a_client_that_is_gone_holds_nothing(bench: Bench, maker: Client, me: Cached) -> None:
    ino = make(maker, ROOT, b"f")
    ask(me)
    me.client.call(Op.SESSION_CLOSE, Empty())
    assert len(bench.engine.services.leases.children) == 0
    maker.call(Op.SETATTR, chmod(ino))


def chmod(ino: int) -> SetAttr:
    return SetAttr(ino, SET_MODE, 0o600, 0, 0, 0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("count", [0, -1, OPEN_AHEAD_MAX + 1])
def test_a_page_has_bounds(me: Cached, count: int) -> None:
    with pytest.raises(FsError) as caught:
        ask(me, count=count)
    assert caught.value.status is Status.BAD_REQUEST


def test_what_is_no_directory_is_refused(maker: Client, me: Cached) -> None:
    ino = make(maker, ROOT, b"f")
    for number, status in ((ino, Status.ENOTDIR), (12345, Status.ESTALE)):
        with pytest.raises(FsError) as caught:
            ask(me, number)
        assert caught.value.status is status
