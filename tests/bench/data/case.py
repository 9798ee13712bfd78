"""What a case is, and what its run receives and returns."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.bench.data.amounts import Amounts
from tests.bench.data.bars import Row
from tests.bench.data.places import NullPlace, Place

Values = Mapping[str, float]  # the key is the row


@dataclass(frozen=True, slots=True)
class Case:
    """`key`: the letter of the case. `rows`: its rows for these amounts. `run`: returns values for
    some of the rows, those that are possible at this place. `cleans`: the folder is emptied
    afterwards."""

    key: str
    title: str
    rows: Callable[[Amounts], Sequence[Row]]
    run: Callable[[Place, Amounts], Values]


def empty(place: Place) -> None:
    """Null FUSE stores nothing; elsewhere everything that a case left is removed."""
    if isinstance(place, NullPlace):
        return
    for path in place.folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
