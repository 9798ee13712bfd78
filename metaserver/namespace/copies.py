"""Replicas that are added: planned, copied, and then named by the layout (decision 0063). Others
may leave the layout in the same change: then a replica moves (decision 0065).

`plan` gives the new objects names that were never used, and reserves the epoch at which they become
replicas: no layout has it before. `add` puts them into the layout at that epoch, if nobody could
write meanwhile, and no target that has the file has lost power. By then all replicas that stay
refuse what has an older epoch. A plan that comes to nothing is given up *at* its epoch, as some
replicas may have it already. The `C` record of a file is its plan; objects of one that was given up
are deleted.

All of this needs the claim of the file: a shared DATA lease of the metaserver itself, which ends at
once, or soon, when somebody is to write. Replicas that have left may still answer clients with a
former view: the `C` record has their names until they do not, and the claim lasts until then.
`finish` ends that.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from fscommon.layout.attributes import LEASE_DATA
from fscommon.layout.layout import VACANT, Layout
from fscommon.limits import GENERATION_MAX, GENERATION_SHIFT, REPLICA_PLACES_MAX
from fscommon.types import Ino
from fscommon.wire.codec import decode, encode
from metaserver.context import Context
from metaserver.namespace.inode import find
from metaserver.namespace.replicas import (
    change_layout,
    counts_of,
    doom,
    dropped_names,
    generations_of,
    names_of,
    note_dropped,
    stripe_of,
    without,
)
from metaserver.records import ObjectName, PlanRecord, plan_key
from metaserver.sessions import SYSTEM_SESSION
from metaserver.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Plan:
    """layout: as it is. names: of the objects to be made. epoch: at which they become replicas.
    incarnations: of the targets that have the file, when it was planned. gone: what leaves the
    layout when they are added; all else that it names stays."""

    ino: Ino
    layout: Layout
    names: tuple[ObjectName, ...]
    epoch: int
    incarnations: Mapping[int, int]
    gone: tuple[ObjectName, ...] = ()

    def staying(self) -> list[ObjectName]:
        return [name for name in names_of(self.layout) if name not in self.gone]


def is_claimed(context: Context, ino: Ino) -> bool:
    return bool(context.services.leases.held(SYSTEM_SESSION, ino) & LEASE_DATA)


def plan(
    tx: Transaction,
    context: Context,
    ino: Ino,
    places: Iterable[tuple[int, int]],
    gone: Iterable[ObjectName] = (),
) -> Plan | None:
    """Plans replicas, each of a stripe index on a target; gone: those that leave the layout. None:
    the file is not claimed, is gone, has no objects or is being cut, or has a replica there."""
    if not is_claimed(context, ino) or ino in context.services.intents or moved(tx, ino):
        return None
    give_up(tx, ino)
    inode = find(tx, ino)
    if inode is None or not inode.is_file or inode.layout().inline:
        return None
    layout = inode.layout()
    wanted, leaving = sorted(places), tuple(gone)
    taken = {(one.stripe_index, one.target) for one in layout.replicas()}
    if not wanted or not _is_possible(layout, wanted, taken):
        return None
    generation = layout.generation_last + 1
    layout = (
        change_layout(  # no other plan gives this generation again
            tx,
            ino,
            layout.file_id,
            layout.truncate_epoch,
            lambda now: replace(now, generation_last=generation),
        )
        or layout
    )
    names = tuple(
        ObjectName(target, layout.file_id, stripe | generation << GENERATION_SHIFT)
        for stripe, target in wanted
    )
    epoch = layout.truncate_epoch + 1
    targets, numbers = [one.target for one in names], [one.number for one in names]
    record = PlanRecord(layout.file_id, epoch, tuple(targets), tuple(numbers))
    tx.put(plan_key(ino), encode(record))
    return Plan(ino, layout, names, epoch, _incarnations(layout, context), leaving)


def _is_possible(
    layout: Layout, wanted: list[tuple[int, int]], taken: set[tuple[int, int]]
) -> bool:
    added = [stripe for stripe, _ in wanted]
    counts = counts_of(layout)
    return (
        layout.generation_last < GENERATION_MAX
        and len(set(wanted)) == len(wanted)
        and not taken.intersection(wanted)
        and all(stripe < layout.stripe_width for stripe in added)
        and all(counts[one] + added.count(one) <= REPLICA_PLACES_MAX for one in set(added))
    )


def _incarnations(layout: Layout, context: Context) -> dict[int, int]:
    membership = context.services.membership
    known = {one.target: membership.target(one.target) for one in layout.replicas()}
    return {number: one.incarnation for number, one in known.items() if one is not None}


def add(tx: Transaction, context: Context, made: Plan) -> bool:
    """The planned objects are replicas from now on: each has the bytes durably, and all replicas
    that stay were synced, and have the plan's epoch. Returns False, and changes nothing, if the
    file was not claimed all the time, or has another layout by now, or a target lost power."""
    inode = find(tx, made.ino)
    if inode is None or not inode.is_file:
        return False
    if set(made.names) <= set(names_of(inode.layout())):
        return True  # it was added before
    if not _may_be_added(tx, context, made):
        return False
    seen = made.layout
    changed = change_layout(
        tx, made.ino, seen.file_id, seen.truncate_epoch, lambda now: _with_added(now, made)
    )
    if changed is None:
        return False
    _clean_up(tx, changed)
    if not made.gone:
        tx.delete(plan_key(made.ino))
        return True
    note_dropped(tx, made.ino, made.gone)
    targets, numbers = [one.target for one in made.gone], [one.number for one in made.gone]
    record = PlanRecord(seen.file_id, made.epoch, (), (), tuple(targets), tuple(numbers))
    tx.put(plan_key(made.ino), encode(record))
    return True


def moved(tx: Transaction, ino: Ino) -> list[ObjectName]:
    """Returns the names of replicas that have left the file's layout, and may still answer."""
    raw = tx.get(plan_key(ino))
    record = decode(PlanRecord, raw) if raw is not None else None
    return record.gone() if record is not None and record.is_added else []


def finish(tx: Transaction, ino: Ino) -> None:
    """Nobody gets an answer from the replicas that have left: their objects are deleted."""
    names = moved(tx, ino)
    if names:
        tx.delete(plan_key(ino))
        doom(tx, names)


def _may_be_added(tx: Transaction, context: Context, made: Plan) -> bool:
    raw = tx.get(plan_key(made.ino))
    is_planned = raw is not None and decode(PlanRecord, raw).names() == list(made.names)
    has_power = _incarnations(made.layout, context) == made.incarnations
    return is_planned and has_power and is_claimed(context, made.ino)


def _with_added(layout: Layout, made: Plan) -> Layout:
    rows = _rows(without(layout, set(made.gone)))
    for name in made.names:
        row = rows[stripe_of(name.number)]
        added = name.target, name.number >> GENERATION_SHIFT
        vacant = next((at for at, one in enumerate(row) if one[0] == VACANT), None)
        if vacant is None:
            row.append(added)
        else:
            row[vacant] = added
    places = max(map(len, rows))
    for row in rows:
        row.extend([(VACANT, 0)] * (places - len(row)))
    return replace(
        layout,
        replica_count=places,
        targets=tuple([target for row in rows for target, _ in row]),
        generations=tuple([generation for row in rows for _, generation in row]),
        replicas_wanted=layout.replicas_wanted or layout.replica_count,
        truncate_epoch=made.epoch,
    )


def _rows(layout: Layout) -> list[list[tuple[int, int]]]:
    """Returns the places of each stripe: target and generation."""
    places = list(zip(layout.targets, generations_of(layout), strict=True))
    count = layout.replica_count
    return [places[at : at + count] for at in range(0, len(places), count)]


def _clean_up(tx: Transaction, layout: Layout) -> None:
    """Has the objects deleted that were dropped from stripes which have all their replicas again.
    Their names stay refused."""
    counts = counts_of(layout)
    doom(
        tx,
        (
            name
            for name in dropped_names(tx, layout.file_id)
            if counts[stripe_of(name.number)] >= layout.replicas_wanted
        ),
    )


def give_up(tx: Transaction, ino: Ino) -> None:
    """Gives up the plan of the file, if it has one that was not added: its objects are deleted, and
    the file goes on with the epoch of the plan, as some of its replicas may have it already."""
    raw = tx.get(plan_key(ino))
    if raw is None:
        return
    record = decode(PlanRecord, raw)
    if record.is_added:
        return
    tx.delete(plan_key(ino))
    doom(tx, record.names())
    inode = find(tx, ino)
    if inode is None or not inode.is_file:
        return
    now = inode.layout()
    if now.file_id == record.file_id and now.truncate_epoch < record.epoch:
        change_layout(
            tx,
            ino,
            now.file_id,
            now.truncate_epoch,
            lambda one: replace(one, truncate_epoch=record.epoch),
        )
