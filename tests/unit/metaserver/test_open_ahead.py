"""OPEN_AHEAD: which files of a directory are opened for a session, and that nobody is asked."""

from dataclasses import replace

import pytest

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import (
    ATTRIBUTES_SIZE,
    LEASE_ALL,
    LEASE_DATA,
    LEASE_ENTRIES,
    LEASE_META,
    Attributes,
    unpack_attributes,
)
from fscommon.layout.capability import CAPABILITY_SIZE
from fscommon.limits import OPEN_AHEAD_MAX
from fscommon.types import Ino
from fscommon.wire.ahead import OpenAhead, OpenedAhead
from fscommon.wire.messages import (
    COMMIT_SIZE,
    Close,
    Commit,
    Create,
    Link,
    Open,
    Opened,
    ReadDir,
    SessionOpen,
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
    """Who makes the files; it is granted nothing."""
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


def test_it_opens_as_open_does(bench: Bench, maker: Client, me: Cached) -> None:
    ino = make(maker, ROOT, b"f")
    reply = ask(me)
    found = rows(reply)[b"f"]
    assert (found.ino, found.size) == (ino, 5)
    assert found.lease_flags & LEASE_ALL == READER == me.held(ino) and found.lease_ns == 30e9
    assert is_open(bench, me, ino) and reply.end
    assert unpack_attributes(reply.parents).lease_flags == NAMES
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
    make(maker, ROOT, b"empty", size=0)
    twice = make(maker, ROOT, b"twice")
    maker.call(Op.LINK, Link(twice, ROOT, b"again"))
    maker.mkdir(ROOT, b"directory")
    maker.call(Op.SYMLINK, Symlink(ROOT, b"symlink", b"plain", USER))
    maker.call(Op.CREATE, Create(ROOT, b"written", 0o644, True, True, USER))
    assert list(rows(ask(me))) == [b"plain"]


def test_what_is_open_here_is_left_out(bench: Bench, maker: Client, me: Cached) -> None:
    """A CLOSE that is on its way would close what this opened."""
    ino = make(maker, ROOT, b"f")
    me.client.call(Op.OPEN, Open(ino, False))
    assert rows(ask(me)) == {}
    me.client.call(Op.CLOSE, Close((ino,)))
    assert list(rows(ask(me))) == [b"f"]
    assert rows(ask(me)) == {}


def test_nobody_is_asked_for_a_lease(bench: Bench, maker: Client, me: Cached) -> None:
    ino = make(maker, ROOT, b"f")
    make(maker, ROOT, b"g")
    writer = Cached.of(bench)
    writer.client.call(Op.OPEN, Open(ino, True))
    assert list(rows(ask(me))) == [b"g"]
    assert writer.recalled() == [] and not is_open(bench, me, ino)


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
    for number in range(2):  # recalled twice within a second
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
    me.client.tell(Op.CLOSE, Close((ino,)))
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
    assert 0 < len(reply.names) <= 7 and reply.end
    assert ask(me, cookie=reply.cookie).names == ()
    assert me.recalled() == []


def test_without_a_recall_connection_nothing_is_opened(bench: Bench, maker: Client) -> None:
    make(maker, ROOT, b"f")
    client = bench.client()
    reply: OpenedAhead = client.call(Op.OPEN_AHEAD, OpenAhead(ROOT, 0, 10))
    assert reply.names == () and reply.cookie == 0 and not reply.end


def test_a_lost_reply_leaves_nothing_open(bench: Bench, maker: Client, me: Cached) -> None:
    """The client says what it has open when it is back; asked again, the files are opened again."""
    ino = make(maker, ROOT, b"f")
    request_id = me.client.send(Op.OPEN_AHEAD, OpenAhead(ROOT, 0, 10))
    me.client.received().clear()
    assert is_open(bench, me, ino)
    me.client.connection = bench.connect()
    me.client.call(Op.SESSION_OPEN, SessionOpen(me.client.session, "c", (), 0))
    assert not is_open(bench, me, ino)
    again = me.client.call(Op.OPEN_AHEAD, OpenAhead(ROOT, 0, 10), request_id=request_id)
    assert list(rows(again)) == [b"f"] and is_open(bench, me, ino)


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
