"""What a file loses when somebody writes to it or changes its owner.

It loses the set-user-id bit and security.capability. It loses the set-group-id bit if it may be
executed by its group, or if the client says that its user is not in the group. The kernel leaves
this to the file system (HANDLE_KILLPRIV_V2). Directories lose nothing.
"""

import stat
from dataclasses import replace

from fscommon.layout.attributes import Attributes
from fscommon.wire.messages import COMMIT_KILL_SGID, COMMIT_KILL_SUIDGID
from metaserver.context import Context
from metaserver.namespace.charges import charge_xattr
from metaserver.records import xattr_key
from metaserver.transaction import Transaction

_CAPABILITY = b"security.capability"


def without_set_id(attributes: Attributes, *, every_group: bool = False) -> Attributes:
    """every_group: takes the set-group-id bit also if the group may not execute the file."""
    if stat.S_ISDIR(attributes.mode):
        return attributes
    mode = attributes.mode & ~stat.S_ISUID
    if mode & stat.S_IXGRP or every_group:
        mode &= ~stat.S_ISGID
    return attributes if mode == attributes.mode else replace(attributes, mode=mode)


def after_write(
    tx: Transaction, attributes: Attributes, flags: int, context: Context
) -> Attributes:
    """Returns the attributes after a write. flags: COMMIT_KILL_* of the writer."""
    attributes = drop_capability_xattr(tx, attributes, context)
    if flags & COMMIT_KILL_SUIDGID:
        attributes = without_set_id(attributes, every_group=bool(flags & COMMIT_KILL_SGID))
    return attributes


def drop_capability_xattr(tx: Transaction, attributes: Attributes, context: Context) -> Attributes:
    """Removes security.capability. attributes must have the owners that the accounts know."""
    if not attributes.xattr_count:
        return attributes
    key = xattr_key(attributes.ino, _CAPABILITY)
    value = tx.get(key)
    if value is None:
        return attributes
    tx.delete(key)
    charge_xattr(context, attributes, -len(_CAPABILITY) - len(value))
    return replace(attributes, xattr_count=attributes.xattr_count - 1)
