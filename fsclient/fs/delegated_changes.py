"""Delegated changes: names and attributes that lanes change by themselves, reported afterwards.

When this client makes, removes or renames one file after the other in a directory, it requests the
directory: its names and attributes exclusively and, for making files, slots (inode numbers with
layout and capability; fsclient.fs.pools). From then on lanes answer CREATE, UNLINK and RENAME
within it (native/src/names/change_journal.h), and the metaserver is told afterwards. One batch is
in flight at a time while the next one gathers. Before any other request is sent, everything that
has gathered is sent (`flush`), so that nothing overtakes a change. A client that wants the
directory has it recalled; it is returned when every change has been answered (`report`). Attributes
that lanes set of files that only this client may write (mode, owner, times:
docs/decisions/0024-settings.md) are reported in the same way. Files of users and groups that have
quotas are made at the metaserver. docs/decisions/0013-delegation.md, 0014-removals.md,
0025-renames.md. Touched by the client's trio thread only.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import trio

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import (
    LEASE_ENTRIES,
    LEASE_META,
    LEASE_NAMER,
    LEASE_READER,
    LEASE_WRITER,
)
from fscommon.layout.layout import is_replicated
from fscommon.wire.births import Birth, ChangeBatch, Changed, Delegate, Delegated, Setting
from fscommon.wire.codec import decode
from fscommon.wire.messages import COMMIT_MTIME, COMMIT_SIZE, SET_MTIME
from fscommon.wire.ops import Op

from ..leases.holder import Leases
from .change_answers import ChangeAnswers
from .inodes import Inodes
from .pools import DEFAULT, Pooled, Pools
from .ports import Lanes, Metadata, Written
from .shares import Shares
from .unreported import (
    Newborn,
    RawMove,
    RawRemoval,
    Unreported,
    batch_of,
    birth_of,
    move_of,
    removal_of,
    setting_of,
    told_count,
    with_bytes,
)

BATCH_COUNT_MAX = 512
GATHER_S = 0.05
CHANGES_TO_ASK = 2  # in one directory, each within CHANGES_WITHIN_S of the one before
CHANGES_WITHIN_S = 1.0
RECALLED_REST_S = 30.0  # as long as names of a recalled directory get no time in the kernel
DIRECTORIES_MAX = 1024
FIRST_HANDLE = 1 << 62  # lanes give the handles from here on

# A directory that was removed meanwhile; no room for its layout, which CREATE tells the caller.
_NOT_LOGGED = (Status.ESTALE, Status.ENOENT, Status.ENOSPC)

# Operations that concern only changes which were taken from the lanes before.
_OF_TAKEN_CHANGES = frozenset({Op.CLOSE, Op.DELEGATE})


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
        # Lanes have made, written and closed a replicated file.
        self.born_closed: Callable[[int], None] = lambda ino: None
        self._changed = changed
        self._log = log
        self._delegated: OrderedDict[int, None] = OrderedDict()
        self._answers = ChangeAnswers(lanes, inodes, log)
        self._shares = Shares(lanes.changes)
        self._pools = Pools(lanes.changes, trio.current_time)
        self._heirs: OrderedDict[int, None] = OrderedDict()  # new, with a layout that is not known
        self._xattrs_changing: dict[int, int] = {}  # requests on their way, by inode
        self._overtaken: set[int] = set()  # requested before their extended attributes changed
        self.proves_slots = False  # the metaserver wants proofs from this client's key
        self._proofs: dict[int, bytes] = {}  # capabilities of slots that lanes have
        self._recent: OrderedDict[int, tuple[int, float]] = OrderedDict()  # count, last
        self._rest_until: OrderedDict[int, float] = OrderedDict()
        self._wanted: OrderedDict[int, bool] = OrderedDict()  # with slots; 0: only slots
        self._requested: set[int] = set()
        self._asking = trio.Event()
        self._due = trio.Event()
        self._makes_files = False  # this client makes files, not only removes them
        self._is_getting_slots = False
        self._limits_asked_s = -CHANGES_WITHIN_S
        self._going_through_until = 0.0  # one directory after the other is being changed
        self._waiting: list[Unreported] = []
        self._newborns: dict[int, Newborn] = {}  # those of _waiting, by inode
        self._in_flight: list[ChangeBatch] = []
        self._answered = trio.Event()
        self._is_sending = False

    # ---- requesting directories -----------------------------------------------------------------

    def created(self, parent: int) -> None:
        """The metaserver made a file in parent for this client."""
        if parent in self._delegated:
            self._makes_files = True
            self._pools.used(parent)
            self._keep_used()
            self._keep_share(parent)
        else:
            enough = 1 if parent in self._heirs else CHANGES_TO_ASK
            self._count(parent, enough, slots=True)

    def pool_of(self, directory: int) -> Pooled | None:
        return self._pools.of(directory)

    def made(
        self,
        directory: int,
        *,
        parent: int = 0,
        has_xattrs: bool = False,
        inherited: Pooled | None = None,
    ) -> None:
        """This client made a directory. It may hold the directory exclusively already, as nobody
        else knows it; but only a client with slots does, so slots are requested with the first
        directory. A session holds new directories so only if no owner has limits.

        has_xattrs: it has a layout or ACLs from its parent. inherited: pool_of(parent) before it
        was made; if that has not changed since, the directory has the same layout."""
        if not self._leases.holds(directory, LEASE_NAMER):
            if not self._makes_files and self._leases.holds(directory, LEASE_META | LEASE_ENTRIES):
                self._ask(0, slots=True)
            return
        pool = DEFAULT
        if has_xattrs:
            if inherited is None or not self._pools.is_current(inherited):
                self._note_heir(directory)
                self._count(parent, 1, slots=True)
                return
            pool = inherited.pool
        self._delegate(directory, pool)
        self._lanes.changes.creations_refuse((), ())

    def _note_heir(self, directory: int) -> None:
        self._heirs[directory] = None
        if len(self._heirs) > DIRECTORIES_MAX:
            self._heirs.popitem(last=False)

    @contextmanager
    def xattrs_change(self, ino: int) -> Iterator[None]:
        """While this client changes extended attributes of the inode, its pool is not known, nor is
        it from a reply to a request that was sent before the end."""
        self._xattrs_changing[ino] = self._xattrs_changing.get(ino, 0) + 1
        if self._pools.of(ino) is not None:
            self._undelegate(ino)
        try:
            yield
        except BaseException as error:
            if not isinstance(error, FsError) or error.status is Status.ETIMEDOUT:
                self._undelegate(ino)  # it may still be changed
                self._rest(ino)
            raise
        finally:
            self._xattrs_changing[ino] -= 1
            if not self._xattrs_changing[ino]:
                del self._xattrs_changing[ino]
            if ino in self._requested:
                self._overtaken.add(ino)

    def has_xattrs(self, ino: int) -> None:
        """This client has changed extended attributes of the inode, which still has some. What
        lanes know of a directory may be from before, as they count their own changes of it."""
        if ino in self._delegated:
            self._undelegate(ino)
            self._lanes.names.attributes_drop(ino)

    def has_layout(self, ino: int) -> None:
        """This client has set the layout of the inode. A directory that it holds exclusively is
        requested at once, which disturbs nobody."""
        if self._makes_files and self._leases.holds(ino, LEASE_NAMER):
            self._count(ino, 1, slots=True)

    def touched(self, parent: int) -> None:
        """The metaserver changed something in parent that lanes might have done: a name was removed
        or renamed, or attributes of a file were set. While one directory after the other is being
        changed, each is requested at once. In a delegated directory lanes may have left it to
        Python because a recall made them forget which owners have limits: that is requested at most
        once a second."""
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
            and parent not in self._requested
            and self._rest_until.get(parent, 0.0) < now
        )

    def _ask(self, parent: int, *, slots: bool) -> None:
        self._wanted[parent] = slots or self._wanted.get(parent, False)
        self._asking.set()

    async def run(self) -> None:
        """Runs until cancelled: sends what has gathered, and requests directories."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_when_due)
            await self._ask_together()

    async def _send_when_due(self) -> None:
        while True:
            await self._due.wait()
            await trio.sleep(GATHER_S)
            self._due = trio.Event()
            if not self._in_flight:
                self.flush(spare_open=True)
            if not self._in_flight and self._lanes.changes.changes_left():
                self._due.set()

    async def _ask_together(self) -> None:
        """Requests directories and slots, all that are wanted at once."""
        while True:
            await self._asking.wait()
            self._asking = trio.Event()
            async with trio.open_nursery() as nursery:
                while self._wanted:
                    nursery.start_soon(self._ask_for, *self._wanted.popitem(last=False))

    async def _ask_for(self, parent: int, slots: bool) -> None:
        self._requested.add(parent)
        is_new = False
        try:
            is_new = await self._take(parent, slots=slots)
        except FsError as error:
            if error.status not in _NOT_LOGGED:
                self._log(f"directory {parent} is not delegated: {error}")
            self._rest(parent)
        finally:
            self._requested.discard(parent)
            self._overtaken.discard(parent)
        if is_new:
            self._keep_own_slots(parent)

    async def _take(self, parent: int, *, slots: bool) -> bool:
        """Returns whether the reply named a pool that was not known before."""
        self._makes_files |= slots
        is_short = slots and not self._is_getting_slots and self._pools.of(parent) is None
        count = self._pools.missing(is_sure=not parent) if is_short else 0
        own_count = self._pools.missing_in(parent) if slots and parent else 0
        returned = self._pools.take_returned()
        self._is_getting_slots |= count > 0
        was_known = self._pools.of(parent) is not None
        try:
            request = Delegate(parent, count, own_count, returned)
            reply = await self._meta.call(Op.DELEGATE, request, Delegated)
        except BaseException:
            self._pools.not_returned(returned)
            raise
        finally:
            self._is_getting_slots &= not count
        is_held = parent and reply.attributes and self._leases.holds(parent, LEASE_NAMER)
        if is_held and (parent in self._overtaken or parent in self._xattrs_changing):
            is_held, parent = False, 0  # what the reply says of it is from before
        if is_held:
            self._shares.told(parent, reply.files, reply.size_limit)
        is_theirs = is_held and self._delegate(parent, reply.pool)
        self._lanes.changes.creations_refuse(reply.uids, reply.gids)
        self._pools.put(reply.pool, reply.slots)
        if self.proves_slots:
            self._proofs.update((slot.ino, slot.capability) for slot in reply.slots)
            for ino in returned:
                self._proofs.pop(ino, None)
        if not parent:
            return False
        if is_theirs:
            self._inodes.see_record(reply.attributes)
            if not slots:
                self._going_through_until = trio.current_time() + CHANGES_WITHIN_S
        if not is_theirs or (own_count and reply.pool and not reply.slots):
            self._rest(parent)
        return bool(is_theirs and slots and reply.pool and not was_known)

    def _delegate(self, directory: int, pool: int) -> bool:
        """Lanes change names in the directory from now on, and make files from slots of this pool;
        the caller tells them afterwards which owners have limits. Beyond the bound the directory
        that was delegated first is delegated no more: its lease stays, and changes in it are
        reported as usual, but lanes forget which owners have limits."""
        if len(self._delegated) >= DIRECTORIES_MAX and directory not in self._delegated:
            self._undelegate(next(iter(self._delegated)))
        is_theirs = self._lanes.changes.entries_delegate(directory)
        if is_theirs:
            self._delegated[directory] = None
            self._pools.told(directory, pool)
            self._heirs.pop(directory, None)
        return is_theirs

    def _undelegate(self, directory: int) -> None:
        """Lanes change no more names in the directory; its lease stays."""
        if directory in self._delegated:
            del self._delegated[directory]
            self._lanes.changes.entries_undelegate(directory)
            self._pools.forget(directory)
            self.collect()
            self._shares.forget(directory)

    def _keep_used(self) -> None:
        """Requests more slots of the pools that lanes have used."""
        directories = self._pools.take_used()
        if self._makes_files and self._delegated:
            self._keep_slots()
        for directory in directories:
            self._keep_own_slots(directory)

    def _keep_slots(self) -> None:
        is_asked = self._is_getting_slots or 0 in self._wanted
        if not is_asked and self._pools.is_short(DEFAULT):
            self._pools.want_more(DEFAULT)
            self._ask(0, slots=True)

    def _keep_own_slots(self, directory: int) -> None:
        """Requests more slots of the directory's own layout."""
        pooled = self._pools.of(directory)
        if pooled is None or not self._pools.is_short(pooled.pool):
            return
        is_asked = directory in self._requested or directory in self._wanted
        if not is_asked and self._rest_until.get(directory, 0.0) < trio.current_time():
            self._pools.want_more(pooled.pool)
            self._ask(directory, slots=True)

    def _keep_share(self, parent: int) -> None:
        """Requests a larger share before lanes have used up the last one."""
        if not self._shares.is_short(parent) or parent not in self._delegated:
            return
        is_asked = parent in self._requested or parent in self._wanted
        if not is_asked and self._rest_until.get(parent, 0.0) < trio.current_time():
            self._ask(parent, slots=True)

    def _rest(self, parent: int) -> None:
        self._rest_until[parent] = trio.current_time() + RECALLED_REST_S
        if len(self._rest_until) > DIRECTORIES_MAX:
            self._rest_until.popitem(last=False)

    # ---- changes --------------------------------------------------------------------------------

    def wait(self) -> None:
        """A CHANGES_WAIT event: lanes changed names. Changes gather while a batch is in flight, and
        for a moment in any case: most small files are written and closed by then and reported
        once, and nothing is done here for each single change."""
        if not self._in_flight:
            self._due.set()

    def written(self, ino: int, written: Written, inline: bytes = b"") -> bytes | None:
        """Lanes commit size and time of a file, and its bytes if its record is to hold them
        (docs/decisions/0037-inline-data.md). If the file itself is not reported yet, they are
        reported with it: returns its new attribute record. None: they must be committed by a
        request."""
        self.catch_up()
        newborn = self._newborns.get(ino)
        if newborn is None or newborn.is_whole or written[2] & ~(COMMIT_SIZE | COMMIT_MTIME):
            return None
        if written.flags & COMMIT_MTIME and self._inodes.is_being_set(ino):
            return None  # mtime was set before: creations are sent before settings
        if inline and (written.size != len(inline) or newborn.birth.changes):
            return None
        return newborn.write(written, inline)

    def catch_up(self) -> None:
        """Notes what lanes have changed; called before tables of Python are used."""
        if self._delegated:
            self.collect()

    def collect(self, *, spare_open: bool = False) -> None:
        """Takes all changes from the lanes."""
        for run in self._lanes.changes.changes_take(spare_open):
            for born in run.creations:
                self._note(birth_of(born), born.fh, born.inline_bytes)
            self._note_removals([removal_of(row) for row in run.removals])
            for row in run.settings:
                self._note_setting(setting_of(row), row.record)
            for moved in run.moves:
                self._note_move(move_of(moved))
        self._keep_used()

    def _note(self, birth: Birth, fh: int, inline: bytes) -> None:
        """Notes a new file. Lanes have the committed size and time in their tables already. inline:
        all bytes of the file, if its record is to hold them."""
        self._inodes.parents.note(birth.ino, birth.parent)
        if birth.is_open:
            inode = self._inodes.hold(birth.ino)
            inode.is_writable = birth.writable
            inode.see_layout(birth.layout)
            inode.wrote = birth.changes > 0
            inode.is_inline = bool(inline)
            inode.size_limit = self._shares.size_limit(birth.parent)
            self._opened(fh, birth.ino)
        elif is_replicated(birth.layout) and not inline:
            self.born_closed(birth.ino)
        self._shares.used(birth.parent)
        self._pools.used(birth.parent)
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
        self._inodes.changed()  # pages of directories that were fetched before still have the names
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
        """record: the attributes afterwards, without what was written but not committed."""
        if setting.valid & SET_MTIME and (inode := self._inodes.get(setting.ino)) is not None:
            inode.time_was_set(tuple(inode.taken))
        self._inodes.was_set(setting.ino, record)
        self._waiting.append(setting)

    def flush(self, *, spare_open: bool = False) -> None:
        """Sends every change so far, before any other request. spare_open: only those before the
        first file that will be closed in a moment."""
        if not self._is_sending and (self._delegated or self._waiting):
            self.collect(spare_open=spare_open)
            self._send()

    def before(self, op: Op) -> None:
        """Called before a request is submitted."""
        self.flush(spare_open=op in _OF_TAKEN_CHANGES)

    def _send(self) -> None:
        self._is_sending = True
        try:
            while self._waiting:
                self._post(self._take_batch(BATCH_COUNT_MAX))
        finally:
            self._is_sending = False

    def _take_batch(self, count: int) -> ChangeBatch:
        batch = batch_of(self._waiting[:count])
        del self._waiting[:count]
        for birth in batch.births:
            del self._newborns[birth.ino]
        if batch.births:
            self._lanes.changes.creations_reported([birth.ino for birth in batch.births])
        return batch

    def _post(self, batch: ChangeBatch) -> None:
        self._in_flight.append(batch)

        def deliver(error: FsError | None, body: bytes) -> None:
            self._finish_batch(batch, error, body)

        self._meta.post_patiently(Op.CHANGE_BATCH, batch, deliver, urgent=True)

    def _finish_batch(self, batch: ChangeBatch, error: FsError | None, body: bytes) -> None:
        self._in_flight.remove(batch)
        self._lanes.changes.changes_reported(told_count(batch))
        if error is not None:
            self._answers.lost(batch, error)
        else:
            self._answers.told(batch, decode(Changed, body))
        answered, self._answered = self._answered, trio.Event()
        answered.set()
        if not self._in_flight and not self._is_sending:
            self.wait()

    # ---- returning directories ------------------------------------------------------------------

    async def report(self, ino: int) -> None:
        """Reports every change of names in this directory, and of attributes of this file; waits
        until the metaserver knows them."""
        self.catch_up()
        is_file = self._inodes.is_being_set(ino)
        if is_file or ino in self._delegated or ino in self.parents_on_way():
            self.flush()
            while self._in_flight:
                await self._answered.wait()

    async def give_back(self, ino: int) -> None:
        """Lanes change no more names in the directory; waits until its changes are answered."""
        self._rest(ino)
        if ino in self._delegated:
            self._lanes.changes.entries_undelegate(ino)
            self._pools.forget(ino)
            await self.report(ino)
            self._delegated.pop(ino, None)
            self._shares.forget(ino)

    async def give_back_all(self) -> None:
        """Returns all directories, and waits until every change is answered."""
        for ino in tuple(self._delegated):
            await self.give_back(ino)
        self.flush()
        while self._in_flight:
            await self._answered.wait()

    def parents_on_way(self) -> set[int]:
        """The directories with changes that the metaserver has not answered."""
        parents = {c.parent for c in self._waiting if not isinstance(c, Setting)}
        for batch in self._in_flight:
            parents.update(birth.parent for birth in batch.births)
            parents.update(removal.parent for removal in batch.removals)
            parents.update(move.parent for move in batch.moves)
        return parents

    def renew_slots(self) -> None:
        """Drops the slots that are left and requests new ones: they are of a metaserver that was
        restarted and does not know them, or do not use new targets, or use targets that get no new
        files."""
        self._clear_slots()
        if self._delegated and self._makes_files:
            self._ask(0, slots=True)

    def _clear_slots(self) -> None:
        self._pools.clear()
        self.collect()  # files that were made from them keep their proofs
        self._proofs.clear()

    def lose(self) -> None:
        """The session was evicted: changes that were not reported are lost."""
        self._clear_slots()
        for directory in self._delegated:
            self._shares.forget(directory)
        self._pools.lose()
        self._delegated.clear()
        lost = self._take_batch(len(self._waiting))
        self._lanes.changes.changes_reported(told_count(lost))
        self._answers.lost(lost, FsError(Status.DISCONNECTED, "the session was evicted"))
