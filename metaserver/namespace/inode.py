"""One inode as ops see it: its attribute record, and behind it its layout or symlink target.

Values are immutable: a change makes a new value, and `save` writes it. Every change of an inode
raises change_version and sets ctime to the time of the op, so that a replay gives the same times.
"""

import stat
from dataclasses import dataclass, replace
from typing import Any

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import ATTRIBUTES_SIZE, Attributes, sectors, unpack_attributes
from fscommon.layout.layout import Layout, unpack_layout
from fscommon.types import Ino
from metaserver.records import inode_key
from metaserver.store.waist import RecordError
from metaserver.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Inode:
    attributes: Attributes
    tail: bytes = b""  # packed layout of a file, target of a symlink

    @property
    def ino(self) -> Ino:
        return Ino(self.attributes.ino)

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.attributes.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.attributes.mode)

    @classmethod
    def parse(cls, raw: bytes) -> "Inode":
        return cls(unpack_attributes(raw[:ATTRIBUTES_SIZE]), raw[ATTRIBUTES_SIZE:])

    def layout(self) -> Layout:
        return unpack_layout(self.tail)

    def changed(self, now_ns: int, **fields: Any) -> "Inode":
        """Returns the inode with these attributes, a new ctime and a new change_version."""
        version = self.attributes.change_version + 1
        fields.setdefault("ctime_ns", now_ns)
        return Inode(replace(self.attributes, change_version=version, **fields), self.tail)

    def resized(self, size: int) -> "Inode":
        """Returns the inode with this size and its blocks, and a new data_version. The caller
        changes ctime."""
        attributes = replace(
            self.attributes,
            size=size,
            blocks=sectors(size),
            data_version=self.attributes.data_version + 1,
        )
        return Inode(attributes, self.tail)


def find(tx: Transaction, ino: int) -> Inode | None:
    """Raises RecordError if its record cannot be read."""
    raw = tx.get(inode_key(ino))
    return None if raw is None else Inode.parse(raw)


def find_readable(tx: Transaction, ino: int) -> Inode | None:
    """As find(), but as if there was none when its record cannot be read, which is told of: for
    work on many files."""
    try:
        return find(tx, ino)
    except RecordError:
        return None


def load(tx: Transaction, ino: int) -> Inode:
    """Raises ESTALE if there is no such inode: the kernel then looks the path up again, as another
    client may have changed it."""
    inode = find(tx, ino)
    if inode is None:
        raise FsError(Status.ESTALE, f"inode {ino} is gone")
    return inode


def load_directory(tx: Transaction, ino: int) -> Inode:
    """Loads a directory that has a name: a removed one that is held open gets no new entries."""
    inode = load(tx, ino)
    if not inode.is_directory:
        raise FsError(Status.ENOTDIR, f"inode {ino} is not a directory")
    if inode.attributes.nlink == 0:
        raise FsError(Status.ENOENT, f"directory {ino} was removed")
    return inode


def save(tx: Transaction, inode: Inode) -> bytes:
    """Writes the inode. Returns its packed attributes for the reply."""
    packed = inode.attributes.pack()
    tx.put(inode_key(inode.attributes.ino), packed + inode.tail)
    return packed


def touch_directory(
    tx: Transaction, directory: Inode, now_ns: int, *, subdirectories: int = 0, names: int = 1
) -> None:
    """Updates the directory after names came or went: times, versions, and its link count."""
    attributes = directory.attributes
    changed = replace(
        attributes,
        ctime_ns=now_ns,
        mtime_ns=now_ns,
        nlink=attributes.nlink + subdirectories,
        data_version=attributes.data_version + names,
        change_version=attributes.change_version + names,
    )
    tx.touched.append(save(tx, Inode(changed, directory.tail)))
