"""Metaserver and storage servers with replicated files: drops, power losses and repairs, over real
connections. A client that knows replicas is played by the test."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import trio

from fscommon.auth.handshake import HelloFields
from fscommon.auth.key import load_key
from fscommon.errors import FsError, Status
from fscommon.layout.layout import Layout, unpack_layout
from fscommon.limits import SOLE_LEASE_S
from fscommon.rpc.caller import Caller, open_caller
from fscommon.rpc.data import DataCaller, ObjectStat
from fscommon.types import Ino
from fscommon.wire.features import FEATURE_REPLICAS
from fscommon.wire.messages import Caller as Person
from fscommon.wire.messages import Close, ClusterMap, Create, Empty, Open, SessionOpen
from fscommon.wire.ops import Op
from fscommon.wire.replicas import DropReplicas
from metaserver.membership import NODE_TIMEOUT_S
from metaserver.namespace.replicas import names_of
from metaserver.records import ObjectName
from tests.cluster.cluster import Cluster
from tests.cluster.mirrors import mirrored
from tests.conftest import ClusterMaker

pytestmark = [pytest.mark.mount, pytest.mark.timeout(120)]
CALL_S = 30.0
REPAIRED_S = 40.0
CONTENT = b"as all replicas have it"


@dataclass
class Player:
    """A client of these servers."""

    cluster: Cluster
    key: bytes
    meta: Caller
    addresses: dict[int, str]

    async def call(self, op: Op, message: Any) -> Any:
        return await self.meta.call(op, message, CALL_S)

    async def layout(self, ino: Ino) -> Layout:
        opened = await self.call(Op.OPEN, Open(ino, False))
        await self.call(Op.CLOSE, Close((ino,)))
        return unpack_layout(opened.layout)

    @asynccontextmanager
    async def at(self, target: int) -> AsyncIterator[DataCaller]:
        hello = HelloFields("server", "test")
        async with open_caller(
            self.addresses[target], key=self.key, hello=hello, timeout_s=CALL_S
        ) as caller:
            yield DataCaller(caller)

    async def write(self, name: ObjectName, epoch: int) -> None:
        async with self.at(name.target) as data:
            await data.write_durably(*name, CONTENT, epoch=epoch, timeout_s=CALL_S)

    async def stat(self, name: ObjectName) -> ObjectStat:
        async with self.at(name.target) as data:
            return await data.stat(*name, timeout_s=CALL_S)


@asynccontextmanager
async def player(cluster: Cluster) -> AsyncIterator[Player]:
    key = load_key(cluster.plan.key_file)
    address = cluster.plan.source().partition(":/")[0]
    async with open_caller(
        address, key=key, hello=HelloFields("meta", "test"), timeout_s=CALL_S
    ) as meta:
        hello = SessionOpen(0, "test", (), 0, features=FEATURE_REPLICAS)
        await open_session(meta, hello)
        found: ClusterMap = await meta.call(Op.CLUSTER_MAP, Empty(), CALL_S)
        yield Player(cluster, key, meta, {row.target: row.address for row in found.targets})


async def open_session(meta: Caller, hello: SessionOpen) -> None:
    """The mount, which was the only client, is told first that there is another one."""
    with trio.fail_after(CALL_S):
        while True:
            try:
                await meta.call(Op.SESSION_OPEN, hello, CALL_S)
            except FsError as error:
                assert error.status is Status.NOT_READY
                await trio.sleep(SOLE_LEASE_S)
            else:
                return


async def made(client: Player) -> tuple[Ino, Layout]:
    who = Person(0, 0, 0)
    opened = await client.call(Op.CREATE, Create(1, b"file", 0o644, True, True, who))
    layout = unpack_layout(opened.layout)
    for name in names_of(layout):
        await client.write(name, layout.truncate_epoch)
    return Ino(layout.file_id), layout


@pytest.mark.expects_warnings
async def test_a_name_stays_refused_by_a_server_that_comes_back(make_cluster: ClusterMaker) -> None:
    """The end of its process is noticed: nobody waits until its lease has run out."""
    cluster = mirrored(make_cluster)
    async with player(cluster) as client:
        ino, layout = await made(client)
        server = cluster.storageservers[1]
        port = cluster.plan.storageservers[1].port
        (lost_target,) = (
            target for target, address in client.addresses.items() if address.endswith(f":{port}")
        )
        lost = [name for name in names_of(layout) if name.target == lost_target]
        kept = [name for name in names_of(layout) if name not in lost]
        await trio.to_thread.run_sync(server.kill)
        request = DropReplicas(
            ino,
            layout.file_id,
            layout.truncate_epoch,
            tuple(name.number for name in lost),
            tuple(name.target for name in lost),
        )
        with trio.fail_after(NODE_TIMEOUT_S / 2):
            now = unpack_layout((await client.call(Op.DROP_REPLICAS, request)).layout)
        there = set(names_of(now))  # a copy may have been made meanwhile
        assert there >= set(kept) and not there & set(lost)
        await trio.to_thread.run_sync(cluster.start_servers)
        for name in lost:
            with pytest.raises(FsError) as caught:
                await client.write(name, layout.truncate_epoch)
            assert caught.value.status is Status.DROPPED


@pytest.mark.expects_warnings
async def test_a_replica_that_is_dropped_is_made_again(make_cluster: ClusterMaker) -> None:
    cluster = mirrored(make_cluster)
    async with player(cluster) as client:
        ino, layout = await made(client)
        lost = names_of(layout)[0]
        request = DropReplicas(ino, layout.file_id, 0, (lost.number,), (lost.target,))
        now = unpack_layout((await client.call(Op.DROP_REPLICAS, request)).layout)
        assert lost not in names_of(now) and len(names_of(now)) == len(names_of(layout)) - 1
        await client.call(Op.CLOSE, Close((ino,)))
        with trio.fail_after(REPAIRED_S):
            while len(names_of(now)) < len(names_of(layout)):
                await trio.sleep(0.5)
                now = await client.layout(ino)
        (added,) = set(names_of(now)) - set(names_of(layout))
        assert now.truncate_epoch == 1 and added.number >> 8 == 1
        for name in names_of(now):
            found = await client.stat(name)
            assert found.length == len(CONTENT) and found.truncate_epoch == 1, name
