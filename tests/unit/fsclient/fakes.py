"""Fakes of what fsclient.fs depends on: a scripted metaserver and the tables of the lanes."""

import struct
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar, cast

import pyfuse3
import trio

from fsclient.fs.filesystem import FileSystem
from fsclient.fs.ports import Lanes, Metadata, Written
from fsclient.leases.holder import Leases
from fsclient.leases.table import KnownLimit
from fsclient.meta.pending import Deliver
from fscommon.errors import FsError
from fscommon.layout.attributes import ATTRIBUTES_SIZE, Attributes, ino_of, unpack_attributes
from fscommon.native_ports import (
    ChangeRun,
    CreationRow,
    LossRow,
    MoveRow,
    RemovalRow,
    SettingRow,
    SlotRow,
)
from fscommon.wire.codec import encode
from fscommon.wire.ops import Op

from . import native_rows as rows
from .unasked_ports import UnaskedIo

T = TypeVar("T")
Answer = Callable[[Any], Any]

DIRECTORY = 0o40755
FILE = 0o100644


def record(ino: int, **fields: int) -> bytes:
    return Attributes(ino, **{"mode": FILE, "nlink": 1, **fields}).pack()


def layout(file_id: int) -> bytes:
    return struct.pack("<BBHIQIIQI", 1, 1, 1, 1 << 20, file_id, 0, 0, 0, 7)


def make_fs(
    meta: Metadata,
    lanes: Lanes,
    log: Callable[[str], None],
    *,
    believe_s: float = 0.0,
    believe_names_s: float = 0.0,
) -> FileSystem:
    """A file system over fakes; the metaserver grants no leases unless a test enables them."""
    leases = Leases(lanes, trio.current_time)
    return FileSystem(
        meta, lanes, leases, log, believe_s=believe_s, believe_names_s=believe_names_s
    )


@dataclass
class Context(pyfuse3.RequestContext):
    """Who asks; pid is the slot of the upcall."""

    pid: int = 3
    uid: int = 0
    gid: int = 0
    umask: int = 0o22


class FakeMetadata:
    """Answers each op with what a test put into `answers`: a message, an FsError, or a function of
    the request. Replies to post() wait until deliver_all()."""

    def __init__(self) -> None:
        self.answers: dict[Op, Any] = {}
        self.asked: list[tuple[Op, Any]] = []
        self.told: list[tuple[Op, Any]] = []
        self.waiting: list[Callable[[], None]] = []
        self.is_ready = True
        self.sole_until = 0.0  # other sessions may exist

    async def call(self, op: Op, message: object, reply: type[T], *, urgent: bool = False) -> T:
        await trio.lowlevel.checkpoint()
        answer = self._answer(op, message)
        if isinstance(answer, FsError):
            raise answer
        assert isinstance(answer, reply)
        return answer

    async def answered(self, request_id: int) -> None:
        await trio.lowlevel.checkpoint()

    def post(self, op: Op, message: object, deliver: Deliver, *, urgent: bool = False) -> None:
        def finish() -> None:
            answer = self._answer(op, message)
            if isinstance(answer, FsError):
                deliver(answer, b"")
            else:
                deliver(None, encode(answer))

        self.waiting.append(finish)

    def post_patiently(
        self, op: Op, message: object, deliver: Deliver, *, urgent: bool = False
    ) -> None:
        self.post(op, message, deliver, urgent=urgent)

    def tell(self, op: Op, message: object, *, urgent: bool = False) -> KnownLimit:
        self.told.append((op, message))
        return KnownLimit(len(self.told) + 1000)

    def deliver_all(self) -> None:
        waiting, self.waiting = self.waiting, []
        for finish in waiting:
            finish()

    def requests(self, op: Op) -> list[Any]:
        return [message for asked, message in self.asked if asked is op]

    def _answer(self, op: Op, message: object) -> Any:
        self.asked.append((op, message))
        answer = self.answers[op]
        return cast(Answer, answer)(message) if callable(answer) else answer


@dataclass
class FakeCopies:
    """The outcome of copy(). `waits`: until finish_copy()."""

    reach: int = 1 << 40
    status: int = 0
    stripes: int = 1
    waits: bool = False
    token: int = 0
    made: list[tuple[int, int, int, int, int]] = field(default_factory=list)


class FakeInodes:
    """The port of inodes; the tables are those of FakeLanes."""

    def __init__(self, lanes: "FakeLanes") -> None:
        self._lanes = lanes

    def put(self, attributes: bytes, layout: bytes, capability: bytes) -> None:
        ino = int.from_bytes(attributes[:8], "little")
        self._lanes.known[ino] = (attributes, layout, capability)

    def view_put(self, ino: int, layout: bytes, capability: bytes) -> bool:
        if ino in self._lanes.known:
            self._lanes.known[ino] = (self._lanes.known[ino][0], layout, capability)
        return ino in self._lanes.known

    def closed_unsynced(self, ino: int) -> bool:
        return ino in self._lanes.unsynced

    def resize(self, attributes: bytes, layout: bytes, capability: bytes) -> None:
        self._lanes.resized.append(int.from_bytes(attributes[:8], "little"))

    def lease(self, ino: int, flags: int, recalling: int) -> bool:
        self._lanes.leased[ino] = (flags, recalling)
        return not recalling and ino in self._lanes.used_during_recall

    def lost(self, ino: int) -> bool:
        self._lanes.forgotten.append(ino)
        return ino in self._lanes.lost

    def all_lost(self) -> list[LossRow]:
        return [
            *(rows.Loss(ino, True) for ino in self._lanes.lost),
            *(rows.Loss(ino, False) for ino in self._lanes.unsynced),
        ]

    def asked(self, ino: int, error: int) -> None:
        self._lanes.asked.append((ino, error))

    def drop(self, ino: int) -> None:
        self._lanes.known.pop(ino, None)

    def keep(self, ino: int) -> bool:
        if self._lanes.keeps:
            self._lanes.kept.add(ino)
        return self._lanes.keeps

    def unkeep(self, ino: int) -> int:
        self._lanes.kept.discard(ino)
        return self._lanes.own_handles.pop(ino, 0)

    def written(self, ino: int) -> Written | None:
        return Written(*self._lanes.written[ino]) if ino in self._lanes.written else None

    def set_ids_put(self, ino: int, mode: int, gid: int) -> None:
        self._lanes.set_ids |= {(ino, mode, gid)}

    def take(self, ino: int) -> Written | None:
        return Written(*self._lanes.written.pop(ino)) if ino in self._lanes.written else None

    def handle_put(self, fh: int, ino: int, open_flags: int, direct: bool) -> None:
        self._lanes.handles[fh] = (ino, open_flags, direct)

    def size_limit_put(self, ino: int, limit: int) -> None:
        self._lanes.size_limits[ino] = limit

    def locked(self, ino: int, has_locks: bool) -> None:
        (self._lanes.locked_inodes.add if has_locks else self._lanes.locked_inodes.discard)(ino)

    def failed(self, ino: int) -> bool:
        return False

    def commits(self, ino: int) -> bool:
        return ino in self._lanes.committing


class FakeLanes(UnaskedIo):
    """The ports of native that a file system needs, all but one in this object. It records its
    calls; inodes.written() and inodes.take() return `written`."""

    settings: Sequence[SettingRow] = ()  # these attributes were set by lanes
    spared: Set[int] = frozenset()  # inodes that were created a moment ago and are open
    reported_creations: Sequence[int] = ()
    announced: Sequence[int] = ()

    set_ids: frozenset[tuple[int, int, int]] = frozenset()  # these are inodes, modes and groups
    barriers = 0  # the count of barriers of the notifier
    untold_cuts: Set[int] = frozenset()  # these are inode numbers
    committing: Set[int] = frozenset()  # these are inode numbers
    cut_pauses: Sequence[int] = ()  # an inode number for each pause
    cuts_done: Sequence[tuple[int, int, int, bool]] = ()
    expired: Sequence[tuple[int, bytes]] = ()
    used_during_recall: frozenset[int] = frozenset()  # inodes whose reads and writes go on

    def __init__(self) -> None:
        # Each entry has name, inode and cookie.
        self.listed: dict[int, list[tuple[bytes, int, int]]] = {}
        self.known: dict[int, tuple[bytes, bytes, bytes]] = {}
        self.believed: dict[int, bytes] = {}
        self.complete: dict[int, set[bytes]] = {}  # these names exist
        self.dentries: dict[tuple[int, bytes], int] = {}
        self.leased: dict[int, tuple[int, int]] = {}
        self.dropped: list[tuple[int, int]] = []
        self.asked: list[tuple[int, int]] = []
        self.lost: set[int] = set()
        self.unsynced: set[int] = set()
        self.forgotten: list[int] = []
        self.notifies = self.keeps = True
        self.handles: dict[int, tuple[int, int, bool]] = {}
        self.written: dict[int, tuple[int, int, int]] = {}
        self.resized: list[int] = []
        self.kept: set[int] = set()
        self.own_handles: dict[int, int] = {}
        # The directory and the attributes of each child.
        self.children: dict[int, tuple[int, bytes]] = {}
        # They belong to lanes, and Python does not know them.
        self.child_handles: dict[int, int] = {}
        self.unused: set[int] = set()  # these children were never opened
        self.children_counted = [0, 0]  # the numbers of used and unused children
        self.is_paused = False
        self.size_limits: dict[int, int] = {}
        self.drained: list[tuple[int, int, bool]] = []
        self.committed: list[tuple[int, int, bytes]] = []
        self.done: Callable[..., None] | None = None
        self.punched: list[tuple[int, int, int]] = []
        self.found = -1
        self.copies = FakeCopies()
        self.invalidated: list[int] = []
        self.locked_inodes: set[int] = set()
        self.drain_status = self.removals_answered = 0
        self.delegated: set[int] = set()
        self.may_delegate = True
        self.slots: list[SlotRow] = []
        self.refused_owners: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
        self.creations: list[CreationRow] = []
        self.removals: list[RemovalRow] = []
        self.moves: list[MoveRow] = []
        self.inodes = FakeInodes(self)

    @property
    def names(self) -> "FakeLanes":
        return self

    changes = io = names

    def names_changes(self) -> int:
        return 0

    def names_list(
        self,
        directory: int,
        names: Sequence[bytes],
        inos: bytes,
        cookies: bytes,
        behind: int,
        end: bool,
        asked: int,
    ) -> bool:
        count = len(names)
        numbers = (struct.unpack(f"<{count}Q", column) for column in (inos, cookies))
        self.listed[directory] = list(zip(names, *numbers, strict=True))
        return True

    def listing_read(self, directory: int, offset: int, size: int) -> bytes | None:
        return None

    def entries_delegate(self, ino: int) -> bool:
        if self.may_delegate:
            self.delegated.add(ino)
        return self.may_delegate

    def entries_undelegate(self, ino: int) -> None:
        self.delegated.discard(ino)

    @cached_property
    def own_slots(self) -> dict[int, list[SlotRow]]:  # by pool
        return {}

    @cached_property
    def pools(self) -> dict[int, int]:  # by directory
        return {}

    def slots_put(self, pool: int, slots: Sequence[SlotRow]) -> None:
        self.slots_of(pool).extend(slots)

    def slots_left(self, pool: int) -> int:
        return len(self.slots_of(pool))

    def slots_of(self, pool: int) -> list[SlotRow]:
        return self.own_slots.setdefault(pool, []) if pool else self.slots

    def slots_drop(self, pool: int, kept: int) -> list[int]:
        dropped = [slot.ino for slot in self.slots_of(pool)[kept:]]
        del self.slots_of(pool)[kept:]
        return dropped

    def pool_put(self, directory: int, pool: int) -> None:
        self.pools[directory] = pool
        if not pool:
            del self.pools[directory]

    def creations_refuse(self, uids: Sequence[int], gids: Sequence[int]) -> None:
        self.refused_owners = (tuple(uids), tuple(gids))

    @cached_property
    def shares(self) -> dict[int, tuple[int, int]]:
        return {}

    def creations_share(self, directory: int, files: int, size_limit: int) -> None:
        had, _ = self.shares.get(directory, (0, 0))
        self.shares[directory] = had + files, size_limit

    def creations_unshare(self, directory: int) -> None:
        self.shares.pop(directory, None)

    def slots_clear(self) -> None:
        self.slots.clear()
        self.own_slots.clear()

    def changes_left(self) -> bool:
        return bool(self.creations)

    def changes_take(self, spare_open: bool) -> list[ChangeRun]:
        first = next((n for n, b in enumerate(self.creations) if b.ino in self.spared), None)
        count = first if spare_open and first is not None else len(self.creations)
        creations, self.creations = self.creations[:count], self.creations[count:]
        removals, self.removals = self.removals, []
        settings, self.settings = list(self.settings), ()
        moves, self.moves = self.moves, []
        run = rows.ChangeRun(creations, removals, settings, moves)
        return [run] if any(run) else []

    def inline_creations(self, length_max: int) -> None:
        self.inline_length_max = length_max

    def creations_reported(self, inos: Sequence[int]) -> None:
        self.reported_creations = [*self.reported_creations, *inos]

    def changes_reported(self, count: int) -> None:
        self.removals_answered += count

    def attributes_put(self, attributes: bytes, valid_ms: int, leased: bool) -> None:
        self.believed[int.from_bytes(attributes[:8], "little")] = attributes

    def attributes_put_rows(self, attributes: bytes, wanted: bytes) -> list[int]:
        older = []
        assert len(attributes) == len(wanted) * ATTRIBUTES_SIZE
        for at, is_wanted in enumerate(wanted):
            record = attributes[at * ATTRIBUTES_SIZE : (at + 1) * ATTRIBUTES_SIZE]
            ino = ino_of(record)
            if is_wanted and self.child_is_older(ino, unpack_attributes(record).change_version):
                older.append(ino)
            elif is_wanted:
                self.attributes_put(record, 0, True)
        return older

    def attributes_drop(self, ino: int) -> None:
        self.believed.pop(ino, None)

    def entries_lease(self, ino: int) -> None:
        self.leased.setdefault(ino, (0, 0))

    def entries_complete(self, ino: int, valid_ms: int) -> None:
        self.complete[ino] = set()

    def entries_extend(self, ino: int, valid_ms: int) -> None:
        assert ino in self.complete

    def entry_put(self, parent: int, name: bytes, ino: int) -> bool:
        self.dentries[parent, name] = ino
        return parent in self.leased

    def entry_unsure(self, parent: int, name: bytes) -> None:
        self.dentries.pop((parent, name), None)
        if parent in self.complete:
            self.complete[parent].add(name)

    def entry_moves(self, parent: int, name: bytes, new_parent: int, new_name: bytes) -> bool:
        return new_parent in self.leased or parent not in self.leased

    def entries_drop(self, ino: int) -> None:
        del self.complete[ino]

    def leases_clear(self) -> None:
        self.complete.clear()

    def lease_until(self, left_ms: int) -> None:
        self.until_ms = left_ms

    def lease_drop(self, token: int, inos: Sequence[int], facets: int) -> int:
        if facets:
            self.dropped += [(ino, facets) for ino in inos]
        else:
            self.barriers += 1
        if token and self.notifies:
            self._tell_done(token, 0)
        return 0

    def expire_names(self, parent: int, names: Sequence[bytes]) -> None:
        self.expired = [*self.expired, *((parent, name) for name in names)]

    def open_ahead(
        self,
        parent: int,
        has_names: bool,
        names: Sequence[bytes],
        attributes: bytes,
        layouts: Sequence[bytes],
        capabilities: bytes,
        wanted: bytes,
    ) -> bytes:
        for at, name in enumerate(names):
            if wanted[at]:
                taken = attributes[at * 128 : at * 128 + 128]
                ino = int.from_bytes(taken[:8], "little")
                self.children[ino] = (parent, taken)
                self.unused.add(ino)
                if has_names:
                    self.dentries[parent, name] = ino
        return wanted

    def announce(self, inos: bytes, replaces: bool) -> int:
        before = [] if replaces else self.announced
        self.announced = [*before, *memoryview(inos).cast("Q")]
        return len(inos) // 8

    def use_child(self, ino: int) -> None:
        """Lanes open it for an application."""
        assert ino in self.children and not self.is_paused
        self.child_handles[ino] = self.child_handles.get(ino, 0) + 1
        self.children_counted[0] += ino in self.unused
        self.unused.discard(ino)

    def child_drop(self, ino: int) -> int:
        known = self.children.pop(ino, None) is not None
        self.children_counted[1] += ino in self.unused
        self.unused.discard(ino)
        return self.child_handles.pop(ino, 0 if known else -1)

    def child_is_older(self, ino: int, change_version: int) -> bool:
        known = self.children.get(ino)
        return known is not None and unpack_attributes(known[1]).change_version < change_version

    def children_of(self, parent: int) -> list[int]:
        return [ino for ino, (there, _) in self.children.items() if parent in (0, there)]

    def children_open(self) -> list[int]:
        return list(self.child_handles)

    def children_pause(self, paused: bool) -> None:
        self.is_paused = paused

    def children_counts(self) -> rows.Children:
        return rows.Children(len(self.children), *self.children_counted)

    def cuts_pause(self, ino: int, paused: bool) -> int:
        if ino not in self.known:
            return 0
        pauses = [*self.cut_pauses, ino] if paused else list(self.cut_pauses)
        if not paused:
            pauses.remove(ino)
        self.cut_pauses = pauses
        return 2 if ino in self.untold_cuts else 1

    def cut_done(
        self,
        ino: int,
        number: int,
        status: int,
        attributes: bytes,
        layout: bytes,
        capability: bytes,
    ) -> None:
        self.cuts_done = [*self.cuts_done, (ino, number, status, bool(attributes))]

    def drain(self, token: int, ino: int, sync: bool, commit: bool) -> None:
        self.drained.append((token, ino, sync))
        self._tell_done(token, self.drain_status)

    def _tell_done(self, token: int, status: int) -> None:
        if self.done is not None:
            trio.lowlevel.current_trio_token().run_sync_soon(self.done, token, status)

    def punch(self, token: int, ino: int, begin: int, end: int) -> None:
        self.punched.append((ino, begin, end))
        self._finish(token, 0)

    def seek(self, token: int, ino: int, start: int, hole: bool) -> None:
        self._finish(token, self.found)

    def copy(
        self,
        token: int,
        source: int,
        source_begin: int,
        sink: int,
        sink_begin: int,
        length: int,
        only_reach: bool,
    ) -> None:
        if only_reach:
            self._finish(token, min(self.copies.reach, length))
            return
        self.copies.made.append((source, source_begin, sink, sink_begin, length))
        self.copies.token = token
        if not self.copies.waits:
            self.finish_copy()

    def finish_copy(self) -> None:
        if self.copies.status:
            self._tell_done(self.copies.token, self.copies.status)
        else:
            self._finish(self.copies.token, self.copies.stripes)

    def _finish(self, token: int, result: int) -> None:
        assert self.done is not None
        trio.lowlevel.current_trio_token().run_sync_soon(self.done, token, 0, result)

    def barrier(self, token: int) -> None:
        self._finish(token, 0)

    def invalidate_inode(self, ino: int, offset: int, length: int) -> None:
        self.invalidated.append(ino)

    def commit_done(self, token: int, status: int, attributes: bytes) -> None:
        self.committed.append((token, status, attributes))


class FakeWorld:
    """A file system over fakes, whose drains end as the fake lanes say."""

    def __init__(self) -> None:
        self.meta = FakeMetadata()
        self.lanes = FakeLanes()
        self.logged: list[str] = []
        self.fs = make_fs(self.meta, self.lanes, self.logged.append)
        self.lanes.done = self.fs.drains.done
