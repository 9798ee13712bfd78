"""One attack on a running storage server, and the faults that it caused."""

import re
from typing import Final

from fscommon.auth.key import load_key
from tests.cluster.cluster import Cluster
from tests.hostile import data_attack, object_attack
from tests.hostile.attack import ServerEndedError
from tests.hostile.data_attack import GoodClient, StorageWorld, attack_as
from tests.hostile.run import BUG, GROWTH_BYTES_MAX, memory

# No task renews sessions here; only the metaserver uses leases.
SETTINGS: Final[dict[str, dict[str, object]]] = {"metaserver": {"session_timeout_s": 3600.0}}
TARGETS: Final = 2
KINDS: Final = (*data_attack.KINDS, object_attack.KIND)
_TRUSTED: Final = ("server", object_attack.KIND)  # they may make any object
_NAME: Final = re.compile(r"([0-9a-f]{16})\.([0-9a-f]+)")


async def run(
    cluster: Cluster, seed: int, kinds: tuple[str, ...], ops: tuple[int, ...], count: int
) -> list[str]:
    """A sentence for each fault, and the command that repeats it."""
    world = StorageWorld(cluster.plan.metaserver_address, load_key(cluster.plan.key_file))
    repeat = f"repeat: python -m tests.hostile --storage --seed {seed} --count {count}"
    async with world.prepared():
        good = GoodClient(world, seed)
        await good.begin()
        attack = _Attack(cluster, world, good)
        for kind in kinds:
            try:
                await attack.by(kind, seed, ops, count)
            except ServerEndedError as error:
                one = f" --op {error.op}" if error.op.isdecimal() else ""
                return [*attack.faults(), str(error), f"{repeat} --kind {kind}{one}"]
            if faults := attack.faults(is_trusted=kind in _TRUSTED):
                return [*faults, f"{repeat} --kind {kind}"]
    return []


class _Attack:
    def __init__(self, cluster: Cluster, world: StorageWorld, good: GoodClient) -> None:
        self._cluster = cluster
        self._world = world
        self._good = good
        self._server = cluster.storageservers[0]
        self._pid = self._server.pid()
        self._before = memory(self._pid)

    async def by(self, kind: str, seed: int, ops: tuple[int, ...], count: int) -> None:
        async with self._good.beside():
            if kind == object_attack.KIND:
                await object_attack.attack(self._world, seed, ops, count, print)
            else:
                await attack_as(self._world, seed, kind, ops, count, print)

    def faults(self, *, is_trusted: bool = False) -> list[str]:
        found = []
        if self._server.pid() != self._pid:
            found.append("the storage server ended")
        elif (grown := memory(self._pid) - self._before) > GROWTH_BYTES_MAX:
            found.append(f"the storage server has grown by {grown >> 20} MiB")
        text = self._server.log_path.read_text(errors="replace")
        found += [line for line in text.splitlines() if BUG.search(line)]
        return found if is_trusted else found + self._strays()

    def _strays(self) -> list[str]:
        """Objects that belong to no layout, or are on more targets than one. (The metaserver's own
        connections may create any.)"""
        left = {
            (layout.file_id, stripe)
            for layout in self._world.layouts.values()
            for stripe in range(layout.stripe_width)
        }
        server = self._cluster.plan.storageservers[0]
        found = []
        for index in range(TARGETS):
            folder = self._cluster.plan.target_path(server, index)
            for path in folder.glob("objects/*/*"):
                name = _NAME.fullmatch(path.name)
                assert name is not None, path
                object_id = int(name[1], 16), int(name[2], 16)
                if object_id not in left:
                    found.append(f"a stray object: {path}")
                left.discard(object_id)
        return found
