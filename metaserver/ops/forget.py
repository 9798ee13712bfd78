"""META_FORGET: what a metaserver that is gone for good has reported to the journal is removed.

The op checks that it may be; the thread that looks at the members does it (metaserver.group).
"""

from typing import Final

from fscommon.wire.group import MetaForget, MetaForgetting
from fscommon.wire.ops import Op
from metaserver.context import Context
from metaserver.ops.row import Access, OpRow, always
from metaserver.ops.switch import group_of
from metaserver.transaction import Transaction


def meta_forget(tx: Transaction, request: MetaForget, context: Context) -> MetaForgetting:
    return MetaForgetting(*group_of(context).forget(request.name))


ROWS: Final = (OpRow(op=Op.META_FORGET, run=meta_forget, access=Access.ADMIN, audited=always),)
