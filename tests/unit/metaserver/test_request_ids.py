"""Request ids: none repeats within a session, and a stored reply is only used for its own
request.
"""

import struct
from typing import Any

import pytest

from fscommon.errors import FsError, Status
from fscommon.types import SessionId
from fscommon.wire.codec import encode
from fscommon.wire.frame import Frame
from fscommon.wire.messages import Empty, MkDir, Replay, RmDir, SessionOpen
from fscommon.wire.ops import Op
from metaserver.records import reply_key
from metaserver.sessions import IDS_OF_A_LIFE, LIVES_MAX

from .bench import ROOT, USER, Bench, Client
from .test_engine import come_back, restarted


@pytest.fixture
def bench() -> Bench:
    return Bench()


def _told_again(client: Client, op: Op, message: Any, rid: int) -> Frame:
    client.send(op, message, request_id=rid)
    if not client.received():
        client.bench.settle()
    return client.take_frame()


def test_a_stored_reply_is_for_its_own_request_alone(bench: Bench) -> None:
    """Another op, or the same op with other arguments, has the id, before and after a restart,
    repeated and replayed: it gets EIO, and nothing is executed."""
    client = bench.client()
    request, other = MkDir(ROOT, b"d", 0o755, USER), MkDir(ROOT, b"e", 0o755, USER)
    removal = RmDir(ROOT, b"d")
    rid = client.send(Op.MKDIR, request)
    made = client.take_frame()
    bench.settle()
    for again in (other, removal):
        op = Op.RMDIR if again is removal else Op.MKDIR
        assert _told_again(client, op, again, rid).header.status == Status.EIO
    assert _told_again(client, Op.MKDIR, request, rid).body == made.body
    after = restarted(bench)
    back = come_back(after, client)
    replay = Replay(made.header.offset, 0, encode(other), made.body)
    assert back.replay(Op.MKDIR, replay, rid).header.status == Status.EIO
    replay = Replay(made.header.offset, 0, encode(removal), made.body)
    assert back.replay(Op.RMDIR, replay, rid).header.status == Status.EIO
    replay = Replay(made.header.offset, 0, encode(request), made.body)
    assert back.replay(Op.MKDIR, replay, rid).body == made.body
    back.call(Op.REPLAY_DONE, Empty())
    assert after.engine.replays == {"refused": 2, "stored": 1}
    assert _told_again(back, Op.MKDIR, other, rid).header.status == Status.EIO
    assert after.faults() == []
    with pytest.raises(FsError, match="ENOENT"):
        back.lookup(ROOT, b"e")


def test_replies_stored_by_former_releases_are_told(bench: Bench) -> None:
    client = bench.client()
    request = MkDir(ROOT, b"d", 0o755, USER)
    rid = client.send(Op.MKDIR, request)
    made = client.take_frame()
    bench.settle()
    old = struct.pack("<QHH", made.header.offset, 0, Op.MKDIR) + made.body
    bench.store.commit([(reply_key(client.session, rid), old)])
    back = come_back(restarted(bench), client)
    back.call(Op.REPLAY_DONE, Empty())
    assert _told_again(back, Op.MKDIR, request, rid).body == made.body
    removal = _told_again(back, Op.RMDIR, RmDir(ROOT, b"d"), rid)
    assert removal.header.status == Status.EIO, "these, too, know their op"


def _next_process(bench: Bench, session: SessionId) -> tuple[Client, int]:
    """The next process of a session, and the last used id that it receives."""
    client = Client(bench, bench.connect(), session)
    client.send(Op.SESSION_OPEN, SessionOpen(session, "c", (), 0, (), True))
    assert not client.received(), "the life is durable before it is begun"
    bench.settle()
    return client, client.take().heard


def test_each_process_of_a_session_has_ids_of_its_own(bench: Bench) -> None:
    """Processes are killed in any order."""
    session = bench.client().session
    heard = []
    for is_killed in (False, True, False, True, True):
        if is_killed:
            bench = restarted(bench)
        client, told = _next_process(bench, session)
        if bench.engine.progress.recovering:
            client.call(Op.REPLAY_DONE, Empty())
        heard.append(told)
        client.send(Op.MKDIR, MkDir(ROOT, b"%d" % told, 0o755, USER), request_id=told + 5)
        assert client.take_frame().header.status == 0
        bench.settle()
    assert heard == sorted(set(heard)) and heard[0] >= IDS_OF_A_LIFE
    assert bench.faults() == []


def test_a_client_that_was_evicted_counts_on(bench: Bench) -> None:
    """Its next session continues with the next id; later processes use higher ids."""
    client = Client(bench, bench.connect())
    client.send(Op.SESSION_OPEN, SessionOpen(0, "c", (), 5 * IDS_OF_A_LIFE + 17))
    bench.settle()
    session = client.take().session
    assert _next_process(restarted(bench), session)[1] == 6 * IDS_OF_A_LIFE


@pytest.mark.parametrize("answered", [-1, LIVES_MAX * IDS_OF_A_LIFE * 2, (1 << 64) - 1])
def test_ids_that_no_client_reaches(bench: Bench, answered: int) -> None:
    client = Client(bench, bench.connect())
    client.send(Op.SESSION_OPEN, SessionOpen(0, "c", (), answered))
    bench.settle()
    assert client.take_frame().header.status == Status.BAD_REQUEST


def test_a_session_has_a_bound_of_lives(bench: Bench) -> None:
    client = Client(bench, bench.connect())
    client.send(Op.SESSION_OPEN, SessionOpen(0, "c", (), LIVES_MAX * IDS_OF_A_LIFE))
    bench.settle()
    session = client.take().session
    again = Client(bench, bench.connect(), session)
    again.send(Op.SESSION_OPEN, SessionOpen(session, "c", (), 0, (), True))
    assert again.take_frame().header.status == Status.UNKNOWN_SESSION
