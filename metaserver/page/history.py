"""Rates of the whole cluster over the last hour, in a ring of bounded length. Pure: time is given.

Storage servers count what they moved and say so with each heartbeat; the rate of one is the
difference of its counts over the time between the heartbeats that had them, so that it does not
jump with the time of the sample. A server that is silent adds nothing.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Final

from fscommon.types import NodeId
from fscommon.wire.admin import Traffic
from metaserver.membership import Node

SAMPLE_S: Final = 10.0
POINTS_MAX: Final = 360


@dataclass(frozen=True, slots=True)
class Point:
    """at_s: since 1970. The rest are rates a second."""

    at_s: int
    read_bytes: float = 0.0
    written_bytes: float = 0.0
    reads: float = 0.0
    writes: float = 0.0
    requests: float = 0.0


class History:
    def __init__(self) -> None:
        self._points: deque[Point] = deque(maxlen=POINTS_MAX)
        self._nodes: dict[NodeId, tuple[float, Traffic]] = {}
        self._requests: tuple[float, int] | None = None  # when, how many

    def sample(self, nodes: Iterable[Node], requests: int, now_s: float, now_ns: int) -> None:
        """requests: that this metaserver has answered since it started."""
        sums = dict.fromkeys(("read_bytes", "written_bytes", "reads", "writes"), 0.0)
        for node in nodes:
            for name, rate in self._rates(node).items():
                sums[name] += rate
        rate = self._request_rate(requests, now_s)
        self._points.append(Point(now_ns // 1_000_000_000, **sums, requests=rate))

    def _rates(self, node: Node) -> dict[str, float]:
        before = self._nodes.get(node.id)
        self._nodes[node.id] = (node.heard_s, node.traffic)
        if before is None or node.heard_s <= before[0]:
            return {}
        old, new = asdict(before[1]), asdict(node.traffic)
        if any(new[name] < old[name] for name in new):
            return {}  # it was started anew
        passed = node.heard_s - before[0]
        return {name: (new[name] - old[name]) / passed for name in new}

    def _request_rate(self, requests: int, now_s: float) -> float:
        before, self._requests = self._requests, (now_s, requests)
        if before is None or now_s <= before[0]:
            return 0.0
        return (requests - before[1]) / (now_s - before[0])

    def as_json(self) -> dict[str, list[float]]:
        """By columns, oldest first."""
        return {
            field.name: [round(getattr(point, field.name), 1) for point in self._points]
            for field in fields(Point)
        }
