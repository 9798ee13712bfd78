"""Logs files of which something was lost with an evicted session."""

from collections.abc import Callable, Iterable

LOST_INODES_NAMED = 100  # in one line of the log


def tell_losses(losses: Iterable[tuple[int, bool]], log: Callable[[str], None]) -> None:
    """losses: inodes, each with whether written bytes were lost (else it is only not durable)."""
    unsynced = []
    for ino, is_written in losses:
        if is_written:
            log(f"written bytes of inode {ino} are lost: its next fsync or close fails")
        else:
            unsynced.append(ino)
    if unsynced:
        names = ", ".join(map(str, unsynced[:LOST_INODES_NAMED]))
        more = ", ..." if len(unsynced) > LOST_INODES_NAMED else ""
        log(
            f"{len(unsynced)} files were closed and not synced when the session was lost, and"
            f" may not be durable: inodes {names}{more}"
        )
