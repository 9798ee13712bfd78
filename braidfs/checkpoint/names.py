"""Names in the directory of a run's checkpoints, and which attempt this process belongs to. Pure.

step-000001200/                      visible: whole and durable
.step-000001200.ATTEMPT.partial/     hidden: being written by the ranks of one attempt
.removed-step-000001200.UNIQUE/      hidden: being deleted
latest                               symbolic link for other tools; nothing here believes it
"""

import os
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

LATEST: Final = "latest"
MANIFEST: Final = "checkpoint.json"
NEW_MANIFEST: Final = ".checkpoint.json."  # begins the name under which a manifest is written
PARTS: Final = ".parts"
REMOVED: Final = ".removed-"
FAILED: Final = ".failed"
COMMITTING: Final = ".committing"  # beside the marks: a rank has begun to commit
STEP_MAX: Final = 999_999_999_999

_VISIBLE: Final = re.compile(r"step-(\d{9,12})")
_PARTIAL: Final = re.compile(r"\.step-(\d{9,12})\.([A-Za-z0-9_+-]{1,64})\.partial")
_MARK: Final = re.compile(r"(\d{5,})(?:\+(\d+))?")
_FAILED: Final = re.compile(r"(\d{5,})\.failed")
_ATTEMPT: Final = re.compile(r"[A-Za-z0-9_+-]{1,64}")


class Partial(NamedTuple):
    step: int
    attempt: str


class Mark(NamedTuple):
    """A mark's first part, and how many parts it stands for."""

    part: int
    parts: int


def visible_name(step: int) -> str:
    return f"step-{step:09d}"


def partial_name(step: int, attempt: str) -> str:
    return f".step-{step:09d}.{attempt}.partial"


def removed_name(name: str, unique: str) -> str:
    return f"{REMOVED}{name.lstrip('.')}.{unique}"


def mark_name(part: int, count: int = 1) -> str:
    return f"{part:05d}" if count == 1 else f"{part:05d}+{count}"


def failed_name(part: int) -> str:
    return f"{part:05d}{FAILED}"


def read_visible(name: str) -> int | None:
    """The step that a visible directory is named for; only the one spelling of a number counts."""
    found = _VISIBLE.fullmatch(name)
    return int(found[1]) if found and visible_name(int(found[1])) == name else None


def read_partial(name: str) -> Partial | None:
    found = _PARTIAL.fullmatch(name)
    return Partial(int(found[1]), found[2]) if found else None


def read_mark(name: str) -> Mark | None:
    found = _MARK.fullmatch(name)
    return Mark(int(found[1]), int(found[2] or 1)) if found else None


def read_failed(name: str) -> int | None:
    found = _FAILED.fullmatch(name)
    return int(found[1]) if found else None


def checked_step(step: int) -> int:
    """Raises ValueError for a number that no step can have."""
    if not 0 <= step <= STEP_MAX:
        raise ValueError(f"a step is a number from 0 to {STEP_MAX}, not {step}")
    return step


def checked_attempt(attempt: str) -> str:
    """Raises ValueError for a word that cannot be in a name."""
    if not _ATTEMPT.fullmatch(attempt):
        raise ValueError(f"an attempt has 1 to 64 letters, digits, '_', '+', '-', not {attempt!r}")
    return attempt


def checked_file(name: str) -> str:
    """Raises ValueError for a name that no file of a part may have.

    It is relative, with '/' between folders, without '.' and '..', and none of this package's own.
    """
    words = name.split("/")
    if any(word in ("", ".", "..") or "\0" in word for word in words):
        raise ValueError(f"{name!r} is no name of a file below the checkpoint's directory")
    if words[0] in (PARTS, MANIFEST) or words[0].startswith(NEW_MANIFEST):
        raise ValueError(f"the name {words[0]!r} is one of the checkpoint's own")
    return name


def default_attempt(
    environment: Mapping[str, str] | None = None, *, alone: str | None = None
) -> str:
    """The attempt of this process: that of torchrun, or of Slurm, with the count of restarts.

    Where neither has set its variables: `alone`, the word of a process that need not agree with
    others. Raises ValueError where that is None.
    """
    known = os.environ if environment is None else environment
    for job, restarts in (
        ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
        ("SLURM_JOB_ID", "SLURM_RESTART_COUNT"),
    ):
        if known.get(job):
            word = re.sub(r"[^A-Za-z0-9_-]", "_", known[job])[-48:]
            return f"{word}-{known.get(restarts) or '0'}"
    if alone is not None:
        return alone
    raise ValueError(
        "give attempt, a word that is the same for all ranks of one try, and another for the next: "
        "neither TORCHELASTIC_RUN_ID nor SLURM_JOB_ID is set"
    )
