"""The handshake without I/O: which peers are accepted, which are not, and what an unauthenticated
peer learns.
"""

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fscommon.auth.handshake import (
    ClientHandshake,
    HandshakeState,
    HelloFields,
    KeyRing,
    ServerHandshake,
)
from fscommon.errors import AuthenticationError, ProtocolError
from fscommon.limits import HANDSHAKE_BODY_LENGTH_MAX
from fscommon.wire.codec import decode, encode
from fscommon.wire.frame import FrameParser, encode_frame
from fscommon.wire.header import FLAG_REPLY
from fscommon.wire.hello import Auth, AuthReply, Hello, HelloReply, KeyedHello
from fscommon.wire.ops import Op

KEY = b"k" * 32
OTHER_KEY = b"o" * 32
FIELDS = HelloFields("data", "node-1", session=5, connection=6, previous=7)
HELLO = Hello("data", "n", bytes(32), 0, 1, 0)


def hello_frame(hello: Hello) -> bytes:
    return encode_frame(Op.HELLO, body=encode(hello))


def test_equal_keys() -> None:
    client, server = ClientHandshake(KEY, FIELDS), ServerHandshake(KEY)
    proof = client.receive(server.receive(client.start()))
    assert client.receive(server.receive(proof)) == b""
    assert client.state is server.state is HandshakeState.DONE
    assert replace(server.hello, nonce=b"") == Hello("data", "node-1", b"", 5, 6, 7)


def test_byte_by_byte() -> None:
    client, server = ClientHandshake(KEY, FIELDS), ServerHandshake(KEY)
    to_server, to_client = client.start(), b""
    while to_server or to_client:
        to_client = b"".join(server.receive(bytes([b])) for b in to_server)
        to_server = b"".join(client.receive(bytes([b])) for b in to_client)
    assert client.state is server.state is HandshakeState.DONE


def test_bytes_behind_the_handshake_are_kept() -> None:
    client, server = ClientHandshake(KEY, FIELDS), ServerHandshake(KEY)
    proof = client.receive(server.receive(client.start()))
    server.receive(proof + encode_frame(Op.PING, request_id=9))
    frame = server.parser.next_frame()
    assert frame is not None and frame.header.request_id == 9


def test_a_client_with_another_key_is_told_so_and_no_more() -> None:
    client, server = ClientHandshake(OTHER_KEY, FIELDS), ServerHandshake(KEY)
    proof = client.receive(server.receive(client.start()))
    with pytest.raises(AuthenticationError):
        server.receive(proof)
    with pytest.raises(AuthenticationError, match="the server refused this cluster key"):
        client.receive(server.refusal)
    with pytest.raises(ProtocolError, match="not authenticated"):
        _ = server.hello


def test_a_server_with_another_key_is_found_out() -> None:
    client = ClientHandshake(KEY, FIELDS)
    client.start()
    client.receive(encode_frame(Op.HELLO, flags=FLAG_REPLY, body=encode(HelloReply(bytes(32)))))
    with pytest.raises(AuthenticationError, match="server"):
        client.receive(encode_frame(Op.AUTH, flags=FLAG_REPLY, body=encode(AuthReply(bytes(32)))))


def test_a_proof_cannot_be_reflected() -> None:
    """The client's own proof, sent back, is not the server's proof."""
    client = ClientHandshake(KEY, FIELDS)
    client.start()
    proof = client.receive(
        encode_frame(Op.HELLO, flags=FLAG_REPLY, body=encode(HelloReply(bytes(32))))
    )
    parser = FrameParser()
    parser.feed(proof)
    frame = parser.next_frame()
    assert frame is not None
    mac = decode(Auth, frame.body).mac
    with pytest.raises(AuthenticationError):
        client.receive(encode_frame(Op.AUTH, flags=FLAG_REPLY, body=encode(AuthReply(mac))))


def test_a_proof_cannot_be_replayed() -> None:
    client, server = ClientHandshake(KEY, FIELDS), ServerHandshake(KEY)
    hello = client.start()
    proof = client.receive(server.receive(hello))
    server.receive(proof)
    again = ServerHandshake(KEY)
    again.receive(hello)
    with pytest.raises(AuthenticationError):
        again.receive(proof)


def test_nonces_are_fresh() -> None:
    assert ClientHandshake(KEY, FIELDS).start() != ClientHandshake(KEY, FIELDS).start()


@pytest.mark.parametrize(
    "first",
    [
        encode_frame(Op.AUTH, body=encode(Auth(bytes(32)))),
        encode_frame(Op.LOOKUP),
        encode_frame(Op.HELLO, flags=FLAG_REPLY, body=encode(HELLO)),
        encode_frame(Op.HELLO, body=b"\x90"),
        hello_frame(replace(HELLO, purpose="root")),
        hello_frame(replace(HELLO, nonce=bytes(31))),
        hello_frame(replace(HELLO, node="n" * 256)),
        hello_frame(replace(HELLO, session=-1)),
        hello_frame(KeyedHello("meta", "n", bytes(32), 0, 1, 0, 0)),
        encode_frame(Op.HELLO, body=bytes(HANDSHAKE_BODY_LENGTH_MAX + 1)),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(80),
    ],
)
def test_what_is_no_hello_is_refused_without_an_answer(first: bytes) -> None:
    with pytest.raises(ProtocolError):
        ServerHandshake(KEY).receive(first)


def test_a_second_hello_is_refused() -> None:
    server = ServerHandshake(KEY)
    server.receive(hello_frame(HELLO))
    with pytest.raises(ProtocolError, match="AUTH"):
        server.receive(hello_frame(HELLO))


def test_a_short_proof_is_refused() -> None:
    server = ServerHandshake(KEY)
    server.receive(hello_frame(HELLO))
    with pytest.raises(AuthenticationError):
        server.receive(encode_frame(Op.AUTH, body=encode(Auth(b""))))


@given(st.binary(max_size=400))
def test_random_bytes(received: bytes) -> None:
    for handshake in (ServerHandshake(KEY), ClientHandshake(KEY, FIELDS)):
        with contextlib.suppress(ProtocolError):
            assert handshake.receive(received) == b""


def test_bodies_may_be_large_afterwards() -> None:
    client, server = ClientHandshake(KEY, FIELDS), ServerHandshake(KEY)
    client.receive(server.receive(client.receive(server.receive(client.start()))))
    server.parser.feed(encode_frame(Op.LOOKUP, body=bytes(HANDSHAKE_BODY_LENGTH_MAX + 1)))
    assert server.parser.next_frame() is not None


KEYS = {7: b"seven" * 6, 8: b"eight" * 6}
RING = KeyRing(KEY, lambda hello: KEYS.get(hello.key))
KEYED = replace(FIELDS, key=7)


def test_a_key_of_a_client() -> None:
    client, server = ClientHandshake(KEYS[7], KEYED), ServerHandshake(RING)
    proof = client.receive(server.receive(client.start()))
    client.receive(server.receive(proof))
    assert client.state is server.state is HandshakeState.DONE
    assert isinstance(server.hello, KeyedHello) and server.hello.key == 7


@pytest.mark.parametrize(
    ("secret", "key"),
    [(KEYS[8], 7), (KEYS[7], 8), (KEY, 7), (KEYS[7], 9), (bytes(32), 9), (KEYS[7], 0)],
)
def test_another_key_than_the_one_that_is_named(secret: bytes, key: int) -> None:
    """An unknown key ends in the same way as a known one: no peer learns which ids exist."""
    client, server = ClientHandshake(secret, replace(FIELDS, key=key)), ServerHandshake(RING)
    answer = server.receive(client.start())
    with pytest.raises(AuthenticationError):
        server.receive(client.receive(answer))


def test_the_id_is_part_of_what_is_proved() -> None:
    """HELLO cannot be changed in transit, so a proof is only valid for the key that it names."""
    client = ClientHandshake(KEYS[7], KEYED)
    server = ServerHandshake(KeyRing(KEY, lambda hello: KEYS[7]))
    parser = FrameParser()
    parser.feed(client.start())
    frame = parser.next_frame()
    assert frame is not None
    answer = server.receive(hello_frame(replace(decode(KeyedHello, frame.body), key=8)))
    with pytest.raises(AuthenticationError):
        server.receive(client.receive(answer))


def test_a_server_that_knows_no_keys_of_clients() -> None:
    client, server = ClientHandshake(KEY, KEYED), ServerHandshake(KEY)
    answer = server.receive(client.start())
    with pytest.raises(AuthenticationError):
        server.receive(client.receive(answer))
