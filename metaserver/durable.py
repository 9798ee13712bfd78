"""Who waits for a transaction to be durable, in the order of the transactions.

Only the event loop's thread calls.
"""

import heapq
import itertools
from collections.abc import Callable

from fscommon.types import Txn


class DurableWaiters:
    def __init__(self) -> None:
        self._waiting: list[tuple[Txn, int, Callable[[], None]]] = []
        self._sequence = itertools.count()  # who waits for one transaction goes in order of arrival

    def add(self, txn: Txn, release: Callable[[], None]) -> None:
        heapq.heappush(self._waiting, (txn, next(self._sequence), release))

    def release(self, durable: Txn) -> None:
        """Everything up to this transaction is durable: calls what has waited for it."""
        while self._waiting and self._waiting[0][0] <= durable:
            heapq.heappop(self._waiting)[2]()
