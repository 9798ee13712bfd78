"""Backups that are being read: the snapshot of each, and when it is dropped.

LMDB cannot use pages again that a snapshot needs, so the store grows while one is held. Therefore
there are few, and each ends with its connection, when its reader was silent for SILENCE_S, and when
the store is full. Only the event loop's thread uses the table.
"""

import secrets
from dataclasses import dataclass
from typing import Final

from fscommon.errors import FsError, Status
from metaserver.store.waist import Snapshot, Store

BACKUPS_MAX: Final = 2
SILENCE_S: Final = 60.0


@dataclass(slots=True)
class _Backup:
    owner: object  # its connection
    heard_s: float
    whole: bool  # with stored replies
    snapshot: Snapshot | None = None

    def close(self) -> None:
        if self.snapshot is not None:
            self.snapshot.close()


class Backups:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._backups: dict[int, _Backup] = {}

    def __len__(self) -> int:
        return len(self._backups)

    def begin(self, owner: object, now_s: float, *, whole: bool) -> int:
        """Returns the id of a new backup. Raises EBUSY."""
        if len(self._backups) >= BACKUPS_MAX:
            raise FsError(Status.EBUSY, f"{BACKUPS_MAX} backups are running: try again later")
        number = secrets.randbits(63) + 1
        self._backups[number] = _Backup(owner, now_s, whole)
        return number

    def snapshot(self, number: int, owner: object, now_s: float) -> tuple[Snapshot, bool]:
        """Returns the snapshot of the backup, which the first call takes, and whether it is read
        whole. Raises ENOENT."""
        backup = self._backups.get(number)
        if backup is None or backup.owner is not owner:
            said = "it was silent for a minute, or the metadata store is full"
            raise FsError(Status.ENOENT, f"the metaserver has given up this backup: {said}")
        backup.heard_s = now_s
        if backup.snapshot is None:
            backup.snapshot = self._store.snapshot()
        return backup.snapshot, backup.whole

    def end(self, number: int, owner: object) -> None:
        """Does nothing if there is no such backup."""
        backup = self._backups.get(number)
        if backup is not None and backup.owner is owner:
            self._drop(number)

    def closed(self, owner: object) -> None:
        """The connection has ended."""
        for number in [n for n, backup in self._backups.items() if backup.owner is owner]:
            self._drop(number)

    def expire(self, now_s: float, *, is_full: bool) -> int:
        """Drops backups whose readers are silent, and all of them if the store is full. Returns how
        many it has dropped."""
        late = [n for n, b in self._backups.items() if is_full or now_s - b.heard_s > SILENCE_S]
        for number in late:
            self._drop(number)
        return len(late)

    def _drop(self, number: int) -> None:
        self._backups.pop(number).close()
