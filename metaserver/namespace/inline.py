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
from metaserver.namespace.replicas import dropped_names, generations_of, next_epoch, note_lack
from metaserver.records import Intent, intent_key
from metaserver.transaction import Transaction


def has_inline(inode: Inode) -> bool:
    return inode.is_file and is_inline(inode.tail)


def spill(tx: Transaction, inode: Inode, context: Context) -> Inode:
    """Gives the file objects. The request is answered when its bytes are durable there; from then
    on a missing first object is an error, not a hole. As no target has anything of the file yet,
    other targets may replace those that get no files any more."""
    layout = _with_known_targets(tx, inode.layout(), context)
    spilled = replace(
        layout,
        inline=b"",
        durable_stripes=layout.durable_stripes | 1,
        truncate_epoch=next_epoch(tx, inode.ino, layout),
    )
    changed = Inode(inode.attributes, spilled.pack())
    save(tx, changed)
    note_lack(tx, inode.ino, inode.tail, changed.tail)
    content = replace(spilled, inline=layout.inline)
    intent = Intent(inode.attributes.size, content.truncate_epoch, content.pack())
    tx.put(intent_key(inode.ino), intent.pack())
    context.services.intents.add(inode.ino)
    context.wait_truncate = inode.ino
    return changed


def _with_known_targets(tx: Transaction, layout: Layout, context: Context) -> Layout:
    """Names of objects that were dropped must not come back: a replica on another target gets a
    generation of its own then."""
    targets = context.services.membership.known(layout)
    has_dropped = layout.is_replicated and bool(dropped_names(tx, layout.file_id))
    if not has_dropped or targets == layout.targets:
        return replace(layout, targets=targets)
    generation = layout.generation_last + 1
    places = zip(layout.targets, targets, generations_of(layout), strict=True)
    generations = [former if target == before else generation for before, target, former in places]
    return replace(
        layout, targets=targets, generations=tuple(generations), generation_last=generation
    )


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
