"""Layouts of new files: from the cluster's default, a directory's default, or set for one file.

The default of a directory is an xattr record (fscommon.layout.template). New sub-directories
inherit it, so only the parent of a new file matters. The xattr `braidfs.layout` of a file is made
from its layout record and stored nowhere. It may be set as long as nothing was ever written: then
no object exists, and the new layout can keep the file id.
"""

from dataclasses import replace

from fscommon.errors import FsError, Status
from fscommon.layout.layout import Layout
from fscommon.layout.template import LAYOUT_XATTR, LayoutDefault, parse_default, unpack_default
from fscommon.types import FileId
from metaserver.context import Context
from metaserver.namespace.inode import Inode
from metaserver.records import xattr_key
from metaserver.transaction import Transaction


def cluster_default(context: Context) -> LayoutDefault:
    membership = context.services.membership
    return LayoutDefault(membership.chunk_size, membership.width_max)


def own_record(tx: Transaction, directory: Inode) -> bytes | None:
    """Returns the packed default that was set for this directory itself."""
    if not directory.attributes.xattr_count:
        return None
    return tx.get(xattr_key(directory.ino, LAYOUT_XATTR))


def default_in(tx: Transaction, directory: Inode, context: Context) -> LayoutDefault:
    raw = own_record(tx, directory)
    return cluster_default(context) if raw is None else unpack_default(raw)


def new_layout(file_id: FileId, wanted: LayoutDefault, context: Context) -> Layout:
    targets = context.services.membership.place(file_id, wanted.stripe_width)
    return Layout(file_id, wanted.chunk_size, len(targets), targets)


def layout_text(tx: Transaction, inode: Inode) -> bytes:
    """Returns the value of braidfs.layout. Raises ENODATA for a directory without a default."""
    if inode.is_file:
        layout = inode.layout()
        targets = ":".join(map(str, layout.targets))
        text = LayoutDefault(layout.chunk_size, layout.stripe_width).text()
        return f"{text},targets={targets}".encode()
    raw = own_record(tx, inode) if inode.is_directory else None
    if raw is None:
        raise FsError(Status.ENODATA)
    return unpack_default(raw).text().encode()


def wanted_default(tx: Transaction, inode: Inode, value: bytes, context: Context) -> LayoutDefault:
    """Returns the default with the changes that the text asks for. Raises EINVAL."""
    if inode.is_directory:
        base = default_in(tx, inode, context)
    elif inode.is_file:
        layout = inode.layout()
        base = LayoutDefault(layout.chunk_size, layout.stripe_width)
    else:
        raise FsError(Status.EOPNOTSUPP, "only files and directories have a layout")
    try:
        return parse_default(value, base)
    except ValueError as error:
        raise FsError(Status.EINVAL, str(error)) from None


def with_layout(inode: Inode, wanted: LayoutDefault, context: Context) -> Inode:
    """Returns the file with a new layout. Raises EINVAL if it was ever written, EBUSY if open.

    The reply must be durable before it leaves: a replay might choose other targets."""
    old = inode.layout()
    context.check_not_truncating(inode.ino)
    if inode.attributes.size or old.durable_stripes or old.truncate_epoch:
        raise FsError(Status.EINVAL, "the file was written: copy it to a new file instead")
    if context.services.sessions.is_open(inode.ino):
        raise FsError(Status.EBUSY, "the file is open")
    fresh = new_layout(FileId(old.file_id), wanted, context)
    return Inode(inode.attributes, replace(fresh, flags=old.flags).pack())
