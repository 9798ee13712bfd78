"""Calls to storage servers: TRUNCATE, DELETE, FENCE, DROP_NAMES, SYNC of what clients have closed,
and WRITE of inline bytes that leave their inode's record.

There is one connection for each address, made when it is first needed, and made again after a
failure. A call either took durable effect or raises TransportError or FsError. All calls are safe
to repeat, and their callers repeat them until they succeed (truncation, reaper, eviction). At a
target that the cluster does not have, there is nothing to cut or delete: the call succeeds, so that
nobody repeats it for ever.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

from fscommon.auth.handshake import HelloFields
from fscommon.errors import (
    AuthenticationError,
    BraidError,
    FsError,
    ProtocolError,
    Status,
    TransportError,
    status_of,
)
from fscommon.layout.layout import Layout, Replica, object_length
from fscommon.limits import BLOCK_SIZE, OBJECT_BYTES_MAX
from fscommon.net.stream import connect
from fscommon.net.transport import Transport
from fscommon.observe.log import Log, RateLimit
from fscommon.rpc.caller import EXCHANGES_MAX, Caller
from fscommon.rpc.data import DataCaller
from fscommon.rpc.objects import ObjectCaller
from fscommon.rpc.pool import CallerPool
from fscommon.types import SessionId, TargetId
from fscommon.wire.header import EVERY_FILE
from fscommon.wire.objects import (
    RANGES_MAX,
    ObjectCopied,
    ObjectCopy,
    ObjectMend,
    ObjectMended,
    ObjectSum,
    ObjectSummed,
)
from metaserver.membership import Membership, Node
from metaserver.records import ObjectName

STORAGE_ERRORS: Final = (FsError, TransportError, ProtocolError, AuthenticationError)
CALL_TIMEOUT_S: Final = 10.0
CONNECT_TIMEOUT_S: Final = 2.0
COPY_TIMEOUT_S: Final = 24 * 3600.0  # a copy ends with its connection
MEND_TIMEOUT_S: Final = 3600.0
DROP_TIMEOUT_S: Final = 3.0  # a target answers at once
OLD_S: Final = 60.0  # a storage server may be upgraded under a metaserver


class StorageCalls:
    def __init__(
        self,
        membership: Membership,
        *,
        key: bytes,
        tasks: trio.Nursery,
        transport: Transport | None = None,
    ) -> None:
        self._membership = membership
        self._key = key
        self._tasks = tasks
        self._transport = transport
        self._callers: dict[str, Caller] = {}
        self._pool = CallerPool(tasks, self._connect_as_administrator)
        self._dialing: dict[str, trio.Lock] = {}
        self._log = Log("storage")
        self._unknown = RateLimit(10.0)
        self._old_until: dict[str, float] = {}  # servers of an earlier release: only DELETE

    async def truncate(self, layout: Layout, size: int) -> None:
        """Cuts every object of the layout to its length in a file of this size."""
        async with trio.open_nursery() as nursery:
            for replica in layout.replicas():
                nursery.start_soon(self._truncate_one, layout, replica, size)

    async def _truncate_one(self, layout: Layout, replica: Replica, size: int) -> None:
        target, stripe_index = TargetId(replica.target), replica.stripe_index
        if self._membership.address_of(target) is None:  # it never comes: do not wait
            self._tell_unknown(target, layout.file_id)
            return
        caller = await self._to_target(target)
        length = min(object_length(layout, stripe_index, size), OBJECT_BYTES_MAX)
        # An object that a disk has lost is not made again while the file has bytes there: it would
        # be read as zeros. If the file is to have no bytes there, nobody misses them.
        must_exist = length > 0 and bool(layout.durable_stripes >> stripe_index & 1)
        is_there = await caller.truncate(
            target,
            layout.file_id,
            replica.object_number,
            length=length,
            epoch=layout.truncate_epoch,
            must_exist=must_exist,
            timeout_s=CALL_TIMEOUT_S,
        )
        if not is_there:
            self._log.error(
                "a target has lost an object that was durable: there is nothing of it to be cut",
                target=target,
                file_id=layout.file_id,
                stripe_index=stripe_index,
            )

    async def cut_replicas(self, layout: Layout, size: int) -> dict[ObjectName, str]:
        """As truncate(), or spill() of inline bytes, for a replicated file. Returns the objects
        that were not cut, each with the reason."""
        failed: dict[ObjectName, str] = {}
        async with trio.open_nursery() as nursery:
            for replica in layout.replicas():
                if not layout.inline or replica.stripe_index == 0:
                    nursery.start_soon(self._cut_replica, layout, replica, size, failed)
        return failed

    async def _cut_replica(
        self, layout: Layout, replica: Replica, size: int, failed: dict[ObjectName, str]
    ) -> None:
        try:
            if layout.inline:
                await self._spill_one(layout, replica)
            else:
                await self._truncate_one(layout, replica, size)
        except STORAGE_ERRORS as error:
            name = ObjectName(replica.target, layout.file_id, replica.object_number)
            failed[name] = str(error)

    async def spill(self, layout: Layout) -> None:
        """Writes the inline bytes of the layout to its objects, which then hold nothing else and
        are durable. Targets then refuse what was sent with an older truncate epoch."""
        async with trio.open_nursery() as nursery:
            for replica in layout.replicas():
                if replica.stripe_index == 0:  # nobody has written to another object yet
                    nursery.start_soon(self._spill_one, layout, replica)

    async def _spill_one(self, layout: Layout, replica: Replica) -> None:
        """Writes all of the bytes to the first object."""
        await self._truncate_one(layout, replica, 0)
        target = TargetId(replica.target)
        caller = await self._to_target(target)
        await caller.write_durably(
            target,
            layout.file_id,
            replica.object_number,
            layout.inline,
            epoch=layout.truncate_epoch,
            timeout_s=CALL_TIMEOUT_S,
        )

    async def delete_all(
        self, layouts: Sequence[Layout], others: Sequence[Sequence[ObjectName]] = ()
    ) -> list[str]:
        """Deletes every object of these layouts; others: for each layout, or for none, further
        objects. Returns for each layout "", or why some of its objects are not deleted."""
        groups = [list(_objects_of(layout)) for layout in layouts]
        for group, more in zip(groups, others, strict=False):
            group.extend(more)
        return await self.delete_objects(groups)

    async def delete_objects(self, groups: Sequence[Sequence[ObjectName]]) -> list[str]:
        """Deletes objects. Returns for each group "", or why some of its objects are not
        deleted."""
        places, unknown = self._by_address(
            (index, one) for index, group in enumerate(groups) for one in group
        )
        for target, file_id, _ in unknown:
            self._tell_unknown(target, file_id)
        failed: dict[int, str] = {}
        async with trio.open_nursery() as nursery:
            for address, objects in places.items():
                nursery.start_soon(self._delete_at, address, objects, failed)
        return [failed.get(index, "") for index in range(len(groups))]

    def _by_address(
        self, objects: Iterable[tuple[int, ObjectName]]
    ) -> tuple[dict[str, list[tuple[int, ObjectName]]], list[ObjectName]]:
        """Numbered objects by the address of their storage server, and those whose target the
        cluster does not have."""
        places: dict[str, list[tuple[int, ObjectName]]] = {}
        unknown: list[ObjectName] = []
        for index, one in objects:
            address = self._membership.address_of(TargetId(one.target))
            if address is None:
                unknown.append(one)
            else:
                places.setdefault(address, []).append((index, one))
        return places, unknown

    async def _delete_at(
        self, address: str, objects: Sequence[tuple[int, ObjectName]], failed: dict[int, str]
    ) -> None:
        try:
            caller = await self._to(address)
            words = [one for _, one in objects]
            is_old = self._old_until.get(address, 0.0) > trio.current_time()
            delete = caller.delete_singly if is_old else caller.delete_all
            gone = await delete(words, timeout_s=CALL_TIMEOUT_S)
        except STORAGE_ERRORS as error:
            if isinstance(error, FsError) and error.status is Status.BAD_REQUEST:
                self._old_until[address] = trio.current_time() + OLD_S
            failed.update((index, str(error)) for index, _ in objects)
            return
        failed.update(
            (index, f"{address} did not delete an object")
            for (index, _), is_gone in zip(objects, gone, strict=True)
            if not is_gone
        )

    def _tell_unknown(self, target: int, file_id: int) -> None:
        """Says nothing of a removed target: what files had there is gone with it, and a file with
        inline bytes goes on naming it."""
        if target in self._membership.all_removed():
            return
        if self._unknown.permit() is not None:
            self._log.error(
                "this cluster has no such target: there is nothing to be done there",
                target=target,
                file_id=file_id,
            )

    async def fence(self, node: Node, session: SessionId) -> None:
        caller = await self._to(node.address)
        await caller.fence(session, timeout_s=CALL_TIMEOUT_S)

    async def drop_names(self, target: int, names: Sequence[ObjectName]) -> None:
        """From now on the target answers no client for these objects of it."""
        caller = await self._to_target(TargetId(target))
        words = [(name.file_id, name.number) for name in names]
        await caller.drop_names(target, words, timeout_s=DROP_TIMEOUT_S)

    async def sync(self, name: ObjectName, epoch: int) -> int:
        """Makes the object durable. Returns the target's incarnation."""
        caller = await self._to_target(TargetId(name.target))
        return await caller.sync(*name, epoch=epoch, timeout_s=CALL_TIMEOUT_S)

    async def sync_target(self, target: TargetId) -> int:
        """Makes durable all that was written to a target until now. Returns its incarnation. A
        storage server of an earlier release refuses: NO_OBJECT."""
        return await self.sync(ObjectName(target, EVERY_FILE, 0), 0)

    async def sync_all(self, objects: Sequence[tuple[ObjectName, int]]) -> list[int | BraidError]:
        """Makes objects durable, each with its truncate epoch, many at a time. Returns of each the
        target's incarnation, or why it may not be durable."""
        places, _ = self._by_address(enumerate(name for name, _ in objects))
        done: list[int | BraidError] = [TransportError("the target is in no node")] * len(objects)
        async with trio.open_nursery() as nursery:
            for address, there in places.items():
                indices = [index for index, _ in there]
                nursery.start_soon(self._sync_at, address, objects, indices, done)
        return done

    async def _sync_at(
        self,
        address: str,
        objects: Sequence[tuple[ObjectName, int]],
        indices: Sequence[int],
        done: list[int | BraidError],
    ) -> None:
        for start in range(0, len(indices), EXCHANGES_MAX):
            some = indices[start : start + EXCHANGES_MAX]
            try:
                caller = await self._to(address)
                answers = await caller.sync_all(
                    [objects[index] for index in some], timeout_s=CALL_TIMEOUT_S
                )
            except STORAGE_ERRORS as error:
                for index in indices[start:]:
                    done[index] = error
                return
            for index, (status, incarnation) in zip(some, answers, strict=True):
                if status is None:
                    done[index] = TransportError(f"{address} did not answer SYNC in time")
                else:
                    done[index] = FsError(status_of(status)) if status else incarnation

    async def raise_epoch(self, name: ObjectName, epoch: int, *, must_exist: bool) -> int:
        """From now on the object refuses what has an older epoch; if it is missing, it is made,
        unless it must exist. Returns the target's incarnation."""
        caller = await self._to_target(TargetId(name.target))
        return await caller.raise_epoch(
            *name, epoch=epoch, must_exist=must_exist, timeout_s=CALL_TIMEOUT_S
        )

    async def copy(
        self, name: ObjectName, source: ObjectName, epoch: int, *, must_exist: bool
    ) -> ObjectCopied:
        """Makes an object from one of another target, which may be a hole unless it must exist. It
        is durable when this returns."""
        address = self._address_of(source.target)
        request = ObjectCopy(*name, epoch, address, source.target, source.number, must_exist)
        async with self._whole_objects(name.target, COPY_TIMEOUT_S) as objects:
            copied = await objects.copy(request)
            _check_numbers(name.target, copied.bytes)
            return copied

    async def sum(self, name: ObjectName, *, reads: bool, timeout_s: float) -> ObjectSummed:
        """What the object is, and if `reads` what of it is damaged on its device."""
        async with self._whole_objects(name.target, timeout_s) as objects:
            summed = await objects.sum(ObjectSum(*name, reads))
            _check_numbers(name.target, summed.length, summed.bytes)
            check_damage(name.target, summed.blocks_damaged, summed)
            return summed

    async def mend(
        self, name: ObjectName, source: ObjectName, damaged: ObjectSummed | ObjectMended
    ) -> ObjectMended:
        """Has damaged ranges of the object written again with the bytes of another replica."""
        offsets, lengths = damaged.offsets, damaged.lengths
        address = self._address_of(source.target)
        request = ObjectMend(*name, offsets, lengths, address, source.target, source.number)
        async with self._whole_objects(name.target, MEND_TIMEOUT_S) as objects:
            mended = await objects.mend(request)
            check_damage(name.target, mended.blocks, mended)
            return mended

    @asynccontextmanager
    async def _whole_objects(self, target: int, timeout_s: float) -> AsyncIterator[ObjectCaller]:
        """What is asked within stops when this is cancelled."""
        async with self._pool.of(self._address_of(target)) as caller:
            yield ObjectCaller(caller, timeout_s=timeout_s)

    def _address_of(self, target: int) -> str:
        """Raises TransportError."""
        address = self._membership.address_of(TargetId(target))
        if address is None:
            raise TransportError(f"target {target} is in no node")
        return address

    async def _to_target(self, target: TargetId) -> DataCaller:
        return await self._to(self._address_of(target))

    async def _to(self, address: str) -> DataCaller:
        async with self._dialing.setdefault(address, trio.Lock()):
            caller = self._callers.get(address)
            if caller is None or not caller.is_open:
                epoch = self._membership.epoch  # a metaserver of before a restore is refused
                caller = await self._connect(address, HelloFields("server", "metaserver", epoch))
                self._callers[address] = caller
                self._tasks.start_soon(caller.run)
            return DataCaller(caller)

    async def _connect_as_administrator(self, address: str) -> Caller:
        return await self._connect(address, HelloFields("admin", "metaserver"))

    async def _connect(self, address: str, hello: HelloFields) -> Caller:
        """run() of what it returns is still to be started."""
        stream = await connect(
            address,
            key=self._key,
            hello=hello,
            timeout_s=CONNECT_TIMEOUT_S,
            transport=self._transport,
        )
        return Caller(stream)


def _check_numbers(target: int, *lengths: int) -> None:
    """Raises ProtocolError for what no object has: sums over many objects would be wrong."""
    if max(lengths) > OBJECT_BYTES_MAX:
        raise ProtocolError(f"target {target} tells of an object of {max(lengths)} bytes")


def check_damage(target: int, blocks: int, damage: ObjectSummed | ObjectMended) -> None:
    """blocks: damaged or mended ones. Raises ProtocolError."""
    ranges = len(damage.offsets)
    if ranges != len(damage.lengths) or ranges > RANGES_MAX:
        raise ProtocolError(f"target {target} tells of {ranges} ranges that make no sense")
    _check_numbers(target, blocks * BLOCK_SIZE, *damage.offsets, *damage.lengths)


def _objects_of(layout: Layout) -> Iterator[ObjectName]:
    for replica in layout.replicas():
        yield ObjectName(replica.target, layout.file_id, replica.object_number)
