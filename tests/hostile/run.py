"""One attack on a running cluster, and the faults that it caused."""

import re
from pathlib import Path
from typing import Final

from fscommon.auth.key import load_key
from fscommon.wire.ops import Op
from metaserver.fsck import check
from metaserver.store.lmdb import LmdbStore
from tests.cluster.cluster import Cluster
from tests.cluster.mirrors import CAPACITY
from tests.hostile.attack import ServerEndedError, World, attack, attack_without_key

# Sessions end soon after their connections; the inodes that they named are then processed again.
SETTINGS: Final[dict[str, dict[str, object]]] = {
    "metaserver": {
        "session_timeout_s": 3.0,
        "lease_duration_s": 3.0,
        "layout": {"replicas_max": 2},
    },
    **{
        f"storageserver-{one}": {"domain": f"rack{one}", "target.capacity_bytes": CAPACITY}
        for one in (1, 2)
    },
}
SERVERS: Final = 2
GROWTH_BYTES_MAX: Final = 400 << 20
BUG: Final = re.compile(r"this is a bug|Traceback|level=error")
# A client may lie of its own files: it says that an object is durable which it never wrote.
LIE: Final = re.compile(r'event="a target has lost an object that was durable')


async def run(
    cluster: Cluster, seed: int, kinds: tuple[str, ...], ops: tuple[Op, ...], count: int
) -> list[str]:
    """A sentence for each fault; stops the metaserver."""
    world = World(cluster.plan.metaserver_address, load_key(cluster.plan.key_file))
    await world.prepare()
    pid = cluster.metaserver.pid()
    before = memory(pid)
    repeat = f"repeat: python -m tests.hostile --seed {seed} --count {count}"
    try:
        await attack_without_key(world, seed, count)
        await attack(world, seed, kinds, ops, count, print)
        await world.wait_for_evictions()
    except ServerEndedError as error:
        one = f" --op {error.op}" if error.op in Op.__members__ else ""
        return [str(error), f"{repeat} --kind {error.kind}{one}"]
    faults = []
    if cluster.metaserver.pid() != pid:
        faults.append("the metaserver ended")
    elif (grown := memory(pid) - before) > GROWTH_BYTES_MAX:
        faults.append(f"the metaserver has grown by {grown >> 20} MiB")
    faults += [
        line for line in _log(cluster).splitlines() if BUG.search(line) and not LIE.search(line)
    ]
    cluster.metaserver.stop()
    store = LmdbStore(cluster.plan.state / "meta" / "store", size_max=1 << 20)
    faults += check(store.snapshot())
    store.close()
    return [*faults, repeat] if faults else []


def _log(cluster: Cluster) -> str:
    return cluster.metaserver.log_path.read_text(errors="replace")


def memory(pid: int | None) -> int:
    """How many bytes of memory a process has."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (resident,) = [line.split()[1] for line in lines if line.startswith("VmRSS:")]
    return int(resident) << 10
