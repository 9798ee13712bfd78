"""META_SWITCH: the active metaserver lets a standby take over, and becomes one itself.

The op checks that one could, and says so; metaserver.group does the rest when the reply has left.
"""

from typing import Final

from fscommon.errors import FsError, Status
from fscommon.wire.group import MetaSwitch, MetaSwitching
from fscommon.wire.ops import Op
from metaserver.context import Context
from metaserver.group_status import GroupView
from metaserver.ops.row import Access, OpRow, always
from metaserver.transaction import Transaction


def meta_switch(tx: Transaction, request: MetaSwitch, context: Context) -> MetaSwitching:
    context.check_serving()
    return MetaSwitching(*group_of(context).switch())


def group_of(context: Context) -> GroupView:
    """Raises EOPNOTSUPP."""
    group = context.services.group
    if group is None:
        raise FsError(
            Status.EOPNOTSUPP, "this metaserver is alone: it has no journal that others follow"
        )
    return group


ROWS: Final = (OpRow(op=Op.META_SWITCH, run=meta_switch, access=Access.ADMIN, audited=always),)
