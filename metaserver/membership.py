"""Storage servers and their targets: which are up, how full they are, and where new files go.

This is plain state in memory with time passed in; `N` and `G` records keep what must survive a
restart. The epoch of the map rises
- when a node joins, moves, goes down or comes back;
- when a target becomes full (it lacks bytes, or inodes for files) or has room again;
- when a target starts or stops draining, is lost, or is removed.
It does not rise with every change of free space.

A draining target gets no new files; its files are read and written as before. A lost one gets none,
either; should it be served again, it is read and written like a draining one. A removed target is
out of the map; its number and uuid are kept, so that nothing gets them again. A target that comes
while there are clients is *joining*: it gets no files before every client has a map that names it.
A target that its node does not name any more (its device is broken or not mounted) is down until
the node names it again. After a restart every known target counts as up until the heartbeat of its
node is overdue. Requests to nodes are in metaserver.eviction, reaper and truncation.

New replicas go only to targets that are up, have room, and are neither draining nor joining, on
nodes that know replicas and are not suspect (metaserver.flaps): metaserver.placement chooses.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from math import inf
from types import MappingProxyType
from typing import Final, Protocol

from fscommon.errors import FsError, Status
from fscommon.layout.layout import VACANT, Layout
from fscommon.types import FileId, NodeId, TargetId
from fscommon.wire.admin import FILES_UNLIMITED, NO_TRAFFIC, Traffic
from fscommon.wire.features import FEATURE_REPLICAS
from fscommon.wire.messages import ClusterMap, StatFsReply, TargetEntry
from fscommon.wire.servers import TargetReport
from metaserver.flaps import Flaps
from metaserver.placement import GOLDEN, U64, Placement, ReplicaPolicy, Spot, weight_of

NODE_TIMEOUT_S: Final = 10.0  # a node that was silent for so long is down
ANSWERING_S: Final = 4.0  # one that was heard in that time counts on: others may be dropped
ENDED_S: Final = 2.0  # one whose connection has ended, and that was silent since, gets no new files
_FULL_SHARE: Final = 100  # full below 1/100 of free space ...
_ROOM_SHARE: Final = 50  # ... until 1/50 is free again
_COPIES_SHARE: Final = 10  # no copies go to a target of which less than 1/10 is free
_TARGETS_MAX: Final = 4096
_NOBODY: Final[Mapping[int, int]] = MappingProxyType({})


class TargetState(Enum):
    UP = "up"
    DOWN = "down"
    FULL = "full"
    DRAINING = "draining"
    JOINING = "joining"
    LOST = "lost"  # gone with all that it had, says an administrator


class Connected(Protocol):
    """A connection of a node."""

    is_open: bool


@dataclass(slots=True)
class Node:
    id: NodeId
    uuid: bytes
    name: str
    address: str
    heard_s: float
    session_version: int = 0  # of the session table that the node has
    traffic: Traffic = NO_TRAFFIC
    domain: str = ""  # its failure domain: what fails together
    features: int = 0  # fscommon.wire.features
    is_registered: bool = False  # with this metaserver: it asks which names were dropped
    connection: Connected | None = None  # on which it registered


@dataclass(slots=True)
class Target:
    id: TargetId
    uuid: bytes
    node: NodeId
    bytes_total: int
    bytes_free: int
    files_total: int = 0  # inodes of its file system; 0: without a limit, or not heard yet
    files_free: int = 0
    lacks_bytes: bool = False
    lacks_files: bool = False
    is_served: bool = True  # its node named it at its last registration
    is_draining: bool = False  # set by an administrator
    is_lost: bool = False  # set by an administrator
    lost_s: float = -inf  # since when, by the clock of heartbeats
    is_drained: bool = False  # no file has anything there
    risen_ns: int = 0  # when its incarnation has risen; 0: never
    joining_epoch: int = 0  # of the first map that names it, until all clients have that map; or 0
    objects: int = 0
    errors: int = 0
    incarnation: int = 0  # the newest one heard: it rises when unsynced bytes were lost
    incarnation_kept: int = 0  # the one in its record

    @property
    def is_open(self) -> bool:
        """Whether it may get new files, as far as an administrator has a say."""
        return not (self.is_draining or self.is_lost)

    @property
    def is_full(self) -> bool:
        return self.lacks_bytes or self.lacks_files

    def measure(self, before: "Target") -> None:
        """Measures again what the target lacks; before: its state at the last measurement."""
        self.lacks_bytes = _is_short(
            self.bytes_free, self.bytes_total, was_short=before.lacks_bytes
        )
        self.lacks_files = self.files_total > 0 and _is_short(
            self.files_free, self.files_total, was_short=before.lacks_files
        )


class Membership:
    def __init__(
        self, *, cluster: bytes, epoch: int, chunk_size: int, width_max: int, policy: ReplicaPolicy
    ) -> None:
        self.cluster = cluster
        self.epoch = epoch
        self.chunk_size = chunk_size
        self.width_max = width_max
        self.policy = policy
        self._nodes: dict[NodeId, Node] = {}
        self._targets: dict[TargetId, Target] = {}
        self._down: set[NodeId] = set()
        self._ended: set[NodeId] = set()  # their leases may last, but nothing is begun there
        self._places: list[TargetId] = []  # targets that may get new files, in order of ids
        self._replica_targets: list[TargetId] = []  # those of them that may get new replicas
        self._placement: Placement | None = None  # of these; None: it is made when it is needed
        self._flaps = Flaps()
        self._suspects: frozenset[NodeId] = frozenset()
        self._removed: dict[bytes, TargetId] = {}  # by uuid: targets that are out of the cluster
        self._down_since_s: dict[TargetId, float] = {}

    # ---- who is there --------------------------------------------------------------------

    def nodes(self) -> list[Node]:
        return list(self._nodes.values())

    def node(self, node: NodeId) -> Node | None:
        return self._nodes.get(node)

    def targets(self) -> list[Target]:
        return [target for _, target in sorted(self._targets.items())]

    def is_down(self, node: NodeId) -> bool:
        return node in self._down

    def is_there(self, node: NodeId) -> bool:
        """Whether it is neither down nor, most likely, ended."""
        return node not in self._down and node not in self._ended

    def _comes_back(self, node: NodeId) -> bool:
        """The node was heard. Returns whether it was taken for down or ended."""
        was_away = not self.is_there(node)
        self._down.discard(node)
        self._ended.discard(node)
        return was_away

    def is_suspect(self, node: NodeId) -> bool:
        return node in self._suspects

    def targets_of(self, node: NodeId) -> list[Target]:
        return [target for target in self._targets.values() if target.node == node]

    def target(self, target: int) -> Target | None:
        return self._targets.get(TargetId(target))

    def address_of(self, target: TargetId) -> str | None:
        """The address of the target's node; None if the target is unknown."""
        known = self._targets.get(target)
        return self._nodes[known.node].address if known else None

    def node_by_uuid(self, uuid: bytes) -> Node | None:
        return next((node for node in self._nodes.values() if node.uuid == uuid), None)

    def target_by_uuid(self, uuid: bytes) -> Target | None:
        return next((target for target in self._targets.values() if target.uuid == uuid), None)

    def all_removed(self) -> list[TargetId]:
        return sorted(self._removed.values())

    def removed(self, uuid: bytes) -> TargetId | None:
        """The number of the removed target with this uuid. None: there is no such."""
        return self._removed.get(uuid)

    def next_node_id(self) -> NodeId:
        return NodeId(max(self._nodes, default=0) + 1)

    def next_target_ids(self, count: int) -> list[TargetId]:
        if len(self._targets) + count > _TARGETS_MAX:
            raise FsError(Status.ENOSPC, f"a cluster has at most {_TARGETS_MAX} targets")
        first = max((*self._targets, *self._removed.values()), default=0) + 1
        return [TargetId(first + index) for index in range(count)]

    # ---- changes -------------------------------------------------------------------------

    def put_node(self, node: Node) -> bool:
        """Adds or updates a node. Returns True if the cluster map has changed."""
        old = self._nodes.get(node.id)
        was_away = self._comes_back(node.id)
        self._nodes[node.id] = node
        self._choose_places()
        return old is None or old.address != node.address or was_away

    def put_target(self, target: Target) -> bool:
        old = self._targets.get(target.id)
        target.measure(old or target)
        self._targets[target.id] = target
        self._choose_places()
        if old is None or not old.is_served:
            return True
        return old.node != target.node or old.is_full != target.is_full

    def put_removed(self, target: TargetId, uuid: bytes) -> None:
        """The target is out of the cluster, for good."""
        self._removed[uuid] = target
        self._targets.pop(target, None)
        self._down_since_s.pop(target, None)
        self._choose_places()

    def unserved(self, node: NodeId, served: Iterable[TargetId]) -> list[Target]:
        """Takes those targets of a node down that its registration does not name. Returns the ones
        that were up."""
        named = set(served)
        lost = [t for t in self.targets_of(node) if t.is_served and t.id not in named]
        for target in lost:
            target.is_served = False
        self._choose_places()
        return lost

    def heard(self, node: NodeId, reports: Iterable[TargetReport], now_s: float) -> bool:
        """Takes a heartbeat. Returns True if the cluster map has changed."""
        known = self._nodes[node]
        known.heard_s = now_s
        changed = self._comes_back(node)
        for report in reports:
            changed |= self._reported(node, report)
        if changed:
            self._choose_places()
        return changed

    def _reported(self, node: NodeId, report: TargetReport) -> bool:
        if self._removed.get(report.uuid) == report.target:
            return False
        target = self._targets.get(TargetId(report.target))
        if target is None or target.node != node or target.uuid != report.uuid:
            raise FsError(Status.NO_TARGET, f"target {report.target} is not this node's: register")
        if weight_of(report.bytes_free) != weight_of(target.bytes_free):
            self._placement = None
        target.bytes_total, target.bytes_free = report.bytes_total, report.bytes_free
        target.files_total, target.files_free = report.files_total, report.files_free
        target.objects, target.errors = report.objects, report.errors
        target.incarnation = max(target.incarnation, report.incarnation)
        was_full = target.is_full
        target.measure(target)
        return target.is_full != was_full

    def expire(self, now_s: float) -> list[Node]:
        """Takes nodes down that were silent for too long. Returns them."""
        silent = [
            node
            for node in self._nodes.values()
            if node.id not in self._down and now_s - node.heard_s > NODE_TIMEOUT_S
        ]
        self._down.update(node.id for node in silent)
        for node in silent:
            self._flaps.went_down(node.id, now_s)
        suspects = self._flaps.suspects(now_s)
        if silent or suspects != self._suspects:
            self._suspects = suspects
            self._choose_places()
        return silent

    def note_ended(self, now_s: float) -> list[Node]:
        """Takes nodes for ended whose connections are: most likely their processes are, too, or
        their hosts. Returns those. Only when they are down nobody gets an answer from them."""
        ended = [
            node
            for node in self._nodes.values()
            if self.is_there(node.id)
            and node.connection is not None
            and not node.connection.is_open
            and now_s - node.heard_s > ENDED_S
        ]
        self._ended.update(node.id for node in ended)
        if ended:
            self._choose_places()
        return ended

    def set_draining(self, targets: Iterable[int], wanted: bool) -> list[Target]:
        """Closes targets to new files, or opens them again. Returns those whose state has changed.
        Raises ENOENT; EBUSY if no target for new files would be left."""
        chosen = [self._known(number) for number in targets]
        if wanted:
            self._check_some_remain({target.id for target in chosen})
        if any(target.is_lost for target in chosen):
            raise FsError(Status.EINVAL, "a target that is lost gets no files any more")
        changed = [target for target in chosen if target.is_draining != wanted]
        for target in changed:
            target.is_draining = wanted
            target.is_drained = False
        self._choose_places()
        return changed

    def set_lost(self, targets: Iterable[int], now_s: float) -> list[Target]:
        """Returns those that were not lost before. Raises ENOENT."""
        chosen = [self._known(number) for number in targets]
        changed = [target for target in chosen if not target.is_lost]
        for target in changed:
            target.is_lost, target.lost_s = True, now_s
        self._choose_places()
        return changed

    def down_s(self, target: TargetId, now_s: float) -> float:
        """For how long the target has been down, as seen by calls of this method; 0: it is up."""
        known = self._targets.get(target)
        if known is None or self._is_up(known):
            self._down_since_s.pop(target, None)
            return 0.0
        return now_s - self._down_since_s.setdefault(target, now_s)

    def serves_no_more(self, target: int) -> bool:
        """Whether no storage server answers for the target: the one that had it is down, or has
        registered without it."""
        known = self._targets.get(TargetId(target))
        if known is None or known.node in self._down:
            return True
        return self._nodes[known.node].is_registered and not known.is_served

    def is_heard(self, target: int) -> bool:
        """Whether the node of the target has registered with this metaserver, or is down."""
        known = self._targets.get(TargetId(target))
        return known is None or known.node in self._down or self._nodes[known.node].is_registered

    def joined(self, epoch: int) -> list[Target]:
        """All clients have the map of this epoch: its targets may get new files. Returns the
        targets that have waited for this."""
        fresh = [t for t in self._targets.values() if 0 < t.joining_epoch <= epoch]
        for target in fresh:
            target.joining_epoch = 0
        if fresh:
            self._choose_places()
        return fresh

    def _known(self, number: int) -> Target:
        target = self.target(number)
        if target is None:
            raise FsError(Status.ENOENT, f"there is no target {number}")
        return target

    def _check_some_remain(self, drained: set[TargetId]) -> None:
        others = [target for target in self._targets.values() if target.id not in drained]
        if any(self.state(target) is TargetState.UP for target in others):
            return
        raise FsError(
            Status.EBUSY,
            "no other target is up and has room: nobody could make a new file. Add a target first",
        )

    # ---- where files go ------------------------------------------------------------------

    def place(self, file_id: FileId, width_max: int) -> tuple[TargetId, ...]:
        """Chooses the targets of a new file: the first one by a hash of the file id."""
        places = self._places
        if not places:
            raise FsError(Status.ENOSPC, "no target has room")
        width = min(len(places), width_max)
        start = (file_id * GOLDEN & U64) * len(places) >> 64
        return tuple([places[(start + index) % len(places)] for index in range(width)])

    def place_replicas(self, file_id: int, width_max: int, replicas: int) -> tuple[int, ...]:
        """Chooses the targets of a new file with so many replicas, stripe-major. Raises ENOSPC if
        too few failure domains are there, unless the policy lets places be VACANT."""
        placement = self._placement or self._place_of_replicas()
        if placement.domain_count < replicas and self._ended:
            placement = self._place_at(self._replica_targets + self._ended_targets())
        count = placement.domain_count
        if count < replicas and not (count and self.policy.degraded_ok):
            raise FsError(
                Status.ENOSPC,
                f"{replicas} replicas need {replicas} failure domains with a target for them "
                f"(up, with room, of a server that knows replicas), and there "
                f"{'is' if count == 1 else 'are'} {count}",
            )
        return placement.place(file_id, width_max, replicas)

    def known(self, layout: Layout) -> tuple[int, ...]:
        """Returns the targets of a layout whose targets have nothing of it yet, with others in
        place of those that do not exist or get no files, and of vacant places."""
        if all(map(self._may_have_files, layout.targets)) or not self._places:
            return layout.targets
        if layout.replica_count > 1:
            return self._known_replicas(layout)
        places = itertools.cycle(self.place(FileId(layout.file_id), self.width_max))
        return tuple([t if self._may_have_files(t) else next(places) for t in layout.targets])

    def _may_have_files(self, target: int) -> bool:
        known = self._targets.get(TargetId(target))
        return known is not None and known.is_open

    def _known_replicas(self, layout: Layout) -> tuple[int, ...]:
        """Gives each stripe that lacks replicas a row of new targets, if there are any."""
        count, placement = layout.replica_count, self._place_of_replicas()
        if not placement.spots:
            return layout.targets
        fresh = placement.place(layout.file_id, layout.stripe_width, count)
        targets: list[int] = []
        for at in range(0, len(layout.targets), count):
            row = layout.targets[at : at + count]
            known = [target for target in row if self._may_have_files(target)]
            start = at % len(fresh)
            offered = fresh[start : start + count]
            is_better = sum(target != VACANT for target in offered) > len(known)
            targets += offered if is_better else row
        return tuple(targets)

    def may_share(self, layout: Layout) -> bool:
        """Whether a new file may lie on the targets of this one."""
        count = layout.replica_count
        if count == 1:
            return set(layout.targets) <= set(self._places)
        spots = {spot.target: spot.domain for spot in self._place_of_replicas().spots}
        rows = [layout.targets[at : at + count] for at in range(0, len(layout.targets), count)]
        return all(len({spots[t] for t in row if t in spots}) == count for row in rows)

    def down_of(self, layout: Layout) -> int | None:
        """Returns a target of the layout that is down, if there is one."""
        for target in layout.targets:
            known = self._targets.get(TargetId(target))
            if known is not None and not self._is_up(known):
                return target
        return None

    def place_of_copy(
        self,
        file_id: int,
        present: Iterable[int],
        now_s: float,
        receiving: Mapping[int, int] = _NOBODY,
    ) -> int | None:
        """Chooses the target of a further replica of a stripe that has these: in another failure
        domain, heard just now, and not nearly full; of those, one that receives the fewest objects
        just now. None: there is no such."""
        taken = {
            self._nodes[known.node].domain
            for target in present
            if (known := self._targets.get(TargetId(target))) is not None
        }
        spots = [
            spot
            for spot in self._place_of_replicas().spots
            if spot.domain not in taken
            and self.is_answering(spot.target, now_s)
            and self._has_room_for_copies(self._targets[TargetId(spot.target)])
        ]
        if not spots:
            return None
        least = min(receiving.get(spot.target, 0) for spot in spots)
        spots = [spot for spot in spots if receiving.get(spot.target, 0) == least]
        point = (file_id * GOLDEN & U64) * sum(spot.weight for spot in spots) >> 64
        for spot in spots:
            point -= spot.weight
            if point < 0:
                break
        return spot.target

    def _has_room_for_copies(self, target: Target) -> bool:
        return target.bytes_free * _COPIES_SHARE >= target.bytes_total

    def is_answering(self, target: int, now_s: float) -> bool:
        """Whether the target is up, and its node was heard just now: of a target that is given up,
        after that."""
        known = self._targets.get(TargetId(target))
        if known is None or not self._is_up(known):
            return False
        node = self._nodes[known.node]
        return node.is_registered and node.heard_s > max(now_s - ANSWERING_S, known.lost_s)

    def cannot_answer(self, target: int) -> bool:
        """Whether no storage server has the target, or the lease of the one that has it has run
        out: it asks which names were dropped before it answers again."""
        known = self._targets.get(TargetId(target))
        return known is None or known.node in self._down

    def _choose_places(self) -> None:
        """Returns the targets with room that are not joining: of these, only the ones that are up,
        if any is, because an outage is no lack of space."""
        room = sorted(t.id for t in self._targets.values() if t.is_open and not t.is_full)
        up = [target for target in room if self._is_up(self._targets[target])]
        known = [target for target in up if not self._targets[target].joining_epoch]
        self._places = known or up or room
        self._replica_targets = [one for one in known if self._takes_replicas(self._targets[one])]
        self._placement = None

    def _takes_replicas(self, target: Target) -> bool:
        """Whether the target may get new replicas while its node is there."""
        if target.is_full or target.joining_epoch or not target.is_open:
            return False
        node = self._nodes[target.node]
        return bool(node.features & FEATURE_REPLICAS) and node.id not in self._suspects

    def _place_of_replicas(self) -> Placement:
        if self._placement is None:
            self._placement = self._place_at(self._replica_targets)
        return self._placement

    def _place_at(self, numbers: Iterable[TargetId]) -> Placement:
        targets = [self._targets[number] for number in numbers]
        return Placement(
            [Spot(t.id, self._nodes[t.node].domain, weight_of(t.bytes_free)) for t in targets]
        )

    def _ended_targets(self) -> list[TargetId]:
        """Those that would take replicas if their nodes, which may be restarting, were there."""
        return sorted(
            target.id
            for target in self._targets.values()
            if target.node in self._ended - self._down
            and target.is_served
            and self._takes_replicas(target)
        )

    # ---- reports -------------------------------------------------------------------------

    def map(self) -> ClusterMap:
        rows = tuple(self._row(target) for _, target in sorted(self._targets.items()))
        return ClusterMap(epoch=self.epoch, cluster=self.cluster, targets=rows)

    def _row(self, target: Target) -> TargetEntry:
        return TargetEntry(
            target=target.id,
            node=target.node,
            address=self._nodes[target.node].address,
            state=self.state(target).value,
            bytes_total=target.bytes_total,
            bytes_free=target.bytes_free,
        )

    def state(self, target: Target) -> TargetState:
        if target.is_lost:
            return TargetState.LOST
        if not self._is_up(target):
            return TargetState.DOWN
        if target.is_draining:
            return TargetState.DRAINING
        if target.joining_epoch:
            return TargetState.JOINING
        return TargetState.FULL if target.is_full else TargetState.UP

    def _is_up(self, target: Target) -> bool:
        return target.is_served and self.is_there(target.node)

    def files_free(self) -> int:
        """The number of new objects for which the targets open to new files have inodes."""
        open_ = [t for t in self._targets.values() if t.is_open and not t.lacks_files]
        if any(target.files_total == 0 for target in open_) or not self._targets:
            return FILES_UNLIMITED
        return min(sum(target.files_free for target in open_), FILES_UNLIMITED)

    def rooms_for_replicas(self) -> list[list[int]]:
        """Returns the bytes of each failure domain that replicas may use: all of them, those that
        are free, and those that are free on targets that are not draining."""
        total, free, open_ = Counter[str](), Counter[str](), Counter[str]()
        for target in self._targets.values():
            node = self._nodes[target.node]
            if node.features & FEATURE_REPLICAS and not target.is_lost:
                total[node.domain] += target.bytes_total
                free[node.domain] += target.bytes_free
                open_[node.domain] += target.bytes_free if target.is_open else 0
        return [list(rooms.values()) for rooms in (total, free, open_)]

    def statfs(self, *, inodes_used: int, inodes_free: int) -> StatFsReply:
        present = [target for target in self._targets.values() if not target.is_lost]
        total = sum(target.bytes_total for target in present)
        free = sum(target.bytes_free for target in present)
        open_ = [target for target in present if not target.is_draining]
        return StatFsReply(
            bytes_total=total,
            bytes_free=free,
            bytes_available=sum(target.bytes_free for target in open_),
            inodes_total=inodes_used + inodes_free,
            inodes_free=inodes_free,
        )


def _is_short(free: int, total: int, *, was_short: bool) -> bool:
    return free < total // (_ROOM_SHARE if was_short else _FULL_SHARE)
