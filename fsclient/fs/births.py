"""Files that lanes make themselves, in directories that are delegated to this client.

A directory in which this client makes one file after the other is asked for: its names and
attributes exclusively, and slots, i.e. inode numbers with layout and capability. From then on
native lanes answer CREATE in it (native/src/fuse/births.h), and the metaserver is told afterwards:
one batch is on its way at a time, the next gathers meanwhile, and before anything else is asked of
the metaserver whatever has gathered goes first (`flush`), so that nothing overtakes a birth. Who
wants the directory recalls it; it is given back when every birth has been answered (`settle`).
Files of users and groups that have quotas are made at the metaserver all the same.
docs/decisions/0013-delegation.md. Touched by the client's trio thread only.
"""

import os
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import trio

from fscommon.errors import FsError, Status, status_of
from fscommon.layout.attributes import (
    LEASE_DATA,
    LEASE_ENTRIES,
    LEASE_META,
    LEASE_NAMER,
    LEASE_WRITER,
)
from fscommon.wire.births import Birth, Born, CreateBatch, Delegate, Delegated
from fscommon.wire.codec import decode
from fscommon.wire.ops import Op

from ..leases.holder import Leases
from .inodes import Inodes
from .ports import Lanes, Metadata

BATCH_COUNT_MAX = 512
SLOTS_WANTED = 1024
SLOTS_LOW = 512
CREATES_TO_ASK = 2  # in one directory, each within CREATES_WITHIN_S of the last
CREATES_WITHIN_S = 1.0
RECALLED_REST_S = 30.0  # as long as names of a recalled directory get no time in the kernel
DIRECTORIES_MAX = 1024
FIRST_HANDLE = 1 << 62  # handles from here on are given by lanes


class RawBirth(NamedTuple):
    """One row of births_take()."""

    ino: int
    parent: int
    name: bytes
    mode: int
    uid: int
    gid: int
    time_ns: int
    layout: bytes
    fh: int
    open_flags: int


class Births:
    def __init__(
        self, meta: Metadata, lanes: Lanes, leases: Leases, inodes: Inodes,
        opened: Callable[[int, int], None], changed: Callable[[int], None],
        log: Callable[[str], None],
    ) -> None:  # fmt: skip
        """opened(fh, ino): lanes opened a file. changed(ino): a directory got a name."""
        self._meta = meta
        self._lanes = lanes
        self._leases = leases
        self._inodes = inodes
        self._opened = opened
        self._changed = changed
        self._log = log
        self._delegated: set[int] = set()
        self._creates: OrderedDict[int, tuple[int, float]] = OrderedDict()  # how many, the last
        self._rest_until: OrderedDict[int, float] = OrderedDict()
        self._asked: OrderedDict[int, None] = OrderedDict()  # 0: only for slots
        self._asking = trio.Event()
        self._waiting: list[Birth] = []  # not told to the metaserver yet
        self._on_way: list[tuple[Birth, ...]] = []
        self._answered = trio.Event()
        self._is_telling = False

    # ---- asking for directories -----------------------------------------------------------------

    def created(self, parent: int) -> None:
        """A file was made in parent through the metaserver."""
        now = trio.current_time()
        count, last = self._creates.pop(parent, (0, 0.0))
        count = count + 1 if now - last < CREATES_WITHIN_S else 1
        self._creates[parent] = (count, now)
        if len(self._creates) > DIRECTORIES_MAX:
            self._creates.popitem(last=False)
        if count >= CREATES_TO_ASK and self._may_ask(parent, now):
            self._ask(parent)

    def _may_ask(self, parent: int, now: float) -> bool:
        return (
            self._leases.holds(parent, LEASE_META | LEASE_ENTRIES)
            and parent not in self._delegated
            and len(self._delegated) < DIRECTORIES_MAX
            and self._rest_until.get(parent, 0.0) < now
        )

    def _ask(self, parent: int) -> None:
        self._asked[parent] = None
        self._asking.set()

    async def run(self) -> None:
        """Ask the metaserver for directories and slots, one after the other."""
        while True:
            await self._asking.wait()
            while self._asked:
                parent, _ = self._asked.popitem(last=False)
                try:
                    await self._take(parent)
                except FsError as error:
                    self._log(f"directory {parent} is not delegated: {error}")
                    self._rest(parent)
            self._asking = trio.Event()

    async def _take(self, parent: int) -> None:
        count = max(0, SLOTS_WANTED - self._lanes.slots_left())
        reply = await self._meta.call(Op.DELEGATE, Delegate(parent, count), Delegated)
        self._lanes.births_refuse(reply.uids, reply.gids)
        self._lanes.slots_put([(slot.ino, slot.layout, slot.capability) for slot in reply.slots])
        if not parent:
            return
        if not reply.attributes:
            self._rest(parent)
        elif self._leases.holds(parent, LEASE_NAMER) and self._lanes.entries_delegate(parent):
            self._inodes.see_record(reply.attributes)
            self._delegated.add(parent)
        else:
            self._rest(parent)

    def _rest(self, parent: int) -> None:
        self._rest_until[parent] = trio.current_time() + RECALLED_REST_S
        if len(self._rest_until) > DIRECTORIES_MAX:
            self._rest_until.popitem(last=False)

    # ---- births ---------------------------------------------------------------------------------

    def wait(self) -> None:
        """A BIRTHS event: lanes made files; they gather while a batch is on its way."""
        self.collect()
        if not self._on_way:
            self._tell()

    def collect(self) -> None:
        """Take from the lanes what they made."""
        for row in self._lanes.births_take():
            self._note(RawBirth(*row))
        if self._delegated and self._lanes.slots_left() < SLOTS_LOW and 0 not in self._asked:
            self._ask(0)

    def _note(self, raw: RawBirth) -> None:
        writable = raw.open_flags & os.O_ACCMODE != os.O_RDONLY
        inode = self._inodes.hold(raw.ino)
        inode.is_writable = writable
        inode.file_id = raw.ino
        self._opened(raw.fh, raw.ino)
        bits = LEASE_WRITER if writable else LEASE_META | LEASE_DATA
        self._leases.table.granted(raw.ino, bits, 0)
        self._changed(raw.parent)
        self._waiting.append(
            Birth(
                raw.ino, raw.parent, raw.name, raw.mode, raw.uid, raw.gid, raw.time_ns, raw.layout,
                writable,
            )
        )  # fmt: skip

    def flush(self) -> None:
        """Tell the metaserver of every birth until now, before whatever is asked of it next."""
        if not self._is_telling and (self._delegated or self._waiting):
            self.collect()
            self._tell()

    def _tell(self) -> None:
        self._is_telling = True
        try:
            while self._waiting:
                batch = tuple(self._waiting[:BATCH_COUNT_MAX])
                del self._waiting[:BATCH_COUNT_MAX]
                self._post(batch)
        finally:
            self._is_telling = False

    def _post(self, batch: tuple[Birth, ...]) -> None:
        self._on_way.append(batch)

        def deliver(error: FsError | None, body: bytes) -> None:
            self._told(batch, error, body)

        self._meta.post_patiently(Op.CREATE_BATCH, CreateBatch(batch), deliver, urgent=True)

    def _told(self, batch: tuple[Birth, ...], error: FsError | None, body: bytes) -> None:
        self._on_way.remove(batch)
        if error is not None:
            self._lost(batch, error)
        else:
            reply = decode(Born, body)
            self._inodes.see_parents(reply.parents)
            failed = [(b, status) for b, status in zip(batch, reply.errors, strict=False) if status]
            for birth, status in failed:
                self._lost((birth,), FsError(status_of(status)))
        answered, self._answered = self._answered, trio.Event()
        answered.set()
        if not self._on_way:
            self.flush()

    def _lost(self, births: tuple[Birth, ...], error: FsError) -> None:
        for birth in births:
            self._lanes.inode_lost(birth.ino)
            name = birth.name.decode(errors="replace")
            self._log(f"new file '{name}' (inode {birth.ino}) is lost: {error}")

    # ---- giving directories back ----------------------------------------------------------------

    async def settle(self, ino: int) -> None:
        """Until the metaserver knows every file that was made in this directory."""
        if ino in self._delegated or ino in self.parents_on_way():
            self.flush()
            while self._on_way:
                await self._answered.wait()

    async def give_back(self, ino: int) -> None:
        """The directory's names are held exclusively no longer: lanes make no more files in it."""
        self._rest(ino)
        if ino in self._delegated:
            self._lanes.entries_undelegate(ino)
            await self.settle(ino)
            self._delegated.discard(ino)

    def parents_on_way(self) -> set[int]:
        """Directories with births that the metaserver has not answered."""
        births = [*self._waiting, *(birth for batch in self._on_way for birth in batch)]
        return {birth.parent for birth in births}

    def restarted(self) -> None:
        """Another metaserver: it knows nothing of slots."""
        self._lanes.slots_clear()
        if self._delegated:
            self._ask(0)

    def lose(self) -> None:
        """The session was evicted, and the births that were not told with it."""
        self.collect()
        self._lanes.slots_clear()
        self._delegated.clear()
        lost, self._waiting = self._waiting, []
        self._lost(tuple(lost), FsError(Status.DISCONNECTED, "the session was evicted"))
