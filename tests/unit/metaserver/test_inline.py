"""Files that lie in their inode's record: births with bytes, opens, truncates, spills, restarts."""

from dataclasses import replace

import pytest

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import unpack_attributes
from fscommon.layout.layout import Layout, unpack_layout, with_inline
from fscommon.limits import INLINE_LENGTH_MAX, READDIR_ENTRIES_MAX
from fscommon.types import Ino
from fscommon.wire.admin import Inspect, InspectList
from fscommon.wire.births import Birth, ChangeBatch
from fscommon.wire.messages import (
    COMMIT_MTIME,
    COMMIT_SIZE,
    SET_SIZE,
    Close,
    Commit,
    Create,
    Open,
    Opened,
    SetAttr,
    Unlink,
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
    """A file that lies in its record and that nobody has open."""
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


def test_who_does_not_write_moves_nothing(bench: Bench) -> None:
    """Many open a file for writing, and only read it."""
    client = bench.client()
    ino = born(client)
    bench.settle()
    for op, request in (
        (Op.CREATE, Create(ROOT, b"tiny", 0o644, False, True, USER)), (Op.OPEN, Open(ino, True)),
        (Op.OPEN, Open(ino, False, moves=True)),
    ):  # fmt: skip
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
    """Told of by a client that dies before it says that it closed it."""
    client = bench.client()
    slot = slots_of(client)[0]
    client.call(Op.CHANGE_BATCH, ChangeBatch((with_bytes(birth(slot, b"tiny"), CONTENT),)))
    session = bench.engine.sessions.get(client.session)  # type: ignore[arg-type]
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
    """A listing for administrators leaves the bytes out: they lie on no target."""
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
