"""Files that lie in their inode's record (docs/decisions/0037-inline-data.md).

What such a file holds is behind its layout; behind that it is zeros up to its size, so a truncate
needs no object, and no client. Whoever is about to write to it gets a file like any other: its
bytes go to the objects first, by an intent (metaserver.intents), which holds them until they are
durable there; nobody opens the file meanwhile.
"""

from dataclasses import replace

from fscommon.layout.layout import is_inline
from metaserver.context import Context
from metaserver.namespace.inode import Inode, save
from metaserver.records import Intent, intent_key
from metaserver.transaction import Transaction


def has_inline(inode: Inode) -> bool:
    return inode.is_file and is_inline(inode.tail)


def spill(tx: Transaction, inode: Inode, context: Context) -> Inode:
    """The file has objects from now on; the request is answered when its bytes are durable there.
    From then on a missing first object is an error, not a hole. Nothing of it is at any target
    yet: in place of one that the cluster does not have another one is as good."""
    layout = inode.layout()
    spilled = replace(
        layout,
        inline=b"",
        durable_stripes=layout.durable_stripes | 1,
        truncate_epoch=layout.truncate_epoch + 1,
        targets=context.services.membership.known(layout),
    )
    changed = Inode(inode.attributes, spilled.pack())
    save(tx, changed)
    content = replace(spilled, inline=layout.inline)
    intent = Intent(inode.attributes.size, content.truncate_epoch, content.pack())
    tx.put(intent_key(inode.ino), intent.pack())
    context.services.intents.add(inode.ino)
    context.wait_truncate = inode.ino
    return changed


def with_bytes(inode: Inode, offset: int, content: bytes) -> Inode:
    """With these from that offset on, which together is no more than may lie in a record."""
    layout = inode.layout()
    before = layout.inline[:offset].ljust(offset, b"\0")
    changed = before + content + layout.inline[offset + len(content) :]
    return Inode(inode.attributes, replace(layout, inline=changed).pack())


def cut_inline(inode: Inode, size: int) -> Inode:
    """Its bytes behind the size, which is less than it was, are gone: zeros if it grows again."""
    layout = inode.layout()
    return Inode(inode.attributes, replace(layout, inline=layout.inline[:size]).pack())
