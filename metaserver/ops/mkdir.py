"""MKDIR: makes a directory.

Its client may make files in it by itself at once, if DELEGATE would allow that, because nobody else
can know the directory yet (docs/decisions/0013-delegation.md). The reply cannot name users with
limits, so there must be none.
"""

import stat
from collections.abc import Iterator
from typing import Final

from fscommon.layout.attributes import LEASE_EXCLUSIVE_ALL, LEASE_NAMER
from fscommon.wire.features import FEATURE_POOLS
from fscommon.wire.messages import Entry, MkDir
from fscommon.wire.ops import Op
from metaserver import squash
from metaserver.context import Context
from metaserver.leases.grants import Grant
from metaserver.namespace.birth import Wanted, give_birth
from metaserver.namespace.charges import is_limited, limited_owners
from metaserver.namespace.inode import Inode
from metaserver.namespace.layouts import only_own_record
from metaserver.ops import footprints, names
from metaserver.ops.row import OpRow
from metaserver.transaction import Transaction


def mkdir(tx: Transaction, request: MkDir, context: Context) -> Entry:
    mode = stat.S_IFDIR | stat.S_IMODE(request.mode)
    inode = give_birth(tx, Wanted(request.parent, request.name, mode, request.caller), context)
    sessions = context.services.sessions
    may = context.replayed is None and _may_delegate(tx, inode, context)
    if not (may and sessions.hand_over(context.session, inode.ino, context.now_s)):
        context.withheld = LEASE_EXCLUSIVE_ALL
    return Entry(inode.attributes.pack())


def _may_delegate(tx: Transaction, inode: Inode, context: Context) -> bool:
    """Lanes make files only in a directory without set-group-id bit and without xattrs, but for the
    layout that it has inherited."""
    made = inode.attributes
    if made.mode & stat.S_ISGID or (made.xattr_count and not _knows_layout(tx, inode, context)):
        return False
    return limited_owners(context) == ((), ()) and not is_limited(context, made.tree)


def _knows_layout(tx: Transaction, inode: Inode, context: Context) -> bool:
    knows_pools = context.services.sessions.has_feature(context.session, FEATURE_POOLS)
    return knows_pools and only_own_record(tx, inode) is not None


def _granted(request: MkDir, reply: Entry) -> Iterator[Grant]:
    """The context withholds the exclusive bits if the directory is not delegated."""
    yield reply.attributes, LEASE_NAMER


ROWS: Final = (
    OpRow(
        op=Op.MKDIR,
        run=mkdir,
        footprint=footprints.added_name,
        grants=_granted,
        names=names.its_parent,
        squash=squash.make,
    ),
)
