"""How many bytes of users fit: with several replicas, each byte takes room in as many failure
domains. Pure."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from fscommon.wire.features import FEATURE_REPLICAS
from fscommon.wire.messages import StatusReply


def fitting(rooms: Iterable[int], replicas: int) -> int:
    """The bytes that fit with so many replicas, each in a domain of its own. rooms: of each domain.

    So many bytes take at most themselves of each domain. A domain that has more than that is of no
    more use than one that has just as much; the others must have what is left to be stored.
    """
    largest_first = sorted(rooms, reverse=True)
    return min(sum(largest_first[large:]) // (replicas - large) for large in range(replicas))


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes of users, with a number of replicas. available: where new files go."""

    replicas: int
    bytes_total: int
    bytes_available: int


def room_with(status: StatusReply, replicas: int) -> Room:
    """Only storage servers that know replicas count when there is more than one."""
    if replicas == 1:
        return Room(1, status.files.bytes_total, status.files.bytes_available)
    domains = {node.node: node.domain for node in status.nodes if node.features & FEATURE_REPLICAS}
    total: defaultdict[str, int] = defaultdict(int)
    available: defaultdict[str, int] = defaultdict(int)
    for row in status.map.targets:
        if row.node in domains and row.state != "lost":
            total[domains[row.node]] += row.bytes_total
            available[domains[row.node]] += row.bytes_free if row.state != "draining" else 0
    return Room(replicas, fitting(total.values(), replicas), fitting(available.values(), replicas))
