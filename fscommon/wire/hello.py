"""Bodies of the handshake, with which every connection of every program starts.

fscommon.auth.handshake says what is proved with them. A peer that proves itself with the cluster
key says Hello, one that has a client's key KeyedHello: a server of before such keys closes the
connection, and all else stays as it was.
"""

from dataclasses import dataclass

from fscommon.ranges import U64, Text, Token


@dataclass(frozen=True, slots=True)
class Hello:
    """First frame on a connection. purpose: "meta", "recall", "data", "rdma", "server" or
    "admin". "rdma" is "data" whose frames go over a queue pair; Op.RDMA follows."""

    purpose: Text
    node: Text  # name for logs, at most 255 characters
    nonce: Token  # 32 fresh random bytes
    session: U64  # 0 when the peer has none (yet)
    connection: U64  # random; names this lane's connection
    previous: U64  # the connection that this one replaces, 0 if none (rule 23)


@dataclass(frozen=True, slots=True)
class KeyedHello(Hello):
    """key: the id of the client's key. A metaserver is shown the secret of that key, a storage
    server that of the session (fscommon.auth.key)."""

    key: U64


@dataclass(frozen=True, slots=True)
class HelloReply:
    nonce: Token


@dataclass(frozen=True, slots=True)
class Auth:
    mac: Token  # HMAC-SHA256(key, "braidfs client" || transcript)


@dataclass(frozen=True, slots=True)
class AuthReply:
    mac: Token  # HMAC-SHA256(key, "braidfs server" || transcript)
