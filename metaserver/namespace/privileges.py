"""What a file loses when somebody writes to it or changes its owner.

The set-user-id bit; the set-group-id bit where it means execution, or the client says that its user
is not in the group; and security.capability. The kernel leaves this to us (HANDLE_KILLPRIV_V2).
Directories lose nothing.
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
    """every_group: also of one that may not execute."""
    if stat.S_ISDIR(attributes.mode):
        return attributes
    mode = attributes.mode & ~stat.S_ISUID
    if mode & stat.S_IXGRP or every_group:
        mode &= ~stat.S_ISGID
    return attributes if mode == attributes.mode else replace(attributes, mode=mode)


def after_write(
    tx: Transaction, attributes: Attributes, flags: int, context: Context
) -> Attributes:
    """flags: COMMIT_KILL_* of the writer."""
    attributes = drop_capability_xattr(tx, attributes, context)
    if flags & COMMIT_KILL_SUIDGID:
        attributes = without_set_id(attributes, every_group=bool(flags & COMMIT_KILL_SGID))
    return attributes


def drop_capability_xattr(tx: Transaction, attributes: Attributes, context: Context) -> Attributes:
    """attributes: with the owners that the accounts know of."""
    if not attributes.xattr_count:
        return attributes
    key = xattr_key(attributes.ino, _CAPABILITY)
    value = tx.get(key)
    if value is None:
        return attributes
    tx.delete(key)
    charge_xattr(context, attributes, -len(_CAPABILITY) - len(value))
    return replace(attributes, xattr_count=attributes.xattr_count - 1)
