"""What lanes change themselves, in directories that are delegated to this client.

A directory in which this client makes, removes or renames one file after the other is asked for:
its names and attributes exclusively, and for making files slots, i.e. inode numbers with layout and
capability. From then on native lanes answer CREATE, UNLINK and RENAME within it
(native/src/names/change_journal.h), and the metaserver is told afterwards: one batch is on its way
at a time, the next gathers meanwhile, and before anything else is asked of the metaserver whatever
has gathered goes first (`flush`), so that nothing overtakes a change. Who wants the directory
recalls it; it is given back when every change has been answered (`settle`). Attributes that lanes
set of files that only this client may write (mode, owner, times: docs/decisions/0024-settings.md)
go the same way.
Files of users and groups that have quotas are made at the metaserver all the same.
docs/decisions/0013-delegation.md, 0014-removals.md, 0025-renames.md.
Touched by the client's trio thread only.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeVar

import trio

from fscommon.errors import FsError, Status, status_of
from fscommon.layout.attributes import (
    LEASE_ENTRIES,
    LEASE_META,
    LEASE_NAMER,
    LEASE_READER,
    LEASE_WRITER,
)
from fscommon.wire.births import (
    Birth,
    ChangeBatch,
    Changed,
    Delegate,
    Delegated,
    Move,
    Removal,
    Setting,
)
from fscommon.wire.codec import decode
from fscommon.wire.messages import COMMIT_MTIME, COMMIT_SIZE, SET_MTIME
from fscommon.wire.ops import Op

from ..leases.holder import Leases
from .inodes import Inodes
from .ports import Lanes, Metadata, Written
from .shares import Shares
from .unreported import (
    Newborn,
    RawMove,
    RawRemoval,
    Unreported,
    batch_of,
    birth_of,
    inodes_gone,
    move_of,
    removal_of,
    setting_of,
    told_count,
    with_bytes,
)

BATCH_COUNT_MAX = 512
GATHER_S = 0.05
SLOTS_WANTED = 256  # at first, and twice as many each time that half of them are used
SLOTS_WANTED_MAX = 2048
CHANGES_TO_ASK = 2  # in one directory, each within CHANGES_WITHIN_S of the last
CHANGES_WITHIN_S = 1.0
RECALLED_REST_S = 30.0  # as long as names of a recalled directory get no time in the kernel
DIRECTORIES_MAX = 1024
LOST_NAMED_MAX = 16  # removals or moves that are lost together and logged by name
FIRST_HANDLE = 1 << 62  # handles from here on are given by lanes

# What they are about was taken from the lanes before.
_BEHIND_WHAT_WAS_TAKEN = frozenset({Op.CLOSE, Op.DELEGATE})

C = TypeVar("C", Birth, Removal, Setting, Move)
Outcomes = list[tuple[C, Status]]


class DelegatedChanges:
    def __init__(
        self,
        meta: Metadata,
        lanes: Lanes,
        leases: Leases,
        inodes: Inodes,
        opened: Callable[[int, int], None],
        changed: Callable[[int], None],
        log: Callable[[str], None],
    ) -> None:
        """opened(fh, ino): lanes opened a file. changed(ino): names of a directory changed."""
        self._meta = meta
        self._lanes = lanes
        self._leases = leases
        self._inodes = inodes
        self._opened = opened
        self._changed = changed
        self._log = log
        self._delegated: OrderedDict[int, None] = OrderedDict()
        self._shares = Shares(lanes.changes)
        self.proves_slots = False  # the metaserver does not take the word of this client's key
        self._proofs: dict[int, bytes] = {}  # capabilities of slots that lanes have
        self._recent: OrderedDict[int, tuple[int, float]] = OrderedDict()  # how many, the last
        self._rest_until: OrderedDict[int, float] = OrderedDict()
        self._asked: OrderedDict[int, bool] = OrderedDict()  # with slots; 0: for nothing else
        self._being_asked: set[int] = set()
        self._asking = trio.Event()
        self._due = trio.Event()
        self._bears = False  # files are made, not only removed
        self._slots_wanted = SLOTS_WANTED
        self._is_getting_slots = False
        self._limits_asked_s = -CHANGES_WITHIN_S
        self._going_through_until = 0.0  # one directory after the other is changed
        self._waiting: list[Unreported] = []
        self._newborns: dict[int, Newborn] = {}  # those among them, by inode
        self._on_way: list[ChangeBatch] = []
        self._answered = trio.Event()
        self._is_telling = False

    # ---- asking for directories -----------------------------------------------------------------

    def created(self, parent: int) -> None:
        """A file was made in parent through the metaserver."""
        if parent in self._delegated:
            self._keep_slots()
            self._keep_share(parent)
        else:
            self._count(parent, CHANGES_TO_ASK, slots=True)

    def made(self, directory: int) -> None:
        """This client made a directory, and may hold it exclusively since: nobody else knows it.
        Only who has slots does, so they are asked for with the first; and only where nobody has
        limits."""
        if not self._leases.holds(directory, LEASE_NAMER):
            if not self._bears and self._leases.holds(directory, LEASE_META | LEASE_ENTRIES):
                self._ask(0, slots=True)
            return
        self._delegate(directory)
        self._lanes.changes.births_refuse((), ())

    def touched(self, parent: int) -> None:
        """Something was changed in parent through the metaserver that lanes might do: a name went
        or is another one, attributes of a file were set. While one directory after the other is
        gone through each is asked for at once. Where lanes might have done it already they may not
        know whose files have limits, since a recall: that is asked once in a second."""
        if parent in self._delegated:
            if trio.current_time() >= self._limits_asked_s + CHANGES_WITHIN_S:
                self._limits_asked_s = trio.current_time()
                self._ask(0, slots=True)
            return
        is_going_through = trio.current_time() < self._going_through_until
        self._count(parent, 1 if is_going_through else CHANGES_TO_ASK, slots=False)

    def _count(self, parent: int, enough: int, *, slots: bool) -> None:
        now = trio.current_time()
        count, last = self._recent.pop(parent, (0, 0.0))
        count = count + 1 if now - last < CHANGES_WITHIN_S else 1
        self._recent[parent] = (count, now)
        if len(self._recent) > DIRECTORIES_MAX:
            self._recent.popitem(last=False)
        if count >= enough and self._may_ask(parent, now):
            self._ask(parent, slots=slots)

    def _may_ask(self, parent: int, now: float) -> bool:
        return (
            self._leases.holds(parent, LEASE_META | LEASE_ENTRIES)
            and parent not in self._delegated
            and parent not in self._being_asked
            and self._rest_until.get(parent, 0.0) < now
        )

    def _ask(self, parent: int, *, slots: bool) -> None:
        self._asked[parent] = slots or self._asked.get(parent, False)
        self._asking.set()

    async def run(self) -> None:
        """Until cancelled: tell what has gathered, and ask for directories."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell_what_is_due)
            await self._ask_together()

    async def _tell_what_is_due(self) -> None:
        while True:
            await self._due.wait()
            await trio.sleep(GATHER_S)
            self._due = trio.Event()
            if not self._on_way:
                self.flush(spare_open=True)
            if not self._on_way and self._lanes.changes.changes_left():
                self._due.set()

    async def _ask_together(self) -> None:
        """Ask the metaserver for directories and slots, for all that are wanted at once."""
        while True:
            await self._asking.wait()
            self._asking = trio.Event()
            async with trio.open_nursery() as nursery:
                while self._asked:
                    nursery.start_soon(self._ask_for, *self._asked.popitem(last=False))

    async def _ask_for(self, parent: int, slots: bool) -> None:
        self._being_asked.add(parent)
        try:
            await self._take(parent, slots=slots)
        except FsError as error:
            if error.status not in (Status.ESTALE, Status.ENOENT):  # removed meanwhile
                self._log(f"directory {parent} is not delegated: {error}")
            self._rest(parent)
        finally:
            self._being_asked.discard(parent)

    async def _take(self, parent: int, *, slots: bool) -> None:
        self._bears |= slots
        is_short = slots and not self._is_getting_slots
        count = max(0, self._slots_wanted - self._lanes.changes.slots_left()) if is_short else 0
        self._is_getting_slots |= count > 0
        try:
            reply = await self._meta.call(Op.DELEGATE, Delegate(parent, count), Delegated)
        finally:
            self._is_getting_slots &= not count
        is_held = parent and reply.attributes and self._leases.holds(parent, LEASE_NAMER)
        if is_held:
            self._shares.told(parent, reply.files, reply.size_limit)
        is_theirs = is_held and self._delegate(parent)
        self._lanes.changes.births_refuse(reply.uids, reply.gids)
        given = [(slot.ino, slot.layout, slot.capability) for slot in reply.slots]
        self._lanes.changes.slots_put(given)
        if self.proves_slots:
            self._proofs.update((slot.ino, slot.capability) for slot in reply.slots)
        if not parent:
            return
        if is_theirs:
            self._inodes.see_record(reply.attributes)
            if not slots:
                self._going_through_until = trio.current_time() + CHANGES_WITHIN_S
        else:
            self._rest(parent)

    def _delegate(self, directory: int) -> bool:
        """Lanes change names in it from now on; they are to be told afterwards who has limits. The
        bound: the oldest directory's lease stays, and what lanes have done in it is told as ever,
        but with it they forget who has."""
        if len(self._delegated) >= DIRECTORIES_MAX and directory not in self._delegated:
            oldest, _ = self._delegated.popitem(last=False)
            self._lanes.changes.entries_undelegate(oldest)
            self.collect()
            self._shares.forget(oldest)
        is_theirs = self._lanes.changes.entries_delegate(directory)
        if is_theirs:
            self._delegated[directory] = None
        return is_theirs

    def _keep_slots(self) -> None:
        is_asked = self._is_getting_slots or 0 in self._asked
        if not is_asked and self._lanes.changes.slots_left() < self._slots_wanted // 2:
            self._slots_wanted = min(2 * self._slots_wanted, SLOTS_WANTED_MAX)
            self._ask(0, slots=True)

    def _keep_share(self, parent: int) -> None:
        """Asks for more of a limit before lanes have used up what was told."""
        if not self._shares.is_short(parent) or parent not in self._delegated:
            return
        is_asked = parent in self._being_asked or parent in self._asked
        if not is_asked and self._rest_until.get(parent, 0.0) < trio.current_time():
            self._ask(parent, slots=True)

    def _rest(self, parent: int) -> None:
        self._rest_until[parent] = trio.current_time() + RECALLED_REST_S
        if len(self._rest_until) > DIRECTORIES_MAX:
            self._rest_until.popitem(last=False)

    # ---- changes --------------------------------------------------------------------------------

    def wait(self) -> None:
        """A BIRTHS event: lanes changed names. Changes gather while a batch is on its way, and for
        a moment anyway: most small files are written and closed by then, and told of once; and
        nothing is done here for each of them as it comes."""
        if not self._on_way:
            self._due.set()

    def written(self, ino: int, written: Written, inline: bytes = b"") -> bytes | None:
        """Lanes commit size and time of a file, and its bytes where it is to lie in its record
        (docs/decisions/0037-inline-data.md). If its birth is still to be told they are told with
        it: returns the attribute record as it is since. None: it must be committed as ever."""
        self.catch_up()
        newborn = self._newborns.get(ino)
        if newborn is None or newborn.is_whole or written[2] & ~(COMMIT_SIZE | COMMIT_MTIME):
            return None
        if written.flags & COMMIT_MTIME and self._inodes.is_being_set(ino):
            return None  # written since that was set: a birth is told before settings
        if inline and (written.size != len(inline) or newborn.birth.changes):
            return None
        return newborn.write(written, inline)

    def catch_up(self) -> None:
        """Before what is remembered is believed: note what lanes have changed."""
        if self._delegated:
            self.collect()

    def collect(self, *, spare_open: bool = False) -> None:
        """Take from the lanes what they did."""
        for run in self._lanes.changes.changes_take(spare_open):
            for born in run.births:
                self._note(birth_of(born), born.fh, born.inline_bytes)
            self._note_removals([removal_of(row) for row in run.removals])
            for row in run.settings:
                self._note_setting(setting_of(row), row.record)
            for moved in run.moves:
                self._note_move(move_of(moved))
        if self._bears and self._delegated:
            self._keep_slots()

    def _note(self, birth: Birth, fh: int, inline: bytes) -> None:
        """Lanes have the size and time that were committed with it in their tables already. inline:
        all that the file has, if that is to lie in its record."""
        self._inodes.parents.note(birth.ino, birth.parent)
        if birth.is_open:
            inode = self._inodes.hold(birth.ino)
            inode.is_writable = birth.writable
            inode.see_layout(birth.layout)
            inode.wrote = birth.changes > 0
            inode.is_inline = bool(inline)
            inode.size_limit = self._shares.size_limit(birth.parent)
            self._opened(fh, birth.ino)
        self._shares.used(birth.parent)
        self._keep_share(birth.parent)
        bits = LEASE_WRITER if birth.writable else LEASE_READER
        self._leases.table.granted(birth.ino, bits, 0)
        self._changed(birth.parent)
        proof = self._proofs.pop(birth.ino, b"")
        newborn = Newborn(with_bytes(birth, inline), bool(inline), proof)
        self._newborns[birth.ino] = newborn
        self._waiting.append(newborn)
        if not birth.is_open:
            self._inodes.closed_by_lanes(birth.ino)

    def _note_removals(self, removals: Sequence[RawRemoval]) -> None:
        if not removals:
            return
        for raw in removals:
            self._inodes.departed_by_lanes(raw.ino, raw.record)
        self._inodes.changed()  # pages of directories that were fetched before show the names
        for parent in {raw.parent for raw in removals}:
            self._changed(parent)
        self._waiting += removals

    def _note_move(self, raw: RawMove) -> None:
        self._inodes.was_set(raw.ino, raw.record)
        if raw.replaced:
            self._inodes.departed_by_lanes(raw.replaced, raw.replaced_record)
        self._changed(raw.parent)
        self._waiting.append(raw)

    def _note_setting(self, setting: Setting, record: bytes) -> None:
        """record: attributes of the inode as they are since, but for what was written."""
        if setting.valid & SET_MTIME and (inode := self._inodes.get(setting.ino)) is not None:
            inode.time_was_set(tuple(inode.taken))
        self._inodes.was_set(setting.ino, record)
        self._waiting.append(setting)

    def flush(self, *, spare_open: bool = False) -> None:
        """Tell the metaserver of every change until now, before whatever is asked of it next.
        spare_open: only of those before the first file that will be whole in a moment."""
        if not self._is_telling and (self._delegated or self._waiting):
            self.collect(spare_open=spare_open)
            self._tell()

    def before(self, op: Op) -> None:
        """A request is about to be submitted."""
        self.flush(spare_open=op in _BEHIND_WHAT_WAS_TAKEN)

    def _tell(self) -> None:
        self._is_telling = True
        try:
            while self._waiting:
                self._post(self._take_batch(BATCH_COUNT_MAX))
        finally:
            self._is_telling = False

    def _take_batch(self, count: int) -> ChangeBatch:
        batch = batch_of(self._waiting[:count])
        del self._waiting[:count]
        for birth in batch.births:
            del self._newborns[birth.ino]
        if batch.births:
            self._lanes.changes.births_told([birth.ino for birth in batch.births])
        return batch

    def _post(self, batch: ChangeBatch) -> None:
        self._on_way.append(batch)

        def deliver(error: FsError | None, body: bytes) -> None:
            self._told(batch, error, body)

        self._meta.post_patiently(Op.CHANGE_BATCH, batch, deliver, urgent=True)

    def _told(self, batch: ChangeBatch, error: FsError | None, body: bytes) -> None:
        self._on_way.remove(batch)
        self._lanes.changes.changes_told(told_count(batch))
        if error is not None:
            self._lost(batch, error)
        else:
            reply = decode(Changed, body)
            self._inodes.see_parents(reply.parents)
            for birth, status in _failures(batch.births, reply.errors):
                self._lost_birth(birth, FsError(status))
            removals = _failures(batch.removals, reply.removal_errors)
            moves = _outcomes(batch.moves, reply.move_errors)
            self._lost_removals(removals)
            self._settle_moves(moves)
            self._settle_settings(batch, _outcomes(batch.settings, reply.setting_errors))
            kept = {removal.ino for removal, _ in removals}
            self._forget_bytes(batch, kept | {move.replaced for move, _ in _failed(moves)})
        answered, self._answered = self._answered, trio.Event()
        answered.set()
        if not self._on_way and not self._is_telling:
            self.wait()

    def _forget_bytes(self, batch: ChangeBatch, kept: set[int]) -> None:
        """Nobody needs durable what was written to a file that is gone."""
        for ino in inodes_gone(batch) - kept:
            if self._inodes.get(ino) is None:
                self._lanes.inodes.lost(ino)

    def _lost(self, batch: ChangeBatch, error: FsError) -> None:
        for birth in batch.births:
            self._lost_birth(birth, error)
        self._lost_removals([(removal, error.status) for removal in batch.removals])
        self._settle_moves([(move, error.status) for move in batch.moves])
        self._settle_settings(batch, [(setting, error.status) for setting in batch.settings])

    def _settle_moves(self, outcomes: Outcomes[Move]) -> None:
        """The names are as they were where that failed: nothing that says otherwise is believed."""
        for move, status in outcomes:
            self._inodes.setting_told(move.ino, is_lost=status is not Status.OK)
        lost = _failed(outcomes)
        for move, _ in lost:
            self._inodes.returned(move.replaced)
            self._lanes.names.attributes_drop(move.replaced)
            self._lanes.names.attributes_drop(move.parent)
            for name in (move.name, move.new_name):
                self._lanes.names.entry_unsure(move.parent, name)
        self._log_lost(
            [
                f"renamed file '{_shown(move.name)}' (inode {move.ino}) in directory {move.parent} "
                f"is not '{_shown(move.new_name)}': {status.name}"
                for move, status in lost
            ],
            "renamed files have their old names",
        )

    def _settle_settings(self, batch: ChangeBatch, outcomes: Outcomes[Setting]) -> None:
        gone = inodes_gone(batch)
        for setting, status in outcomes:
            self._inodes.setting_told(setting.ino, is_lost=status is not Status.OK)
            if status is not Status.OK and setting.ino not in gone:
                self._log(
                    f"attributes that were set of inode {setting.ino} are lost: {status.name}"
                )

    def _lost_birth(self, birth: Birth, error: FsError) -> None:
        self._lanes.inodes.lost(birth.ino)
        self._log(f"new file '{_shown(birth.name)}' (inode {birth.ino}) is lost: {error}")

    def _lost_removals(self, lost: Outcomes[Removal]) -> None:
        """The names are there still: nothing that says otherwise is believed any longer."""
        for removal, _ in lost:
            self._inodes.returned(removal.ino)
            self._lanes.names.entry_unsure(removal.parent, removal.name)
            self._lanes.names.attributes_drop(removal.ino)
            self._lanes.names.attributes_drop(removal.parent)
        self._log_lost(
            [
                f"removed file '{_shown(removal.name)}' (inode {removal.ino}) in directory "
                f"{removal.parent} is there still: {status.name}"
                for removal, status in lost
            ],
            "removed files are there still",
        )

    def _log_lost(self, messages: list[str], of_more: str) -> None:
        for message in messages[:LOST_NAMED_MAX]:
            self._log(message)
        if len(messages) > LOST_NAMED_MAX:
            self._log(f"{len(messages) - LOST_NAMED_MAX} more {of_more}")

    # ---- giving directories back ----------------------------------------------------------------

    async def settle(self, ino: int) -> None:
        """Until the metaserver knows every change of names in this directory, and of attributes of
        this file."""
        self.catch_up()
        is_file = self._inodes.is_being_set(ino)
        if is_file or ino in self._delegated or ino in self.parents_on_way():
            self.flush()
            while self._on_way:
                await self._answered.wait()

    async def give_back(self, ino: int) -> None:
        """The directory's names are held exclusively no longer: lanes change none any more."""
        self._rest(ino)
        if ino in self._delegated:
            self._lanes.changes.entries_undelegate(ino)
            await self.settle(ino)
            self._delegated.pop(ino, None)
            self._shares.forget(ino)

    async def give_back_all(self) -> None:
        """No directory is held exclusively any more, and every change has been answered."""
        for ino in tuple(self._delegated):
            await self.give_back(ino)
        self.flush()
        while self._on_way:
            await self._answered.wait()

    def parents_on_way(self) -> set[int]:
        """Directories with changes that the metaserver has not answered."""
        parents = {c.parent for c in self._waiting if not isinstance(c, Setting)}
        for batch in self._on_way:
            parents.update(birth.parent for birth in batch.births)
            parents.update(removal.parent for removal in batch.removals)
            parents.update(move.parent for move in batch.moves)
        return parents

    def renew_slots(self) -> None:
        """Those that are left are of another metaserver, which knows nothing of them, or say
        nothing of targets that have come, and lie on some that get no new files."""
        self._clear_slots()
        if self._delegated and self._bears:
            self._ask(0, slots=True)

    def _clear_slots(self) -> None:
        self._lanes.changes.slots_clear()
        self.collect()  # what was made of them keeps its proof
        self._proofs.clear()

    def lose(self) -> None:
        """The session was evicted, and the changes that were not told with it."""
        self._clear_slots()
        for directory in self._delegated:
            self._shares.forget(directory)
        self._delegated.clear()
        lost = self._take_batch(len(self._waiting))
        self._lanes.changes.changes_told(told_count(lost))
        self._lost(lost, FsError(Status.DISCONNECTED, "the session was evicted"))


def _outcomes(changes: Sequence[C], statuses: Sequence[int]) -> Outcomes[C]:
    """No statuses: all went well."""
    pairs = zip(changes, statuses or (0,) * len(changes), strict=False)
    return [(change, status_of(status)) for change, status in pairs]


def _failures(changes: Sequence[C], statuses: Sequence[int]) -> Outcomes[C]:
    return _failed(_outcomes(changes, statuses)) if statuses else []


def _failed(outcomes: Outcomes[C]) -> Outcomes[C]:
    return [(change, status) for change, status in outcomes if status is not Status.OK]


def _shown(name: bytes) -> str:
    return name.decode(errors="replace")
