"""Arrays of numpy that are views of a batch's memory."""

from typing import TYPE_CHECKING, Any

import numpy

if TYPE_CHECKING:
    from .reading import Batch


def arrays_of(batch: "Batch") -> list[Any]:
    """An array of uint8 for each file; None: it was not read."""
    return [None if one is None else numpy.frombuffer(one, numpy.uint8) for one in batch]
