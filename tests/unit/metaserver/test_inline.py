"""Files stored in their inode's record: births with bytes, opens, truncates, moves to objects,
restarts.
"""

from dataclasses import replace

import pytest

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import unpack_attributes
from fscommon.layout.layout import Layout, unpack_layout, with_inline
from fscommon.limits import INLINE_LENGTH_MAX, READDIR_ENTRIES_MAX
from fscommon.types import Ino
from fscommon.wire.admin import Inspect, InspectList
from fscommon.wire.births import Birth, ChangeBatch
from fscommon.wire.codec import encode
from fscommon.wire.messages import (
    COMMIT_KILL_SUIDGID,
    COMMIT_MTIME,
    COMMIT_SIZE,
    SET_MODE,
    SET_SIZE,
    Close,
    Commit,
    Create,
    Empty,
    Open,
    Opened,
    Replay,
    SessionOpen,
    SetAttr,
    Unlink,
    WriteInline,
)
from fscommon.wire.ops import Op
from metaserver.eviction import forget
from metaserver.namespace.inode import Inode
from metaserver.records import doomed_key, inode_key, intent_key, unpack_intent

from .bench import ROOT, USER, Bench, Client
from .test_delegate import birth, slots_of

CONTENT = b"tiny content"


@pytest.fixture
def bench() -> Bench:
    return Bench()


def born(client: Client, content: bytes = CONTENT, name: bytes = b"tiny") -> int:
    """A file that is stored in its record and is not open."""
    slot = slots_of(client)[0]
    client.call(Op.CHANGE_BATCH, ChangeBatch((with_bytes(birth(slot, name), content),)))
    client.tell(Op.CLOSE, Close((slot.ino,)))
    return slot.ino


def with_bytes(bare: Birth, content: bytes) -> Birth:
    size = len(content)
    told = with_inline(bare.layout, content)
    return replace(bare, layout=told, changes=1, size=size, mtime_ns=bare.time_ns + 9)


def opened(client: Client, ino: int, *, writable: bool) -> tuple[Opened, Layout]:
    reply: Opened = client.call(Op.OPEN, Open(ino, writable))
    return reply, unpack_layout(reply.layout)


def resize(client: Client, ino: int, size: int) -> tuple[Opened, Layout]:
    request = SetAttr(ino, SET_SIZE, 0, 0, 0, size, 0, 0, 0, 0, 0)
    reply: Opened = client.call(Op.SETATTR, request)
    return reply, unpack_layout(reply.layout)


def test_bytes_of_a_birth_come_with_open(bench: Bench) -> None:
    client = bench.client()
    ino = born(client)
    reply, layout = opened(client, ino, writable=False)
    assert layout.inline == CONTENT
    assert unpack_attributes(reply.attributes).size == len(CONTENT)
    assert opened(bench.client(), ino, writable=False)[1].inline == CONTENT
    assert bench.faults() == []


@pytest.mark.parametrize(
    "wrong",
    [
        lambda told: replace(told, size=told.size + 1),
        lambda told: replace(told, layout=told.layout[:-1]),
        lambda told: replace(told, layout=told.layout + bytes(INLINE_LENGTH_MAX)),
        lambda told: replace(told, changes=0, size=0),
        lambda told: replace(
            told, layout=replace(unpack_layout(told.layout), targets=(77,)).pack()
        ),
    ],
)
def test_bytes_that_do_not_fit_are_refused(bench: Bench, wrong: object) -> None:
    client = bench.client()
    slot = slots_of(client)[0]
    told = wrong(with_bytes(birth(slot, b"tiny"), CONTENT))  # type: ignore[operator]
    reply = client.call(Op.CHANGE_BATCH, ChangeBatch((told,)))
    assert reply.errors == (Status.BAD_REQUEST,)
    with pytest.raises(FsError, match="ENOENT"):
        client.lookup(ROOT, b"tiny")


def test_who_is_about_to_write_waits_for_the_move(bench: Bench) -> None:
    client = bench.client()
    ino = born(client)
    bench.settle()
    client.send(Op.OPEN, Open(ino, True, moves=True))
    bench.settle()
    assert not client.received(), "not before the bytes are in the objects"
    intent = bench.store.snapshot().get(intent_key(ino))
    assert intent is not None
    assert unpack_layout(unpack_intent(intent).layout).inline == CONTENT
    reader = bench.client()
    reader.send(Op.OPEN, Open(ino, False))
    bench.finish_truncates()
    layout = unpack_layout(client.take().layout)
    assert layout.inline == b""
    assert layout.durable_stripes == 1, "a missing object is lost now"
    assert unpack_layout(opened(reader, ino, writable=False)[0].layout).inline == b""
    assert bench.faults() == []


def written(client: Client, ino: int, offset: int, content: bytes, *, flags: int = 0) -> Opened:
    file_id = opened(client, ino, writable=True)[1].file_id
    request = WriteInline(ino, file_id, offset, content, 77, flags, False)
    reply: Opened = client.call(Op.WRITE_INLINE, request)
    return reply


@pytest.mark.parametrize(
    ("offset", "content", "after"),
    [
        (0, b"TINY", b"TINY content"),
        (5, b"bytes, and more", b"tiny bytes, and more"),
        (len(CONTENT), b"!", CONTENT + b"!"),
        (20, b"far", CONTENT + bytes(20 - len(CONTENT)) + b"far"),
        (INLINE_LENGTH_MAX - 1, b".", CONTENT.ljust(INLINE_LENGTH_MAX - 1, b"\0") + b"."),
    ],
)
def test_what_stays_tiny_is_written_where_it_lies(
    bench: Bench, offset: int, content: bytes, after: bytes
) -> None:
    client = bench.client()
    ino = born(client)
    reply = written(client, ino, offset, content)
    attributes = unpack_attributes(reply.attributes)
    assert unpack_layout(reply.layout).inline == after
    assert (attributes.size, attributes.mtime_ns) == (len(after), 77)
    client.tell(Op.CLOSE, Close((ino,)))
    assert opened(bench.client(), ino, writable=False)[1].inline == after
    assert not bench.engine.services.intents.take_fresh(), "nothing moves"
    assert bench.faults() == []


def test_zeros_behind_the_bytes_stay_zeros(bench: Bench) -> None:
    client = bench.client()
    ino = born(client)
    resize(client, ino, 4)
    resize(client, ino, 1 << 20)
    layout = unpack_layout(written(client, ino, 8, b"more").layout)
    assert layout.inline == b"tiny\0\0\0\0more"
    assert client.lookup(ROOT, b"tiny").size == 1 << 20


def test_what_does_not_stay_tiny_is_moved_by_who_asks(bench: Bench) -> None:
    client = bench.client()
    ino = born(client)
    with pytest.raises(FsError, match="ESTALE"):
        written(client, ino, INLINE_LENGTH_MAX - 1, b"..")
    client.send(Op.OPEN, Open(ino, True, moves=True))
    bench.finish_truncates()
    client.take()
    with pytest.raises(FsError, match="ESTALE"):
        written(client, ino, 0, b".")


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (dict(content=b""), Status.BAD_REQUEST),
        (dict(flags=1), Status.BAD_REQUEST),
        (dict(file_id=1), Status.ESTALE),
        (dict(ino=ROOT), Status.EINVAL),
    ],
)
def test_wrong_writes_are_refused(bench: Bench, change: dict[str, object], status: Status) -> None:
    client = bench.client()
    ino = born(client)
    good = WriteInline(ino, opened(client, ino, writable=True)[1].file_id, 0, b".", 77, 0, False)
    with pytest.raises(FsError) as refused:
        client.call(Op.WRITE_INLINE, replace(good, **change))  # type: ignore[arg-type]
    assert refused.value.status is status


def test_a_write_is_replayed_when_the_file_is_closed(bench: Bench) -> None:
    client = bench.client()
    ino = born(client)
    file_id = opened(client, ino, writable=True)[1].file_id
    bench.settle()
    request = WriteInline(ino, file_id, len(CONTENT), b"!", 77, 0, False)
    sent = client.send(Op.WRITE_INLINE, request)
    frame = client.take_frame()  # it is answered, and not committed
    client.tell(Op.CLOSE, Close((ino,)))

    after = Bench(bench.store, targets=0)
    back = Client(after, after.connect(), client.session, client.request_id)
    back.send(Op.SESSION_OPEN, SessionOpen(client.session, "c", (), 0))
    back.take()
    replay = Replay(frame.header.offset, 0, encode(request), frame.body)
    assert back.replay(Op.WRITE_INLINE, replay, sent).header.status == 0
    back.call(Op.REPLAY_DONE, Empty())
    assert opened(back, ino, writable=False)[1].inline == CONTENT + b"!"
    assert after.faults() == []


def test_a_write_takes_set_id_bits(bench: Bench) -> None:
    client = bench.client()
    ino = born(client)
    client.call(Op.SETATTR, SetAttr(ino, SET_MODE, 0o6755, 0, 0, 0, 0, 0, 0, 0, 0))
    attributes = unpack_attributes(
        written(client, ino, 0, b".", flags=COMMIT_KILL_SUIDGID).attributes
    )
    assert attributes.mode & 0o7777 == 0o755


def test_who_does_not_write_moves_nothing(bench: Bench) -> None:
    """Many programs open a file for writing, and only read it."""
    client = bench.client()
    ino = born(client)
    bench.settle()
    for op, request in (
        (Op.CREATE, Create(ROOT, b"tiny", 0o644, False, True, USER)),
        (Op.OPEN, Open(ino, True)),
        (Op.OPEN, Open(ino, False, moves=True)),
    ):
        assert unpack_layout(client.call(op, request).layout).inline == CONTENT
    assert bench.engine.sessions.is_writer(client.session, Ino(ino))
    assert bench.store.snapshot().get(intent_key(ino)) is None
    assert bench.faults() == []


def test_a_spill_survives_a_crash(bench: Bench) -> None:
    client = bench.client()
    ino = born(client)
    client.send(Op.OPEN, Open(ino, True, moves=True))
    bench.settle()
    after = Bench(bench.store, targets=0)
    assert after.engine.services.intents.take_fresh() == [ino]
    raw = after.store.snapshot().get(intent_key(ino))
    assert raw is not None
    assert unpack_layout(unpack_intent(raw).layout).inline == CONTENT


def test_a_spill_that_was_not_durable_did_not_happen(bench: Bench) -> None:
    client = bench.client()
    ino = born(client)
    bench.settle()
    client.send(Op.OPEN, Open(ino, True, moves=True))
    assert not client.received()
    after = Bench(bench.store, targets=0)
    assert after.engine.services.intents.take_fresh() == []
    assert bench.store.snapshot().get(intent_key(ino)) is None


def test_truncates_need_no_object(bench: Bench) -> None:
    client = bench.client()
    ino = born(client)
    reply, layout = resize(client, ino, 4)
    assert (layout.inline, unpack_attributes(reply.attributes).size) == (CONTENT[:4], 4)
    reply, layout = resize(client, ino, 1 << 40)
    assert (layout.inline, unpack_attributes(reply.attributes).size) == (CONTENT[:4], 1 << 40)
    reply, layout = resize(client, ino, 9)
    assert (layout.inline, unpack_attributes(reply.attributes).size) == (CONTENT[:4], 9)
    assert bench.engine.services.intents.take_fresh() == []
    assert bench.faults() == []
    reply, layout = resize(client, ino, 0)
    assert layout.inline == b""
    assert layout.file_id != ino
    assert bench.faults() == []
    doomed = bench.store.snapshot().get(doomed_key(ino))
    assert doomed is not None
    assert not unpack_layout(doomed).inline


def test_it_goes_with_its_name(bench: Bench) -> None:
    client = bench.client()
    ino = born(client)
    client.call(Op.UNLINK, Unlink(ROOT, b"tiny"))
    assert bench.faults() == []
    doomed = bench.store.snapshot().get(doomed_key(ino))
    assert doomed is not None
    assert not unpack_layout(doomed).inline


def test_a_commit_cannot_grow_it(bench: Bench) -> None:
    client = bench.client()
    ino = born(client)
    size = len(CONTENT)
    client.call(Op.COMMIT, Commit(ino, ino, COMMIT_SIZE | COMMIT_MTIME, size, 5, 0, False))
    with pytest.raises(FsError) as refused:
        client.call(Op.COMMIT, Commit(ino, ino, COMMIT_SIZE, size + 1, 5, 0, False))
    assert refused.value.status is Status.EINVAL
    assert opened(client, ino, writable=False)[1].inline == CONTENT


def test_it_stays_when_its_writer_is_evicted(bench: Bench) -> None:
    """A client reports the file, and dies before it reports the close."""
    client = bench.client()
    slot = slots_of(client)[0]
    client.call(Op.CHANGE_BATCH, ChangeBatch((with_bytes(birth(slot, b"tiny"), CONTENT),)))
    session = bench.engine.sessions.get(client.session)
    assert session is not None
    bench.engine.system(lambda tx, context: forget(tx, context, session), bench.time())
    bench.engine.sessions.remove(session.id)
    bench.engine.evicted(session.id)
    bench.settle()
    raw = bench.store.snapshot().get(intent_key(slot.ino))
    assert raw is not None
    assert not unpack_layout(unpack_intent(raw).layout).inline, "cut, not spilled"
    bench.finish_truncates()
    record = bench.store.snapshot().get(inode_key(slot.ino))
    assert record is not None
    assert Inode.parse(record).layout().inline == CONTENT


def test_pages_of_such_files_fit_a_frame(bench: Bench) -> None:
    """A listing for administrators leaves the bytes out: they are on no target."""
    client = bench.client()
    content = bytes(INLINE_LENGTH_MAX)
    for first in range(0, READDIR_ENTRIES_MAX, 256):
        births = []
        for number, slot in enumerate(slots_of(client, 256), first):
            births.append(with_bytes(birth(slot, b"%d" % number), content))
        client.call(Op.CHANGE_BATCH, ChangeBatch(tuple(births)))
        client.tell(Op.CLOSE, Close(tuple(one.ino for one in births)))
    admin = Client(bench, bench.connect("admin"))
    listed = admin.call(Op.INSPECT_LIST, InspectList(ROOT, 0, READDIR_ENTRIES_MAX))
    assert len(listed.entries) == READDIR_ENTRIES_MAX
    assert {entry.layout for entry in listed.entries} == {b""}
    found = admin.call(Op.INSPECT, Inspect(ROOT, (b"1",)))
    assert unpack_layout(found.layout).inline == content
