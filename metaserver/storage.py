"""Calls to storage servers: TRUNCATE, DELETE, FENCE by target or node, over kept connections.

One connection per address, made when first needed and made anew after a failure. A call either
took durable effect or raises TransportError or FsError; all are safe to repeat and whoever needs
them done repeats them (truncation, reaper, eviction).
"""

from typing import Final

import trio

from fscommon.auth.handshake import HelloFields
from fscommon.errors import TransportError
from fscommon.layout.layout import Layout, object_length
from fscommon.net.stream import connect
from fscommon.net.transport import Transport
from fscommon.rpc.caller import Caller
from fscommon.rpc.data import DataCaller
from fscommon.types import FileId, SessionId, TargetId
from metaserver.membership import Membership, Node

CALL_TIMEOUT_S: Final = 10.0
CONNECT_TIMEOUT_S: Final = 3.0


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
        self._dialing: dict[str, trio.Lock] = {}

    async def truncate(self, layout: Layout, size: int) -> None:
        """Cut every object of the layout to what a file of size bytes has."""
        async with trio.open_nursery() as nursery:
            for stripe_index in range(layout.stripe_width):
                for replica in range(layout.replica_count):
                    nursery.start_soon(self._truncate_one, layout, stripe_index, replica, size)

    async def _truncate_one(
        self, layout: Layout, stripe_index: int, replica: int, size: int
    ) -> None:
        target = TargetId(layout.target(stripe_index, replica))
        caller = await self._to_target(target)
        await caller.truncate(
            target,
            layout.file_id,
            stripe_index,
            length=object_length(layout, stripe_index, size),
            epoch=layout.truncate_epoch,
            timeout_s=CALL_TIMEOUT_S,
        )

    async def delete(self, layout: Layout) -> None:
        """Delete every object of the layout."""
        for stripe_index in range(layout.stripe_width):
            for replica in range(layout.replica_count):
                target = TargetId(layout.target(stripe_index, replica))
                caller = await self._to_target(target)
                file_id = FileId(layout.file_id)
                await caller.delete(target, file_id, stripe_index, timeout_s=CALL_TIMEOUT_S)

    async def fence(self, node: Node, session: SessionId) -> None:
        caller = await self._to(node.address)
        await caller.fence(session, timeout_s=CALL_TIMEOUT_S)

    async def _to_target(self, target: TargetId) -> DataCaller:
        address = self._membership.address_of(target)
        if address is None:
            raise TransportError(f"target {target} is in no node")
        return await self._to(address)

    async def _to(self, address: str) -> DataCaller:
        async with self._dialing.setdefault(address, trio.Lock()):
            caller = self._callers.get(address)
            if caller is None or not caller.is_open:
                hello = HelloFields(purpose="server", node="metaserver")
                stream = await connect(
                    address,
                    key=self._key,
                    hello=hello,
                    timeout_s=CONNECT_TIMEOUT_S,
                    transport=self._transport,
                )
                caller = self._callers[address] = Caller(stream)
                self._tasks.start_soon(caller.run)
            return DataCaller(caller)
