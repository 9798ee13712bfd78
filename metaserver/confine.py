"""What the key of a client forbids it, checked with every request that such a client sends.

A client with a key of its own is taken for hostile: it may name any inode, claim any lease, replay
what never was. The row of each op that it may send says which inodes a request names and whether it
changes anything (metaserver.ops.row); an op whose row does not is refused. So
- a key that was revoked or has expired is refused everything;
- of a read-only key every change is EROFS, and it holds nothing exclusively;
- a key for a tree reaches an inode only if that is in the tree (metaserver.namespace.trees). What
  is outside does not exist;
- whom its client cannot be, nothing that it asks for is done by (metaserver.squash);
- a confined client's changes are durable when they are answered: it has nothing to replay, and
  nothing that it claims to have been answered is believed. Files that it made by itself are of
  slots that it was given, which it proves where the metaserver does not remember them
  (metaserver.ops.delegate).
What a capability allows at storage servers is what the metaserver put into it.
"""

from typing import Any

from fscommon.errors import FsError, Status
from fscommon.types import ROOT_INO
from metaserver.context import Context
from metaserver.keys import ClientKey
from metaserver.namespace.trees import is_inside
from metaserver.ops.row import OpRow
from metaserver.transaction import Transaction


def check_key(key: ClientKey, row: OpRow, now_ns: int) -> None:
    """Before anything else is looked at. Raises EACCES: the key is good no more; EPERM."""
    why = key.refusal(now_ns)
    if why:
        raise FsError(Status.EACCES, why)
    if row.names is None:
        raise FsError(Status.EPERM, f"{row.op.name} is not for the key '{key.name}' of a client")


def confine(tx: Transaction, row: OpRow, request: Any, context: Context) -> Any:
    """The request as it may be run. Raises EROFS; ESTALE: no such inode, to this client; EACCES,
    EPERM: it would take a user whom the client cannot be."""
    key = context.key
    if key is None or not key.is_confined:
        return request
    if key.is_read_only and (row.mutation or row.changes(request)):
        raise FsError(Status.EROFS, f"the key '{key.name}' is for reading only")
    if key.root != ROOT_INO and row.names is not None:
        for ino in row.names(request):
            if not is_inside(tx, ino, key):
                raise FsError(Status.ESTALE, f"inode {ino} is gone")
    if key.who is not None and row.squash is not None:
        request = row.squash(tx, request, key.who)
    context.wait_durable = row.mutation
    return request if row.rewrite is None else row.rewrite(tx, request, key)
