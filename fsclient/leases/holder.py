"""What this client may cache: grants from replies, and times for the kernel and the lanes.

Grants are noted when a reply arrives, in the order of arrival, before the task that waits for it
runs; so a recall always finds them. Until a metaserver says how long leases last (`is_on`), the
client uses the times of its mount options, like one that is alone. While recalls cannot reach it,
none are granted: it reads uncached, and its writes wait. Touched by the client's trio thread only.
fsclient.leases.recalls gives leases up.
"""

import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from fscommon.layout.attributes import (
    LEASE_ALL,
    LEASE_DATA,
    LEASE_DATA_EXCLUSIVE,
    LEASE_ENTRIES,
    LEASE_EXCLUSIVE_ALL,
    LEASE_META,
    LEASE_META_EXCLUSIVE,
    Attributes,
    inos_of,
)
from fscommon.native_ports import InodesPort, NamesPort
from fscommon.wire.ops import Op

from .former import ABSENT_S
from .spans import Spans
from .table import LeaseTable, Limit

MASKS_MAX = 4096
MARGIN_S = 1.0  # time before the end of the leases in which the kernel's caches are invalidated
CONTENDED_S = 10.0
CONTENDED_MAX = 4096
_INO = struct.Struct("<Q")
_GRANTS = struct.Struct("<Q104xI12x")  # of an attribute record: inode and lease flags
_RECORDS = ("attributes", "replaced", "parents")


def inodes_in(reply: object) -> set[int]:
    """The inodes whose attribute records are in a reply."""
    return {ino for field in _RECORDS for ino in inos_of(getattr(reply, field, b""))}


class LeaseLanes(Protocol):
    """The ports of native with which lanes answer under leases."""

    @property
    def inodes(self) -> InodesPort: ...
    @property
    def names(self) -> NamesPort: ...


class Leases:
    def __init__(self, lanes: LeaseLanes, clock: Callable[[], float]) -> None:
        self._lanes = lanes
        self._clock = clock
        self.table = LeaseTable()
        self.lease_s = 0.0
        self.recalling: dict[int, int] = {}  # by inode: bits that are recalled and not returned yet
        self._asking: set[int] = set()
        self._took: set[int] = set()
        self.using = Spans()  # a lease just granted is used once before it is given up
        self._contended: OrderedDict[int, float] = OrderedDict()  # by inode: until when
        self.leaving = Spans()  # a lease on the inode is being given up: none is granted

    @property
    def is_on(self) -> bool:
        return self.lease_s > 0

    # ---- the session --------------------------------------------------------------------------

    def session_opened(self, lease_s: float) -> None:
        """lease_s: how long leases of this session last; 0: this metaserver grants none."""
        self.lease_s = lease_s
        if self.is_on:
            self._tell_until()

    def renewed(self, sent_at: float, answered: int) -> None:
        """The renewal that was sent then was answered; so was every request up to that id."""
        if not self.is_on:
            return
        self.table.renewed(sent_at, self.lease_s - MARGIN_S)
        self._tell_until()
        if self.table.mask_count > MASKS_MAX // 16:
            self.table.prune(answered)

    def _tell_until(self) -> None:
        self._lanes.names.lease_until(max(0, int((self.table.until - self._clock()) * 1000)))

    # ---- grants -------------------------------------------------------------------------------

    def replied(self, op: Op, message: object, request_id: int) -> None:
        """A reply arrived: notes what it grants."""
        if not self.is_on:
            return
        for field in _RECORDS:
            self._grant(getattr(message, field, b""), request_id)
        if op is Op.OPEN and self._asking:
            self._note_taken(message)

    def _grant(self, records: bytes, request_id: int) -> None:
        granted = self.table.granted
        for ino, flags in _GRANTS.iter_unpack(records):
            if flags & LEASE_ALL:
                granted(ino, flags & LEASE_ALL, request_id)
                if flags & self.table.held(ino) & LEASE_ENTRIES:
                    self._lanes.names.entries_lease(ino)

    # ---- lease requests of the lanes ---------------------------------------------------------

    def asks(self, ino: int) -> None:
        """An OPEN of ino is about to be sent, for lanes that wait for a lease."""
        self._asking.add(ino)

    def _note_taken(self, message: object) -> None:
        (ino,) = _INO.unpack_from(getattr(message, "attributes", bytes(8)))
        if ino in self._asking and ino not in self._took:
            self._took.add(ino)
            self.using.begin(ino)

    def used(self, ino: int) -> None:
        """Lanes have got the lease."""
        self._asking.discard(ino)
        if ino in self._took:
            self._took.discard(ino)
            self.using.end(ino)

    # ---- queries ------------------------------------------------------------------------------

    def holds(self, ino: int, flags: int) -> bool:
        return self.table.holds(ino, flags, self._clock())

    def held_now(self, flags: int) -> Callable[[int], bool]:
        """Like holds() of these bits, for many inodes at one moment."""
        if not self.is_on or self._clock() >= self.table.until:
            return lambda ino: False
        held = self.table.held
        return lambda ino: held(ino) & flags == flags

    def attributes_s(self, attributes: Attributes, otherwise: float) -> float:
        """How long the kernel may cache these attributes; otherwise: without leases. 0 for
        attributes from before the lease was granted."""
        if not self.is_on:
            return otherwise
        if not attributes.lease_flags & LEASE_META:
            return 0.0
        now = self._clock()
        return self.table.until - now if self.table.holds(attributes.ino, LEASE_META, now) else 0.0

    def entry_s(self, parent: int, name: bytes, ino: int, otherwise: float) -> float:
        """How long the kernel may cache that name in parent is ino (0: absent), which was learned
        under the lease, if one is held."""
        if not self.is_on:
            return otherwise
        now = self._clock()
        if not self.table.holds(parent, LEASE_ENTRIES, now):
            return 0.0
        if not self._lanes.names.entry_put(parent, name, ino):
            return 0.0
        left_s = self.table.until - now
        return left_s if ino else min(left_s, ABSENT_S)

    def is_cached(self, ino: int) -> bool:
        """Whether the kernel may keep pages of ino."""
        return not self.is_on or self.holds(ino, LEASE_DATA)

    def bytes_recalled(self, ino: int) -> None:
        """The lease on this file's bytes was recalled: another session writes the file."""
        self._contended.pop(ino, None)
        self._contended[ino] = self._clock() + CONTENDED_S
        if len(self._contended) > CONTENDED_MAX:
            self._contended.popitem(last=False)

    def is_contended(self, ino: int) -> bool:
        """Whether another session wrote this file a moment ago, and may write it again. An open now
        shall bypass the page cache: buffered reads end at the size that the kernel knows, which is
        an old one if an invalidation overtakes the answer to the kernel's GETATTR."""
        return self._contended.get(ino, 0.0) > self._clock()

    def exclusive(self) -> tuple[int, ...]:
        """The files that only this session may write, for SESSION_OPEN; also those that are being
        given up, whose bytes may still be in flight."""
        held = self.table.with_bits(LEASE_META_EXCLUSIVE)
        leaving = (ino for ino, bits in self.recalling.items() if bits & LEASE_DATA_EXCLUSIVE)
        return tuple({*held, *leaving})

    # ---- lanes --------------------------------------------------------------------------------

    def tell_lanes(self, ino: int) -> bool:
        """Tells lanes which leases are held on ino, after they got its present state. True: reads
        or writes went on under a recalled lease since the last call, or written bytes are still on
        their way without one."""
        if not self.is_on:
            return False
        return self._lanes.inodes.lease(ino, self.table.held(ino), self.recalling.get(ino, 0))

    def closed(self, inos: tuple[int, ...], limit: Limit) -> None:
        """A CLOSE of these inodes is about to be sent: exclusive leases become shared ones."""
        if self.is_on:
            for ino in inos:
                if self.table.held(ino) & LEASE_EXCLUSIVE_ALL:
                    self.table.give_up(ino, LEASE_EXCLUSIVE_ALL, limit)
                    self.tell_lanes(ino)
