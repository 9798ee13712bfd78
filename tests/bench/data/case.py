"""What a case is, and what its run is given and gives back."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.bench.data.amounts import Amounts
from tests.bench.data.bars import Row
from tests.bench.data.places import NullPlace, Place

Values = Mapping[str, float]  # row → value


@dataclass(frozen=True, slots=True)
class Case:
    """key: the letter of the case. rows: of these amounts. run: gives values for some of the rows,
    those that this place can have. cleans: the folder is emptied afterwards."""

    key: str
    title: str
    rows: Callable[[Amounts], Sequence[Row]]
    run: Callable[[Place, Amounts], Values]


def empty(place: Place) -> None:
    """Null FUSE holds nothing; elsewhere all that a case left goes."""
    if isinstance(place, NullPlace):
        return
    for path in place.folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
