"""Contains faults of background tasks: a fault ends one step of the task, not the metaserver.

A record of the store that cannot be read (RecordError) is told of as such. Any other fault is a
bug. Often it comes from a record that some request made: a metaserver that ended because of it
would find the same record again after its start. Faults of the store are different: the committer
raises them, and they end the program.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from fscommon.observe.log import Log, RateLimit
from metaserver.store.waist import RecordError

_LOG_S: Final = 60.0


class Faults:
    def __init__(self, log: Log) -> None:
        self._log = log
        self._lines = RateLimit(_LOG_S)

    @contextmanager
    def contained(self, what: str, **fields: object) -> Iterator[None]:
        """Logs whatever the block raises, at most once a minute, and goes on after the block."""
        try:
            yield
        except RecordError as error:  # whatever is wrong, it was written before
            suppressed = self._lines.permit()
            if suppressed is not None:
                fields["suppressed"] = suppressed or None
                self._log.error(f"{what} failed", error=error, **fields)
        except Exception:
            suppressed = self._lines.permit()
            if suppressed is not None:
                fields["suppressed"] = suppressed or None
                self._log.exception(f"{what} failed: this is a bug", **fields)
