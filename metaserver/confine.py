"""Checks each request of a client that has a key of its own against what this key allows.

Such a client may be hostile: it may name any inode, claim any lease, and replay requests that never
were answered. The row of an op says which inodes a request names and whether it changes anything
(metaserver.ops.row); an op whose row does not say this is refused. So
- a key that was revoked or has expired is refused everything;
- every change by a read-only key is EROFS, and such a key holds nothing exclusively;
- a key for a tree reaches only inodes of that tree (metaserver.namespace.trees). To its client,
  inodes outside do not exist;
- nothing is done as a user that the client cannot be (metaserver.squash);
- a confined client's changes are durable when they are answered. So it has nothing to replay, and
  the metaserver does not believe what such a client claims to have been answered. A file that it
  made by itself must be of a slot that it was given; it proves this where the metaserver does not
  remember the slot (metaserver.ops.delegate).
What the client may do at storage servers is in the capabilities that the metaserver gives it.
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
    """Runs before any other check. Raises EACCES if the key was revoked or has expired, and EPERM
    if clients with keys may not send this op."""
    why = key.refusal(now_ns)
    if why:
        raise FsError(Status.EACCES, why)
    if row.names is None:
        raise FsError(Status.EPERM, f"{row.op.name} is not for the key '{key.name}' of a client")


def confine(tx: Transaction, row: OpRow, request: Any, context: Context) -> Any:
    """Returns the request as it may run. Raises EROFS; ESTALE if an inode does not exist for this
    client; EACCES or EPERM if the request needs a user that the client cannot be."""
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
