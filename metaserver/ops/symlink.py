"""SYMLINK: a symbolic link with a name."""

import stat

from fscommon.errors import FsError, Status
from fscommon.limits import SYMLINK_LENGTH_MAX
from fscommon.wire.messages import Entry, Symlink
from metaserver.context import Context
from metaserver.namespace.birth import Wanted, give_birth
from metaserver.transaction import Transaction


def symlink(tx: Transaction, request: Symlink, context: Context) -> Entry:
    if len(request.target) > SYMLINK_LENGTH_MAX:
        raise FsError(Status.ENAMETOOLONG)
    if not request.target or b"\0" in request.target:
        raise FsError(Status.ENOENT, "an empty symlink")
    mode = stat.S_IFLNK | 0o777
    wanted = Wanted(request.parent, request.name, mode, request.caller, target=request.target)
    return Entry(give_birth(tx, wanted, context).attributes.pack())
