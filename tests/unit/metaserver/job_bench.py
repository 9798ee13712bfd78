"""What tests of jobs ask a bench of storage servers, as administrators and clients."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

import trio

from fscommon.types import Ino
from fscommon.wire.admin import TargetSet
from fscommon.wire.jobs import JobList, JobRow, Jobs, TargetRemove, TargetRemoved
from fscommon.wire.messages import ClusterMap, Empty, SessionRenew
from fscommon.wire.ops import Op
from metaserver.placement import ReplicaPolicy

from .bench import SETTINGS, Client
from .mirrors import LiveBench, closed, created

ONE: Final = replace(SETTINGS, replicas=ReplicaPolicy(1, replicas_max=2))
FOUR: Final = (1, 2, 3, 4)
LOGS: Final = (  # what the metaserver may say while jobs run
    "a file gets its replicas later|a file is moved later|storage server is down|"
    "the replicas of a target are made again|files lack replicas|objects are deleted later|"
    "client is evicted|fence is repeated"
)


async def until(condition: Callable[[], bool], seconds: float = 60, each_s: float = 0.1) -> None:
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await trio.sleep(each_s)


def renewed(bench: LiveBench, *clients: Client) -> None:
    for client in clients:
        client.call(Op.SESSION_RENEW, SessionRenew(0))


def admin_of(bench: LiveBench) -> Client:
    return Client(bench, bench.connect("admin"))


def files(bench: LiveBench, count: int, settings: str = "f") -> list[Ino]:
    """Closed and durable files, whose client is gone."""
    client = bench.writer()
    inos = [created(client, f"{settings}{at}".encode()) for at in range(count)]
    for ino in inos:
        closed(client, ino, is_synced=True)
    bench.settle()
    client.call(Op.SESSION_CLOSE, Empty())
    return inos


def on(bench: LiveBench, inos: Iterable[Ino], target: int) -> list[Ino]:
    return [ino for ino in inos if target in bench.layout(ino).targets]


def rows(bench: LiveBench) -> list[JobRow]:
    jobs: Jobs = admin_of(bench).call(Op.JOB_LIST, JobList())
    return list(jobs.rows)


def row(bench: LiveBench, kind: str) -> JobRow:
    return [one for one in rows(bench) if one.kind == kind][-1]


def drain(bench: LiveBench, target: int, *, is_draining: bool = True) -> None:
    admin_of(bench).call(Op.TARGET_SET, TargetSet((target,), is_draining, moves=is_draining))


def remove(bench: LiveBench, *targets: int, is_lost: bool = False) -> TargetRemoved:
    reply: TargetRemoved = admin_of(bench).call(Op.TARGET_REMOVE, TargetRemove(targets, is_lost))
    return reply


def state(bench: LiveBench, target: int) -> str:
    cluster: ClusterMap = admin_of(bench).call(Op.CLUSTER_MAP, Empty())
    return next((one.state for one in cluster.targets if one.target == target), "none")


async def until_done(bench: LiveBench, kind: str, seconds: float = 300) -> JobRow:
    await until(lambda: row(bench, kind).state == "done", seconds, 1.0)
    return row(bench, kind)
