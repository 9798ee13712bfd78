"""The metaserver's state directory: who uses it, and what lies in it.

A running metaserver, and a restore into it, hold an flock(2) on the file `lock` there, so that
there is one of them at a time. The kernel lets go of it whatever ends the process. The store is in
`store`. A restore writes into `store.restoring` and renames that at its end; what an interrupted
restore leaves is never taken for a store.

A damaged store of a metaserver that is one of several is moved to `store.damaged-TIME`, one of
them. While it is there, an empty store is not the beginning of a new cluster.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fscommon.errors import ConfigError
from fscommon.files import sync_directory

STORE: Final = "store"
FORMER: Final = "store.former"  # what a copy, or a recovery, has replaced
RESTORING: Final = "store.restoring"
RECOVERING: Final = "store.recovering"  # see metaserver.recovery
_DAMAGED: Final = "store.damaged-"
_LOCK: Final = "lock"


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """Holds the directory, which is made if it is not there. Raises ConfigError if another process
    has it, OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    file = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            said = "a running metaserver, or a restore"
            raise ConfigError(f"{directory} is in use by another process: {said}") from None
        yield
    finally:
        os.close(file)


def check_restored(directory: Path) -> None:
    """Raises ConfigError if a restore into the directory was interrupted: a metaserver that began
    anew there would be that of another cluster."""
    if (directory / RESTORING).exists() and not (directory / STORE).exists():
        raise ConfigError(
            f"a restore into {directory} was interrupted: run `braidfs meta restore` again, "
            f"or remove {directory / RESTORING} to begin a new cluster"
        )
    if (directory / RECOVERING).exists() and not (directory / STORE).exists():
        raise ConfigError(
            f"a recovery in {directory} was interrupted: run `braidfs-metaserver "
            "--recover-from-local` again"
        )


def set_aside(directory: Path) -> Path:
    """Moves a damaged store out of its place, durably, and removes one that was moved before.
    Returns where it is. Raises OSError."""
    place = directory / time.strftime(f"{_DAMAGED}%Y%m%dT%H%M%SZ", time.gmtime())
    _remove(place)
    (directory / STORE).rename(place)
    sync_directory(directory)
    for path in directory.glob(f"{_DAMAGED}*"):
        if path != place:
            _remove(path)
    return place


def set_aside_before(directory: Path) -> Path | None:
    """The damaged store that was moved out of its place, if it is still there."""
    return max(directory.glob(f"{_DAMAGED}*"), default=None)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
