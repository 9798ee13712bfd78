"""Where a file gets further replicas, and which ones leave it (decision 0065).

A client may send again what a target has lost with its power, for as long as it holds it. So no
replica takes such a target's place, and nothing is copied from it, before clients have noticed. It
concerns files of which somebody may hold something: those in `W` and `U`, and those with a record
of version 1, of which nothing is noted. A client looks after unsynced bytes every few seconds.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from fscommon.errors import BraidError
from fscommon.layout.layout import Layout
from fscommon.types import Ino
from fscommon.wire.features import FEATURE_REPLICAS
from metaserver.context import Context
from metaserver.namespace.inode import find
from metaserver.namespace.replicas import counts_of, lack_of, name_of
from metaserver.records import ObjectName, unsynced_of
from metaserver.transaction import Transaction

RESENT_S: Final = 60.0  # so long after a loss of power clients may send again what was lost
NO_PLACE: Final = (
    "no target can take it: one in another failure domain than its other replicas that is up, not "
    "draining, and less than 90 % full"
)


class GivenUpError(BraidError):
    """The file cannot be copied now; the message says why."""


class Wanted(NamedTuple):
    """What a file is to get: places of new objects, as stripe index and target, and the replicas
    that leave it then."""

    places: list[tuple[int, int]]
    gone: list[ObjectName]


def of_lacking(
    tx: Transaction, context: Context, ino: Ino, receiving: Mapping[int, int]
) -> Wanted | None:
    """The places of the replicas that the file lacks; receiving: how many objects are being copied
    to each target. None: it lacks none. Raises GivenUpError."""
    inode = find(tx, ino)
    if inode is None or not inode.is_file or lack_of(inode.tail) is None:
        return None
    layout = inode.layout()
    _check_all_answer(context, layout)
    check_power(tx, context, ino, layout, (one.target for one in layout.replicas()))
    counts = counts_of(layout)
    places: list[tuple[int, int]] = []
    for stripe in range(layout.stripe_width):
        present = [one.target for one in layout.replicas() if one.stripe_index == stripe]
        for _ in range(counts[stripe], layout.replicas_wanted):
            target = _place(context, layout, stripe, present, receiving)
            if target is not None:
                present.append(target)
                places.append((stripe, target))
    if not places:
        raise GivenUpError(NO_PLACE)
    return Wanted(places, [])


def of_moving(
    tx: Transaction, context: Context, ino: Ino, target: int, receiving: Mapping[int, int]
) -> Wanted | None:
    """The places to which the file's replicas on this target move. None: it has none there, or no
    objects. Raises GivenUpError."""
    inode = find(tx, ino)
    if inode is None or not inode.is_file:
        return None
    layout = inode.layout()
    if layout.inline or target not in layout.targets:
        return None
    if not layout.is_replicated:
        _check_clients(context)
    check_power(tx, context, ino, layout, [target])
    places: list[tuple[int, int]] = []
    gone: list[ObjectName] = []
    for one in layout.replicas():
        if one.target != target:
            continue
        stripe = one.stripe_index
        present = [
            other.target
            for other in layout.replicas()
            if other.stripe_index == stripe and other.target != target
        ]
        place = _place(context, layout, stripe, present, receiving)
        if place is None:
            raise GivenUpError(NO_PLACE)
        places.append((stripe, place))
        gone.append(name_of(layout, one))
    return Wanted(places, gone)


def _place(
    context: Context, layout: Layout, stripe: int, present: list[int], receiving: Mapping[int, int]
) -> int | None:
    return context.services.membership.place_of_copy(
        layout.file_id + stripe, present, context.now_s, receiving
    )


def _check_all_answer(context: Context, layout: Layout) -> None:
    """All replicas that stay are synced, and get another epoch: without that there is no copy, and
    the file would have been recalled from its writer for nothing."""
    for target in sorted({one.target for one in layout.replicas()}):
        if not context.services.membership.is_answering(target, context.now_s):
            raise GivenUpError(
                f"target {target}, which has others of its replicas, does not answer"
            )


def _check_clients(context: Context) -> None:
    """A file with one replica gets a record that former releases cannot read."""
    for session in context.services.sessions.all():
        if not session.features & FEATURE_REPLICAS:
            raise GivenUpError(
                f"the client on {session.node}, of an earlier release, could not read it any more: "
                "upgrade it, or end its mount"
            )


def check_power(
    tx: Transaction, context: Context, ino: Ino, layout: Layout, targets: Iterable[int]
) -> None:
    """Raises GivenUpError if a client may send again what one of these targets has lost."""
    membership = context.services.membership
    for number in targets:
        target = membership.target(number)
        if target is None or not target.risen_ns:
            continue
        since_s = (context.now_ns - target.risen_ns) / 1e9
        if since_s < RESENT_S and _may_be_held(tx, context, ino, layout):
            raise GivenUpError(
                f"target {number} lost power a moment ago: clients may send again what it lost"
            )


def _may_be_held(tx: Transaction, context: Context, ino: Ino, layout: Layout) -> bool:
    if not layout.is_replicated or context.services.sessions.written_by(ino):
        return True
    return next(iter(tx.keys(*unsynced_of(ino))), None) is not None


def reachable(context: Context, layout: Layout, without: int) -> int:
    """Returns how many replicas of the poorest stripe answer, without those on this target."""
    membership = context.services.membership
    counts = dict.fromkeys(range(layout.stripe_width), 0)
    for one in layout.replicas():
        if one.target != without and membership.is_answering(one.target, context.now_s):
            counts[one.stripe_index] += 1
    return min(counts.values())
