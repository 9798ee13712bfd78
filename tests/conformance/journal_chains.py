"""Appending to a journal from many threads, and checking that its log is one chain."""

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from metaserver.store.journal import (
    NONCE_SIZE,
    Entry,
    FencedError,
    Journal,
    UnknownOutcomeError,
    UnreachableError,
)


def new_nonce() -> bytes:
    return os.urandom(NONCE_SIZE)


def read_all(journal: Journal, after: int = 0) -> list[Entry]:
    """Reads the whole log, and checks that it is one chain."""
    found: list[Entry] = []
    while page := journal.read(after):
        found += page
        after = page[-1].index
    for before, entry in itertools.pairwise(found):
        assert (entry.index, entry.previous) == (before.index + 1, before.nonce)
        assert entry.term >= before.term
    return found


class Appenders:
    """One thread for each door appends behind whatever is the newest entry. All use the owner's
    name of the head: comparing the whole head is all that keeps them apart.

    acknowledged: entries whose append returned. unsure: nonces of appends with an unknown outcome.
    """

    def __init__(self, doors: Sequence[Journal], payload: Callable[[bytes], bytes]) -> None:
        self.acknowledged: list[Entry] = []
        self.unsure: set[bytes] = set()
        self._doors = doors
        self._payload = payload  # of an entry with that nonce
        self._enough = threading.Event()

    def run(self, each: int) -> None:
        """Returns when each thread has so many acknowledged entries."""
        with ThreadPoolExecutor(len(self._doors)) as pool:
            list(pool.map(lambda door: self._append(door, each), self._doors))

    def _append(self, journal: Journal, count: int) -> None:
        while count and not self._enough.is_set():
            count -= self._append_one(journal)

    def stop(self) -> None:
        """Lets `run` return when the appends in work have an outcome."""
        self._enough.set()

    def _append_one(self, journal: Journal) -> bool:
        """Returns whether the entry was acknowledged."""
        nonce = new_nonce()
        payload = self._payload(nonce)
        try:
            at = journal.sighting().head
        except UnreachableError:
            return False
        while True:
            try:
                new = journal.append(at, nonce, payload)
            except UnknownOutcomeError:
                self.unsure.add(nonce)
            except FencedError:
                return False
            else:
                self.acknowledged.append(Entry(new.index, new.term, nonce, at.nonce, payload))
                return True

    def check(self, log: Sequence[Entry], *, is_calm: bool = True) -> None:
        """Nobody's acknowledged entry is missing. is_calm: the engine failed nowhere, so no append
        had an attempt of before, and what was refused is not in the log."""
        assert [entry.index for entry in log] == list(range(1, len(log) + 1))
        by_index = {entry.index: entry for entry in log}
        assert len({entry.index for entry in self.acknowledged}) == len(self.acknowledged)
        assert [by_index.get(one.index) for one in self.acknowledged] == self.acknowledged
        assert len({entry.nonce for entry in log}) == len(log)
        others = {entry.nonce for entry in log} - {entry.nonce for entry in self.acknowledged}
        assert not is_calm or others <= self.unsure, "an append that was refused is in the log"
