"""Inodes whose truncate has not ended at every target yet (rule 19), or whose bytes are moving from
their record to their objects (metaserver.namespace.inline).

A shrink commits the new size together with an intent (a `T` record). From then until every target
has cut its object, no op may grow the file or open it. `Intents` is the table of these inodes in
memory; the records survive a crash and fill the table at the start. metaserver.truncation does the
cutting; metaserver.engine parks the requests that wait for it.
"""

from collections.abc import Iterator

from fscommon.types import Ino


class Intents:
    def __init__(self) -> None:
        self._pending: set[Ino] = set()
        self._fresh: list[Ino] = []  # the truncation task has not taken these yet
        self._former: set[Ino] = set()  # targets may have been asked before the start

    def __contains__(self, ino: Ino) -> bool:
        return ino in self._pending

    def __len__(self) -> int:
        return len(self._pending)

    def __iter__(self) -> Iterator[Ino]:
        return iter(self._pending)

    def add(self, ino: Ino) -> None:
        if ino not in self._pending:
            self._pending.add(ino)
            self._fresh.append(ino)

    def add_former(self, ino: Ino) -> None:
        self.add(ino)
        self._former.add(ino)

    def is_former(self, ino: Ino) -> bool:
        return ino in self._former

    def take_fresh(self) -> list[Ino]:
        fresh, self._fresh = self._fresh, []
        return fresh

    def done(self, ino: Ino) -> None:
        self._pending.discard(ino)
        self._former.discard(ino)
