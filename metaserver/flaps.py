"""Which storage servers go down too often to be given new replicas. In memory only. Pure."""

from collections import deque
from typing import Final

from fscommon.types import NodeId

FLAPS_MAX: Final = 3  # a node that went down more often within ...
FLAPS_S: Final = 600.0  # ... this time is suspect


class Flaps:
    """A node is suspect from the time when it went down once too often until the first of these
    times is FLAPS_S ago."""

    def __init__(self) -> None:
        self._downs: dict[NodeId, deque[float]] = {}  # the newest times

    def went_down(self, node: NodeId, now_s: float) -> None:
        self._downs.setdefault(node, deque(maxlen=FLAPS_MAX + 1)).append(now_s)

    def suspects(self, now_s: float) -> frozenset[NodeId]:
        return frozenset(
            node
            for node, downs in self._downs.items()
            if len(downs) > FLAPS_MAX and now_s - downs[0] < FLAPS_S
        )
