"""Tests of the checker itself: known good and bad histories, and agreement with trying
every order.
"""

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model.file_models import (
    OK,
    Add,
    Append,
    Appends,
    Counter,
    Create,
    Link,
    Locks,
    Lookup,
    Names,
    ReadAll,
    Release,
    Rename,
    TryLock,
    Unlink,
)
from tests.model.linearizability import NEVER, UNKNOWN, Model, Operation, TooHardError, check

Row = tuple[int, float, float, Any, Any]
Histories = dict[str, tuple[Model, list[Row]]]


def history(*rows: Row) -> list[Operation]:
    return [Operation(*row) for row in rows]


GOOD: Histories = {
    "nothing": (Names(), []),
    "one after another": (
        Names(),
        [
            (0, 0, 1, Create("a", 1), OK),
            (1, 2, 3, Lookup("a"), 1),
            (0, 4, 5, Unlink("a"), OK),
            (1, 6, 7, Lookup("a"), "ENOENT"),
        ],
    ),
    "the winner is the one that was called later": (
        Names(),
        [(0, 0, 9, Create("a", 1), "EEXIST"), (1, 1, 8, Create("a", 2), OK)],
    ),
    "a lookup during a rename sees either": (
        Names(),
        [
            (0, 0, 1, Create("a", 1), OK),
            (0, 2, 9, Rename("a", "b"), OK),
            (1, 3, 4, Lookup("a"), 1),
            (1, 5, 6, Lookup("b"), 1),
        ],
    ),
    "rename between two names of one file": (
        Names(),
        [
            (0, 0, 1, Create("a", 1), OK),
            (0, 2, 3, Link("a", "b"), OK),
            (0, 4, 5, Rename("a", "b"), OK),
            (0, 6, 7, Lookup("a"), 1),
        ],
    ),
    "an unanswered create that happened late": (
        Names(),
        [
            (0, 0, NEVER, Create("a", 1), UNKNOWN),
            (1, 1, 2, Lookup("a"), "ENOENT"),
            (1, 3, 4, Lookup("a"), 1),
        ],
    ),
    "an unanswered create that never happened": (
        Names(),
        [(0, 0, NEVER, Create("a", 1), UNKNOWN), (1, 1, 2, Create("a", 2), OK)],
    ),
    "appends at the same time": (
        Appends(),
        [
            (0, 0, 5, Append("f", b"x"), OK),
            (1, 0, 5, Append("f", b"y"), OK),
            (0, 6, 7, ReadAll("f"), (b"y", b"x")),
        ],
    ),
    "a lock goes from hand to hand": (
        Locks(),
        [
            (0, 0, 1, TryLock("f", 0), OK),
            (1, 2, 3, TryLock("f", 1), "EAGAIN"),
            (0, 4, 7, Release("f", 0), OK),
            (1, 5, 6, TryLock("f", 1), OK),
        ],
    ),
    "a counter": (
        Counter(),
        [(0, 0, 9, Add("f", 1), 2), (1, 0, 9, Add("f", 2), 0), (0, 10, 11, Add("f", 0), 3)],
    ),
}

BAD: Histories = {
    "two winners of O_EXCL": (
        Names(),
        [(0, 0, 9, Create("a", 1), OK), (1, 1, 8, Create("a", 2), OK)],
    ),
    "a stale lookup": (Names(), [(0, 0, 1, Create("a", 1), OK), (1, 2, 3, Lookup("a"), "ENOENT")]),
    "a name that was removed is seen": (
        Names(),
        [(0, 0, 1, Create("a", 1), OK), (0, 2, 3, Unlink("a"), OK), (1, 4, 5, Lookup("a"), 1)],
    ),
    "a rename that is half done": (
        Names(),
        [
            (0, 0, 1, Create("a", 1), OK),
            (0, 2, 9, Rename("a", "b"), OK),
            (1, 3, 4, Lookup("b"), 1),
            (1, 5, 6, Lookup("a"), 1),
        ],
    ),
    "a file is nowhere during a rename": (
        Names(),
        [
            (0, 0, 1, Create("a", 1), OK),
            (0, 0, 1, Create("b", 2), OK),
            (0, 2, 9, Rename("a", "b"), OK),
            (1, 3, 4, Lookup("b"), "ENOENT"),
        ],
    ),
    "an unanswered create that happened and went again": (
        Names(),
        [
            (0, 0, NEVER, Create("a", 1), UNKNOWN),
            (1, 1, 2, Lookup("a"), 1),
            (1, 3, 4, Lookup("a"), "ENOENT"),
        ],
    ),
    "a lost append": (
        Appends(),
        [
            (0, 0, 5, Append("f", b"x"), OK),
            (1, 0, 5, Append("f", b"y"), OK),
            (0, 6, 7, ReadAll("f"), (b"x",)),
        ],
    ),
    "appends in two orders": (
        Appends(),
        [
            (0, 0, 5, Append("f", b"x"), OK),
            (1, 0, 5, Append("f", b"y"), OK),
            (0, 2, 3, ReadAll("f"), (b"x",)),
            (1, 6, 7, ReadAll("f"), (b"y", b"x")),
        ],
    ),
    "two holders of a lock": (
        Locks(),
        [
            (0, 0, 1, TryLock("f", 0), OK),
            (1, 2, 3, TryLock("f", 1), OK),
            (0, 4, 5, Release("f", 0), OK),
        ],
    ),
    "a lost update of a counter": (
        Counter(),
        [(0, 0, 9, Add("f", 1), 0), (1, 0, 9, Add("f", 1), 0)],
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_good_histories(name: str) -> None:
    model, rows = GOOD[name]
    assert check(history(*rows), model)


@pytest.mark.parametrize("name", BAD)
def test_bad_histories(name: str) -> None:
    model, rows = BAD[name]
    verdict = check(history(*rows), model)
    assert not verdict
    assert len(verdict.order) < len(rows), "there is no order of all of them"


def test_an_order_that_was_found_is_one() -> None:
    rows = history((0, 0, 9, Create("a", 1), "EEXIST"), (1, 1, 8, Create("a", 2), OK))
    assert check(rows, Names()).order == (rows[1], rows[0])


def test_times_that_go_backwards_are_refused() -> None:
    with pytest.raises(ValueError, match="before it was called"):
        check(history((0, 2, 1, Lookup("a"), "ENOENT")), Names())


def test_the_search_is_bounded() -> None:
    rows = [(index, 0, 9, Append("f", b"%d" % index), OK) for index in range(12)]
    with pytest.raises(TooHardError):
        check(history(*rows, (0, 10, 11, ReadAll("f"), ())), Appends(), steps_max=10_000)


def test_names_that_nothing_connects_are_judged_apart() -> None:
    rows: list[Row] = [(index, 0, 9, Create(f"n{index}", index), OK) for index in range(200)]
    assert len(Names().parts(history(*rows))) == 200
    assert check(history(*rows), Names())
    rows.append((0, 0, 9, Rename("n0", "n1"), OK))
    assert len(Names().parts(history(*rows))) == 199


_NAMES = st.sampled_from("ab")
_ARGUMENTS = st.one_of(
    st.builds(Create, _NAMES, st.integers(1, 2)),
    st.builds(Unlink, _NAMES),
    st.builds(Rename, _NAMES, _NAMES),
    st.builds(Link, _NAMES, _NAMES),
    st.builds(Lookup, _NAMES),
)
_RESULTS = st.sampled_from([OK, "EEXIST", "ENOENT", 1, 2])


@st.composite
def _operations(draw: st.DrawFn) -> Operation:
    call = draw(st.integers(0, 8))
    if draw(st.integers(0, 5)) == 0:
        return Operation(0, call, NEVER, draw(_ARGUMENTS), UNKNOWN)
    return Operation(0, call, call + draw(st.integers(0, 4)), draw(_ARGUMENTS), draw(_RESULTS))


def _by_trying_all(rows: Sequence[Operation]) -> bool:
    answered = [row for row in rows if row.answer != NEVER]
    pending = [row for row in rows if row.answer == NEVER]
    for count in range(len(pending) + 1):
        for some in itertools.combinations(pending, count):
            if any(map(_is_an_order, itertools.permutations([*answered, *some]))):
                return True
    return False


def _is_an_order(order: Sequence[Operation]) -> bool:
    model = Names()
    state = model.initial()
    for index, row in enumerate(order):
        if any(later.answer < row.call for later in order[index + 1 :]):
            return False
        following = model.after(state, row.argument, row.result)
        if following is None:
            return False
        state = following
    return True


@given(st.lists(_operations(), max_size=5))
def test_agrees_with_trying_every_order(rows: list[Operation]) -> None:
    assert bool(check(rows, Names())) == _by_trying_all(rows)


def _lived(seed: int, count: int, clients: int) -> list[Operation]:
    """A history of a directory that really is linearizable: each operation happens within its
    interval."""
    rng = random.Random(seed)
    model, state, rows, now = Names(), Names().initial(), [], 0.0
    for index in range(count):
        now += 1
        name, other = rng.sample("abcdef", 2)
        kinds = (Create(name, index), Unlink(name), Rename(name, other), Lookup(name))
        argument = rng.choice(kinds)
        results = [OK, "EEXIST", "ENOENT", *(ino for _, ino in state)]
        outcomes = ((result, model.after(state, argument, result)) for result in results)
        result, state = next((one, after) for one, after in outcomes if after is not None)
        before, after = rng.random() * clients / 2, rng.random() * clients / 2
        rows.append(Operation(index % clients, now - before, now + after, argument, result))
    return rows


@pytest.mark.parametrize("seed", range(5))
def test_thousands_of_operations(seed: int) -> None:
    rows = _lived(seed, 3000, clients=6)
    assert check(rows, Names())


@pytest.mark.parametrize("seed", range(5))
def test_one_wrong_answer_among_thousands(seed: int) -> None:
    """A lookup finds a file that never existed."""
    rows = _lived(seed, 2000, clients=4)
    at = next(i for i in range(1000, 2000) if isinstance(rows[i].argument, Lookup))
    wrong = rows[at]
    rows[at] = Operation(wrong.client, wrong.call, wrong.answer, wrong.argument, 999_999)
    assert not check(rows, Names())
