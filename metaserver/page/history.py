"""Rates of the whole cluster over the last hour, in a ring of bounded length. Time is passed in.

Each storage server reports with its heartbeats how much it has moved. Its rate is the difference of
two reports over the time between these heartbeats, so it does not jump with the time of a sample. A
silent server adds nothing.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fscommon.observe.rates import RATES, Rates, rates_between
from fscommon.types import NodeId
from fscommon.wire.admin import Traffic
from metaserver.membership import Node

SAMPLE_S: Final = 10.0
POINTS_MAX: Final = 360


@dataclass(frozen=True, slots=True)
class Point:
    at_s: int  # seconds since 1970
    rates: Rates


class History:
    def __init__(self) -> None:
        self._points: deque[Point] = deque(maxlen=POINTS_MAX)
        self._nodes: dict[NodeId, tuple[float, Traffic]] = {}
        self._requests: tuple[float, int] | None = None  # the time and the count of the last sample

    def sample(self, nodes: Iterable[Node], requests: int, now_s: float, now_ns: int) -> None:
        """Adds a sample. requests: those that this metaserver has answered since its start."""
        rates = Rates(requests=self._request_rate(requests, now_s))
        for node in nodes:
            rates += self._rates(node)
        self._points.append(Point(now_ns // 1_000_000_000, rates))

    def _rates(self, node: Node) -> Rates:
        before = self._nodes.get(node.id)
        self._nodes[node.id] = (node.heard_s, node.traffic)
        if before is None or node.heard_s <= before[0]:
            return Rates()
        rates = rates_between(before[1], node.traffic, node.heard_s - before[0])
        if any(getattr(rates, name) < 0 for name in RATES):
            return Rates()  # the server has restarted since the last report
        return rates

    def _request_rate(self, requests: int, now_s: float) -> float:
        before, self._requests = self._requests, (now_s, requests)
        if before is None or now_s <= before[0]:
            return 0.0
        return (requests - before[1]) / (now_s - before[0])

    def as_json(self) -> dict[str, list[float]]:
        """Returns the samples by columns, the oldest first."""
        points = self._points
        columns = {name: [round(getattr(one.rates, name), 1) for one in points] for name in RATES}
        return {"at_s": [one.at_s for one in points], **columns}
