"""The verbs list, verify, remove and tidy: what they do, and what they say, without a terminal.

`python -m braidfs.checkpoint` and `braidfs checkpoint` are both made of this.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import names
from .errors import CheckpointError, StepLost
from .shelf import TIDY_AGE, Shelf
from .verify import Progress, Verified, shelf_of, verify

DONE, FAILED, USAGE, NOT_WHOLE = 0, 1, 2, 3


@dataclass(frozen=True)
class Answer:
    """shown: for programs (--json). lines: for people. exit: the exit code."""

    shown: Mapping[str, Any]
    lines: Sequence[str]
    exit: int = DONE


def list_steps(root: Path) -> Answer:
    """All visible steps, and the hidden directories."""
    shelf = _checked(root)
    steps = shelf.steps()
    hidden = sorted(one.name for one in root.iterdir() if _is_hidden(one.name))
    rows = [
        {
            "step": step.number,
            "path": str(step.path),
            "bytes": step.bytes,
            "parts": step.parts,
            "attempt": step.attempt,
        }
        for step in steps
    ]
    lines = [
        f"{step.number:>12}  {step.bytes:>18,} bytes  {step.parts:>5} parts  {step.attempt}"
        for step in steps
    ]
    lines += [f"hidden: {name}" for name in hidden]
    return Answer({"root": str(root), "steps": rows, "hidden": hidden}, lines or ["no steps"])


def chosen_steps(root: Path, steps: Sequence[int]) -> list[int]:
    """Those named, else all that are visible. Raises CheckpointError if there is no such root."""
    return list(steps) or _checked(root).numbers()


def verify_steps(root: Path, steps: Sequence[int], progress: Progress) -> Answer:
    """Exit 3 when one of them is not whole."""
    shelf = _checked(root)
    results = []
    for step in chosen_steps(root, steps):
        try:
            results.append(verify(shelf, step, progress))
        except StepLost:
            if steps:
                raise
            # A run that goes on has removed it since it was listed.
    rows = [
        {
            "step": one.step,
            "whole": not one.faults,
            "files": one.files,
            "bytes": one.bytes,
            "summed": one.summed,
            "faults": [{"file": fault.file, "text": fault.text} for fault in one.faults],
        }
        for one in results
    ]
    is_whole = not any(one.faults for one in results)
    lines = [line for one in results for line in _verified_lines(one)] or ["no steps"]
    shown = {"root": str(root), "whole": is_whole, "steps": rows}
    return Answer(shown, lines, DONE if is_whole else NOT_WHOLE)


def remove_steps(root: Path, steps: Sequence[int]) -> Answer:
    """Exit 1 when somebody reads one of them, which stays."""
    shelf = _checked(root)
    removed = [step for step in steps if shelf.remove(step)]
    kept = [step for step in steps if step not in removed]
    lines = [f"step {step} is removed" for step in removed]
    lines += [f"step {step} stays: somebody reads it" for step in kept]
    shown = {"root": str(root), "removed": removed, "read": kept}
    return Answer(shown, lines, FAILED if kept else DONE)


def tidy_root(root: Path, age: float = TIDY_AGE) -> Answer:
    """What crashed writers and removers left."""
    gone = _checked(root).tidy(age)
    lines = [f"{name} is removed" for name in gone] or ["nothing to remove"]
    return Answer({"root": str(root), "removed": gone}, lines)


def _checked(root: Path) -> Shelf:
    if not root.is_dir():
        raise CheckpointError(f"{root} is no directory")
    return shelf_of(root)


def _is_hidden(name: str) -> bool:
    return names.read_partial(name) is not None or name.startswith(names.REMOVED)


def _verified_lines(one: Verified) -> list[str]:
    if one.faults:
        return [str(fault) for fault in one.faults]
    by = "names, sizes and sums" if one.summed == one.files else "names and sizes"
    files = f"{one.files:,} file{'' if one.files == 1 else 's'}"
    return [f"step {one.step} is whole: {files}, {one.bytes:,} bytes, by {by}"]
