"""Which replicas a file has, and which it had (docs/decisions/0063-mirrors.md).

`change_layout` is the only door through which the places of a layout change. A replica that is
dropped leaves its name behind, which is refused for good: in a `Y` record, which its target reads
before it serves, and in a `V` record, which the removal of the file reads. Both stay until the
objects of the file are deleted.

`H` records are the files that lack replicas, the most endangered first: whoever writes another
layout of a file says so to `note_lack`.

`W` and `U` records say of which files not all replicas may have the bytes durably: those that a
session has open for writing, and those that were closed and not synced everywhere since.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

from fscommon.layout.layout import (
    VACANT,
    Layout,
    Replica,
    is_inline,
    is_replicated,
    replicas_wanted,
    unpack_layout,
)
from fscommon.limits import GENERATION_SHIFT
from fscommon.types import Ino, SessionId
from fscommon.wire.codec import decode
from metaserver.namespace.inode import Inode, find, find_readable, save
from metaserver.records import (
    ObjectName,
    PlanRecord,
    all_of,
    dropped_key,
    dropped_name_of_file,
    dropped_of_file,
    dropped_of_file_key,
    lacking_key,
    lone_key,
    pack_number,
    plan_key,
    unsynced_key,
    unsynced_of,
    unsynced_place,
    written_ino,
    written_of,
)
from metaserver.transaction import Transaction

_STRIPE_MASK: Final = (1 << GENERATION_SHIFT) - 1


def has_written_replicas(tail: bytes) -> bool:
    """Whether it is replicated, and its bytes lie in objects."""
    return is_replicated(tail) and not is_inline(tail)


def lack_of(tail: bytes) -> int | None:
    """Returns how many replicas the poorest stripe of a file with this packed layout has, if they
    are fewer than they are to be. None: it lacks none, or has no objects."""
    if not has_written_replicas(tail):
        return None
    layout = unpack_layout(tail)
    least = min(counts_of(layout).values())
    return least if least < replicas_wanted(layout) else None


def note_lack(tx: Transaction, ino: Ino, former: bytes, tail: bytes) -> None:
    """The file has this packed layout now. former: the one that it had; b"": none."""
    before, now = lack_of(former), lack_of(tail)
    if before == now:
        return
    if before is not None:
        tx.delete(lacking_key(before, ino))
    if now is not None:
        tx.put(lacking_key(now, ino), b"")


def names_of(layout: Layout) -> list[ObjectName]:
    """Returns the names of the objects of all replicas."""
    return [name_of(layout, one) for one in layout.replicas()]


def name_of(layout: Layout, replica: Replica) -> ObjectName:
    return ObjectName(replica.target, layout.file_id, replica.object_number)


def stripe_of(number: int) -> int:
    """Returns the stripe index of an object with this number."""
    return number & _STRIPE_MASK


# ---- changes of a layout -------------------------------------------------------------------------


def change_layout(
    tx: Transaction, ino: Ino, file_id: int, epoch: int, change: Callable[[Layout], Layout]
) -> Layout | None:
    """Changes the layout of the file, if it has this file id and truncate epoch now. Returns the
    layout that it has then; None: it has others, or the file is gone."""
    inode = find(tx, ino)
    if inode is None or not inode.is_file:
        return None
    now = inode.layout()
    if (now.file_id, now.truncate_epoch) != (file_id, epoch):
        return None
    changed = change(now)
    _check_forward(now, changed)
    tail = changed.pack()
    save(tx, Inode(inode.attributes, tail))
    note_lack(tx, ino, inode.tail, tail)
    return changed


def _check_forward(now: Layout, changed: Layout) -> None:
    """A file keeps its id and its shape, no number falls, and no stripe loses its last replica."""
    shape = now.file_id, now.stripe_width, now.chunk_size, now.inline
    assert shape == (changed.file_id, changed.stripe_width, changed.chunk_size, changed.inline)
    assert changed.truncate_epoch >= now.truncate_epoch
    assert changed.generation_last >= now.generation_last
    assert set(counts_of(changed)) == set(range(now.stripe_width)), "a stripe has a replica"


def counts_of(layout: Layout) -> Counter[int]:
    """Returns how many replicas each stripe has."""
    return Counter(one.stripe_index for one in layout.replicas())


def droppable(
    layout: Layout, names: Iterable[ObjectName], is_up: Callable[[int], bool]
) -> list[ObjectName]:
    """Returns those of the names that are replicas, and of whose stripe another replica stays that
    is up."""
    named = set(names)
    kept = {
        one.stripe_index
        for one in layout.replicas()
        if name_of(layout, one) not in named and is_up(one.target)
    }
    return [
        name
        for one in layout.replicas()
        if (name := name_of(layout, one)) in named and one.stripe_index in kept
    ]


def not_the_last(layout: Layout, target: int) -> list[ObjectName]:
    """Returns the names of the target's replicas, without those that are the last of a stripe."""
    counts = counts_of(layout)
    return [
        name_of(layout, one)
        for one in layout.replicas()
        if one.target == target and counts[one.stripe_index] > 1
    ]


def remove_replicas(tx: Transaction, ino: Ino, layout: Layout, names: list[ObjectName]) -> bool:
    """Drops replicas from the layout that the file has; their names are refused from now on. Each
    stripe keeps one. Returns False if the file has another layout by now."""
    if not names:
        return True
    gone = set(names)

    def dropped(now: Layout) -> Layout:
        return without(now, gone)

    if change_layout(tx, ino, layout.file_id, layout.truncate_epoch, dropped) is None:
        return False
    note_dropped(tx, ino, names)
    return True


def note_dropped(tx: Transaction, ino: Ino, names: Iterable[ObjectName]) -> None:
    for name in names:
        tx.put(dropped_key(name), pack_number(ino))
        tx.put(dropped_of_file_key(name), b"")


def without(layout: Layout, names: set[ObjectName]) -> Layout:
    """Returns the layout with vacant places for these names."""
    targets, generations = list(layout.targets), list(generations_of(layout))
    for place, one in _placed(layout):
        if name_of(layout, one) in names:
            targets[place], generations[place] = VACANT, 0
    return replace(layout, targets=tuple(targets), generations=tuple(generations))


def generations_of(layout: Layout) -> tuple[int, ...]:
    return layout.generations or (0,) * len(layout.targets)


def _placed(layout: Layout) -> Iterator[tuple[int, Replica]]:
    """Yields each place that is not vacant, with the replica there."""
    for place, (target, generation) in enumerate(
        zip(layout.targets, generations_of(layout), strict=True)
    ):
        if target != VACANT:
            yield place, Replica(place // layout.replica_count, target, generation)


def dropped_names(tx: Transaction, file_id: int) -> list[ObjectName]:
    """Returns the names of this file id that were dropped."""
    return [dropped_name_of_file(key) for key in tx.keys(*dropped_of_file(file_id))]


def is_born_of(slot: bytes, born: bytes) -> bool:
    """Whether a file may be born with this packed layout from a slot with that one: it may lack
    replicas that its client could not reach."""
    if slot == born or not is_replicated(slot):
        return slot == born
    given, layout = unpack_layout(slot), unpack_layout(born)
    gone = set(names_of(given)) - set(names_of(layout))
    return len(set(counts_of(layout))) == layout.stripe_width and without(given, gone) == layout


def missing_at_birth(slot: bytes | None, born: bytes) -> list[ObjectName]:
    """Returns the names that a replicated file lacks of those of its slot, as far as it is known
    any more: objects of these may be there."""
    if slot is None or slot == born:
        return []
    left = set(names_of(unpack_layout(born)))
    return [name for name in names_of(unpack_layout(slot)) if name not in left]


def next_epoch(tx: Transaction, ino: Ino, layout: Layout) -> int:
    """Returns the truncate epoch of the next change: not one that is reserved for replicas which
    are being made."""
    epoch = layout.truncate_epoch
    raw = tx.get(plan_key(ino)) if layout.is_replicated else None
    if raw is not None:
        epoch = max(epoch, decode(PlanRecord, raw).epoch)
    return epoch + 1


def with_places_of(layout: Layout, inode: Inode) -> Layout:
    """Returns the layout of an intent with the replicas that its file has now."""
    if not layout.is_replicated:
        return layout
    now = inode.layout()
    return replace(
        layout,
        targets=now.targets,
        replica_count=now.replica_count,
        generations=now.generations,
        generation_last=now.generation_last,
        replicas_wanted=now.replicas_wanted,
    )


# ---- one replica for each stripe -----------------------------------------------------------------


def keep_one(tx: Transaction, ino: Ino, may_stay: Callable[[int], bool]) -> bool:
    """Of each stripe with several replicas, keeps one on a target that may stay, and drops the
    others: a writer may have written to some of them only. Returns False if there is a stripe of
    which no replica may stay now."""
    inode = find_readable(tx, ino)
    if inode is None or not is_replicated(inode.tail):
        return True
    layout = inode.layout()
    several = {stripe for stripe, count in counts_of(layout).items() if count > 1}
    kept: dict[int, ObjectName] = {}
    for one in layout.replicas():
        if one.stripe_index in several and may_stay(one.target):
            kept.setdefault(one.stripe_index, name_of(layout, one))
    gone = [
        name
        for one in layout.replicas()
        if one.stripe_index in kept and (name := name_of(layout, one)) != kept[one.stripe_index]
    ]
    remove_replicas(tx, ino, layout, gone)
    return several == set(kept)


# ---- what not all replicas may have durably ------------------------------------------------------


def unsynced_files(tx: Transaction) -> list[Ino]:
    """Returns the files that are open for writing, or were closed and not synced everywhere."""
    inos = {written_ino(key) for key in tx.keys(*all_of(b"W"))}
    inos.update(unsynced_place(key)[0] for key in tx.keys(*all_of(b"U")))
    return sorted(inos)


def lost_power(tx: Transaction, target: int) -> list[ObjectName]:
    """The target may have lost what was not synced: drops its replicas of all files of which it may
    have lost something, but not the last ones. Returns their names."""
    gone: list[ObjectName] = []
    for ino in unsynced_files(tx):
        inode = find_readable(tx, ino)
        if inode is None or not has_written_replicas(inode.tail):
            continue
        layout = inode.layout()
        names = not_the_last(layout, target)
        remove_replicas(tx, ino, layout, names)
        gone += names
    return gone


def note_unsynced(tx: Transaction, session: SessionId, ino: Ino, serial: int) -> None:
    """The session has closed the file, and not all replicas are known to have it durably."""
    inode = find_readable(tx, ino)
    if inode is not None and has_written_replicas(inode.tail):
        tx.put(unsynced_key(ino, session), pack_number(serial))


def end_writes(tx: Transaction, session: SessionId) -> None:
    """The session has ended: nothing of it is open for writing any more."""
    for key in list(tx.keys(*written_of(session))):
        tx.delete(key)
        ino = written_ino(key)
        if tx.get(unsynced_key(ino, session)) is None:
            note_unsynced(tx, session, ino, 0)


def forget_replicas(tx: Transaction, ino: Ino, tail: bytes) -> None:
    """The file with this packed layout is gone, or has got a new file id."""
    if not is_replicated(tail):
        return
    note_lack(tx, ino, tail, b"")
    for key in list(tx.keys(*unsynced_of(ino))):
        tx.delete(key)


def doom(tx: Transaction, names: Iterable[ObjectName]) -> None:
    """Queues objects for the reaper that no layout names."""
    for name in names:
        tx.put(lone_key(name), b"")
