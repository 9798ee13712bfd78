"""Logs files of which something was lost with an evicted session."""

from collections.abc import Callable, Iterable

from fscommon.native_ports import LossRow

LOST_INODES_NAMED = 100  # in one line of the log


def tell_losses(losses: Iterable[LossRow], log: Callable[[str], None]) -> None:
    unsynced = []
    for loss in losses:
        if loss.is_written:
            log(f"written bytes of inode {loss.ino} are lost: its next fsync or close fails")
        else:
            unsynced.append(loss.ino)
    if unsynced:
        names = ", ".join(map(str, unsynced[:LOST_INODES_NAMED]))
        more = ", ..." if len(unsynced) > LOST_INODES_NAMED else ""
        log(
            f"{len(unsynced)} files were closed and not synced when the session was lost, and"
            f" may not be durable: inodes {names}{more}"
        )
