"""Whether a visible step is what was committed: names, sizes, and sums where it has some."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import names, sums
from .calls import Calls
from .errors import NotWhole
from .manifest import File
from .shelf import Shelf

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Verified:
    """faults: one for each file that differs, empty if the step is whole. bytes: of its files.

    summed: how many of its files have sums, which were compared.
    """

    step: int
    files: int
    bytes: int
    summed: int
    faults: tuple[NotWhole, ...]


def verify(shelf: Shelf, step: int, progress: Progress = lambda count: None) -> Verified:
    """Compares the files of a step with its manifest; nobody removes the step meanwhile.

    progress: called with the bytes of each file that was compared. Raises StepLost,
    CheckpointError if a sum is of a kind that cannot be computed here, and OSError.
    """
    try:
        with shelf.reading(step) as place:
            manifest = shelf.manifest(step)
            faults = []
            for file in manifest.files:
                text = _fault(place, file)
                if text is not None:
                    faults.append(NotWhole(step, file.name, text))
                progress(file.size)
    except NotWhole as error:  # its manifest
        return Verified(step, 0, 0, 0, (error,))
    if manifest.step != step:
        faults.append(NotWhole(step, names.MANIFEST, f"it is that of step {manifest.step}"))
    summed = sum(file.sum is not None for file in manifest.files)
    return Verified(step, len(manifest.files), manifest.size, summed, tuple(faults))


def size_of(shelf: Shelf, step: int) -> int:
    """How many bytes verify() will compare; 0 if its manifest cannot be read."""
    found = shelf.step(step)
    return 0 if found is None else found.bytes


def shelf_of(root: Path) -> Shelf:
    return Shelf(Calls(), root)


def _fault(place: Path, file: File) -> str | None:
    path = place / file.name
    try:
        size = path.stat().st_size
        if size != file.size:
            return f"it has {size} bytes, not {file.size}"
        if file.sum is not None and sums.sum_of(path, file.sum.split(":")[0]) != file.sum:
            return "its bytes have another sum"
    except (FileNotFoundError, NotADirectoryError):
        return "it is missing"
    return None
