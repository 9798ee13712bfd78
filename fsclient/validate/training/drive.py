"""A run of the suite `training`: makes data sets, replays epochs on all nodes, judges them.

It uses the nodes of fsclient.validate.run. Data sets belong to the first node's folder, so they go
with it. What is measured is kept after each epoch; --resume makes the files again and goes on with
the next epoch.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Protocol

import trio

from fscommon.tasks import open_tasks

from ...kernel import FILE_SYSTEM_TYPE
from ..kept import Kept
from ..nodes import Node, NodeError, NodePlan
from ..outcome import NodeFacts
from ..run import (
    FOLDER_PREFIX,
    NOTHING_KEPT,
    PHASE_SECONDS_MAX,
    ROOM_FACTOR,
    START_SECONDS_MAX,
    each_of,
    end_all,
    facts_of,
)
from ..worker import READY_SECONDS_MAX
from .utilisation import (
    MEMORY_FACTOR,
    STEPS_LEAST,
    Epoch,
    Search,
    Spread,
    Trace,
    of_save,
    seconds_of,
)
from .workload import Checkpoint, Pattern, Workload

SHORT_SECONDS: Final = 5.0  # of computing, in the short form
SHORT_STEPS: Final = (10, 100)
STEPS_MIN: Final = 3  # the first one does not count
GPUS_MAX: Final = 4096
NODE_GPUS_MAX: Final = 512  # each is a process with some MiB of memory
GUESSED_RATE: Final = 5e8  # bytes per second, of what is told about the time that files take
DROP_ANSWER_SECONDS: Final = 300.0
MAKE_SECONDS_MAX: Final = 6 * 3600.0
SETTLED_SECONDS_MAX: Final = 20.0


@dataclass(frozen=True, slots=True)
class Counted:
    """bytes: those that all storage servers have served since they started, by server. reported_s:
    how long ago the oldest of these counts was made."""

    bytes: dict[int, int]
    reported_s: float


Counting = Callable[[], Awaitable[Counted]]
Tell = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Training:
    """A request. gpus: None searches for the largest count. files: of each GPU in an epoch; None:
    as many as it needs. drops: whether caches are dropped before each epoch. environment: the
    folder of DLIO's environment; "" uses the engine that is built in."""

    workloads: tuple[Pattern, ...]
    gpu: str | None
    gpus: int | None
    short: bool = False
    scale: float = 1.0
    files: int | None = None
    drops: bool = True
    environment: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """Of one workload. gpus: for which the epochs are; ranks of a checkpoint. node_gpus: the
    largest count of one node alone, when there are several and it was searched. limit: what ended a
    search, beside the storage. why_invalid: each a half sentence; none: the result is valid."""

    workload: Pattern
    gpu: str
    gpus: int
    epochs: tuple[Epoch, ...]
    why_invalid: tuple[str, ...]
    scale: float = 1.0
    loads: tuple[Epoch, ...] = ()
    node_gpus: int | None = None
    limit: str = ""

    @property
    def utilisation(self) -> Spread:
        return Spread.of([one.utilisation for one in self.epochs])

    @property
    def is_enough(self) -> bool:
        return self.utilisation.middle >= self.workload.utilisation

    @property
    def is_met(self) -> bool:
        return self.is_enough and not self.why_invalid


@dataclass(slots=True)
class Report:
    began_ns: int
    nodes: tuple[NodeFacts, ...] = ()
    seconds: float = 0.0
    results: list[Result] = field(default_factory=list)

    @property
    def is_met(self) -> bool:
        return all(one.is_met for one in self.results)


class Engine(Protocol):
    """What measures one epoch of a data set."""

    async def make(self, workload: Workload, count: int) -> None:
        """Makes the data set of so many files, or adds those that it lacks."""

    async def epoch(self, workload: Workload, gpus: Sequence[int], number: int) -> Epoch:
        """gpus: of each node that takes part."""

    async def end(self) -> None:
        """Removes the data set."""


async def train(
    request: Training,
    plans: Sequence[NodePlan],
    tell: Tell,
    kept: Kept = NOTHING_KEPT,
    counting: Counting | None = None,
) -> Report:
    """Runs the suite. tell(title, seconds) is called when something begins that may take so long.
    counting: counts what storage servers have served; None: they cannot be asked. Raises NodeError,
    what counting raises (before anything is written), and OSError if `kept` cannot be written."""
    from .engines import engine_of  # noqa: PLC0415 - engines are made for a stage

    report = Report(time.time_ns())
    name = f"{FOLDER_PREFIX}{report.began_ns:x}"
    async with open_tasks() as nursery:
        nodes: list[Node] = []
        try:
            tell("Looks at the nodes", 1.0)
            for plan in plans:
                nodes.append(await Node.start(plan, nursery))
            report.nodes = await _introduce(nodes)
            state = kept.state_of(report.nodes) or {}
            folders = [f"{plan.path.rstrip('/')}/{name}" for plan in plans]
            await nodes[0].ask("make", START_SECONDS_MAX, folder=folders[0])
            await each_of(
                nodes,
                lambda n: nodes[n].ask(
                    "join", START_SECONDS_MAX, folder=folders[n], name=f"node-{n}"
                ),
            )
            stage = Stage(request, nodes, folders, report, tell, kept, counting)
            stage.take(state)
            await stage.count()  # a wrong key is told now, not after hours of writing
            for workload in request.workloads:
                if isinstance(workload, Checkpoint):
                    report.results.append(await stage.checkpoint(workload))
                else:
                    engine = engine_of(stage)
                    report.results.append(await stage.data(workload, engine))
        finally:
            await end_all(nodes)
            nursery.cancel_scope.cancel()
    kept.end()
    return report


async def _introduce(nodes: list[Node]) -> tuple[NodeFacts, ...]:
    answers = await each_of(
        nodes, lambda n: nodes[n].ask("hello", START_SECONDS_MAX, path=nodes[n].plan.path)
    )
    return tuple(facts_of(one.plan, answer) for one, answer in zip(nodes, answers, strict=True))


class Stage:
    """The nodes of a run, and what was measured on them."""

    def __init__(
        self,
        request: Training,
        nodes: list[Node],
        folders: list[str],
        report: Report,
        tell: Tell,
        kept: Kept,
        counting: Counting | None,
    ) -> None:
        self.request, self.nodes, self.folders, self.tell = request, nodes, folders, tell
        self._report, self._kept, self._counting = report, kept, counting
        self._epochs: dict[str, list[Epoch]] = {}
        self._before_s, self._started = 0.0, time.monotonic()

    @property
    def facts(self) -> tuple[NodeFacts, ...]:
        return self._report.nodes

    @property
    def is_braidfs(self) -> bool:
        return all(one.file_system == FILE_SYSTEM_TYPE for one in self.facts)

    def take(self, state: dict[str, Any]) -> None:
        """Takes what an earlier run has measured. Raises NodeError."""
        try:
            for key, found in state.get("epochs", {}).items():
                self._epochs[key] = [Epoch(**one) for one in found]
            self._report.began_ns = state.get("began_ns", self._report.began_ns)
            self._before_s = self._report.seconds = state.get("seconds", 0.0)
        except (TypeError, AttributeError) as error:
            raise NodeError("what is kept cannot be read: begin without --resume") from error

    def _put(self, key: str, epoch: Epoch) -> None:
        self._epochs.setdefault(key, []).append(epoch)
        self._report.seconds = self._before_s + time.monotonic() - self._started
        state = {
            "began_ns": self._report.began_ns,
            "seconds": self._report.seconds,
            "epochs": {
                name: [asdict(one) for one in found] for name, found in self._epochs.items()
            },
        }
        self._kept.put_state(self.facts, state)

    # ---- data sets -----------------------------------------------------------------------

    def steps_of(self, workload: Workload) -> int:
        """How many steps a GPU does in an epoch. Raises NodeError when --files has too few."""
        compute_s = workload.compute_of(self.gpu_of(workload))
        low, high = SHORT_STEPS
        wanted = STEPS_LEAST
        if self.request.short:
            wanted = max(low, min(high, round(SHORT_SECONDS / compute_s)))
        if self.request.files is not None:
            wanted = min(wanted, workload.steps_of(self.request.files))
        if wanted < STEPS_MIN:
            needed = workload.files_of(STEPS_MIN)
            raise NodeError(
                f"{workload.name} needs at least {needed} files for each GPU: say more with --files"
            )
        return wanted

    def gpu_of(self, workload: Workload) -> str:
        return self.request.gpu or workload.compute_s[0][0]

    def files_of(self, workload: Workload) -> int:
        """Files of each GPU."""
        return workload.files_of(self.steps_of(workload))

    def _most(self, workload: Workload) -> tuple[int, str]:
        """How many GPUs the nodes can have, and what limits them."""
        free = min(one.bytes_available for one in self.facts)
        by_room = int(free / ROOM_FACTOR / self.files_of(workload) / workload.file_bytes_mean)
        by_nodes = min(GPUS_MAX, NODE_GPUS_MAX * len(self.nodes))
        if by_room < by_nodes:
            return by_room, f"the free space has room for no more than {by_room} GPUs' files"
        return by_nodes, f"no more than {by_nodes} GPUs are emulated"

    async def data(self, workload: Workload, engine: Engine) -> Result:
        """Measures one workload that reads a data set."""
        most, limit = self._most(workload)
        wanted = self.request.gpus or 1
        if wanted > most:
            needed = self.files_of(workload) * workload.file_bytes_mean * wanted * ROOM_FACTOR
            raise NodeError(
                f"{workload.name} with {wanted} GPUs needs {needed / 1e9:.1f} GB, and {limit}: "
                "use --short, fewer --files or fewer --gpus"
            )
        node_gpus: int | None = None
        count = len(self.nodes)
        if self.request.gpus is not None:
            gpus, found_limit = wanted, ""
        else:
            if count > 1:
                node_gpus, _ = await self._search(workload, engine, 1, (most, limit))
            gpus, found_limit = await self._search(workload, engine, count, (most, limit))
        epochs = await self._measured(workload, engine, count, max(1, gpus), workload.epochs)
        await engine.end()
        why = self._why_invalid(workload, max(1, gpus), epochs)
        return Result(
            workload,
            self.gpu_of(workload),
            max(1, gpus),
            tuple(epochs),
            why,
            node_gpus=node_gpus,
            limit=found_limit,
        )

    async def _search(
        self, workload: Workload, engine: Engine, count: int, most: tuple[int, str]
    ) -> tuple[int, str]:
        """The largest number of GPUs on the first `count` nodes whose median epoch is good enough.
        One epoch decides while it searches, all epochs decide at the end."""
        search = Search(min(most[0], NODE_GPUS_MAX * count))
        while (gpus := search.wanted) is not None:
            (first, *_) = await self._measured(workload, engine, count, gpus, 1)
            search.tell(gpus, first.utilisation >= workload.utilisation)
        best = search.best
        while best > 0:
            epochs = await self._measured(workload, engine, count, best, workload.epochs)
            if Spread.of([one.utilisation for one in epochs]).middle >= workload.utilisation:
                break
            best -= 1
        return best, most[1] if search.is_at_most and best == search.best else ""

    async def _measured(
        self, workload: Workload, engine: Engine, count: int, gpus: int, least: int
    ) -> list[Epoch]:
        """At least so many epochs of `gpus` GPUs on the first `count` nodes."""
        key = f"{workload.name} {count} {gpus}"
        while len(self._epochs.get(key, ())) < least:
            number = len(self._epochs.get(key, ()))
            await engine.make(workload, gpus * self.files_of(workload))
            seconds = self.steps_of(workload) * workload.compute_of(self.gpu_of(workload))
            title = f"{workload.name}, {gpus} GPUs, epoch {number + 1} of {least}"
            self.tell(title, seconds / workload.utilisation)
            spread = [gpus // count + (node < gpus % count) for node in range(count)]
            epoch = await engine.epoch(workload, spread, number)
            self._put(key, epoch)
        return self._epochs[key]

    # ---- what surrounds an epoch ---------------------------------------------------------

    async def count(self) -> Counted | None:
        """What storage servers have served; None: they cannot be asked, or are not BraidFS's."""
        if self._counting is None or not self.is_braidfs:
            return None
        return await self._counting()

    async def counted(self, work: Callable[[], Awaitable[Epoch]]) -> Epoch:
        """Drops caches, runs the epoch, and adds what storage servers served meanwhile."""
        began = time.monotonic()  # counts from now on are new enough: dropping reads nothing
        is_dropped = await self._drop()
        before = await self._settled(began)
        epoch = await work()
        after = await self._settled(time.monotonic())
        served = None
        if before is not None and after is not None:
            served = sum(after.bytes.values()) - sum(before.bytes.values())
            if any(after.bytes.get(node, -1) < count for node, count in before.bytes.items()):
                raise NodeError("a storage server was restarted during an epoch: run it again")
        return replace(epoch, served=served, is_dropped=is_dropped)

    async def _drop(self) -> bool:
        """Returns whether all nodes dropped their caches."""
        if not self.request.drops:
            return False
        answers = await each_of(
            self.nodes,
            lambda n: self.nodes[n].ask("drop", DROP_ANSWER_SECONDS, path=self.nodes[n].plan.path),
        )
        return all(one["is_dropped"] for one in answers)

    async def _settled(self, since: float) -> Counted | None:
        """Counts that storage servers made after a moment of time.monotonic(). Raises NodeError if
        one has made none for SETTLED_SECONDS_MAX."""
        deadline = time.monotonic() + SETTLED_SECONDS_MAX
        while time.monotonic() < deadline:
            asked = time.monotonic()
            counted = await self.count()
            if counted is None or counted.reported_s < asked - since:
                return counted
            await trio.sleep(0.1)
        raise NodeError(
            f"a storage server has reported nothing for {SETTLED_SECONDS_MAX:.0f} s: "
            "see braidfs status"
        )

    def _why_invalid(
        self, workload: Workload, gpus: int, epochs: Sequence[Epoch]
    ) -> tuple[str, ...]:
        why = []
        if self.steps_of(workload) < STEPS_LEAST and not self.request.short:
            why.append(f"an epoch has fewer than {STEPS_LEAST} steps (--short allows it)")
        data = gpus * self.files_of(workload) * workload.file_bytes_mean
        memory = sum({one.host: one.memory_bytes for one in self.facts}.values())
        if data < MEMORY_FACTOR * memory and not all(one.is_dropped for one in epochs):
            why.append(
                f"the data set has less than {MEMORY_FACTOR} times the nodes' memory, and caches "
                "were not dropped before each epoch"
            )
        return (*why, *_from_caches(epochs))

    # ---- checkpoints ---------------------------------------------------------------------

    async def checkpoint(self, wanted: Checkpoint) -> Result:
        """Measures saves and loads of one checkpoint. Raises NodeError if the nodes have no room
        for it, or for its ranks."""
        scale = self.request.scale
        size = wanted.rank_bytes(scale)
        if wanted.ranks > (most := NODE_GPUS_MAX * len(self.nodes)):
            raise NodeError(
                f"{wanted.name} has {wanted.ranks} ranks, and no more than {most} are run on these "
                "nodes: name more of them"
            )
        free = min(one.bytes_available for one in self.facts)
        if (needed := size * wanted.ranks * ROOM_FACTOR) > free:
            raise NodeError(
                f"{wanted.name} needs {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free: "
                "use a smaller --scale"
            )
        names = [f"{wanted.name} save", f"{wanted.name} load"]
        for number in range(wanted.epochs):
            if len(self._epochs.get(names[1], ())) > number:
                continue
            guessed_s = size * wanted.ranks / GUESSED_RATE
            self.tell(f"{wanted.name}, save {number + 1} of {wanted.epochs}", guessed_s)
            saved = await self._ranks("save", wanted, size)
            part = of_save(wanted.every_s, saved.seconds / scale)
            self.tell(f"{wanted.name}, load {number + 1} of {wanted.epochs}", guessed_s)
            loaded = await self.counted(lambda: self._ranks("load", wanted, size))
            del self._epochs.setdefault(names[0], [])[number:]
            self._epochs[names[0]].append(replace(saved, utilisation=part, lowest=part))
            self._put(names[1], loaded)
        await self.remove(f"{self.folders[0]}/node-0/{wanted.name}")
        saves, loads = (self._epochs[name][: wanted.epochs] for name in names)
        why = list(_from_caches(loads))
        if scale != 1.0 and not self.request.short:
            why.append("it was scaled (--short allows it)")
        if not all(one.is_dropped for one in loads) and len(self.nodes) == 1:
            why.append("caches were not dropped between the saves and the loads")
        return Result(wanted, "", wanted.ranks, tuple(saves), tuple(why), scale, loads=tuple(loads))

    async def _ranks(self, action: str, wanted: Checkpoint, size: int) -> Epoch:
        """All ranks save or load at once; the slowest one counts. On several nodes, each loads what
        the next one saved."""
        count = len(self.nodes)
        shift = 1 if action == "load" else 0
        shares = [list(range((node + shift) % count, wanted.ranks, count)) for node in range(count)]
        given = [
            {
                "folder": f"{self.folders[node]}/node-0/{wanted.name}",
                "bytes": size,
                "ranks": shares[node],
            }
            for node in range(count)
        ]
        counts = [len(one) for one in shares]
        by_node = await self.traces(action, given, counts, PHASE_SECONDS_MAX)
        moved = sum(one.bytes for of_node in by_node for one in of_node)
        return Epoch(0.0, 0.0, 0, moved, wanted.ranks, seconds_of(by_node))

    async def remove(self, folder: str) -> None:
        """Removes the files of one workload."""
        await self.nodes[0].ask("remove", MAKE_SECONDS_MAX, folder=folder)

    # ---- programs of the nodes -----------------------------------------------------------

    async def traces(
        self, action: str, given: Sequence[dict[str, Any]], counts: Sequence[int], limit_s: float
    ) -> list[list[Trace]]:
        """As replay(), for an action whose processes each tell a trace."""
        found = await self.replay(action, given, counts, limit_s)
        return [[Trace(**one) for one in of_node] for of_node in found]

    async def replay(
        self, action: str, given: Sequence[dict[str, Any]], counts: Sequence[int], limit_s: float
    ) -> list[list[Any]]:
        """Runs `action` of training.replay on the first nodes, with so many processes on each. They
        begin when all are ready, and have limit_s seconds. Returns what the processes told, of each
        node that has some. Raises NodeError."""
        parts = [node for node in range(len(given)) if counts[node]]
        await each_of(
            parts,
            lambda at: self.nodes[parts[at]].ask(
                "prepare",
                START_SECONDS_MAX + READY_SECONDS_MAX,
                action=action,
                given=given[parts[at]],
                count=counts[parts[at]],
                limit_s=limit_s,
            ),
        )
        answers = await each_of(parts, lambda at: self.nodes[parts[at]].ask("begin", limit_s + 30))
        return [answer["found"] for answer in answers]


def _from_caches(epochs: Sequence[Epoch]) -> tuple[str, ...]:
    late = [one for one in epochs if one.is_from_caches]
    if not late:
        return ()
    served = min((one.served or 0) / max(1, one.bytes) for one in late)
    return (f"from caches: storage servers served {served:.0%} of the bytes that were read",)
