"""Rules of decision 0065, each broken on purpose: a world of mirrors must notice."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from fscommon.types import Ino
from metaserver.copier import Copier
from metaserver.namespace.copies import finish
from metaserver.walk import Walk

Break = Callable[[pytest.MonkeyPatch], None]


def _claim_ends_early(patch: pytest.MonkeyPatch) -> None:
    """A writer gets the file before the former names are settled."""

    async def settle(self: Any, ino: Ino) -> None:
        names = self._moved(ino)
        if names:
            self._claims.give_back(ino)
            await self._dropping.settle(names)
            self._change(lambda tx, context: finish(tx, ino))

    patch.setattr(Copier, "settle", settle)


def _dropped_while_it_answers(patch: pytest.MonkeyPatch) -> None:
    """A rebuild drops replicas of a target that answers, and settles no names."""
    patch.setattr(Walk, "_moves", lambda self, context: self.job.kind == "drain")


MUTANTS: Final[dict[str, Break]] = {
    "the claim ends before the former names are settled": _claim_ends_early,
    "a rebuild drops what answers": _dropped_while_it_answers,
}


@contextmanager
def broken(mutant: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        MUTANTS[mutant](patch)
        yield
