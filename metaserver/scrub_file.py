"""Scrubs one file: has its objects read, damage mended, and replicas compared.

What is damaged is mended from another replica without a claim: storage servers write nothing but
what was written last (OBJECT_MEND). Where that cannot help, as records of an object are lost or the
object is, the replica is dropped if a whole one stays, and repair makes it again.

Replicas whose digests differ are looked at again under the claim of the file, a shared DATA lease
of the scrub, so that nobody writes. If they differ then, too, one stays: a whole one before a
damaged one, then that with the highest epoch, the longest, and the one on the lowest target. What
cannot be done now, as a target does not answer or somebody writes, is done by a later scrub.
"""

import hashlib
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import trio

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import LEASE_DATA
from fscommon.layout.layout import Layout, object_length
from fscommon.observe.log import Log
from fscommon.types import Ino
from fscommon.wire.objects import ObjectMended, ObjectSummed
from fscommon.wire.scrub import DAMAGED, DIFFERENT, DROPPED, LEFT, MENDED, MISSING, RECORDS_LOST
from metaserver.background import Background
from metaserver.claims import Claims
from metaserver.context import Context
from metaserver.dropping import Dropping
from metaserver.namespace.inode import find
from metaserver.namespace.replicas import droppable, name_of, names_of, remove_replicas
from metaserver.records import FindingRecord, ObjectName
from metaserver.scrubs import Place
from metaserver.sessions import SCRUB_SESSION
from metaserver.storage import STORAGE_ERRORS
from metaserver.transaction import Transaction

REST_S: Final = 30.0  # a target that did not answer is not asked for so long
SETTLE_S: Final = 20.0
ROUNDS_MAX: Final = 64  # of mends of one object, each of so many ranges as a message has
_SUM_S: Final = 600.0
_SUM_BYTES_S: Final = 1 << 20  # a scrub beside clients on a slow device
_RECORDS_S: Final = 60.0
_RECORDS_BYTES_S: Final = 64 << 20
_NOTHING: Final = ObjectSummed(0, 0, hashlib.blake2b(digest_size=16).digest(), 0, (), (), 0, 0, 0)


@dataclass(slots=True)
class Scrubbed:
    """bytes: that were read. is_whole: everything could be read, and compared."""

    objects: int = 0
    bytes: int = 0
    is_whole: bool = True


@dataclass(slots=True)
class _Stripe:
    """The replicas of a stripe. sums: what those are that answered; lost: what is not there any
    more, by what it is. left: how many blocks are damaged still; unmendable: of which a storage
    server has said that it cannot mend them."""

    ino: Ino
    layout: Layout
    index: int
    length: int  # as the file's size says
    names: list[ObjectName]
    sums: dict[ObjectName, ObjectSummed] = field(default_factory=dict)
    lost: dict[ObjectName, str] = field(default_factory=dict)
    left: dict[ObjectName, int] = field(default_factory=dict)
    unmendable: set[ObjectName] = field(default_factory=set)

    @property
    def was_durable(self) -> bool:
        return self.length > 0 and bool(self.layout.durable_stripes >> self.index & 1)

    def whole(self) -> list[ObjectName]:
        return [name for name in self.sums if not self.left.get(name)]

    def differ(self) -> bool:
        return len({one.digest for one in self.sums.values()}) > 1

    def best(self) -> ObjectName:
        def worth(name: ObjectName) -> tuple[bool, int, int, int]:
            one = self.sums[name]
            return not self.left.get(name), one.epoch, one.length, -name.target

        return max(self.sums, key=worth)


class FileScrub:
    def __init__(self, background: Background, dropping: Dropping) -> None:
        self._engine = background.engine
        self._change = background.change
        self._committer = background.committer
        self._claims = Claims(background, SCRUB_SESSION)
        self._storage = background.storage
        self._now = background.clock
        self._dropping = dropping
        self._scrubs = background.engine.services.scrubs
        self._log = Log("scrub")
        self._resting: dict[int, float] = {}  # targets that did not answer, until these times

    async def scrub(self, ino: Ino, *, reads: bool = True) -> Scrubbed:
        """reads: otherwise replicas are only compared, by what their records say."""
        done = Scrubbed()
        stripes = self._stripes(ino)
        for stripe in stripes:
            await self._scrub(stripe, done, reads=reads)
        self._forget_others(ino, [name for stripe in stripes for name in stripe.names])
        return done

    def _stripes(self, ino: Ino) -> list[_Stripe]:
        """Returns the stripes of a file with objects; [] for anything else."""
        found: list[_Stripe] = []

        def look(tx: Transaction, context: Context) -> None:
            inode = find(tx, ino)
            if inode is None or not inode.is_file or inode.layout().inline:
                return
            layout, size = inode.layout(), inode.attributes.size
            for index in range(layout.stripe_width):
                places = (one for one in layout.replicas() if one.stripe_index == index)
                names = [name_of(layout, one) for one in places]
                length = object_length(layout, index, size)
                found.append(_Stripe(ino, layout, index, length, names))

        self._change(look)
        return found

    async def _scrub(self, stripe: _Stripe, done: Scrubbed, *, reads: bool) -> None:
        await self._read(stripe, reads=reads)
        done.objects += len(stripe.sums)
        done.bytes += sum(one.bytes for one in stripe.sums.values())
        if len(stripe.sums) + len(stripe.lost) < len(stripe.names):
            done.is_whole = False
        if stripe.lost:
            await self._give_up(stripe, stripe.lost)
        for name, one in list(stripe.sums.items()):
            if one.blocks_damaged:
                await self._mend(stripe, name, one)
        if stripe.differ():
            done.is_whole &= await self._compare(stripe)
        elif stripe.unmendable and stripe.whole():
            await self._give_up(stripe, dict.fromkeys(stripe.unmendable, DAMAGED))
        for name in stripe.whole() if reads else ():
            self._note_whole(stripe, name)

    # ---- reading -------------------------------------------------------------------------

    async def _read(self, stripe: _Stripe, *, reads: bool) -> None:
        stripe.sums.clear()
        stripe.lost.clear()
        async with trio.open_nursery() as nursery:
            for name in stripe.names:
                nursery.start_soon(self._read_one, stripe, name, reads)

    async def _read_one(self, stripe: _Stripe, name: ObjectName, reads: bool) -> None:
        now = self._now()
        membership = self._engine.services.membership
        is_resting = self._resting.get(name.target, 0.0) > trio.current_time()
        if is_resting or not membership.is_answering(name.target, now.now_s):
            return
        timeout_s = _RECORDS_S + stripe.length / _RECORDS_BYTES_S
        if reads:
            timeout_s = _SUM_S + stripe.length / _SUM_BYTES_S
        try:
            found = await self._storage.sum(name, reads=reads, timeout_s=timeout_s)
        except STORAGE_ERRORS as error:
            if not isinstance(error, FsError):
                self._resting[name.target] = trio.current_time() + REST_S
            elif error.status is Status.NO_OBJECT and not stripe.was_durable:
                stripe.sums[name] = _NOTHING
            elif error.status is Status.NO_OBJECT and self._is_current(stripe, name):
                stripe.lost[name] = MISSING
            return
        if found.digest:
            stripe.sums[name] = found
        else:
            stripe.lost[name] = RECORDS_LOST

    def _is_current(self, stripe: _Stripe, name: ObjectName) -> bool:
        """Whether the object is to be there now, too: the file may have been cut or removed."""
        now = [one for one in self._stripes(stripe.ino) if one.index == stripe.index]
        return any(one.was_durable and name in one.names for one in now)

    # ---- mending -------------------------------------------------------------------------

    async def _mend(self, stripe: _Stripe, name: ObjectName, summed: ObjectSummed) -> None:
        """Mends what is damaged, and notes what is left."""
        mended, left = 0, summed.blocks_damaged
        sources = [one for one in stripe.sums if one != name]
        for _ in range(ROUNDS_MAX):
            answered, count = await self._mend_some(name, sources, summed)
            mended += count
            if not answered:
                break
            if count == left:
                left = 0
                break
            again = _Stripe(stripe.ino, stripe.layout, stripe.index, stripe.length, [name])
            await self._read(again, reads=True)  # a writer may have replaced some of it
            if name not in again.sums:
                break
            summed = again.sums[name]
            left = summed.blocks_damaged
            if not left or not count:
                stripe.unmendable |= {name} if left else set()
                break
        stripe.left[name] = left
        if left or mended:  # otherwise a writer has replaced it
            self._found(stripe, name, DAMAGED, LEFT if left else MENDED, left or mended)

    async def _mend_some(
        self, name: ObjectName, sources: Sequence[ObjectName], damaged: ObjectSummed
    ) -> tuple[bool, int]:
        """Whether a source has answered, and how many blocks were mended."""
        left: ObjectSummed | ObjectMended = damaged
        answered, mended = False, 0
        for source in sources:
            if not left.offsets:
                break
            try:
                left = await self._storage.mend(name, source, left)
            except STORAGE_ERRORS as error:
                self._log.warning(
                    "damage is not mended now", target=name.target, source=source, error=error
                )
                continue
            answered = True
            mended += left.blocks
        return answered, mended

    # ---- comparing -----------------------------------------------------------------------

    async def _compare(self, stripe: _Stripe) -> bool:
        """Drops replicas that differ while nobody writes. Returns False if that cannot be found out
        now."""
        async with self._claimed(stripe.ino) as is_claimed:
            if not is_claimed:
                return False
            count = len(stripe.sums)
            await self._read(stripe, reads=False)
            if len(stripe.sums) < count:
                return False
            if not stripe.differ():
                return True
            best = stripe.best()
            digest = stripe.sums[best].digest
            gone = [name for name, one in stripe.sums.items() if one.digest != digest]
            for name in gone:
                self._log.error(
                    "a replica is not equal to another one: it is made again",
                    ino=stripe.ino,
                    target=name.target,
                    kept=best.target,
                )
            dropped = await self._drop(stripe, gone, needs_claim=True)
        for name in gone:
            outcome = DROPPED if name in dropped else LEFT
            self._found(stripe, name, DIFFERENT, outcome, 0)
        return len(dropped) == len(gone)

    @asynccontextmanager
    async def _claimed(self, ino: Ino) -> AsyncIterator[bool]:
        why = await self._claims.take(ino)
        try:
            yield not why
        finally:
            self._claims.give_back(ino)

    # ---- dropping ------------------------------------------------------------------------

    async def _give_up(self, stripe: _Stripe, gone: dict[ObjectName, str]) -> None:
        """Drops replicas of which something is lost, if a whole one stays."""
        whole = [name for name in stripe.whole() if name not in gone]
        dropped = await self._drop(stripe, list(gone)) if whole else []
        for name, what in gone.items():
            outcome = DROPPED if name in dropped else LEFT
            self._found(stripe, name, what, outcome, stripe.left.get(name, 0))
            if name in dropped:
                stripe.sums.pop(name, None)

    async def _drop(
        self, stripe: _Stripe, names: Sequence[ObjectName], *, needs_claim: bool = False
    ) -> list[ObjectName]:
        """Returns those that are dropped."""
        membership, leases = self._engine.services.membership, self._engine.services.leases
        dropped: list[ObjectName] = []
        stays = {name.target for name in stripe.whole() if name not in names}

        def change(tx: Transaction, context: Context) -> None:
            if needs_claim and not leases.held(SCRUB_SESSION, stripe.ino) & LEASE_DATA:
                return
            inode = find(tx, stripe.ino)
            if inode is None or not inode.is_file:
                return
            layout = inode.layout()
            if layout.file_id != stripe.layout.file_id:
                return

            def may_stay(target: int) -> bool:
                return target in stays and membership.is_answering(target, context.now_s)

            present = [name for name in names_of(layout) if name in names]
            dropped.extend(droppable(layout, present, may_stay))
            remove_replicas(tx, stripe.ino, layout, dropped)

        self._change(change)
        await self._committer.wait_durable(self._engine.progress.txn)
        with trio.move_on_after(SETTLE_S):
            await self._dropping.settle(dropped)
        return dropped

    # ---- findings ------------------------------------------------------------------------

    def _found(
        self, stripe: _Stripe, name: ObjectName, what: str, outcome: str, blocks: int
    ) -> None:
        record = FindingRecord(what, outcome, blocks, self._now().now_ns)
        self._scrubs.found(Place(stripe.ino, name), record)
        log = self._log.error if outcome == LEFT else self._log.warning
        log(
            f"a scrub found an object: {what}",
            outcome=outcome,
            ino=stripe.ino,
            target=name.target,
            object=f"{name.file_id:x}.{name.number:x}",
            blocks=blocks or None,
        )

    def _note_whole(self, stripe: _Stripe, name: ObjectName) -> None:
        known = self._scrubs.findings.get(Place(stripe.ino, name))
        if known is not None and known.outcome == LEFT:
            self._scrubs.forget(Place(stripe.ino, name))

    def _forget_others(self, ino: Ino, names: Iterable[ObjectName]) -> None:
        """Forgets what was left of objects that the file does not have any more."""
        present = set(names)
        for place in self._scrubs.left():
            if place.ino == ino and place.name not in present:
                self._scrubs.forget(place)
