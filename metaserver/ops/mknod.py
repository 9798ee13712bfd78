"""MKNOD: makes a file, fifo, socket or device.

For a regular file (which CREATE makes usually) the reply leaves when the file is durable: the reply
has no layout, so a replay could choose other targets than those already written to.
"""

import stat
from typing import Final

from fscommon.errors import FsError, Status
from fscommon.wire.messages import Entry, MkNod
from fscommon.wire.ops import Op
from metaserver import squash
from metaserver.context import Context
from metaserver.identity import Who
from metaserver.namespace.birth import Wanted, give_birth
from metaserver.ops import footprints, grants, names
from metaserver.ops.row import OpRow
from metaserver.transaction import Transaction

_TYPES = (stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK)


def mknod(tx: Transaction, request: MkNod, context: Context) -> Entry:
    kind = stat.S_IFMT(request.mode) or stat.S_IFREG
    if kind not in _TYPES:
        raise FsError(Status.EINVAL, "not a type that mknod makes")
    mode = kind | stat.S_IMODE(request.mode)
    wanted = Wanted(request.parent, request.name, mode, request.caller, rdev=request.rdev)
    inode = give_birth(tx, wanted, context)
    context.wait_durable = inode.is_file
    return Entry(inode.attributes.pack())


def _squash(tx: Transaction, request: MkNod, who: Who) -> MkNod:
    if not who.may_be_root and (stat.S_ISCHR(request.mode) or stat.S_ISBLK(request.mode)):
        raise squash.forbid("making a device")
    made: MkNod = squash.make(tx, request, who)
    return made


ROWS: Final = (
    OpRow(
        op=Op.MKNOD,
        run=mknod,
        footprint=footprints.added_name,
        grants=grants.found,
        names=names.its_parent,
        squash=_squash,
    ),
)
