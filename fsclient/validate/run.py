"""A run of a suite: all nodes do each phase together; whatever happens, they clean up.

It uses trio, with one task for each node and phase. A node that cannot go on ends the run
(NodeError). Bytes that were read wrong do not end it: finding them is its purpose. Node n reads
what node n + 1 wrote, so that its own page cache does not answer; a single node drops its page
cache.
"""

import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import trio

from fscommon.tasks import open_tasks

from ..kernel import FILE_SYSTEM_TYPE
from . import tools
from .kept import Kept, steps
from .nodes import DamageError, Node, NodeError, NodePlan
from .outcome import Findings, Measured, NodeFacts, Outcome, of_fio, of_loads
from .suites import BENCHES, SUITES, Amounts, Kind, Phase, job_text
from .worker import PROTOCOL

FOLDER_PREFIX: Final = ".braidfs-validate-"
START_SECONDS_MAX: Final = 60.0
CLEAN_SECONDS_MAX: Final = 120.0
PHASE_SECONDS_MAX: Final = 1800.0  # more than the time of the phase
ROOM_FACTOR: Final = 1.1
NOTHING_KEPT: Final = Kept()
T = TypeVar("T")
Tell = Callable[[Sequence[Phase], int], None]


@dataclass(frozen=True, slots=True)
class Run:
    """any_file_system: also if no BraidFS is mounted, to compare. parts: of BENCHES, in place of
    the phases of a suite."""

    suite: str
    amounts: Amounts
    any_file_system: bool = False
    parts: tuple[str, ...] = ()

    @property
    def phases(self) -> tuple[Phase, ...]:
        if self.parts:
            return tuple(phase for part in self.parts for phase in BENCHES[part])
        return SUITES[self.suite]


async def validate(
    run: Run, plans: Sequence[NodePlan], tell: Tell, kept: Kept = NOTHING_KEPT
) -> Findings:
    """Runs a suite. tell(phases, index) is called when a phase begins. kept: what an earlier run
    has finished; this run adds to it."""
    findings = Findings(run.suite, time.time_ns())
    name = f"{FOLDER_PREFIX}{secrets.token_hex(6)}"
    async with open_tasks() as nursery:
        nodes: list[Node] = []
        try:
            for plan in plans:
                nodes.append(await Node.start(plan, nursery))
            findings.nodes = await _introduce(run, nodes)
            phases = (*run.phases, *_of_tools(run, findings.nodes))
            kept.take(findings, phases)
            folders = [f"{plan.path.rstrip('/')}/{name}" for plan in plans]
            await nodes[0].ask("make", START_SECONDS_MAX, folder=folders[0])
            await each_of(
                nodes,
                lambda n: nodes[n].ask(
                    "join", START_SECONDS_MAX, folder=folders[n], name=f"node-{n}"
                ),
            )
            stage = _Stage(nodes, folders, run.amounts, findings.nodes)
            await _go_through(phases, stage, findings, tell, kept)
        finally:
            await end_all(nodes)
            nursery.cancel_scope.cancel()  # a shared connection of ssh may keep its errors open
    kept.end()
    return findings


async def _go_through(
    phases: Sequence[Phase], stage: "_Stage", findings: Findings, tell: Tell, kept: Kept
) -> None:
    """Does all that is not finished yet; afterwards findings has every phase, in their order."""
    found = {one.phase.name: one for one in findings.outcomes}
    left = steps(phases, frozenset(found))
    before, started = findings.seconds, time.monotonic()
    for index, step in enumerate(left):
        tell([one.phase for one in left], index)
        outcome = await stage.do(step.phase)
        if not step.is_again or outcome.damage:
            found[step.phase.name] = outcome
        findings.outcomes = [found[one.name] for one in phases if one.name in found]
        findings.seconds = before + time.monotonic() - started
        kept.put(findings)


def _of_tools(run: Run, facts: Sequence[NodeFacts]) -> tuple[Phase, ...]:
    """IOR and mdtest are part of a suite where each node has them."""
    if run.parts:
        return ()
    return tuple(one for one in tools.PHASES if all(one.tool in node.tools for node in facts))


async def _introduce(run: Run, nodes: list[Node]) -> tuple[NodeFacts, ...]:
    answers = await each_of(
        nodes, lambda n: nodes[n].ask("hello", START_SECONDS_MAX, path=nodes[n].plan.path)
    )
    facts = [facts_of(node.plan, answer) for node, answer in zip(nodes, answers, strict=True)]
    for one in facts:
        if not one.fio and any(phase.job for phase in run.phases):
            raise NodeError(f"{one.name} has no fio: apt-get install fio there")
        if one.file_system != FILE_SYSTEM_TYPE and not run.any_file_system:
            raise NodeError(
                f"{one.name}: {one.path} is {one.file_system}, not BraidFS: is it mounted? "
                "(--any-file-system measures it all the same)"
            )
    room = min(one.bytes_available for one in facts)
    large_files = sum(phase.name in ("write", "checkpoint") for phase in run.phases)
    of_tools = tools.node_bytes(run.amounts) if _of_tools(run, facts) else 0
    each = run.amounts.node_bytes(large_files) + of_tools
    needed = int(each * len(facts) * ROOM_FACTOR)
    if room < needed:
        raise NodeError(
            f"{needed / 1e9:.1f} GB are needed and {room / 1e9:.1f} GB are free: "
            "say less with --size, or use fewer --jobs"
        )
    return tuple(facts)


def facts_of(plan: NodePlan, answer: dict[str, Any]) -> NodeFacts:
    protocol = answer.pop("protocol")
    if protocol != PROTOCOL:
        raise NodeError(f"{plan.name} has another version of braidfs: install the same there")
    found = tuple(answer.pop("tools"))
    return NodeFacts(name=plan.name, path=plan.path, tools=found, **answer)


async def each_of(nodes: Sequence[object], work: Callable[[int], Awaitable[T]]) -> list[T]:
    """Calls work(index) for all nodes at once; results in their order. A failure ends all."""
    found: dict[int, T] = {}

    async def one(index: int) -> None:
        found[index] = await work(index)

    async with open_tasks() as nursery:
        for index in range(len(nodes)):
            nursery.start_soon(one, index)
    return [found[index] for index in range(len(nodes))]


async def end_all(nodes: Sequence[Node]) -> None:
    """Ends all nodes, even if interrupted. Raises NodeError if one may have left files."""
    ended: set[str] = set()

    async def one(node: Node) -> None:
        if await node.end():
            ended.add(node.plan.name)

    with trio.move_on_after(CLEAN_SECONDS_MAX, shield=True):
        async with open_tasks() as nursery:
            for node in nodes:
                nursery.start_soon(one, node)
    late = [node.plan.name for node in nodes if node.plan.name not in ended]
    if late:
        raise NodeError(
            f"{', '.join(late)} did not clean up in {CLEAN_SECONDS_MAX:.0f} s: "
            f"look for {FOLDER_PREFIX}* and remove it"
        )
    if left := [text for text in (node.left() for node in nodes) if text]:
        raise NodeError(f"{'; '.join(left)}: remove it when the file system is back")


class _Stage:
    """The nodes of a run with their folders, and what earlier phases left there."""

    def __init__(
        self, nodes: list[Node], folders: list[str], amounts: Amounts, facts: Sequence[NodeFacts]
    ) -> None:
        self._facts = facts
        self._nodes = nodes
        self._folders = folders
        self._amounts = amounts
        self._file_bytes = amounts.file_bytes  # of the smallest large file that was written

    async def do(self, phase: Phase) -> Outcome:
        damage: list[str] = []

        async def one(index: int) -> Measured:
            try:
                work = self._fio if phase.job else self._tool if phase.tool else self._load
                return await work(phase, index)
            except DamageError as error:
                damage.append(str(error))
                return Measured()

        found = await each_of(self._nodes, one)
        return Outcome(phase, tuple(found), tuple(sorted(damage)))

    def _own(self, index: int) -> str:
        return f"{self._folders[index]}/node-{index}"

    def _peer(self, index: int) -> str:
        return f"{self._folders[index]}/node-{(index + 1) % len(self._nodes)}"

    async def _fio(self, phase: Phase, index: int) -> Measured:
        amounts = self._amounts
        environment = {
            "FOLDER": self._own(index),
            "PEER": self._peer(index),
            "CHECKED": self._peer(index) if phase.verifies else self._own(index),
            "SIZE": str(amounts.file_bytes if phase.name == "checkpoint" else self._file_bytes),
            "CHECK_SIZE": str(amounts.check_bytes),
            "SECONDS": str(amounts.seconds),
            "JOBS": str(amounts.jobs),
            "VERIFY": str(int(phase.verifies)),
        }
        options = ["--verify_only"] if phase.verifies else []
        options += ["--readonly"] if phase.kind is Kind.READ else []
        limit_s = amounts.seconds + PHASE_SECONDS_MAX
        answer = await self._nodes[index].ask(
            "fio",
            limit_s + 30,
            job=job_text(phase),
            environment=environment,
            options=options,
            limit_s=limit_s,
        )
        if phase.name == "write":
            written = min(answer["sizes"], default=0) >> 20 << 20
            if not written:
                raise NodeError(f"{self._nodes[index].plan.name} wrote less than 1 MiB in time")
            self._file_bytes = min(self._file_bytes, written)
        return of_fio(answer["job"], phase.kind, phase.verifies)

    async def _tool(self, phase: Phase, index: int) -> Measured:
        node, amounts = self._nodes[index], self._amounts
        tasks = amounts.jobs if tools.LAUNCHER in self._facts[index].tools else 1
        where = tools.place(phase, self._own(index), self._peer(index))
        words = tools.command(phase, where, amounts, tasks)
        answer = await node.ask(
            "tool", PHASE_SECONDS_MAX + 30, words=words, where=where, limit_s=PHASE_SECONDS_MAX
        )
        try:
            return tools.measured(phase, answer["output"], amounts, tasks)
        except ValueError as error:
            raise NodeError(f"{node.plan.name}: {phase.tool}: {error}") from error

    async def _load(self, phase: Phase, index: int) -> Measured:
        amounts, count = self._amounts, len(self._nodes)
        given: list[dict[str, Any]] = []
        for job in range(amounts.jobs):
            if phase.load.startswith("shared"):
                owner = (index + 1) % count if phase.verifies else index
                given.append(
                    {
                        "path": f"{self._folders[index]}/shared.0",
                        "blocks": amounts.blocks,
                        "rank": owner * amounts.jobs + job,
                        "ranks": count * amounts.jobs,
                    }
                )
            else:
                is_read = phase.load in ("stat", "small-read")
                folder = self._peer(index) if is_read else self._own(index)
                kind = "small" if phase.load.startswith("small") else "names"
                given.append({"folder": f"{folder}/{kind}-{job}", "count": amounts.files})
        answer = await self._nodes[index].ask(
            "load",
            PHASE_SECONDS_MAX + 30,
            action=phase.load,
            given=given,
            limit_s=PHASE_SECONDS_MAX,
        )
        return of_loads(answer["loads"])
