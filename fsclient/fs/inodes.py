"""What the client keeps about inodes: those that are open, and a little of those that the kernel
caches.

OpenInode: one per inode with handles (or an OPEN in flight), registered at the metaserver once. It
keeps the newest attributes seen and what was taken from the lanes but not committed yet, so that
this client always sees its own writes. Kept: inodes that stay open for a while after their last
handle is closed. While their bytes are leased the lanes open them for reading by themselves; when
an inode is kept no longer, the handles that lanes opened are taken over. One hold stands for both.
What lanes know by a directory's grant has no entry here until something else than reading is done
with it (`single`). Page versions: for inodes whose pages the kernel may have, the data version of
these pages (close-to-open: an open that finds the same version keeps them). Departed: attributes of
inodes that lost their last name and that the kernel still knows. Both are bounded and dropped by
FORGET. Pure; touched by the client's trio thread only.
"""

import stat
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import (
    ATTRIBUTES_SIZE,
    LEASE_DATA,
    LEASE_META,
    LEASE_READER,
    Attributes,
    granted_in,
    ino_of,
    inos_of,
    sectors,
    unpack_attributes,
    with_lease,
)
from fscommon.layout.layout import SHAPE, is_inline, is_replicated, packed_file_id
from fscommon.native_ports import WrittenRow
from fscommon.wire.messages import COMMIT_KILL_SGID, COMMIT_KILL_SUIDGID, COMMIT_MTIME, COMMIT_SIZE

from ..leases.holder import Leases
from .changes import is_lent_to_group
from .parents import Parents
from .ports import WRITTEN_CUT, Lanes, Written
from .stamps import Stamps
from .without_xattrs import InodesWithoutXattrs

KEPT_MAX = 1 << 16
PAGE_VERSIONS_MAX = 1 << 17
LOSSES_MAX = 1 << 16
DEPARTED_MAX = 1 << 14

_XATTRS = struct.Struct("<Q20xI")  # change version and number of extended attributes
_XATTRS_AT = 88
_ROW = struct.Struct("<Q80xQ16xII8x")  # inode, change version, leases, extended attributes
_MODE = struct.Struct("<I")
_MODE_AT = 56
_SET_ID_BITS = 0o6000


class OpenInode:
    """An open inode. holds: handles plus opens in flight. taken: written states whose COMMIT or
    SETATTR is not answered yet, by token. size_limit: the one that lanes got last; None: none yet.
    is_inline: lanes know that its bytes are in its record, and write none before an OPEN.
    had_readers: a handle was opened for reading only. was_writable: it is open again before the
    CLOSE of a writer was sent, so the metaserver has it open for writing. wrote: something was
    committed since the lease on its bytes was last lost. takes_turns: the value of `wrote` when it
    was lost."""

    __slots__ = (
        "attributes",
        "file_id",
        "had_readers",
        "holds",
        "ino",
        "is_inline",
        "is_replicated",
        "is_writable",
        "shape",
        "size_limit",
        "taken",
        "takes_turns",
        "was_writable",
        "wrote",
    )

    def __init__(self, ino: int) -> None:
        self.ino = ino
        self.holds = 0
        self.is_writable = self.was_writable = False
        self.is_inline = False
        self.is_replicated = False
        self.had_readers = False
        self.size_limit: int | None = None
        self.file_id = 0
        self.shape = b""  # stripes and chunks of its layout
        self.attributes: Attributes | None = None
        self.taken: dict[int, Written] = {}
        self.wrote = self.takes_turns = False

    def see_layout(self, raw: bytes) -> None:
        self.file_id = packed_file_id(raw)
        self.shape = raw[SHAPE]
        self.is_inline = is_inline(raw)
        self.is_replicated = is_replicated(raw)

    def time_was_set(self, tokens: Iterable[int]) -> None:
        """The caller set mtime after these states were taken: their times are not shown."""
        for token in tokens:
            if token in self.taken:
                was = self.taken[token]
                self.taken[token] = Written(was.size, 0, was.flags & ~COMMIT_MTIME)


class Inodes:
    def __init__(
        self, lanes: Lanes, leases: Leases, clock: Callable[[], float], xattrs_valid_s: float
    ) -> None:
        """xattrs_valid_s: how long an inode counts as without extended attributes if there are no
        leases."""
        self._lanes = lanes
        self._leases = leases
        self._valid_ms = int(xattrs_valid_s * 1000)
        self.without_xattrs = InodesWithoutXattrs(leases, clock, xattrs_valid_s)
        self._open: dict[int, OpenInode] = {}
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._taken_over: dict[int, int] = {}  # handles of lanes, by inode: each has a hold
        self._page_versions: OrderedDict[int, int] = OrderedDict()
        self._departed: OrderedDict[int, bytes] = OrderedDict()  # attribute records
        self._being_set: dict[int, int] = {}  # settings of each that are not answered yet
        self.closed: dict[int, bool] = {}  # their CLOSE is not sent yet; True: of a writer
        self._closed_replicated: set[int] = set()  # of those, and some that are open again
        self.change_count = 0  # local changes of the namespace and of attributes
        self.losses = Stamps(LOSSES_MAX)  # lost leases
        self.resized_closed = 0  # resizes of files that nobody here had open
        self.parents = Parents()
        # Notes what lanes have changed and not reported yet (fsclient.fs.delegated_changes).
        self.catch_up: Callable[[], None] = lambda: None
        # Tells the metaserver of an inode that lanes opened by themselves.
        self.tell_open: Callable[[int], None] = lambda ino: None

    # ---- open inodes --------------------------------------------------------------------------

    def hold(self, ino: int) -> OpenInode:
        """Takes one more hold on ino; the caller must register it at the metaserver."""
        self.single(ino)
        inode = self._entry(ino)
        inode.holds += 1
        return inode

    def _entry(self, ino: int) -> OpenInode:
        inode = self._open.get(ino)
        if inode is None:
            inode = self._open[ino] = OpenInode(ino)
            inode.was_writable = self.closed.pop(ino, False)
        return inode

    def single(self, ino: int) -> None:
        """What lanes hold of the file by its directory's grant, if anything, becomes leases of its
        own. Their opens of it count as usual opens, and the metaserver is told."""
        count = self._lanes.names.child_drop(ino)
        if count < 0:
            return
        self._leases.table.single(ino, LEASE_READER)
        if count:
            self._take_over(self._entry(ino), count)
            self.tell_open(ino)

    def _take_over(self, inode: OpenInode, count: int) -> None:
        """Takes over this many handles that lanes opened by themselves."""
        inode.had_readers = True
        inode.holds += count
        self._taken_over[inode.ino] = self._taken_over.get(inode.ino, 0) + count

    def single_open(self) -> tuple[int, ...]:
        """All inodes that are open here, also by directories' grants. Until resume() lanes open
        nothing more by such grants."""
        self._lanes.names.children_pause(True)
        for ino in self._lanes.names.children_open():
            self.single(ino)
        return self.held()

    def resume(self) -> None:
        self._lanes.names.children_pause(False)

    def release(self, ino: int) -> bool:
        """Releases one hold. True when it was the last and the metaserver must be told."""
        inode = self._open.get(ino)
        if inode is None:
            return False
        if inode.holds == 1 and self._keep(inode):
            return False
        self._release(inode)
        if inode.holds == 1 and inode.is_writable:
            self.unkeep(ino)  # else it would stay open for writing
        return inode.holds == 0

    def _release(self, inode: OpenInode) -> None:
        ino = inode.ino
        inode.holds -= 1
        if inode.holds:
            return
        del self._open[ino]
        self.closed[ino] = inode.is_writable or inode.was_writable
        if inode.is_replicated:
            self._closed_replicated.add(ino)
        self._lanes.inodes.drop(ino)

    def closed_by_lanes(self, ino: int) -> None:
        """Lanes created and closed the file; the metaserver is told of both at once."""
        if ino not in self._open:
            self._lanes.inodes.drop(ino)

    def give_back(self, ino: int) -> None:
        """The metaserver opened the inode for nobody here: sends a CLOSE unless it is open."""
        self.hold(ino)
        self.release(ino)

    def _keep(self, inode: OpenInode) -> bool:
        """The last hold becomes that of lanes, which may open the inode by themselves."""
        ino = inode.ino
        if inode.is_writable or inode.was_writable or inode.taken:
            return False
        if ino in self._kept or ino in self._departed:
            return False
        leases = self._leases
        if not leases.is_on or not all(leases.holds(ino, bit) for bit in (LEASE_DATA, LEASE_META)):
            return False
        if ino not in self._page_versions or leases.is_contended(ino):
            return False
        if not self._lanes.inodes.keep(ino):
            return False
        inode.attributes = None
        self._note_kept(ino)
        return True

    def _note_kept(self, ino: int) -> None:
        self._kept[ino] = None
        if len(self._kept) > KEPT_MAX:
            self.unkeep(next(iter(self._kept)))

    def may_open_ahead(self, ino: int) -> bool:
        """The metaserver has just granted the inode by its directory. True: lanes may have it, as
        nobody here holds anything else of it, or is about to give it up."""
        leases = self._leases
        return not (
            ino in self._open
            or ino in self._departed
            or ino in leases.recalling
            or leases.is_contended(ino)
            or leases.table.held(ino) != LEASE_READER
            or not leases.holds(ino, LEASE_READER)
        )

    def unkeep(self, ino: int) -> None:
        """Lanes open the inode by themselves no more. Their opens of it count as usual opens."""
        self.single(ino)
        if ino not in self._kept:
            return
        del self._kept[ino]
        inode = self._open[ino]
        count = self._lanes.inodes.unkeep(ino)
        if count:
            self._take_over(inode, count)
        self._release(inode)

    def unkeep_all(self) -> None:
        for ino in tuple(self._kept):
            self.unkeep(ino)

    def release_taken_over(self, ino: int) -> None:
        """A handle that lanes had opened by themselves was closed."""
        left = self._taken_over.pop(ino, 0) - 1
        if left < 0:
            return
        if left:
            self._taken_over[ino] = left
        self.release(ino)

    def is_open(self, ino: int) -> bool:
        """Whether the inode has a handle, or an open in flight."""
        inode = self._open.get(ino)
        return inode is not None and (inode.holds > 1 or ino not in self._kept)

    def written(self) -> tuple[int, ...]:
        """The inodes that may have been written."""
        return tuple(ino for ino, inode in self._open.items() if inode.is_writable)

    def get(self, ino: int) -> OpenInode | None:
        return self._open.get(ino)

    def opened(self, ino: int) -> OpenInode:
        """Returns an open inode. Raises EBADF if it is not open."""
        inode = self._open.get(ino)
        if inode is None:
            raise FsError(Status.EBADF)
        return inode

    def held(self) -> tuple[int, ...]:
        return tuple(self._open)

    def __len__(self) -> int:
        return len(self._open)

    def take_closed(self, count_max: int) -> tuple[int, ...]:
        """Takes up to count_max inodes for a CLOSE."""
        count = min(count_max, len(self.closed))
        return tuple(self.closed.popitem()[0] for _ in range(count))

    def take_replicated(self, inos: tuple[int, ...]) -> set[int]:
        """Which of these files that are being closed have replicas."""
        if not self._closed_replicated:
            return set()
        taken = self._closed_replicated.intersection(inos)
        self._closed_replicated -= taken
        return taken

    # ---- attributes ---------------------------------------------------------------------------

    def see(self, attributes: Attributes) -> Attributes:
        """The attributes as this client must see them, from those that the metaserver sent."""
        inode = self._open.get(attributes.ino)
        if inode is None:
            return attributes
        known = inode.attributes
        if known is None or attributes.change_version >= known.change_version:
            known = attributes
            inode.attributes = None if attributes.ino in self._being_set else attributes
        if inode.is_writable and attributes.mode & _SET_ID_BITS:
            self._lanes.inodes.set_ids_put(attributes.ino, attributes.mode, attributes.gid)
        if attributes.ino in self._departed:
            known = self._without_names(known)
        for written in inode.taken.values():
            known = merge_written(known, written)
        current = self._lanes.inodes.written(attributes.ino) if inode.is_writable else None
        return merge_written(known, current) if current else known

    def _without_names(self, known: Attributes) -> Attributes:
        """Corrects attributes that may be from before the last name was removed."""
        gone = self.find_departed(known.ino)
        if gone is None or gone.change_version <= known.change_version:
            if known.nlink:  # restored from the trash
                self.returned(known.ino)
            return known
        return replace(known, nlink=gone.nlink, ctime_ns=max(known.ctime_ns, gone.ctime_ns))

    def see_record(self, record: bytes) -> Attributes:
        """Like see(), for a packed record; lanes answer the kernel's later requests from it."""
        attributes = unpack_attributes(record)
        if self._lanes.names.child_is_older(attributes.ino, attributes.change_version):
            self.single(attributes.ino)
        self._put(record, attributes.ino)
        self.without_xattrs.note(attributes.ino, attributes.change_version, attributes.xattr_count)
        return self.see(attributes)

    def see_row(self, ino: int, record: bytes) -> None:
        """Like see_record(), for one of many records that no caller waits for."""
        version, xattr_count = _XATTRS.unpack_from(record, _XATTRS_AT)
        if self._lanes.names.child_is_older(ino, version):
            self.single(ino)
        self._put(record, ino)
        self.without_xattrs.note(ino, version, xattr_count)
        if ino in self._open:
            self.see(unpack_attributes(record))

    def see_rows(self, records: bytes) -> None:
        """Like see_row() for each record; those that need nothing else are handled together."""
        is_plain = self._leases.held_now(LEASE_META)
        is_older = self._lanes.names.child_is_older
        wanted = bytearray(len(records) // ATTRIBUTES_SIZE)
        others = []
        for at, (ino, version, flags, xattr_count) in enumerate(_ROW.iter_unpack(records)):
            if (
                flags & LEASE_META
                and is_plain(ino)
                and not (ino in self._open or ino in self._being_set)
            ):
                wanted[at] = 1
                self.without_xattrs.note_held(ino, version, xattr_count)
            elif flags & LEASE_META or not self.is_unknown(ino) or is_older(ino, version):
                others.append((ino, at))
            else:
                self.without_xattrs.forget(ino)
        older = set(self._lanes.names.attributes_put_rows(records, bytes(wanted)))
        if older:
            others += [(ino, at) for at, ino in enumerate(inos_of(records)) if ino in older]
        for ino, at in others:
            self.see_row(ino, records[at * ATTRIBUTES_SIZE : (at + 1) * ATTRIBUTES_SIZE])

    def is_unknown(self, ino: int) -> bool:
        """Whether this client knows nothing of the inode but what the metaserver says now: it is
        not open, not being set, and no lease on it is held. False if leases are off: attributes
        are believed for a while then."""
        leases = self._leases
        is_in_use = ino in self._open or ino in self._being_set
        return leases.is_on and not (is_in_use or leases.table.held(ino))

    def see_parents(self, records: bytes) -> None:
        """Takes records of directories in which names changed, or of which leases were granted."""
        for start in range(0, len(records), ATTRIBUTES_SIZE):
            record = records[start : start + ATTRIBUTES_SIZE]
            ino = ino_of(record)
            self._put(record, ino)
            version, xattr_count = _XATTRS.unpack_from(record, _XATTRS_AT)
            self.without_xattrs.note(ino, version, xattr_count)

    def _put(self, record: bytes, ino: int) -> None:
        """Gives a record to the lanes, but not while a commit or set attributes are not answered:
        lanes would return to what the record says."""
        if ino in self._being_set:
            return self._forget_attributes(ino)
        leases = self._leases
        inode = self._open.get(ino)
        if inode is not None and inode.taken:
            return
        if not leases.is_on:
            self._lanes.names.attributes_put(record, self._valid_ms, False)
        elif not leases.holds(ino, LEASE_META):
            return
        elif granted_in(record) & LEASE_META:
            self._lanes.names.attributes_put(record, 0, True)
        else:  # the record is from before the lease was granted
            self._lanes.names.attributes_drop(ino)

    def was_set(self, ino: int, record: bytes) -> None:
        """Lanes set attributes, which are reported later. Until that is answered, other replies may
        have the inode's former attributes."""
        self._being_set[ino] = self._being_set.get(ino, 0) + 1
        inode = self._open.get(ino)
        if inode is not None and inode.attributes is not None:
            inode.attributes = unpack_attributes(with_lease(record, 0, LEASE_META))
        self.changed()

    def setting_told(self, ino: int, *, is_lost: bool) -> None:
        """The metaserver has answered one setting."""
        left = self._being_set.pop(ino, 0) - 1
        if left > 0:
            self._being_set[ino] = left
        if is_lost:
            self._forget_attributes(ino)

    def is_being_set(self, ino: int) -> bool:
        return ino in self._being_set

    def _forget_attributes(self, ino: int) -> None:
        self._lanes.names.attributes_drop(ino)
        inode = self._open.get(ino)
        if inode is not None:
            inode.attributes = None

    def known(self, ino: int) -> Attributes | None:
        """The attributes of ino if they are certain: it is open, and its attributes are leased."""
        inode = self._open.get(ino)
        if inode is None or inode.attributes is None or not self._leases.is_on:
            return None
        if not inode.attributes.lease_flags & LEASE_META:
            return None
        return self.see(inode.attributes) if self._leases.holds(ino, LEASE_META) else None

    def changed(self) -> None:
        self.change_count += 1

    # ---- pages in the kernel ------------------------------------------------------------------

    def may_keep_pages(self, attributes: Attributes) -> bool:
        """Called at an open: notes the version, and returns whether the kernel's pages have it."""
        known = self._page_versions.get(attributes.ino)
        if not self._leases.is_cached(attributes.ino):
            self._page_versions.pop(attributes.ino, None)
            return False
        self._note_pages(attributes.ino, attributes.data_version)
        return known == attributes.data_version

    def wrote_pages(self, attributes: Attributes) -> None:
        """This client's writes were committed: its pages are of the new version, unless somebody
        else wrote in between."""
        known = self._page_versions.get(attributes.ino)
        if known is None or known == attributes.data_version:
            return
        if known + 1 == attributes.data_version:
            self._note_pages(attributes.ino, attributes.data_version)
        else:
            del self._page_versions[attributes.ino]

    def lost_lease(self, ino: int, bits: int) -> None:
        """Drops what was known under these LEASE_* bits, also in older directory pages."""
        self.losses.note(ino)
        if bits & (LEASE_DATA | LEASE_META):
            self.unkeep(ino)
        if bits & LEASE_DATA:
            self._page_versions.pop(ino, None)
            if (inode := self._open.get(ino)) is not None:
                inode.takes_turns = inode.wrote or self._lanes.inodes.written(ino) is not None
                inode.wrote = False
        if bits & LEASE_META:
            self.without_xattrs.forget(ino)
            if ino in self._open:
                self._open[ino].attributes = None

    def _note_pages(self, ino: int, version: int) -> None:
        self._page_versions[ino] = version
        self._page_versions.move_to_end(ino)
        if len(self._page_versions) > PAGE_VERSIONS_MAX:
            self._page_versions.popitem(last=False)

    # ---- quotas -------------------------------------------------------------------------------

    def limit(self, inode: OpenInode, size_limit: int) -> None:
        """Sets how far the file may grow, according to the metaserver."""
        if inode.is_writable and size_limit != inode.size_limit:
            inode.size_limit = size_limit
            self._lanes.inodes.size_limit_put(inode.ino, size_limit)

    def moved(self, attributes: Attributes) -> None:
        """The inode may be in another quota tree now: lanes ask before it grows."""
        inode = self._open.get(attributes.ino)
        if inode is not None and attributes.tree:
            self.limit(inode, 0)

    # ---- inodes without a name ----------------------------------------------------------------

    def departed(self, attributes: Attributes) -> None:
        """ino lost its last name; the metaserver may remove it when nobody has it open."""
        self.departed_record(attributes.ino, attributes.pack())

    def departed_record(self, ino: int, record: bytes) -> None:
        self.unkeep(ino)  # the metaserver removes it only after its CLOSE
        self._depart(ino, record)

    def departed_by_lanes(self, ino: int, record: bytes) -> None:
        """Lanes removed its last name, and what they knew of it by its directory."""
        if ino in self._kept:
            self.unkeep(ino)
        self._depart(ino, record)

    def _depart(self, ino: int, record: bytes) -> None:
        self._departed[ino] = record
        if len(self._departed) > DEPARTED_MAX:
            self._dispose(*self._departed.popitem(last=False))

    def departed_rows(self) -> tuple[tuple[int, bytes], ...]:
        """All inodes that are known to have no name, with their attribute records."""
        return tuple(self._departed.items())

    def find_departed(self, ino: int) -> Attributes | None:
        record = self._departed.get(ino)
        return None if record is None else unpack_attributes(record)

    def _dispose(self, ino: int, record: bytes) -> None:
        """The inode will not be used again: drops everything about it."""
        if ino not in self._open:
            self._leases.table.forget(ino)
        if stat.S_ISDIR(_MODE.unpack_from(record, _MODE_AT)[0]):
            self._lanes.names.entries_drop(ino)

    def returned(self, ino: int) -> None:
        """ino has a name again."""
        self._departed.pop(ino, None)

    def forget(self, ino: int) -> None:
        """The kernel dropped the inode and with it its pages."""
        self._page_versions.pop(ino, None)
        self.without_xattrs.forget(ino)
        gone = self._departed.pop(ino, None)
        if gone is not None:
            self._dispose(ino, gone)


def merge_written(attributes: Attributes, written: Written | WrittenRow) -> Attributes:
    """Attributes with what the lanes wrote and the metaserver does not know yet. A written mtime
    replaces any other, as it was the present time."""
    size, mtime_ns, flags = written.size, written.mtime_ns, written.flags
    if not flags & WRITTEN_CUT:
        size = max(size, attributes.size) if flags & COMMIT_SIZE else attributes.size
    times = {}
    if flags & COMMIT_MTIME:
        times = {"mtime_ns": mtime_ns, "ctime_ns": max(attributes.ctime_ns, mtime_ns)}
    return replace(
        attributes,
        size=size,
        blocks=sectors(size),
        mode=left_of_mode(attributes.mode, flags),
        **times,
    )


def left_of_mode(mode: int, flags: int) -> int:
    """The mode after writes with these COMMIT_* flags."""
    if not flags & COMMIT_KILL_SUIDGID:
        return mode
    if flags & COMMIT_KILL_SGID or not is_lent_to_group(mode):
        return mode & ~_SET_ID_BITS
    return mode & ~stat.S_ISUID
