"""Files whose bytes lie inline, in their inode's record (docs/decisions/0037-inline-data.md).

The inline bytes stand behind the layout. Behind them the file has zeros up to its size, so a
truncate needs no object and no client. Before a writer gets objects for such a file, its bytes move
there. An intent (metaserver.intents) holds them until they are durable at the targets; nobody can
open the file meanwhile.
"""

from dataclasses import replace

from fscommon.layout.layout import Layout, is_inline
from metaserver.context import Context
from metaserver.namespace.inode import Inode, save
from metaserver.namespace.replicas import dropped_names, next_epoch
from metaserver.records import Intent, intent_key
from metaserver.transaction import Transaction


def has_inline(inode: Inode) -> bool:
    return inode.is_file and is_inline(inode.tail)


def spill(tx: Transaction, inode: Inode, context: Context) -> Inode:
    """Gives the file objects. The request is answered when its bytes are durable there; from then
    on a missing first object is an error, not a hole. As no target has anything of the file yet,
    other targets may replace those that the cluster does not have any more."""
    layout = inode.layout()
    spilled = replace(
        layout,
        inline=b"",
        durable_stripes=layout.durable_stripes | 1,
        truncate_epoch=next_epoch(tx, inode.ino, layout),
        targets=_targets(tx, layout, context),
    )
    changed = Inode(inode.attributes, spilled.pack())
    save(tx, changed)
    content = replace(spilled, inline=layout.inline)
    intent = Intent(inode.attributes.size, content.truncate_epoch, content.pack())
    tx.put(intent_key(inode.ino), intent.pack())
    context.services.intents.add(inode.ino)
    context.wait_truncate = inode.ino
    return changed


def _targets(tx: Transaction, layout: Layout, context: Context) -> tuple[int, ...]:
    """Names of objects that were dropped must not come back."""
    if layout.is_replicated and dropped_names(tx, layout.file_id):
        return layout.targets
    return context.services.membership.known(layout)


def with_bytes(inode: Inode, offset: int, content: bytes) -> Inode:
    """Returns the inode with these bytes at that offset. The result must fit into a record."""
    layout = inode.layout()
    before = layout.inline[:offset].ljust(offset, b"\0")
    changed = before + content + layout.inline[offset + len(content) :]
    return Inode(inode.attributes, replace(layout, inline=changed).pack())


def cut_inline(inode: Inode, size: int) -> Inode:
    """Returns the inode without bytes behind the new, smaller size: zeros if it grows again."""
    layout = inode.layout()
    return Inode(inode.attributes, replace(layout, inline=layout.inline[:size]).pack())
