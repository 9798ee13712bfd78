"""What files promise to several clients, as models for `linearizability.check`.

`Names`: create (O_EXCL), unlink, rename, link and lookup in directories. `Appends`: records that
O_APPEND writes put at the end of a file, and reads of the whole file. `Locks`: one exclusive lock
per file, tried and released. `Counter`: a number in a file that is read and increased under a lock.
Results are those of the system calls: a value, or the name of an errno.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.model.linearizability import UNKNOWN, Operation, by_key

OK = "OK"


@dataclass(frozen=True, slots=True)
class Create:
    """`ino`: that of the file, if the call creates it; below -1: unknown, because the answer was
    lost."""

    name: str
    ino: int


@dataclass(frozen=True, slots=True)
class Unlink:
    name: str


@dataclass(frozen=True, slots=True)
class Rename:
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Link:
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Lookup:
    """Its result is the inode number, or ENOENT."""

    name: str


_Names = frozenset[tuple[str, int]]


def _put(state: dict[str, int], name: str, ino: int) -> _Names:
    return frozenset({**state, name: ino}.items())


def _without(state: dict[str, int], name: str) -> _Names:
    return frozenset((other, ino) for other, ino in state.items() if other != name)


class Names:
    """A directory: a map of names to inode numbers. Names that no rename connects are independent.

    If the number of a file is unknown, the first lookup of the file reveals it.
    """

    def initial(self) -> _Names:
        return frozenset()

    def after(self, state: _Names, argument: Any, result: Any) -> _Names | None:
        if isinstance(argument, Lookup) and isinstance(result, int):
            state = _told(dict(state), argument.name, result)
        wanted, changed = _name_step(dict(state), argument)
        if result is UNKNOWN or result == wanted:
            return state if changed is None else changed
        return None

    def parts(self, history: Sequence[Operation]) -> list[list[Operation]]:
        roots: dict[str, str] = {}

        def root(name: str) -> str:
            while (above := roots.setdefault(name, name)) != name:
                name = above
            return name

        for operation in history:
            names = _names_of(operation.argument)
            for name in names[1:]:
                roots[root(names[0])] = root(name)
        return by_key(history, lambda operation: root(_names_of(operation.argument)[0]))


def _told(state: dict[str, int], name: str, ino: int) -> _Names:
    """The state after the file of this name turned out to have this number, if its number was
    unknown."""
    known = state.get(name, 0)
    if known >= -1 or ino in state.values():
        return frozenset(state.items())
    return frozenset((other, ino if one == known else one) for other, one in state.items())


def _names_of(argument: Any) -> tuple[str, ...]:
    if isinstance(argument, Rename | Link):
        return (argument.old, argument.new)
    return (argument.name,)


def _name_step(state: dict[str, int], argument: Any) -> tuple[object, _Names | None]:
    """The result, and the state if it changes."""
    match argument:
        case Lookup(name):
            return state.get(name, "ENOENT"), None
        case Create(name, ino):
            return ("EEXIST", None) if name in state else (OK, _put(state, name, ino))
        case Unlink(name):
            return (OK, _without(state, name)) if name in state else ("ENOENT", None)
    return _two_names_step(state, argument)


def _two_names_step(state: dict[str, int], argument: Any) -> tuple[object, _Names | None]:
    if argument.old not in state:
        return "ENOENT", None
    ino = state[argument.old]
    if isinstance(argument, Link):
        taken = argument.new in state
        return ("EEXIST", None) if taken else (OK, _put(state, argument.new, ino))
    if state.get(argument.new) == ino:
        return OK, None  # these are two names of one file: rename does nothing
    state.pop(argument.old)
    return OK, _put(state, argument.new, ino)


@dataclass(frozen=True, slots=True)
class Append:
    file: str
    record: bytes


@dataclass(frozen=True, slots=True)
class ReadAll:
    """Its result is the tuple of records."""

    file: str


class Appends:
    """A log for each file."""

    def initial(self) -> Hashable:
        return ()

    def after(self, state: tuple[bytes, ...], argument: Any, result: Any) -> Hashable | None:
        if isinstance(argument, ReadAll):
            return state if result is UNKNOWN or result == state else None
        return (*state, argument.record) if result in (OK, UNKNOWN) else None

    def parts(self, history: Sequence[Operation]) -> list[list[Operation]]:
        return by_key(history, lambda operation: operation.argument.file)


@dataclass(frozen=True, slots=True)
class TryLock:
    """Its result is OK or EAGAIN."""

    file: str
    owner: int


@dataclass(frozen=True, slots=True)
class Release:
    file: str
    owner: int


class Locks:
    """An exclusive lock for each file; -1 if no client has it. Trying a lock that one holds
    is OK."""

    def initial(self) -> Hashable:
        return -1

    def after(self, state: int, argument: Any, result: Any) -> Hashable | None:
        if isinstance(argument, Release):
            return -1 if state == argument.owner else state
        is_free = state in (-1, argument.owner)
        if result is UNKNOWN or result == (OK if is_free else "EAGAIN"):
            return argument.owner if is_free else state
        return None

    def parts(self, history: Sequence[Operation]) -> list[list[Operation]]:
        return by_key(history, lambda operation: operation.argument.file)


@dataclass(frozen=True, slots=True)
class Add:
    """Its result is the number before."""

    file: str
    amount: int


class Counter:
    """A number for each file."""

    def initial(self) -> Hashable:
        return 0

    def after(self, state: int, argument: Add, result: Any) -> Hashable | None:
        return state + argument.amount if result in (state, UNKNOWN) else None

    def parts(self, history: Sequence[Operation]) -> list[list[Operation]]:
        return by_key(history, lambda operation: operation.argument.file)
