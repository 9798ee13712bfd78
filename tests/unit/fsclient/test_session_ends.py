"""The session core when a session ends, when another process continues it, and when answers make no
sense.
"""

import pytest

from fsclient.meta.pending import NEVER
from fscommon.errors import FsError, Status
from fscommon.wire.codec import encode
from fscommon.wire.frame import Frame
from fscommon.wire.header import FLAG_REPLY, Header
from fscommon.wire.messages import Empty
from fscommon.wire.ops import Op

from .memory_metaserver import MemoryMetaserver, Session
from .test_session_core import Client, exchange, exchange_on_a_new_connection, open_session


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def server() -> MemoryMetaserver:
    return MemoryMetaserver()


def test_what_comes_behind_the_end_of_the_session(client: Client, server: MemoryMetaserver) -> None:
    """A heartbeat that the closed session does not know must not begin another session, whose end
    would be requested again, and so on."""
    open_session(client, server)
    closed: list[FsError | None] = []
    client.core.submit(
        Op.SESSION_CLOSE, encode(Empty()), lambda error, _body: closed.append(error), NEVER
    )
    client.getattr(b"heartbeat")
    client.core.take_output(0.0)
    header = Header(Op.GETATTR, FLAG_REPLY, request_id=2, status=int(Status.UNKNOWN_SESSION))
    client.core.received(Frame(header, b""), 0.0)
    assert not client.core.must_reconnect and closed == []
    server.evict(client.core.session)
    client.core.lost()
    exchange_on_a_new_connection(client, server)
    assert closed == [None], "also when the connection ended before the answer"


def test_what_comes_behind_the_answer_to_the_end_of_the_session(
    client: Client, server: MemoryMetaserver
) -> None:
    """Nobody is told of an eviction that was none."""
    open_session(client, server)
    closed: list[FsError | None] = []
    client.core.submit(
        Op.SESSION_CLOSE, encode(Empty()), lambda error, _body: closed.append(error), NEVER
    )
    exchange(client, server)
    client.getattr(b"heartbeat")
    client.core.take_output(0.0)
    header = Header(Op.GETATTR, FLAG_REPLY, request_id=2, status=int(Status.UNKNOWN_SESSION))
    client.core.received(Frame(header, b""), 0.0)
    assert closed == [None] and not client.core.must_reconnect


def test_ids_of_another_process_are_its_own(client: Client, server: MemoryMetaserver) -> None:
    """It begins after the id that the metaserver says, although it had counted for itself."""
    client.core.resume(101, 1, 7, 0)
    server.now.sessions[101] = Session()
    server.heard = 1 << 44
    exchange_on_a_new_connection(client, server)
    client.mkdir(b"a")
    exchange(client, server)
    assert client.core.next_id > 1 << 44
    first = client.core.next_id
    client.core.lost()
    exchange_on_a_new_connection(client, server)
    assert client.core.next_id == first, "it is the same process"


def test_what_is_distrusted_is_failed_and_not_sent_again(
    client: Client, server: MemoryMetaserver
) -> None:
    open_session(client, server)
    client.mkdir(b"sent")
    sent = client.core.take_output(0.0)
    client.mkdir(b"waits")
    assert client.core.distrust("nonsense") == 2
    assert all(e is not None and e.status is Status.EIO for e in client.outcomes.values())
    client.core.lost()
    exchange_on_a_new_connection(client, server)
    assert sent and client.core.waiting_count == 0 and server.now.applied == []
    client.mkdir(b"later")
    exchange(client, server)
    assert client.outcomes[b"later"] is None
