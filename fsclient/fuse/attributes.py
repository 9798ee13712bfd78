"""Converts attributes to and from pyfuse3's. Pure."""

import pyfuse3

from fscommon.file_time import kept_time, true_time
from fscommon.layout.attributes import Attributes
from fscommon.wire.messages import StatFsReply

from ..fs.caller import Requester
from ..fs.changes import Change

BLOCK_SIZE_OF_IO = 1 << 20
_FRAGMENT_SIZE = 4096


def entry_attributes(
    attributes: Attributes, ino: int, entry_timeout_s: float, attr_timeout_s: float
) -> pyfuse3.EntryAttributes:
    """ino: the number by which the kernel knows the inode."""
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = ino
    entry.entry_timeout = entry_timeout_s
    entry.attr_timeout = attr_timeout_s
    entry.st_mode = attributes.mode
    entry.st_nlink = attributes.nlink
    entry.st_uid = attributes.uid
    entry.st_gid = attributes.gid
    entry.st_rdev = attributes.rdev
    entry.st_size = attributes.size
    entry.st_blocks = attributes.blocks
    entry.st_blksize = BLOCK_SIZE_OF_IO
    entry.st_atime_ns = true_time(attributes.atime_ns)
    entry.st_mtime_ns = true_time(attributes.mtime_ns)
    entry.st_ctime_ns = true_time(attributes.ctime_ns)
    return entry


def absent_entry(entry_timeout_s: float) -> pyfuse3.EntryAttributes:
    """The answer to a LOOKUP that found nothing, which the kernel may cache for this time."""
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = 0
    entry.entry_timeout = entry_timeout_s
    entry.attr_timeout = 0
    return entry


def change_of(
    entry: pyfuse3.EntryAttributes,
    fields: pyfuse3.SetattrFields,
    requester: Requester,
    *,
    kill_set_ids: bool,
    times_given: bool,
) -> Change:
    """The change that a SETATTR request wants."""
    return Change(
        mode=entry.st_mode & 0o7777 if fields.update_mode else None,
        uid=entry.st_uid if fields.update_uid else None,
        gid=entry.st_gid if fields.update_gid else None,
        size=entry.st_size if fields.update_size else None,
        atime_ns=kept_time(entry.st_atime_ns) if fields.update_atime else None,
        mtime_ns=kept_time(entry.st_mtime_ns) if fields.update_mtime else None,
        ctime_ns=kept_time(entry.st_ctime_ns) if fields.update_ctime else None,
        kill_set_ids=kill_set_ids,
        in_group=requester.in_group,
        times_given=times_given,
    )


def statvfs(reply: StatFsReply, name_length_max: int) -> pyfuse3.StatvfsData:
    stat = pyfuse3.StatvfsData()
    stat.f_bsize = BLOCK_SIZE_OF_IO
    stat.f_frsize = _FRAGMENT_SIZE
    stat.f_blocks = reply.bytes_total // _FRAGMENT_SIZE
    stat.f_bfree = reply.bytes_free // _FRAGMENT_SIZE
    stat.f_bavail = reply.bytes_available // _FRAGMENT_SIZE
    stat.f_files = reply.inodes_total
    stat.f_ffree = reply.inodes_free
    stat.f_favail = reply.inodes_free
    stat.f_namemax = name_length_max
    return stat
