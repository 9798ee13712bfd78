"""POSIX access control lists in the kernel's binary form (POSIX 1003.1e draft 17).

The kernel checks permissions with them. The metaserver keeps them consistent: a new inode inherits
its parent's default ACL, setting an access ACL sets the mode, and chmod changes the ACL. An ACL
that says no more than the mode is not stored. Pure functions over bytes and modes.
"""

import struct
from dataclasses import dataclass, replace
from typing import Final

from fscommon.errors import FsError, Status
from fscommon.wire.messages import XATTR_ACCESS_ACL

ACCESS: Final = XATTR_ACCESS_ACL
DEFAULT: Final = b"system.posix_acl_default"

_VERSION: Final = struct.Struct("<I")
_ENTRY: Final = struct.Struct("<HHI")
_KERNEL_VERSION: Final = 2
_UNDEFINED_ID: Final = 0xFFFFFFFF

USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
_SINGLE: Final = (USER_OBJ, GROUP_OBJ, OTHER)


@dataclass(frozen=True, slots=True)
class AclEntry:
    tag: int
    permissions: int
    id: int = _UNDEFINED_ID


Acl = tuple[AclEntry, ...]


def unpack_acl(raw: bytes) -> Acl:
    """Returns the entries in canonical order. Raises EINVAL unless raw is a valid ACL."""
    body = raw[_VERSION.size :]
    if len(raw) < _VERSION.size or len(body) % _ENTRY.size:
        raise FsError(Status.EINVAL, "not an ACL")
    if _VERSION.unpack_from(raw)[0] != _KERNEL_VERSION:
        raise FsError(Status.EOPNOTSUPP, "unknown version of ACL")
    acl = tuple(sorted((AclEntry(*fields) for fields in _ENTRY.iter_unpack(body)), key=_order))
    _check(acl)
    return acl


def pack_acl(acl: Acl) -> bytes:
    entries = b"".join(_ENTRY.pack(e.tag, e.permissions, e.id) for e in acl)
    return _VERSION.pack(_KERNEL_VERSION) + entries


def _order(entry: AclEntry) -> tuple[int, int]:
    return entry.tag, entry.id if entry.tag in (USER, GROUP) else 0


def _check(acl: Acl) -> None:
    tags = [entry.tag for entry in acl]
    named = [(entry.tag, entry.id) for entry in acl if entry.tag in (USER, GROUP)]
    sound = (
        all(tags.count(tag) == 1 for tag in _SINGLE)
        and all(tag in (USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER) for tag in tags)
        and tags.count(MASK) <= 1
        and (MASK in tags or not named)
        and len(set(named)) == len(named)
        and all(entry.permissions <= 7 for entry in acl)
        and all(number != _UNDEFINED_ID for _, number in named)
    )
    if not sound:
        raise FsError(Status.EINVAL, "not a sound ACL")


def is_minimal(acl: Acl) -> bool:
    """Whether the ACL says no more than the mode."""
    return all(entry.tag in _SINGLE for entry in acl)


def mode_bits(acl: Acl) -> int:
    """Returns the nine permission bits for this ACL: its mask, if any, stands for the group."""
    bits = {entry.tag: entry.permissions for entry in acl}
    group = bits.get(MASK, bits[GROUP_OBJ])
    return bits[USER_OBJ] << 6 | group << 3 | bits[OTHER]


def with_mode(acl: Acl, mode: int) -> Acl:
    """Returns the ACL after chmod: owner, mask (or group) and others follow the mode."""
    return _replaced(acl, {tag: (mode >> shift) & 7 for tag, shift in _shifts(acl)}, keep=0)


def inherited(default: Acl, mode: int) -> Acl:
    """Returns the access ACL of a new inode: the parent's default ACL, limited by the mode."""
    return _replaced(default, {tag: (mode >> shift) & 7 for tag, shift in _shifts(default)}, keep=7)


def _shifts(acl: Acl) -> tuple[tuple[int, int], ...]:
    group = MASK if any(entry.tag == MASK for entry in acl) else GROUP_OBJ
    return (USER_OBJ, 6), (group, 3), (OTHER, 0)


def _replaced(acl: Acl, bits: dict[int, int], *, keep: int) -> Acl:
    """Replaces permissions. keep 7: the old ones limit the new ones; 0: they do not."""

    def changed(entry: AclEntry) -> AclEntry:
        if entry.tag not in bits:
            return entry
        limit = entry.permissions if keep else 7
        return replace(entry, permissions=bits[entry.tag] & limit)

    return tuple(changed(entry) for entry in acl)
