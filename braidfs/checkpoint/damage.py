"""The error of a checkpoint's file that is not what was written."""

from pathlib import Path

from .errors import CheckpointError


class DamagedFile(CheckpointError, ValueError):  # noqa: N818
    """A file is torn, cut, or not the one that its metadata describe; nothing of it was used.

    `path`: the file. `reason`: what is wrong with it."""

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(f"{path} is damaged: {reason}")
        self.path = Path(path)
        self.reason = reason

    def __reduce__(self) -> tuple[type["DamagedFile"], tuple[Path, str]]:
        return DamagedFile, (self.path, self.reason)  # it goes from rank to rank
