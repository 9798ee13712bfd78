"""Starts the ranks of tests.torch.job from a Python that need not have torch itself."""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.dev.steps import ROOT

Seen = dict[str, float]


class Job:
    """Ranks that wait for their next work."""

    def __init__(self, ranks: "Sequence[subprocess.Popen[str]]") -> None:
        self._ranks = ranks

    def next(self) -> list[Seen]:
        """Lets all ranks do their next work; returns what each said of it.

        Raises RuntimeError with the end of what a rank printed when it failed."""
        for process in self._ranks:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        return [_result(process) for process in self._ranks]


@contextmanager
def job(python: str, paths: Sequence[Path], works: Sequence[Mapping[str, object]]) -> Iterator[Job]:
    """A job of a rank for each path, by this Python; they end with the block. Each work has the
    path of its rank as "path", joined with the work's own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        ranks = [_started(python, environment) for _ in paths]
        try:
            for rank, (process, path) in enumerate(zip(ranks, paths, strict=True)):
                mine = [{**one, "path": str(path / str(one.get("path", ".")))} for one in works]
                place = {"rank": rank, "world": len(paths), "store": f"{folder}/store"}
                assert process.stdin is not None
                process.stdin.write(json.dumps({**place, "works": mine}) + "\n")
                process.stdin.flush()
            yield Job(ranks)
        finally:
            for process in ranks:
                process.kill()
                process.communicate()


def _started(python: str, environment: dict[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [python, "-m", "tests.torch.job"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment,
    )


def _result(process: "subprocess.Popen[str]") -> Seen:
    assert process.stdout is not None and process.stderr is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a rank failed: {process.stderr.read().strip()[-3000:]}")
    found: Seen = json.loads(line)
    return found
