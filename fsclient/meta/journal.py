"""Successful mutations that the metaserver has not made durable yet, and a restart must replay.

Entries are ordered by request id, which within one session is also the order of their transaction
numbers. Transaction numbers belong to one incarnation of the metaserver: only entries answered (or
replayed) by the present one may be dropped by its `durable`. Pure; touched by the session core.
"""

import heapq

from fscommon.wire.ops import Op


class Mutation:
    """A mutation with its reply. txn and incarnation change when it is replayed."""

    __slots__ = ("body", "incarnation", "op", "reply", "request_id", "status", "txn")

    def __init__(
        self, request_id: int, op: Op, body: bytes, reply: bytes, *, txn: int, incarnation: int
    ) -> None:
        self.request_id = request_id
        self.op = op
        self.body = body
        self.reply = reply
        self.status = 0
        self.txn = txn
        self.incarnation = incarnation

    def __lt__(self, other: "Mutation") -> bool:
        return self.request_id < other.request_id


class Journal:
    """Mutations in a heap by request id: the oldest becomes durable first."""

    def __init__(self) -> None:
        self._heap: list[Mutation] = []

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def first_request_id(self) -> int | None:
        return self._heap[0].request_id if self._heap else None

    def add(self, mutation: Mutation) -> None:
        heapq.heappush(self._heap, mutation)

    def prune(self, durable: int, incarnation: int) -> None:
        """Drops what the metaserver of that incarnation says is durable."""
        heap = self._heap
        while heap and heap[0].txn <= durable and heap[0].incarnation == incarnation:
            heapq.heappop(heap)

    def in_order(self) -> list[Mutation]:
        return sorted(self._heap)

    def clear(self) -> int:
        """Removes all; returns how many there were."""
        count = len(self._heap)
        self._heap.clear()
        return count
