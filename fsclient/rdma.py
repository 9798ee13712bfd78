"""Chooses the transport of a data connection: RDMA if both ends have it, else TCP.

Pure policy; time is passed in. A node whose RDMA failed (refused, could not be connected, or broke
soon after it was made) rests, each time longer. Meanwhile it gets TCP, unless the mount demands
RDMA; then its connections move back. A lane that failed tries its next rail the next time: not
every rail need reach every node. A change for a node is reported once.
"""

from dataclasses import dataclass
from typing import Final

REST_S_MIN: Final = 5.0
REST_S_MAX: Final = 300.0
SHORT_LIFE_S: Final = 20.0


@dataclass(slots=True)
class _Node:
    rest_until: float = 0.0
    failures: int = 0
    said: str = ""


class TransportPolicy:
    def __init__(self, *, required: bool) -> None:
        self._required = required
        self._nodes: dict[int, _Node] = {}
        self._made: dict[tuple[int, int], float] = {}  # when, by lane and node
        self._turns: dict[tuple[int, int], int] = {}

    def use_rdma(self, node: int, lane: int, now: float) -> bool:
        """Whether a new connection uses RDMA."""
        state = self._nodes.setdefault(node, _Node())
        made = self._made.pop((lane, node), None)
        if made is not None and now - made < SHORT_LIFE_S:
            self.failed(node, lane, now)
        elif made is not None:
            state.failures = 0
        return self._required or now >= state.rest_until

    def made(self, node: int, lane: int, now: float) -> None:
        """A connection was made with RDMA."""
        self._made[lane, node] = now

    def turn(self, node: int, lane: int) -> int:
        """The number of the rail to try, counted from the lane's own rail."""
        return self._turns.get((lane, node), 0)

    def failed(self, node: int, lane: int, now: float) -> None:
        self._turns[lane, node] = self.turn(node, lane) + 1
        state = self._nodes.setdefault(node, _Node())
        if now < state.rest_until:
            return  # the failures of all lanes count as one
        rest = min(REST_S_MIN * 2**state.failures, REST_S_MAX)
        state.failures = min(state.failures + 1, 10)
        state.rest_until = now + rest

    def may_return(self, node: int, now: float) -> bool:
        """Whether connections with TCP should try RDMA again."""
        return now >= self._nodes.setdefault(node, _Node()).rest_until

    def is_news(self, node: int, said: str) -> bool:
        """Whether this differs from what was last reported of the node."""
        state = self._nodes.setdefault(node, _Node())
        news = state.said != said
        state.said = said
        return news
