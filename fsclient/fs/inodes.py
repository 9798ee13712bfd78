"""What the client remembers of inodes: those held open, and a little of those the kernel caches.

OpenInode: one per inode with handles (or an OPEN on its way); registered at the metaserver once per
inode. It keeps the newest attributes seen and what was taken from the lanes but not yet committed,
so that this client always sees its own writes.
Page versions: for inodes whose pages the kernel may hold, the data version these pages belong to
(close-to-open: an open that finds the same version keeps them). Departed: attributes of inodes
that lost their last name while the kernel knows them. Both are bounded and dropped by FORGET.
Bare: inodes seen without extended attributes, believed for as long as the kernel believes the
attributes that said so (ls -l and cp -a ask for several per file).
Pure; touched by the client's trio thread only.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from fscommon.layout.attributes import ATTRIBUTES_SIZE, Attributes, unpack_attributes
from fscommon.wire.messages import COMMIT_KILL_SUIDGID, COMMIT_MTIME, COMMIT_SIZE

from .ports import Lanes, Written

PAGE_VERSIONS_MAX = 1 << 17
DEPARTED_MAX = 1 << 14
BARE_MAX = 1 << 16

_SET_ID_BITS = 0o6000
_SET_GID_AND_GROUP_EXECUTE = 0o2010


class OpenInode:
    """holds: handles plus opens on their way. taken: written states whose COMMIT or SETATTR is
    not answered yet, by token."""

    __slots__ = ("attributes", "file_id", "holds", "ino", "is_writable", "taken")

    def __init__(self, ino: int) -> None:
        self.ino = ino
        self.holds = 0
        self.is_writable = False
        self.file_id = 0
        self.attributes: Attributes | None = None
        self.taken: dict[int, Written] = {}


class Inodes:
    def __init__(self, lanes: Lanes, clock: Callable[[], float], bare_s: float) -> None:
        """bare_s: how long an inode seen without extended attributes is believed to have none."""
        self._lanes = lanes
        self._clock = clock
        self._bare_s = bare_s
        self._valid_ms = int(bare_s * 1000)
        self._bare: dict[int, float] = {}
        self._open: dict[int, OpenInode] = {}
        self._page_versions: OrderedDict[int, int] = OrderedDict()
        self._departed: OrderedDict[int, Attributes] = OrderedDict()
        self.closed: set[int] = set()  # not told to the metaserver yet
        self.change_count = 0  # local changes of the namespace and of attributes

    # ---- open inodes --------------------------------------------------------------------------

    def hold(self, ino: int) -> OpenInode:
        """Take one more hold on ino; it must be registered at the metaserver by the caller."""
        inode = self._open.get(ino)
        if inode is None:
            inode = self._open[ino] = OpenInode(ino)
        inode.holds += 1
        self.closed.discard(ino)
        return inode

    def release(self, ino: int) -> bool:
        """Give one hold back; True when it was the last and the metaserver has to know."""
        inode = self._open.get(ino)
        if inode is None:
            return False
        inode.holds -= 1
        if inode.holds:
            return False
        del self._open[ino]
        self.closed.add(ino)
        self._lanes.inode_drop(ino)
        return True

    def get(self, ino: int) -> OpenInode | None:
        return self._open.get(ino)

    def held(self) -> tuple[int, ...]:
        return tuple(self._open)

    def __len__(self) -> int:
        return len(self._open)

    def take_closed(self, count_max: int) -> tuple[int, ...]:
        """Up to count_max inodes of which the metaserver should be told that they are closed."""
        count = min(count_max, len(self.closed))
        return tuple(self.closed.pop() for _ in range(count))

    # ---- attributes ---------------------------------------------------------------------------

    def see(self, attributes: Attributes) -> Attributes:
        """Attributes as this client must see them, given what came from the metaserver."""
        self._note_bare(attributes)
        inode = self._open.get(attributes.ino)
        if inode is None:
            return attributes
        known = inode.attributes
        if known is None or attributes.change_version >= known.change_version:
            inode.attributes = known = attributes
        for written in inode.taken.values():
            known = merge_written(known, written)
        current = self._lanes.inode_written(attributes.ino) if inode.is_writable else None
        return merge_written(known, current) if current else known

    def see_record(self, record: bytes) -> Attributes:
        """see(), for a record as it came; native answers the kernel's next questions from it."""
        self._lanes.attributes_put(record, self._valid_ms)
        return self.see(unpack_attributes(record))

    def see_parents(self, records: bytes) -> None:
        """Directories in which a name came or went."""
        for start in range(0, len(records), ATTRIBUTES_SIZE):
            self._lanes.attributes_put(records[start : start + ATTRIBUTES_SIZE], self._valid_ms)

    def changed(self) -> None:
        self.change_count += 1

    def is_bare(self, ino: int) -> bool:
        """ino was seen without extended attributes a moment ago."""
        return self._bare.get(ino, 0.0) > self._clock()

    def _note_bare(self, attributes: Attributes) -> None:
        if attributes.xattr_count:
            self._bare.pop(attributes.ino, None)
        elif self._bare_s:
            if len(self._bare) >= BARE_MAX:
                self._bare.clear()
            self._bare[attributes.ino] = self._clock() + self._bare_s

    # ---- pages in the kernel ------------------------------------------------------------------

    def may_keep_pages(self, attributes: Attributes) -> bool:
        """At an open: do the kernel's pages of this inode show this version? Notes it if not."""
        known = self._page_versions.get(attributes.ino)
        self._note_pages(attributes.ino, attributes.data_version)
        return known == attributes.data_version

    def wrote_pages(self, attributes: Attributes) -> None:
        """Own writes were committed: the pages are those of the new version if nobody else wrote
        in between."""
        known = self._page_versions.get(attributes.ino)
        if known is None or known == attributes.data_version:
            return
        if known + 1 == attributes.data_version:
            self._note_pages(attributes.ino, attributes.data_version)
        else:
            del self._page_versions[attributes.ino]

    def _note_pages(self, ino: int, version: int) -> None:
        self._page_versions[ino] = version
        self._page_versions.move_to_end(ino)
        if len(self._page_versions) > PAGE_VERSIONS_MAX:
            self._page_versions.popitem(last=False)

    # ---- inodes without a name ----------------------------------------------------------------

    def departed(self, attributes: Attributes) -> None:
        """ino lost its last name; the metaserver may forget it when nobody holds it open."""
        self._departed[attributes.ino] = attributes
        if len(self._departed) > DEPARTED_MAX:
            self._departed.popitem(last=False)

    def find_departed(self, ino: int) -> Attributes | None:
        return self._departed.get(ino)

    def returned(self, ino: int) -> None:
        """ino has a name again."""
        self._departed.pop(ino, None)

    def forget(self, ino: int) -> None:
        """The kernel dropped the inode and with it its pages."""
        self._page_versions.pop(ino, None)
        self._departed.pop(ino, None)
        self._bare.pop(ino, None)


def merge_written(attributes: Attributes, written: Written) -> Attributes:
    """Attributes with what the lanes wrote and the metaserver does not know yet."""
    size, mtime_ns, flags = written
    size = max(size, attributes.size) if flags & COMMIT_SIZE else attributes.size
    mtime_ns = max(mtime_ns, attributes.mtime_ns) if flags & COMMIT_MTIME else attributes.mtime_ns
    return replace(
        attributes, size=size, blocks=(size + 511) // 512, mtime_ns=mtime_ns,
        ctime_ns=max(attributes.ctime_ns, mtime_ns),
        mode=without_set_ids(attributes.mode) if flags & COMMIT_KILL_SUIDGID else attributes.mode,
    )  # fmt: skip


def file_id_of(layout: bytes) -> int:
    """The file id in a packed layout record, 0 for what has no objects."""
    return int.from_bytes(layout[8:16], "little")


def without_set_ids(mode: int) -> int:
    """What a write by an ordinary user leaves of mode: set-group-id without group execute stays."""
    if mode & _SET_GID_AND_GROUP_EXECUTE == _SET_GID_AND_GROUP_EXECUTE:
        return mode & ~_SET_ID_BITS
    return mode & ~0o4000
