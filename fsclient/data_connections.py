"""Connections of the native lanes to storage servers: made and authenticated here, used there.

A lane asks (CONNECT event) for a connection to a node; this side looks its address up in the
cluster map, shakes hands, and hands the bare socket over. HELLO names the lane's previous
connection to that node, whose requests the server then ends first (rule 23). Repetition and its
backoff are native's: a failure is reported once and asked for again by the lane.
"""

import os
from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from fscommon.auth.handshake import HelloFields
from fscommon.errors import AuthenticationError, BraidError, ProtocolError
from fscommon.net.stream import FrameStream
from fscommon.observe.log import Log, RateLimit
from fscommon.wire.messages import ClusterMap

Connect = Callable[[str, HelloFields], Awaitable[FrameStream]]


class LaneTable(Protocol):
    """The part of the native Datapath that knows nodes, targets and connections."""

    def node_put(self, node: int, /) -> None: ...
    def target_put(self, target: int, node: int, /) -> None: ...
    def connection_put(self, lane: int, node: int, fd: int, /) -> None: ...
    def connection_failed(self, lane: int, node: int, /) -> None: ...


class DataConnections:
    def __init__(
        self, lanes: LaneTable, connect: Connect, name: str, session: Callable[[], int]
    ) -> None:
        """name: of this client, for the servers' logs. session: the present one."""
        self._lanes = lanes
        self._connect = connect
        self._name = name
        self._session = session
        self._addresses: dict[int, str] = {}
        self._nodes_of_targets: dict[int, int] = {}
        self._previous: dict[tuple[int, int], int] = {}
        self._wanted: set[tuple[int, int]] = set()
        self._log = Log("data")
        self._failures: dict[int, RateLimit] = {}
        self.made_count = 0
        self.failed_count = 0

    def map_changed(self, cluster_map: ClusterMap) -> None:
        """Tell the lanes of nodes and targets; one that moved gets its new address at the next
        CONNECT."""
        for entry in cluster_map.targets:
            is_new = entry.node not in self._addresses
            self._addresses[entry.node] = entry.address
            if is_new:
                self._lanes.node_put(entry.node)
            if self._nodes_of_targets.get(entry.target) != entry.node:
                self._nodes_of_targets[entry.target] = entry.node
                self._lanes.target_put(entry.target, entry.node)

    def wanted(self, node: int, lane: int, nursery: trio.Nursery) -> None:
        """A CONNECT event."""
        if (lane, node) not in self._wanted:
            self._wanted.add((lane, node))
            nursery.start_soon(self._make, node, lane)

    async def _make(self, node: int, lane: int) -> None:
        try:
            fd = await self._open(node, lane)
        except BraidError as error:
            self._failed(node, lane, error)
        else:
            self.made_count += 1
            self._lanes.connection_put(lane, node, fd)
        finally:
            self._wanted.discard((lane, node))

    async def _open(self, node: int, lane: int) -> int:
        """An authenticated socket, which is the caller's."""
        address = self._addresses.get(node)
        if address is None:
            raise ProtocolError(f"node {node} is not in the cluster map")
        previous = self._previous.get((lane, node), 0)
        hello = HelloFields("data", self._name, session=self._session(), previous=previous)
        stream = await self._connect(address, hello)
        fd, early = stream.detach()
        self._previous[lane, node] = hello.connection
        if early:
            os.close(fd)
            raise ProtocolError(f"{address} spoke before it was asked")
        return fd

    def _failed(self, node: int, lane: int, error: BraidError) -> None:
        self.failed_count += 1
        limit = self._failures.setdefault(node, RateLimit(10.0))
        suppressed = limit.permit()
        if suppressed is not None:
            report = (
                self._log.error if isinstance(error, AuthenticationError) else self._log.warning
            )
            report("no connection to a storage server", node=node, lane=lane, error=error)
        self._lanes.connection_failed(lane, node)
