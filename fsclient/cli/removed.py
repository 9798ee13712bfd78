"""Removed files by their paths: finds them in the trash, restores and purges them.

A path may lead through directories that were removed themselves: if a name does not exist, the one
of this name that was removed last is used. A tree is restored from the top, a directory and then
what was removed from it, some hundred names per request. An interrupted restore is continued by a
request for what is below the directory, which exists again by then.
"""

import stat
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import Attributes, unpack_attributes
from fscommon.rpc.caller import Caller
from fscommon.types import ROOT_INO
from fscommon.wire.admin import Inspect, InspectList
from fscommon.wire.ops import Op
from fscommon.wire.trash import (
    TRASH_ENTRIES_MAX,
    TRASH_ITEMS_MAX,
    TRASH_PATHS_MAX,
    TrashByAge,
    TrashEntry,
    TrashItem,
    TrashList,
    TrashListed,
    TrashMark,
    TrashPurge,
    TrashRestore,
    TrashTree,
    TrashTrees,
)

Names = tuple[bytes, ...]
WAIT_S = 120.0  # a restore waits for clients' leases, at most until they end


@dataclass(frozen=True, slots=True)
class Removed:
    """An entry of the trash, and its path below the requested directory."""

    entry: TrashEntry
    names: Names

    @property
    def attributes(self) -> Attributes:
        return unpack_attributes(self.entry.attributes)


@dataclass(slots=True)
class Outcome:
    restored: int = 0
    taken: int = 0  # entries whose names exist
    refused: list[tuple[bytes, str]] = field(default_factory=list)  # names, with the reason


class Trash:
    """The trash, on one connection."""

    def __init__(self, caller: Caller, timeout_s: float) -> None:
        self._caller = caller
        self._timeout_s = timeout_s

    async def trees(self) -> list[TrashTree]:
        found: list[TrashTree] = []
        while True:
            request = TrashTrees(found[-1].ino if found else 0, TRASH_PATHS_MAX)
            report = await self._caller.call(Op.TRASH_TREES, request, self._timeout_s)
            found += report.trees
            if report.end:
                return found

    async def attributes(self, ino: int, names: Names = ()) -> Attributes:
        found = await self._caller.call(Op.INSPECT, Inspect(ino, names), self._timeout_s)
        return unpack_attributes(found.attributes)

    # ---- searching ----------------------------------------------------------------------------

    async def entries(self, directory: int, name: bytes = b"") -> list[TrashEntry]:
        """The entries that were removed from the directory, or those removed under this name."""
        found: list[TrashEntry] = []
        page = TrashListed((), 0, 0, end=False)
        while not page.end:
            request = TrashList(directory, name, page.after, page.after_ino, TRASH_ENTRIES_MAX)
            page = await self._caller.call(Op.TRASH_LIST, request, self._timeout_s)
            found += page.entries
        return found

    async def newest(self, directory: int, name: bytes) -> TrashEntry | None:
        return newest_of(await self.entries(directory, name))

    async def find(self, names: Names) -> int:
        """The inode to which a path leads, if need be through the trash. Raises ENOENT, ENOTDIR."""
        ino = int(ROOT_INO)
        for name in names:
            try:
                ino = (await self.attributes(ino, (name,))).ino
            except FsError as error:
                if error.status is not Status.ENOENT:
                    raise
                entry = await self.newest(ino, name)
                if entry is None:
                    raise
                ino = entry.ino
        return ino

    async def below(self, top: int) -> list[Removed]:
        """All that was removed below a directory and is in the trash, oldest first."""
        above = await self._chain(top)
        entries: list[TrashEntry] = []
        for tree in await self.trees():
            # Also of a trash that seems empty: clients report removals only when they are recalled.
            if tree.ino in above or top in await self._chain(tree.ino):
                entries += [entry async for entry in self._of_tree(tree.ino)]
        paths = _Paths(self, top, entries)
        found = []
        for entry in sorted(entries, key=_age):
            names = await paths.of_directory(entry.directory)
            if names is None and entry.tree == top:
                names = (b"(directory %d, which is gone)" % entry.directory,)
            if names is not None:
                found.append(Removed(entry, (*names, entry.name)))
        return found

    async def _of_tree(self, tree: int) -> AsyncIterator[TrashEntry]:
        page = TrashListed((), 0, 0, end=False)
        while not page.end:
            request = TrashByAge(tree, page.after, page.after_ino, TRASH_ENTRIES_MAX)
            page = await self._caller.call(Op.TRASH_BY_AGE, request, self._timeout_s)
            for entry in page.entries:
                yield entry

    async def _chain(self, ino: int) -> set[int]:
        """The directory and those above it, as far as they are known."""
        chain: set[int] = set()
        while ino not in chain:
            chain.add(ino)
            parent = await self.parent(ino)
            if parent is None:
                break
            ino = parent
        return chain

    async def parent(self, ino: int) -> int | None:
        """The parent of a directory; None: the directory does not exist any more."""
        try:
            return (await self.attributes(ino)).parent
        except FsError as error:
            if error.status is not Status.ESTALE:
                raise
            return None

    async def name_of(self, parent: int, ino: int) -> bytes | None:
        """The name of a directory in its parent, found by listing the parent."""
        cookie = 0
        while True:
            request = InspectList(parent, cookie, TRASH_ENTRIES_MAX)
            page = await self._caller.call(Op.INSPECT_LIST, request, self._timeout_s)
            for entry in page.entries:
                if unpack_attributes(entry.attributes).ino == ino:
                    name: bytes = entry.name
                    return name
            if page.end or not page.entries:
                return None
            cookie = page.entries[-1].cookie

    # ---- restoring ------------------------------------------------------------------------------

    async def restore(
        self, entry: TrashEntry, directory: int, name: bytes, since_ns: int
    ) -> Outcome:
        """Restores the entry under a name, with what was removed from it since. Raises FsError."""
        outcome = Outcome()
        request = TrashRestore(
            entry.directory, directory, (TrashItem(entry.name, entry.ino, name),)
        )
        reply = await self._caller.call(Op.TRASH_RESTORE, request, WAIT_S)
        if reply.errors[0]:
            raise FsError(Status(reply.errors[0]), reply.messages[0])
        outcome.restored += 1
        if is_directory(entry):
            await self._fill([entry.ino], since_ns, outcome)
        return outcome

    async def restore_below(self, top: int, since_ns: int) -> Outcome:
        """Restores all that was removed below an existing directory, as far as possible."""
        outcome = Outcome()
        removed = [one.entry for one in await self.below(top) if one.entry.removed_ns >= since_ns]
        trashed = {entry.ino for entry in removed}
        groups: dict[int, list[TrashEntry]] = {}
        for entry in removed:
            if entry.directory not in trashed:
                groups.setdefault(entry.directory, []).append(entry)
        for directory, entries in groups.items():
            back = await self._put_back(directory, entries, outcome)
            await self._fill(back, since_ns, outcome)
        return outcome

    async def _fill(self, directories: list[int], since_ns: int, outcome: Outcome) -> None:
        """Restores what was removed from directories that are restored."""
        stack = directories
        while stack:
            directory = stack.pop()
            entries = [e for e in await self.entries(directory) if e.removed_ns >= since_ns]
            stack += await self._put_back(directory, entries, outcome)

    async def _put_back(
        self, directory: int, entries: Iterable[TrashEntry], outcome: Outcome
    ) -> list[int]:
        """Restores the newest entry of each name, into the directory from which it was removed.
        Returns the directories among them."""
        newest = {entry.name: entry for entry in sorted(entries, key=_age)}
        back = []
        for part in _parts(list(newest.values()), TRASH_ITEMS_MAX):
            items = tuple(TrashItem(entry.name, entry.ino, entry.name) for entry in part)
            request = TrashRestore(directory, directory, items)
            try:
                reply = await self._caller.call(Op.TRASH_RESTORE, request, WAIT_S)
            except FsError as error:
                outcome.refused += [(entry.name, error.sentence) for entry in part]
                continue
            for entry, status, text in zip(part, reply.errors, reply.messages, strict=True):
                if not status:
                    outcome.restored += 1
                    back += [entry.ino] if is_directory(entry) else []
                elif status == Status.EEXIST:
                    outcome.taken += 1
                else:
                    outcome.refused.append((entry.name, text or Status(status).name))
        return back

    # ---- purging --------------------------------------------------------------------------------

    async def purge(self, entries: Sequence[TrashEntry]) -> int:
        """Purges entries in the order of their removal: a directory after what was in it."""
        count = 0
        for part in _parts(sorted(entries, key=_age), TRASH_ITEMS_MAX):
            marks = tuple(TrashMark(entry.directory, entry.name, entry.ino) for entry in part)
            done = await self._caller.call(Op.TRASH_PURGE, TrashPurge(marks), self._timeout_s)
            count += done.count
        return count


class _Paths:
    """The paths of directories below a top one; each is searched once."""

    def __init__(self, trash: Trash, top: int, entries: Iterable[TrashEntry]) -> None:
        self._trash = trash
        self._entries = {entry.ino: entry for entry in entries}
        self._known: dict[int, Names | None] = {top: ()}

    async def of_directory(self, ino: int) -> Names | None:
        """The path of a directory; None: it is not below, or does not exist any more."""
        climbed: list[tuple[int, int]] = []  # directories with their parents
        while ino not in self._known:
            entry = self._entries.get(ino)
            parent = entry.directory if entry else await self._trash.parent(ino)
            if parent is None or parent == ino:
                self._known[ino] = None
                break
            climbed.append((ino, parent))
            ino = parent
        names = self._known[ino]
        for directory, parent in reversed(climbed):
            names = await self._one_below(names, parent, directory)
            self._known[directory] = names
        return names

    async def _one_below(self, names: Names | None, parent: int, ino: int) -> Names | None:
        if names is None:
            return None
        entry = self._entries.get(ino)
        name = entry.name if entry else await self._trash.name_of(parent, ino)
        return None if name is None else (*names, name)


def topmost(removed: Sequence[Removed]) -> list[tuple[Removed, list[Removed]]]:
    """The topmost removed entries, each with what is in the trash below it."""
    by_ino = {one.entry.ino: one for one in removed}
    groups: dict[int, list[Removed]] = {}
    for one in removed:
        top = one
        while (above := by_ino.get(top.entry.directory)) is not None and above is not top:
            top = above
        groups.setdefault(top.entry.ino, [])
        if top is not one:
            groups[top.entry.ino].append(one)
    return [(one, groups[one.entry.ino]) for one in removed if one.entry.ino in groups]


def _age(entry: TrashEntry) -> tuple[int, int]:
    return entry.removed_ns, entry.ino


def newest_of(entries: Iterable[TrashEntry]) -> TrashEntry | None:
    return max(entries, key=_age, default=None)


def is_directory(entry: TrashEntry) -> bool:
    return stat.S_ISDIR(unpack_attributes(entry.attributes).mode)


def _parts(entries: list[TrashEntry], count: int) -> Iterator[list[TrashEntry]]:
    for start in range(0, len(entries), count):
        yield entries[start : start + count]
