"""Shares of the limits of trees: how many files lanes may still make in a directory by themselves.

The metaserver gives shares in replies to DELEGATE, again when half of the last one is used
(metaserver.quota.shares). A directory without a share is in a tree without limits. Touched by the
trio thread only.
"""

from dataclasses import dataclass

from fscommon.native_ports import ChangesPort


@dataclass(slots=True)
class _Share:
    left: int
    granted: int  # by the last reply
    size_limit: int


class Shares:
    def __init__(self, changes: ChangesPort) -> None:
        self._changes = changes
        self._shares: dict[int, _Share] = {}

    def told(self, directory: int, files: int, size_limit: int) -> None:
        """Lanes may make this many more files, each of which may grow to that size without asking;
        0: there are no limits. Lanes know it before they make the next file."""
        if not files:
            self.forget(directory)
            return
        self._changes.creations_share(directory, files, size_limit)
        had = self._shares.get(directory)
        self._shares[directory] = _Share((had.left if had else 0) + files, files, size_limit)

    def forget(self, directory: int) -> None:
        """The directory has no share any more: lanes make no files in it, or without limits."""
        if self._shares.pop(directory, None) is not None:
            self._changes.creations_unshare(directory)

    def used(self, directory: int) -> None:
        """Lanes made a file."""
        share = self._shares.get(directory)
        if share is not None:
            share.left -= 1

    def is_short(self, directory: int) -> bool:
        """Whether a new share should be requested."""
        share = self._shares.get(directory)
        return share is not None and share.left < share.granted // 2

    def size_limit(self, directory: int) -> int | None:
        """The size limit of files that lanes made in the directory; None: there is none."""
        share = self._shares.get(directory)
        return share.size_limit if share is not None else None
