"""The two engines that replay an epoch: the one that is built in, and DLIO."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from ..nodes import NodeError
from ..run import PHASE_SECONDS_MAX
from ..worker import RESULTS_WORD
from . import dlio
from .drive import GUESSED_RATE, MAKE_SECONDS_MAX, Engine, Stage
from .utilisation import Epoch, epoch_of
from .workload import Format, Workload

LIMIT_FACTOR: Final = 4.0  # an epoch ends when it takes so many times the longest that is enough
LIMIT_MORE_S: Final = 30.0
MAKERS: Final = 8  # processes that write the data set, on each node


def engine_of(stage: Stage) -> Engine:
    """A new engine for one workload. Raises NodeError if there are too many nodes for it."""
    return Dlio(stage) if stage.request.environment else BuiltIn(stage)


def toml_of(workload: Workload) -> str:
    """The workload file of a workload."""
    lines = [f"title = {json.dumps(workload.title)}", f'format = "{workload.format}"']
    numbers = ("sample_bytes", "deviation_bytes", "samples_per_file", "batch", "readers", "epochs")
    lines += [f"{key} = {getattr(workload, key)}" for key in (*numbers, "utilisation")]
    if workload.columns:
        lines.append(f"columns = {list(workload.columns)}")
    lines.append("[compute_s]")
    lines += [f"{gpu} = {seconds!r}" for gpu, seconds in workload.compute_s]
    return "\n".join(lines) + "\n"


class BuiltIn:
    """Emulated GPUs of training.replay."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._made = 0
        self._folder = ""  # as the first node has it

    async def make(self, workload: Workload, count: int) -> None:
        if count <= self._made:
            return
        stage, nodes = self._stage, len(self._stage.nodes)
        size = (count - self._made) * workload.file_bytes_mean
        stage.tell(f"{workload.name}, writes {count - self._made:,} files", size / GUESSED_RATE)
        given = [
            {
                **self._given(workload, node),
                "first": self._made + node,
                "end": count,
                "step": nodes,
                "jobs": MAKERS,
            }
            for node in range(nodes)
        ]
        self._folder = given[0]["folder"]
        await stage.replay("make", given, [MAKERS] * nodes, MAKE_SECONDS_MAX)
        self._made = count

    def _given(self, workload: Workload, node: int) -> dict[str, Any]:
        return {
            "folder": f"{self._stage.folders[node]}/node-0/{workload.name}",
            "name": workload.name,
            "workload": toml_of(workload),
        }

    async def epoch(self, workload: Workload, gpus: Sequence[int], number: int) -> Epoch:
        stage = self._stage
        steps = stage.steps_of(workload)
        compute_s = workload.compute_of(stage.gpu_of(workload))
        limit_s = LIMIT_MORE_S + LIMIT_FACTOR * steps * compute_s / workload.utilisation
        given, first = [], 0
        for node, count in enumerate(gpus):
            given.append(
                {
                    **self._given(workload, node),
                    "files": sum(gpus) * stage.files_of(workload),
                    "gpus": sum(gpus),
                    "ranks": list(range(first, first + count)),
                    "seed": number + 1,
                    "steps": steps,
                    "compute_s": compute_s,
                    "limit_s": limit_s,
                }
            )
            first += count

        async def work() -> Epoch:
            by_node = await stage.traces("train", given, gpus, limit_s + LIMIT_MORE_S)
            return epoch_of(by_node, compute_s, steps)

        return await stage.counted(work)

    async def end(self) -> None:
        if self._folder:
            await self._stage.remove(self._folder)
        self._made = 0


class Dlio:
    """dlio_benchmark 2.0.0 and the mpirun of an environment, on one node."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._made: tuple[int, int] = (0, 0)  # files and their bytes
        self._at = ""
        if len(stage.nodes) != 1:
            raise NodeError("the engine dlio works on one node: name one PATH and at most one host")

    async def make(self, workload: Workload, count: int) -> None:
        if not dlio.is_possible(workload):
            raise NodeError(
                f"{workload.name}: the engine dlio replays workloads of the format "
                f"{Format.FILES} with one sample in a file"
            )
        if count == self._made[0]:
            return
        stage = self._stage
        await self.end()  # names of its files have their count in them
        self._at = self._folder(workload)
        size = count * workload.file_bytes_mean
        stage.tell(f"{workload.name}, DLIO writes {count:,} files", size / GUESSED_RATE)
        words = dlio.make_words(self._words(workload, count))
        answer = await self._ask(dlio.command(self._environment, MAKERS, words), MAKE_SECONDS_MAX)
        self._made = (count, answer["bytes"])

    async def epoch(self, workload: Workload, gpus: Sequence[int], number: int) -> Epoch:
        stage = self._stage
        steps, count = stage.steps_of(workload), sum(gpus)
        compute_s = workload.compute_of(stage.gpu_of(workload))
        limit_s = PHASE_SECONDS_MAX + LIMIT_FACTOR * steps * compute_s / workload.utilisation
        words = self._words(workload, count * stage.files_of(workload))
        words = dlio.train_words(words, compute_s, number + 1)
        files, size = self._made

        async def work() -> Epoch:
            command = dlio.command(self._environment, count, words)
            answer = await self._ask(command, limit_s)
            try:
                found = dlio.traces(answer["results"], compute_s)
            except ValueError as error:
                raise NodeError(f"{stage.nodes[0].plan.name}: {error}") from error
            if len(found) != count:
                raise NodeError(f"DLIO has told of {len(found)} GPUs, not of {count}")
            epoch = epoch_of([found], compute_s, steps)
            read = count * epoch.steps * workload.batch
            return replace(epoch, bytes=int(size * read / files), files=read)

        return await stage.counted(work)

    async def end(self) -> None:
        if self._at:
            await self._stage.remove(self._at)
        self._made = (0, 0)

    @property
    def _environment(self) -> str:
        return self._stage.request.environment

    def _folder(self, workload: Workload) -> str:
        return f"{self._stage.folders[0]}/node-0/dlio-{workload.name}"

    def _words(self, workload: Workload, count: int) -> list[str]:
        return dlio.overrides(workload, self._folder(workload), count, RESULTS_WORD)

    async def _ask(self, words: list[str], limit_s: float) -> dict[str, Any]:
        node = self._stage.nodes[0]
        folder = self._stage.folders[0]
        return await node.ask(
            "dlio", limit_s + LIMIT_MORE_S, words=words, folder=folder, limit_s=limit_s
        )
