"""Grants that several ops share: the attribute records of a reply, and the leases to grant on them.

A reply is stored (for repeats) as its op made it, without grants; metaserver.leases.grants writes
them into the copy that is sent. Grants of a single op are in the file of that op.
"""

from collections.abc import Iterator
from typing import Any

from fscommon.layout.attributes import LEASE_META, LEASE_READER, LEASE_WRITER
from metaserver.leases.grants import Grant


def found(request: Any, reply: Any) -> Iterator[Grant]:
    yield reply.attributes, LEASE_META


def opened(request: Any, reply: Any) -> Iterator[Grant]:
    return opened_for(reply, writable=request.writable)


def opened_for(reply: Any, *, writable: bool) -> Iterator[Grant]:
    if not reply.layout:
        yield reply.attributes, LEASE_META
    else:
        yield reply.attributes, LEASE_WRITER if writable else LEASE_READER


def only_held(request: Any, reply: Any) -> Iterator[Grant]:
    """Nothing new: the reply says what the session holds of the inode."""
    yield reply.attributes, 0
