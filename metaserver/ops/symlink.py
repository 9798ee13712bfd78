"""SYMLINK: makes a symbolic link."""

import stat
from typing import Final

from fscommon.errors import FsError, Status
from fscommon.limits import SYMLINK_LENGTH_MAX
from fscommon.wire.messages import Entry, Symlink
from fscommon.wire.ops import Op
from metaserver import squash
from metaserver.context import Context
from metaserver.namespace.birth import Wanted, give_birth
from metaserver.ops import footprints, grants, names
from metaserver.ops.row import OpRow
from metaserver.transaction import Transaction


def symlink(tx: Transaction, request: Symlink, context: Context) -> Entry:
    if len(request.target) > SYMLINK_LENGTH_MAX:
        raise FsError(Status.ENAMETOOLONG)
    if not request.target or b"\0" in request.target:
        raise FsError(Status.ENOENT, "an empty symlink")
    mode = stat.S_IFLNK | 0o777
    wanted = Wanted(request.parent, request.name, mode, request.caller, target=request.target)
    return Entry(give_birth(tx, wanted, context).attributes.pack())


ROWS: Final = (
    OpRow(
        op=Op.SYMLINK,
        run=symlink,
        footprint=footprints.added_name,
        grants=grants.found,
        names=names.its_parent,
        squash=squash.make,
    ),
)
