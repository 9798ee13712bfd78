"""Is a history of concurrent operations linearizable? A checker in the manner of Porcupine.

A history is what clients saw: each operation with the time of its call, the time of its answer, and
its result. It is linearizable if every operation can be given one moment between call and answer
such that the operations, one after another in that order, are what a `Model` allows. (The method is
that of Wing and Gong, with Lowe's memory of visited configurations and Porcupine's division into
independent parts.) An operation without an answer (its client died, or got EIO) may have happened
at any time after its call, or never.

The module is pure: no clock, no file, no thread. The search is bounded: it raises `TooHardError`
instead of running without end. Models of files are in `file_models`.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

NEVER: Final = float("inf")
STEPS_MAX: Final = 2_000_000


class Unknown:
    """The result of an operation that was never answered."""

    def __repr__(self) -> str:
        return "UNKNOWN"

    def __reduce__(self) -> str:
        return "UNKNOWN"  # there is only one such object, also behind a pipe


UNKNOWN: Final = Unknown()


@dataclass(frozen=True, slots=True)
class Operation:
    client: int
    call: float
    answer: float  # it is NEVER when the operation was not answered
    argument: Any
    result: Any  # it is UNKNOWN when the operation was not answered


class Model(Protocol):
    """What one copy without concurrency would do. States are immutable and hashable."""

    def initial(self) -> Hashable: ...

    def after(self, state: Any, argument: Any, result: Any) -> Hashable | None:
        """The state afterwards; None when this argument cannot have this result in this state.

        UNKNOWN fits in every state: the operation happened, with any result.
        """
        ...

    def parts(self, history: Sequence[Operation]) -> list[list[Operation]]:
        """The history divided into parts that can be judged separately."""
        ...


@dataclass(frozen=True, slots=True)
class Verdict:
    is_linearizable: bool
    # It is for the part that failed: the longest order that was found.
    order: tuple[Operation, ...]

    def __bool__(self) -> bool:
        return self.is_linearizable


class TooHardError(Exception):
    """The search took more steps than it may: too many operations at the same time."""


def check(history: Sequence[Operation], model: Model, *, steps_max: int = STEPS_MAX) -> Verdict:
    """The verdict on a history. Raises TooHardError, and ValueError for times that go backwards."""
    for operation in history:
        if operation.answer < operation.call:
            raise ValueError(f"answered before it was called: {operation}")
    longest: tuple[Operation, ...] = ()
    for part in model.parts(history):
        search = _Search(part, model, steps_max)
        if not search.run():
            return Verdict(False, search.longest())
        longest = max(longest, search.longest(), key=len)
    return Verdict(True, longest)


class _Search:
    """A depth-first search over orders: a configuration is the set of operations done and the
    state."""

    def __init__(self, history: Sequence[Operation], model: Model, steps_max: int) -> None:
        self._operations = sorted(history, key=lambda operation: operation.call)
        self._model = model
        self._steps_left = steps_max
        self._best: list[int] = []
        self._answered = sum(
            1 << index
            for index, operation in enumerate(self._operations)
            if operation.answer != NEVER
        )

    def longest(self) -> tuple[Operation, ...]:
        return tuple(self._operations[index] for index in self._best)

    def run(self) -> bool:
        state = self._model.initial()
        visited = {(0, state)}
        order: list[int] = []
        stack = [(0, state, self._next(0))]
        while stack:
            done, state, candidates = stack[-1]
            if done & self._answered == self._answered:
                self._best = order
                return True
            found = self._step(done, state, candidates, visited)
            if found is None:
                stack.pop()
                if order:
                    order.pop()
                continue
            index, done, state = found
            order.append(index)
            if len(order) > len(self._best):
                self._best = list(order)
            stack.append((done, state, self._next(done)))
        return False

    def _step(
        self, done: int, state: Hashable, candidates: Iterator[int], visited: set[Any]
    ) -> tuple[int, int, Hashable] | None:
        """The next candidate that the model allows and that leads to a new configuration."""
        for index in candidates:
            self._steps_left -= 1
            if self._steps_left < 0:
                raise TooHardError(f"{len(self._operations)} operations")
            operation = self._operations[index]
            after = self._model.after(state, operation.argument, operation.result)
            configuration = (done | 1 << index, after)
            if after is not None and configuration not in visited:
                visited.add(configuration)
                return index, *configuration
        return None

    def _next(self, done: int) -> Iterator[int]:
        """Operations that may come next: those called before any remaining operation was
        answered."""
        first = (~done & (done + 1)).bit_length() - 1
        limit = NEVER
        for index in range(first, len(self._operations)):
            if done >> index & 1:
                continue
            operation = self._operations[index]
            if operation.call > limit:
                return
            limit = min(limit, operation.answer)
            yield index


def by_key(
    history: Sequence[Operation], key: Callable[[Operation], Hashable]
) -> list[list[Operation]]:
    """Parts of a history whose operations have the same key."""
    parts: dict[Hashable, list[Operation]] = {}
    for operation in history:
        parts.setdefault(key(operation), []).append(operation)
    return list(parts.values())
