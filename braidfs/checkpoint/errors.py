"""What can go wrong with a checkpoint, each with its own class.

An OSError of the disk (ENOSPC, EDQUOT, EIO…) is none of these: it passes through with its file.
"""

from collections.abc import Sequence
from pathlib import Path

__all__ = [
    "AttemptUsedError",
    "CheckpointError",
    "CommitTimeout",
    "DrainFailed",
    "LockTimeout",
    "NotWhole",
    "PartFailed",
    "StagingFull",
    "StepExists",
    "StepLost",
]


class CheckpointError(Exception):
    """The class of all errors below."""


class PartFailed(CheckpointError):  # noqa: N818 - the name that the documentation promises
    """A rank ended its part with an exception, so this attempt never becomes visible."""

    def __init__(self, part: int, text: str) -> None:
        super().__init__(part, text)
        self.part, self.text = part, text

    def __str__(self) -> str:
        return f"part {self.part} failed: {self.text}"


class StepExists(CheckpointError):  # noqa: N818
    """The step is visible already, written by another attempt."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step

    def __str__(self) -> str:
        return f"step {self.step} exists already; remove it first, or go on from it"


class AttemptUsedError(CheckpointError):
    """This part was written in an attempt of the same name before; the attempt is given up."""

    def __init__(self, step: int, attempt: str, part: int) -> None:
        super().__init__(step, attempt, part)
        self.step, self.attempt, self.part = step, attempt, part

    def __str__(self) -> str:
        return (
            f"part {self.part} of step {self.step} was begun or ended in attempt {self.attempt!r} "
            "before: give each try of a job its own attempt"
        )


class CommitTimeout(CheckpointError):  # noqa: N818
    """Some parts did not end in time. `missing` has the first of their numbers (32 at most)."""

    def __init__(self, step: int, missing: Sequence[int]) -> None:
        super().__init__(step, tuple(missing))
        self.step, self.missing = step, tuple(missing)

    def __str__(self) -> str:
        parts = ", ".join(map(str, self.missing)) or "none: its commit did not end"
        return f"step {self.step} was not committed in time; parts that are missing: {parts}"


class StepLost(CheckpointError):  # noqa: N818
    """The step is neither visible nor being written: it was removed, or given up by `tidy`.

    step: None if any step would have done, and there is none.
    """

    def __init__(self, step: int | None) -> None:
        super().__init__(step)
        self.step = step

    def __str__(self) -> str:
        if self.step is None:
            return "there is no step yet"
        return f"step {self.step} is not there: it was removed, or never committed"


class NotWhole(CheckpointError):  # noqa: N818
    """A file of the step is missing, or is not the one that was committed."""

    def __init__(self, step: int, file: str, text: str) -> None:
        super().__init__(step, file, text)
        self.step, self.file, self.text = step, file, text

    def __str__(self) -> str:
        return f"step {self.step} is not whole: {self.file}: {self.text}"


class StagingFull(CheckpointError):  # noqa: N818
    """As many steps as may be in memory are still there, and the time to wait is over."""

    def __init__(self, staged: Sequence[int]) -> None:
        super().__init__(tuple(staged))
        self.staged = tuple(staged)

    def __str__(self) -> str:
        return f"steps {', '.join(map(str, self.staged))} are in memory, and not yet durable"


class LockTimeout(CheckpointError):  # noqa: N818
    """Another process of this node held a lock for longer than this one could wait.

    path: of the locked file. seconds: how long this process has waited.
    """

    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__(path, seconds)
        self.path, self.seconds = path, seconds

    def __str__(self) -> str:
        return (
            f"another process of this node has held {self.path} for {self.seconds:.0f} s: "
            "it hangs, or was stopped"
        )


class DrainFailed(CheckpointError):  # noqa: N818
    """A step that was staged in memory could not be made durable."""

    def __init__(self, step: int, text: str) -> None:
        super().__init__(step, text)
        self.step, self.text = step, text

    def __str__(self) -> str:
        return f"step {self.step} was in memory, and did not become durable: {self.text}"
