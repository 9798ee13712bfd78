"""The handshake of both ends, sans-IO: bytes in, bytes out (docs/INTERFACES.md, section 2).

HELLO{nonce} -> HELLO reply{nonce} -> AUTH{client's proof} -> AUTH reply{server's proof}. A proof is
an HMAC under the cluster key, or under the key that HELLO names. It covers both nonces and
everything in HELLO, with a label for each side, so it can be neither replayed nor reflected.

The server proves nothing to a peer that has not proved itself. It answers a wrong proof, and a
proof for an unknown key, with a refusal (an AUTH reply with a status); a connection that ends
without a refusal simply ended. Either end raises ProtocolError for bytes that are no handshake and
AuthenticationError for a wrong proof; the caller then closes the connection. Not here: deadlines
and connection counts (fscommon.net).
"""

import hashlib
import hmac
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from fscommon.errors import AuthenticationError, ProtocolError, RefusedError, Status
from fscommon.limits import FRAME_BODY_LENGTH_MAX, HANDSHAKE_BODY_LENGTH_MAX
from fscommon.wire.codec import decode, encode
from fscommon.wire.frame import Frame, FrameParser, encode_frame
from fscommon.wire.header import FLAG_REPLY
from fscommon.wire.hello import Auth, AuthReply, Hello, HelloReply, KeyedHello
from fscommon.wire.messages import Failure
from fscommon.wire.ops import Op

NONCE_SIZE: Final = 32
NODE_LENGTH_MAX: Final = 255
PURPOSES: Final = ("meta", "recall", "data", "rdma", "server", "admin")

_CLIENT: Final = b"braidfs client"
_SERVER: Final = b"braidfs server"


def new_connection() -> int:
    """A random number that names a connection, never 0."""
    return secrets.randbits(63) + 1


@dataclass(frozen=True, slots=True)
class HelloFields:
    """What a peer says about itself; the handshake adds a fresh nonce."""

    purpose: str
    node: str
    session: int = 0
    connection: int = field(default_factory=new_connection)
    previous: int = 0
    key: int = 0  # id of the client's key that is proved; 0: the cluster key


# The secret that this peer has to prove. None: there is no such key, or it is not for this purpose.
ClientKeys = Callable[[KeyedHello], bytes | None]


def _no_client_keys(hello: KeyedHello) -> bytes | None:
    return None


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The keys that a server lets peers prove."""

    cluster: bytes = field(repr=False)
    client_keys: ClientKeys = _no_client_keys


class HandshakeState(Enum):
    HELLO = auto()
    AUTH = auto()
    DONE = auto()


class _Handshake(ABC):
    """One end: call receive() with what arrives and send what it returns, until state is DONE."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._transcript = b""
        self.state = HandshakeState.HELLO
        self.parser = FrameParser(body_length_max=HANDSHAKE_BODY_LENGTH_MAX)

    def receive(self, received: bytes) -> bytes:
        self.parser.feed(received)
        reply = b""
        while self.state is not HandshakeState.DONE:
            frame = self.parser.next_frame()
            if frame is None:
                break
            in_hello = self.state is HandshakeState.HELLO
            reply += self._on_hello(frame) if in_hello else self._on_auth(frame)
        return reply

    def _done(self) -> None:
        self.state = HandshakeState.DONE
        self.parser.body_length_max = FRAME_BODY_LENGTH_MAX

    @abstractmethod
    def _on_hello(self, frame: Frame) -> bytes: ...

    @abstractmethod
    def _on_auth(self, frame: Frame) -> bytes: ...


class ClientHandshake(_Handshake):
    """Client's end: send start(), then call receive() with what arrives and send what it returns,
    until state is DONE."""

    def __init__(self, key: bytes, fields: HelloFields) -> None:
        super().__init__(key)
        said = (
            fields.purpose,
            fields.node[:NODE_LENGTH_MAX],
            secrets.token_bytes(NONCE_SIZE),
            fields.session,
            fields.connection,
            fields.previous,
        )
        self.key_id = fields.key
        self._hello = encode(KeyedHello(*said, fields.key) if fields.key else Hello(*said))

    def start(self) -> bytes:
        return encode_frame(Op.HELLO, request_id=1, body=self._hello)

    def _on_hello(self, frame: Frame) -> bytes:
        _expect(frame, Op.HELLO, reply=True)
        if len(decode(HelloReply, frame.body).nonce) != NONCE_SIZE:
            raise ProtocolError(f"a nonce has {NONCE_SIZE} bytes")
        self._transcript = _digest(self._hello, frame.body)
        self.state = HandshakeState.AUTH
        proof = Auth(_proof(self._key, _CLIENT, self._transcript))
        return encode_frame(Op.AUTH, request_id=2, body=encode(proof))

    def _on_auth(self, frame: Frame) -> bytes:
        if frame.header.op == Op.AUTH and frame.header.status == Status.EACCES:
            what = "this cluster key" if not self.key_id else f"key {self.key_id:016x}"
            raise AuthenticationError(f"the server refused {what}")
        if frame.header.op == Op.AUTH and frame.header.is_reply and frame.header.status:
            raise RefusedError(decode(Failure, frame.body).message)
        _expect(frame, Op.AUTH, reply=True)
        expected = _proof(self._key, _SERVER, self._transcript)
        if not hmac.compare_digest(decode(AuthReply, frame.body).mac, expected):
            raise AuthenticationError("the server could not prove that it holds the key")
        self._done()
        return b""


class ServerHandshake(_Handshake):
    """Server's end: call receive() with what arrives and send what it returns, until state is DONE.
    Then `hello` holds what the peer said about itself; it is a KeyedHello when a client's key was
    proved."""

    def __init__(
        self, key: KeyRing | bytes, why_not: Callable[[Hello], str] = lambda hello: ""
    ) -> None:
        """`why_not` says why a peer that proved itself is not served; "": it is served."""
        ring = key if isinstance(key, KeyRing) else KeyRing(key)
        super().__init__(ring.cluster)
        self._client_keys = ring.client_keys
        self._nonce = secrets.token_bytes(NONCE_SIZE)
        self._hello: Hello | None = None
        self.refusal = b""  # to be sent to a peer whose proof was wrong (AuthenticationError)
        self._why_not = why_not
        self.no_place = ""  # why a peer that proved itself is not served

    @property
    def hello(self) -> Hello:
        if self._hello is None or self.state is not HandshakeState.DONE:
            raise ProtocolError("the peer is not authenticated")
        return self._hello

    def _on_hello(self, frame: Frame) -> bytes:
        _expect(frame, Op.HELLO, reply=False)
        hello = _read_hello(frame.body)
        _check(hello)
        if isinstance(hello, KeyedHello):
            self._key = self._client_keys(hello) or secrets.token_bytes(NONCE_SIZE)
        self._hello = hello
        body = encode(HelloReply(self._nonce))
        self._transcript = _digest(frame.body, body)
        self.state = HandshakeState.AUTH
        return _reply(frame, body)

    def _on_auth(self, frame: Frame) -> bytes:
        _expect(frame, Op.AUTH, reply=False)
        expected = _proof(self._key, _CLIENT, self._transcript)
        if not hmac.compare_digest(decode(Auth, frame.body).mac, expected):
            self.refusal = _reply(frame, b"", status=int(Status.EACCES))
            raise AuthenticationError(_unproved(self._hello))
        self._done()
        self.no_place = self._why_not(self.hello)
        if self.no_place:
            return _reply(frame, encode(Failure(self.no_place)), status=int(Status.BUSY))
        return _reply(frame, encode(AuthReply(_proof(self._key, _SERVER, self._transcript))))


def _read_hello(body: bytes) -> Hello:
    try:
        return decode(KeyedHello, body)
    except ProtocolError:
        return decode(Hello, body)


def _unproved(hello: Hello | None) -> str:
    if isinstance(hello, KeyedHello):
        return f"the peer could not prove that it holds the client's key {hello.key:016x}"
    return "the peer could not prove that it holds the cluster key"


def _check(hello: Hello) -> None:
    if hello.purpose not in PURPOSES:
        raise ProtocolError("HELLO has an unknown purpose")
    if len(hello.nonce) != NONCE_SIZE:
        raise ProtocolError(f"a nonce has {NONCE_SIZE} bytes")
    if len(hello.node) > NODE_LENGTH_MAX:
        raise ProtocolError("HELLO has a node name that is too long")
    if isinstance(hello, KeyedHello) and not hello.key:
        raise ProtocolError("HELLO names no key")


def _expect(frame: Frame, op: Op, *, reply: bool) -> None:
    header = frame.header
    if header.op != op or header.flags != (FLAG_REPLY if reply else 0) or header.status:
        raise ProtocolError(f"expected {op.name} of the handshake, got op {header.op}")


def _reply(frame: Frame, body: bytes, status: int = 0) -> bytes:
    request_id = frame.header.request_id
    return encode_frame(
        frame.header.op, flags=FLAG_REPLY, request_id=request_id, body=body, status=status
    )


def _digest(hello: bytes, reply: bytes) -> bytes:
    return hashlib.sha256(hello + reply).digest()


def _proof(key: bytes, label: bytes, transcript: bytes) -> bytes:
    return hmac.digest(key, label + transcript, "sha256")
