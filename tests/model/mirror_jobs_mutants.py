"""Rules of decision 0065, each broken on purpose: a world of mirrors must notice. The decision says
which rules have tests of their own instead."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from fscommon.types import Ino
from metaserver import copier
from metaserver.context import Context
from metaserver.copier import Copier
from metaserver.namespace.copies import Plan, add, finish
from metaserver.namespace.replicas import doom
from metaserver.repair import Repair
from metaserver.transaction import Transaction
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


class _ForgetfulSet(set[Ino]):
    """It never has what it is asked for."""

    def __contains__(self, key: object) -> bool:
        return False


def _two_jobs_copy(patch: pytest.MonkeyPatch) -> None:
    """Repair and a walk copy the same file beside each other."""
    init = Repair.__init__

    def begin(self: Any, *given: Any) -> None:
        init(self, *given)
        self._under_way = _ForgetfulSet()

    patch.setattr(Repair, "__init__", begin)


def _deleted_with_the_change(patch: pytest.MonkeyPatch) -> None:
    """Objects are deleted while clients with the former view may still read them."""

    def add_and_doom(tx: Transaction, context: Context, made: Plan) -> bool:
        is_added = add(tx, context, made)
        if is_added:
            doom(tx, made.gone)
        return is_added

    patch.setattr(copier, "add", add_and_doom)


MUTANTS: Final[dict[str, Break]] = {
    "the claim ends before the former names are settled": _claim_ends_early,
    "a rebuild drops what answers": _dropped_while_it_answers,
    "two jobs copy a file": _two_jobs_copy,
    "what has left is deleted with the change": _deleted_with_the_change,
}


@contextmanager
def broken(mutant: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        MUTANTS[mutant](patch)
        yield
