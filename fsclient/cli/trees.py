"""Makes and unmakes directory trees, for quotas and keys, by a walk inside the metaserver.

The walk is driven from here, a few hundred inodes per request; if it is interrupted, the same
command starts it again. What a tree uses is in its account.
"""

import stat

from fscommon.errors import FsError, Status
from fscommon.layout.quota import NO_LIMITS, AccountId, QuotaKind
from fscommon.rpc.caller import Caller
from fscommon.wire.admin import Place as Stand
from fscommon.wire.ops import Op
from fscommon.wire.quota import QuotaAssign, QuotaAssigned, QuotaList, QuotaReport, QuotaRow

from .frame import Reach
from .places import Found, Place, inspect_place


async def top_of(caller: Caller, place: Place) -> Found:
    found = await inspect_place(caller, place)
    if not stat.S_ISDIR(found.attributes.mode):
        raise FsError(Status.ENOTDIR, f"{place.shown} is no directory")
    return found


async def make_tree(caller: Caller, place: Place) -> AccountId:
    """Makes a directory a tree, even if it is one: an earlier walk may be unfinished."""
    ino = (await top_of(caller, place)).attributes.ino
    await assign_tree(caller, place.reach, ino, ino)
    return QuotaKind.TREE, ino


async def assign_tree(caller: Caller, reach: Reach, top: int, tree: int) -> None:
    stack: tuple[Stand, ...] = (Stand(top, 0),)
    while stack:
        reply = await caller.call(Op.QUOTA_ASSIGN, QuotaAssign(top, tree, stack), reach.timeout_s)
        assert isinstance(reply, QuotaAssigned)
        stack = reply.stack


async def account_row(caller: Caller, reach: Reach, account: AccountId) -> QuotaRow:
    kind, number_ = account
    before = (kind, number_ - 1) if number_ else (kind - 1, (1 << 64) - 1)
    request = QuotaList(*before, only_limited=False, count=1)
    reply = await caller.call(Op.QUOTA_LIST, request, reach.timeout_s)
    assert isinstance(reply, QuotaReport)
    if reply.rows and (reply.rows[0].kind, reply.rows[0].number) == (kind, number_):
        return reply.rows[0]
    return QuotaRow(kind, number_, 0, 0, NO_LIMITS, -1.0, -1.0, ())
