"""Shares of the limits of trees: how many files lanes may still make in a directory by themselves.

The metaserver tells with DELEGATE, and again when half of what it told last is used
(metaserver.quota.shares). A directory without a share is in a tree without limits. One task.
"""

from dataclasses import dataclass

from fscommon.native_ports import ChangesPort


@dataclass(slots=True)
class _Share:
    left: int
    granted: int  # last
    size_limit: int


class Shares:
    def __init__(self, changes: ChangesPort) -> None:
        self._changes = changes
        self._shares: dict[int, _Share] = {}

    def told(self, directory: int, files: int, size_limit: int) -> None:
        """So many files more, each up to that size before its writer asks; 0: there are no limits.
        Lanes know before they make the next file."""
        if not files:
            self.forget(directory)
            return
        self._changes.births_share(directory, files, size_limit)
        had = self._shares.get(directory)
        self._shares[directory] = _Share((had.left if had else 0) + files, files, size_limit)

    def forget(self, directory: int) -> None:
        """Lanes make no files there, or as many as they like."""
        if self._shares.pop(directory, None) is not None:
            self._changes.births_unshare(directory)

    def used(self, directory: int) -> None:
        """Lanes made a file."""
        share = self._shares.get(directory)
        if share is not None:
            share.left -= 1

    def is_short(self, directory: int) -> bool:
        """More should be asked for."""
        share = self._shares.get(directory)
        return share is not None and share.left < share.granted // 2

    def size_limit(self, directory: int) -> int | None:
        """Of a file that lanes made there; None: none."""
        share = self._shares.get(directory)
        return share.size_limit if share is not None else None
