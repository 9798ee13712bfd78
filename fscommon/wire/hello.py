"""Bodies of the handshake, with which every connection of every program starts.

fscommon.auth.handshake says what they prove. A peer that proves itself with the cluster key sends
Hello; one with a client's key sends KeyedHello. A server of a release without such keys closes the
connection on KeyedHello.
"""

from dataclasses import dataclass

from fscommon.ranges import U64, Text, Token


@dataclass(frozen=True, slots=True)
class Hello:
    """The first frame on a connection. purpose: "meta", "recall", "data", "rdma", "server" or
    "admin". "rdma" is "data" whose frames go over a queue pair; Op.RDMA follows."""

    purpose: Text
    node: Text  # name for logs, at most 255 characters
    nonce: Token  # 32 fresh random bytes
    session: U64  # 0 when the peer has none (yet); of a metaserver: the epoch of its map
    connection: U64  # random; identifies this lane's connection
    previous: U64  # the connection that this one replaces; 0: none (rule 23)


@dataclass(frozen=True, slots=True)
class KeyedHello(Hello):
    """key: the id of the client's key. To a metaserver the peer proves the secret of that key, to a
    storage server that of the session (fscommon.auth.key)."""

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
