"""Two ranks of one node stage steps in memory; the job, a rank or the drain is killed at random.

After each round what is durable verifies, the newest loads, and what a rank was told of is there.
No mount is needed: this is about processes. The seed decides who is killed and when it is tried.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from braidfs.checkpoint import Checkpoints
from braidfs.checkpoint.commands import verify_steps
from tests.cluster.process import command_of, wait_until
from tests.conftest import ROOT
from tests.integration.checkpoint_rank import content_of

PARTS = 2
STEPS = 4
SEED = int(os.environ.get("BRAIDFS_TEST_SEED", "35"))


@pytest.fixture
def memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def _ranks(root: Path, memory: Path, number: int) -> list["subprocess.Popen[str]"]:
    first = 1 + number * STEPS
    ends = (f"round-{number}", first, first + STEPS - 1, memory)
    return [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.integration.checkpoint_rank"),
                *map(str, (root, part, PARTS, *ends)),
            ],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "BRAIDFS_DRAIN_IDLE_SECONDS": "0.5"},
        )
        for part in range(PARTS)
    ]


def _drain_pid(memory: Path) -> int | None:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            words = command_of(int(folder.name))
            if "braidfs.checkpoint.drain" in words and words[-1].startswith(str(memory)):
                return int(folder.name)
    return None


def _kill(victim: str, ranks: list["subprocess.Popen[str]"], memory: Path) -> None:
    if victim == "drain":
        if (pid := _drain_pid(memory)) is not None:
            os.kill(pid, signal.SIGKILL)
    elif victim == "job":
        for rank in ranks:
            rank.kill()
    else:
        ranks[0].kill()
        wait_until(lambda: ranks[1].poll() is not None, 1)
        ranks[1].kill()


def _judge(root: Path, checkpoints: Checkpoints, known: int) -> None:
    if root.exists():
        answer = verify_steps(root, (), lambda count: None)
        assert answer.exit == 0, answer.lines
    newest = checkpoints.latest()
    assert (newest.number if newest else 0) >= known, "a step that was told is gone"
    if newest is None:
        return
    with checkpoints.reading(newest) as path:
        for part in range(PARTS):
            wanted = content_of(newest.number, newest.attempt, part)
            assert (path / f"{part}.pt").read_bytes() == wanted


def test_staged_steps_are_whole_after_crashes(
    localdir: Path, memory: Path, sized: Callable[[int, int], int]
) -> None:
    print(f"again: BRAIDFS_TEST_SEED={SEED} ./dev test {Path(__file__).relative_to(ROOT)}")
    chance, root, known = random.Random(SEED), localdir / "run", 0
    for number in range(sized(4, 150)):
        ranks = _ranks(root, memory, number)
        victim = ("drain", "job", "drain", "rank")[number % 4]
        time.sleep(0.2 + chance.random() * 0.5)  # no condition: it may hit anything
        _kill(victim, ranks, memory)
        for rank in ranks:
            out, _ = rank.communicate(timeout=60)
            known = max([known, *map(int, out.split())])
            assert victim != "drain" or rank.returncode == 0
        # No drain writes while files are compared: a step may go from memory to the disk.
        _kill("drain", ranks, memory)
        assert wait_until(lambda: _drain_pid(memory) is None, 10)
        _judge(root, Checkpoints(root, staging=memory), known)
    assert known > 0
