"""`python -m metaserver.store.sound DIRECTORY`: reads a whole store, to see whether it is damaged.

LMDB trusts its file. A file that is cut short, or has other bytes in its pages, may end the process
that reads it by a signal. So whoever has another copy of the state (metaserver.own_store) has a
process of this module read the store first. It reads some 3 million records a second, and changes
nothing. Records that it has not read after READING_S_MAX are met later, one by one.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from fscommon.errors import ProtocolError
from fscommon.wire.codec import decode
from metaserver.store.journaled import MARK_KEY, Mark
from metaserver.store.lmdb import DamagedStoreError, read_store
from metaserver.store.waist import StoreError

READING_S_MAX: Final = 25.0
EXIT_SOUND: Final = 0
EXIT_UNREAD: Final = 1  # it could not be read, which may have nothing to do with the store
EXIT_DAMAGED: Final = 3
_CRASHES: Final = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)
_LOOK_EACH: Final = 4096  # records between two looks at the clock


def read_all(directory: Path, seconds_max: float = READING_S_MAX) -> int:
    """Returns how many records were read in the time. Raises DamagedStoreError, StoreError."""
    until_s = time.monotonic() + seconds_max
    count = 0
    for key, value in read_store(directory):
        count += 1
        if key == MARK_KEY:
            _check_mark(value)
        if count % _LOOK_EACH == 0 and time.monotonic() > until_s:
            break
    return count


def _check_mark(value: bytes) -> None:
    try:
        decode(Mark, value)
    except ProtocolError as error:
        raise DamagedStoreError(f"its mark of the journal is damaged: {error}") from error


def damage_of(directory: Path) -> str:
    """How the store is damaged; "": it is not. Raises StoreError if it could not be read for
    another reason. Blocks for READING_S_MAX and some seconds at most."""
    words = (sys.executable, "-P", "-m", "metaserver.store.sound", str(directory))
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * READING_S_MAX,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StoreError(f"{directory} could not be read: {error}") from error
    said = done.stdout.strip()
    if -done.returncode in _CRASHES:
        return f"who reads it is ended by {signal.Signals(-done.returncode).name}"
    if done.returncode == EXIT_DAMAGED:
        return said
    if done.returncode != EXIT_SOUND:
        raise StoreError(said or f"{directory} could not be read: {done.stderr.strip()[-400:]}")
    return ""


def main(arguments: list[str]) -> int:
    try:
        count = read_all(Path(arguments[0]))
    except DamagedStoreError as error:
        print(error)  # noqa: T201 - the output of a command
        return EXIT_DAMAGED
    except (StoreError, OSError) as error:
        print(error)  # noqa: T201 - the output of a command
        return EXIT_UNREAD
    print(count)  # noqa: T201 - the output of a command
    return EXIT_SOUND


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
