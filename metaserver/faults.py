"""What fails in a background task of the metaserver costs that step, not the metaserver.

A fault there is a bug, often one that a record brings out which some request made: a metaserver
that ended by it would find the record again after its start. Faults of the store are another
matter: the committer raises them, and they end the program.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from fscommon.observe.log import Log, RateLimit

_LOG_S: Final = 60.0


class Faults:
    def __init__(self, log: Log) -> None:
        self._log = log
        self._lines = RateLimit(_LOG_S)

    @contextmanager
    def contained(self, what: str, **fields: object) -> Iterator[None]:
        """Whatever the block raises is told, once a minute, and goes no further."""
        try:
            yield
        except Exception:
            suppressed = self._lines.permit()
            if suppressed is not None:
                fields["suppressed"] = suppressed or None
                self._log.exception(f"{what} failed: this is a bug", **fields)
