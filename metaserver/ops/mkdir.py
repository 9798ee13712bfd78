"""MKDIR: makes a directory.

Its client may make files in it by itself at once, if DELEGATE would allow that, because nobody else
can know the directory yet (docs/decisions/0013-delegation.md). The reply cannot name users with
limits, so there must be none.
"""

import stat
from collections.abc import Iterator
from typing import Final

from fscommon.layout.attributes import LEASE_EXCLUSIVE_ALL, LEASE_NAMER, Attributes
from fscommon.wire.messages import Entry, MkDir
from fscommon.wire.ops import Op
from metaserver import squash
from metaserver.context import Context
from metaserver.leases.grants import Grant
from metaserver.namespace.birth import Wanted, give_birth
from metaserver.namespace.charges import is_limited, limited_owners
from metaserver.ops import footprints, names
from metaserver.ops.row import OpRow
from metaserver.transaction import Transaction


def mkdir(tx: Transaction, request: MkDir, context: Context) -> Entry:
    mode = stat.S_IFDIR | stat.S_IMODE(request.mode)
    inode = give_birth(tx, Wanted(request.parent, request.name, mode, request.caller), context)
    sessions = context.services.sessions
    may = context.replayed is None and _may_delegate(inode.attributes, context)
    if not (may and sessions.hand_over(context.session, inode.ino, context.now_s)):
        context.withheld = LEASE_EXCLUSIVE_ALL
    return Entry(inode.attributes.pack())


def _may_delegate(made: Attributes, context: Context) -> bool:
    # Lanes make files only in a directory without xattrs and set-group-id bit.
    is_plain = not made.xattr_count and not made.mode & stat.S_ISGID
    return is_plain and limited_owners(context) == ((), ()) and not is_limited(context, made.tree)


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
