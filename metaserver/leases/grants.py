"""Grants: the lease fields in the attribute records of a reply.

What each reply grants is a table by op. A reply is stored (for repeats) as its op made it, without
grants; they are written into the copy that is sent, in place: records lie in the encoded body as
they are, those of a listing one after another. So a repeat grants nothing.
"""

import stat
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

from fscommon.layout.attributes import (
    ATTRIBUTES_SIZE,
    LEASE_ENTRIES,
    LEASE_META,
    LEASE_NAMER,
    LEASE_READER,
    LEASE_WRITER,
    inos_of,
    put_lease,
)
from fscommon.types import Ino
from fscommon.wire.messages import Create, Open, TmpFile
from fscommon.wire.ops import Op
from metaserver.leases.footprints import taken_with

Grant = tuple[bytes, int]  # attribute records, and the LEASE_* bits to grant on their inodes
NAMES: Final = LEASE_META | LEASE_ENTRIES
_MODE: Final = struct.Struct("<I")
_MODE_AT: Final = 56


def _found(request: Any, reply: Any) -> Iterator[Grant]:
    yield reply.attributes, LEASE_META


def _made_directory(request: Any, reply: Any) -> Iterator[Grant]:
    yield reply.attributes, LEASE_NAMER  # what is exclusive of it only if the op delegates


def _opened(request: Create | Open | TmpFile, reply: Any) -> Iterator[Grant]:
    writable = isinstance(request, TmpFile) or request.writable
    if not reply.layout:
        yield reply.attributes, LEASE_META
    else:
        yield reply.attributes, LEASE_WRITER if writable else LEASE_READER


def _listed(request: Any, reply: Any) -> Iterator[Grant]:
    yield reply.attributes, LEASE_META


def _opened_ahead(request: Any, reply: Any) -> Iterator[Grant]:
    yield reply.attributes, LEASE_READER


def _moved(request: Any, reply: Any) -> Iterator[Grant]:
    yield reply.attributes, LEASE_META


def _held(request: Any, reply: Any) -> Iterator[Grant]:
    yield reply.attributes, 0


def _taken(request: Any, reply: Any) -> Iterator[Grant]:
    wanted = taken_with(request.flags)
    mode = _MODE.unpack_from(reply.attributes, _MODE_AT)[0]
    facets = LEASE_META
    facets |= LEASE_ENTRIES if stat.S_ISDIR(mode) else 0
    facets |= LEASE_WRITER if stat.S_ISREG(mode) else 0
    yield reply.attributes, wanted & facets


def _delegated(request: Any, reply: Any) -> Iterator[Grant]:
    if reply.attributes:
        yield reply.attributes, LEASE_NAMER


GRANTS: Final[dict[Op, Callable[[Any, Any], Iterator[Grant]]]] = {
    Op.LOOKUP: _found,
    Op.GETATTR: _found,
    Op.SETATTR: _found,
    Op.MKNOD: _found,
    Op.MKDIR: _made_directory,
    Op.SYMLINK: _found,
    Op.LINK: _found,
    Op.RENAME: _moved,
    Op.CREATE: _opened,
    Op.TMPFILE: _opened,
    Op.OPEN: _opened,
    Op.READDIR: _listed,
    Op.COMMIT: _held,
    Op.WRITE_INLINE: _held,
    Op.SETXATTR: _found,
    Op.REMOVEXATTR: _found,
    Op.DELEGATE: _delegated,
    Op.OPEN_AHEAD: _opened_ahead,
    Op.LEASE_TAKE: _taken,
}
LOOKS: Final = frozenset({Op.LOOKUP, Op.GETATTR, Op.READDIR})  # nothing is opened or changed
# In `parents`, for the grant.
SHOWS_PARENT: Final = {Op.LOOKUP: "parent", Op.READDIR: "ino", Op.OPEN_AHEAD: "ino"}


def records_granted(op: Op, request: Any, reply: Any, parents: bytes) -> Iterator[Grant]:
    """Every record of the reply that can carry a lease, in the order in which they lie in it."""
    rows = GRANTS.get(op)
    if rows is not None:
        yield from rows(request, reply)
    yield parents, NAMES


def leases_born(op: Op, request: Any, reply: Any) -> Iterator[tuple[Ino, int]]:
    """What a client holds on the files that it made by itself."""
    if op is not Op.CHANGE_BATCH:
        return
    errors = reply.errors or (0,) * len(request.births)
    for birth, error in zip(request.births, errors, strict=True):
        if not error:
            yield Ino(birth.ino), LEASE_WRITER if birth.writable else LEASE_READER


def write_grants(
    body: bytes, grants: Iterator[Grant], grant: Callable[[Ino, int], int], duration_ns: int
) -> bytes:
    """The body with what `grant(ino, wanted)` says is held, in each record."""
    patched = bytearray(body)
    behind = 0
    for records, wanted in grants:
        at = body.index(records, behind)
        behind = at + len(records)
        for ino in inos_of(records):
            held = grant(ino, wanted)
            if held:
                put_lease(patched, at, duration_ns, held)
            at += ATTRIBUTES_SIZE
    return bytes(patched)
