"""INSPECT, INSPECT_LIST, TREE_SUM, EVICT: for administrators, on connections of purpose "admin".

These ops belong to no session and change no record. Each request is bounded work; a long walk is
many requests, each with the place where the walk goes on. Like every read they wait for what other
sessions have not committed yet (commit on share).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import ATTRIBUTES_SIZE, LEASE_ENTRIES_EXCLUSIVE
from fscommon.layout.layout import is_inline
from fscommon.types import Ino, SessionId
from fscommon.wire.admin import (
    INSPECT_NAMES_MAX,
    SUM_DEPTH_MAX,
    SUM_INODES_MAX,
    Evict,
    Inspect,
    Inspected,
    InspectedEntry,
    InspectList,
    InspectListed,
    LinkedFile,
    Opener,
    Place,
    TreeSum,
    TreeSummed,
)
from fscommon.wire.messages import Empty
from fscommon.wire.ops import Op
from metaserver.context import Context
from metaserver.leases.holders import Need
from metaserver.namespace.entries import get_dentry
from metaserver.namespace.inode import Inode, find, load
from metaserver.namespace.layouts import default_in, own_record
from metaserver.namespace.listing import list_page
from metaserver.ops import footprints
from metaserver.ops.row import Access, OpRow, always
from metaserver.records import dentries_after, dentry_cookie, dentry_name, unpack_dentry
from metaserver.transaction import Transaction


def inspect(tx: Transaction, request: Inspect, context: Context) -> Inspected:
    inode = _walk(tx, request)
    sessions = context.services.sessions
    inherited = default_in(tx, inode, context).pack() if inode.is_directory else b""
    return Inspected(
        attributes=inode.attributes.pack(),
        layout=inode.tail if inode.is_file else b"",
        link=b"" if inode.is_file or inode.is_directory else inode.tail,
        inherited=inherited,
        own=inode.is_directory and own_record(tx, inode) is not None,
        openers=tuple(Opener(s, writable) for s, writable in sessions.openers(inode.ino)),
        truncating=inode.ino in context.services.intents,
    )


def _walk(tx: Transaction, request: Inspect) -> Inode:
    if len(request.names) > INSPECT_NAMES_MAX:
        raise FsError(Status.ENAMETOOLONG, f"a path has at most {INSPECT_NAMES_MAX} names")
    inode = load(tx, request.ino)
    for name in request.names:
        if not inode.is_directory:
            raise FsError(Status.ENOTDIR)
        inode = load(tx, get_dentry(tx, inode.ino, name).ino)
    return inode


def inspect_list(tx: Transaction, request: InspectList, context: Context) -> InspectListed:
    entries, end = list_page(tx, request.ino, request.cookie, request.count, _entry)
    return InspectListed(entries, end=end)


def _entry(key: bytes, raw: bytes) -> InspectedEntry:
    """Makes an entry. It has no layout with inline bytes: these lie on no target, and would be too
    large for a page."""
    inode = Inode.parse(raw)
    layout = inode.tail if inode.is_file and not is_inline(inode.tail) else b""
    return InspectedEntry(dentry_name(key), dentry_cookie(key), raw[:ATTRIBUTES_SIZE], layout)


@dataclass(slots=True)
class _Sums:
    files: int = 0
    directories: int = 0
    others: int = 0
    bytes: int = 0
    blocks: int = 0
    linked: list[LinkedFile] = field(default_factory=list)

    def add(self, inode: Inode) -> None:
        attributes = inode.attributes
        if inode.is_directory:
            self.directories += 1
        elif attributes.nlink > 1:
            self.linked.append(LinkedFile(inode.ino, attributes.size, attributes.blocks))
            return
        elif inode.is_file:
            self.files += 1
        else:
            self.others += 1
        self.bytes += attributes.size
        self.blocks += attributes.blocks


_SUM_MAX = (1 << 64) - 1  # the largest number on the wire


def tree_sum(tx: Transaction, request: TreeSum, context: Context) -> TreeSummed:
    if not 0 < len(request.stack) <= SUM_DEPTH_MAX:
        raise FsError(Status.EINVAL, f"a walk has 1 to {SUM_DEPTH_MAX} directories on its stack")
    stack = list(request.stack)
    sums = _Sums()
    left = SUM_INODES_MAX
    while stack and left > 0:
        place = stack.pop()
        for cookie, inode in _children(tx, place):
            left -= 1
            sums.add(inode)
            if inode.is_directory or left <= 0:
                stack.append(Place(place.ino, cookie))
                if inode.is_directory:
                    stack.append(Place(inode.ino, 0))
                    left = 0 if _is_delegated(inode.ino, context) else left
                break
        else:
            left -= 1  # an empty directory is work, too
    if len(stack) > SUM_DEPTH_MAX:
        raise FsError(Status.EOVERFLOW, f"directories are nested over {SUM_DEPTH_MAX} deep")
    return TreeSummed(
        sums.files,
        sums.directories,
        sums.others,
        min(sums.bytes, _SUM_MAX),
        min(sums.blocks, _SUM_MAX),  # sparse files may have more
        tuple(sums.linked),
        tuple(stack),
    )


def _is_delegated(ino: Ino, context: Context) -> bool:
    """Whether only a client may know names in this directory: the next request's footprint gets
    them."""
    return context.services.leases.is_held(ino, LEASE_ENTRIES_EXCLUSIVE)


def _children(tx: Transaction, place: Place) -> Iterator[tuple[int, Inode]]:
    for key, value in tx.range(*dentries_after(place.ino, place.cookie)):
        inode = find(tx, unpack_dentry(value)[0])
        if inode is not None:
            yield dentry_cookie(key), inode


def evict(tx: Transaction, request: Evict, context: Context) -> Empty:
    """Marks the session for eviction. metaserver.eviction evicts it within half a second; the
    command watches STATUS for that."""
    if not context.services.sessions.condemn(SessionId(request.session)):
        raise FsError(Status.UNKNOWN_SESSION, f"there is no session {request.session:x}")
    return Empty()


def _inspected(tx: Transaction, request: Inspect) -> list[Need]:
    """The directories on the path, as far as their names are known yet."""
    ino: Ino | None = Ino(request.ino)
    needs = []
    for name in request.names[:INSPECT_NAMES_MAX]:
        if ino is None:
            break
        needs.append(Need(ino, footprints.SENT_NAMES))
        ino = footprints.ino_named(tx, ino, name)
    return needs


def _summed(tx: Transaction, request: TreeSum) -> list[Need]:
    """The place where the walk goes on. A request ends before the next directory that a session
    holds exclusively."""
    return [Need(Ino(place.ino), footprints.SENT_NAMES) for place in request.stack[-1:]]


ROWS: Final = (
    OpRow(op=Op.INSPECT, run=inspect, access=Access.ADMIN, footprint=_inspected),
    OpRow(
        op=Op.INSPECT_LIST, run=inspect_list, access=Access.ADMIN, footprint=footprints.attributes
    ),
    OpRow(op=Op.TREE_SUM, run=tree_sum, access=Access.ADMIN, footprint=_summed),
    OpRow(op=Op.EVICT, run=evict, access=Access.ADMIN, audited=always),
)
