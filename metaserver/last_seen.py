"""What a metaserver has seen of its journal last: STATE_DIRECTORY/journal.seen.

It is for the day on which the journal is lost (metaserver.recovery). It is written every two
seconds, and not synced: a machine that loses power loses the newest half a minute of it, and an
administrator reads it, who is told so.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fscommon.errors import ConfigError
from metaserver.store.journal import Head

_FILE: Final = "journal.seen"


@dataclass(frozen=True, slots=True)
class LastSeen:
    """time_s: of the wall clock."""

    head: Head
    time_s: int


def keep_seen(directory: Path, seen: LastSeen) -> None:
    """Does nothing if it cannot be written: what is missing is told when it is needed."""
    head = seen.head
    fields = {
        "log": head.log.hex(),
        "term": head.term,
        "index": head.index,
        "owner": head.owner,
        "time": seen.time_s,
    }
    new = directory / f"{_FILE}.new"
    with suppress(OSError):
        new.write_text(json.dumps(fields) + "\n")
        new.rename(directory / _FILE)


def last_seen(directory: Path) -> LastSeen | None:
    """None: it was never written. Raises ConfigError."""
    path = directory / _FILE
    try:
        fields = json.loads(path.read_text())
        log, owner = bytes.fromhex(fields["log"]), str(fields["owner"])
        head = Head(log, int(fields["term"]), int(fields["index"]), owner=owner)
        return LastSeen(head, int(fields["time"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"cannot read {path}: {error!r}: move it away") from error
