"""README's section Train as somebody follows it who has a mount and nothing else: the users' wheel
in a new environment, and the program of the page, which is killed and goes on.

The lines are those of the page; only /data is the folder of a test, and torch that of PINNED.
"""

import os
import random
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.process import wait_until
from tests.dev import users_package
from tests.dev.guide import DOCS, steps_of
from tests.dev.steps import ROOT
from tests.fuse.looks import lanes_counted
from tests.recipes.recipe import PINNED, recipes_of, result_of

PAGE = "../README.md"
PROGRAM = "train.py"
LINES_MAX = 18  # behind the imports
COUNT, BATCH = 3000, 32
BATCHES = -(-COUNT // BATCH)
SHOW_STEPS = """
import sys
from braidfs.checkpoint.torch import load
for path in sys.argv[1:]:
    state = load(path + "/state.pt")["optimizer"]["state"]
    print(*{int(one["step"]) for one in state.values()})
"""


def program() -> str:
    (found,) = (one for one in recipes_of(PAGE) if PROGRAM in one.programs)
    return found.programs[PROGRAM]


def verify_line() -> str:
    (found,) = re.findall(r"`(python -m braidfs\.checkpoint .+?)`", (DOCS / PAGE).read_text())
    return str(found)


def test_the_program_is_short_and_its_lines_are_there() -> None:
    text = program()
    compile(text, PROGRAM, "exec")
    statements = [
        one for one in text.splitlines() if one and not one.startswith(("from", "import"))
    ]
    assert 0 < len(statements) <= LINES_MAX
    assert text.count("/data/train") == 1 and text.count("/data/run1") == 1
    assert verify_line().split()[-1] == "/data/run1"


def fill(folder: Path) -> None:
    for number in range(COUNT):
        path = folder / f"class-{number % 4}" / f"{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([60 * (number % 4)]) * 64 + random.Random(number).randbytes(6000))


@pytest.fixture
def run_here(localdir: Path) -> Callable[..., "subprocess.Popen[str]"]:
    """Starts a command in a new environment, in which the lines of the page installed braidfs."""
    users_package.users_wheels(localdir / "dist")
    subprocess.run([sys.executable, "-m", "venv", localdir / "venv"], check=True, timeout=300)
    inherited = {name: text for name, text in os.environ.items() if name.startswith("PIP_")}
    environment = {
        **inherited,
        "PATH": f"{localdir}/venv/bin:{os.environ['PATH']}",
        "HOME": str(localdir),
        "OMP_NUM_THREADS": "1",
    }

    def start(*words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            words,
            cwd=localdir,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    (installs,) = (one.commands for one in steps_of(PAGE) if one.section == "Train")
    for line in installs:
        result_of(start(*(PINNED.get(word, word) for word in shlex.split(line))), 900)
    return start


@pytest.mark.full
@pytest.mark.mount
@pytest.mark.timeout(1800)
def test_two_epochs_with_a_kill_between(
    cluster: Cluster,
    workdir: Path,
    localdir: Path,
    run_here: Callable[..., "subprocess.Popen[str]"],
) -> None:
    fill(workdir / "train")
    cluster.remount()
    before = lanes_counted(cluster, "announced_reads")
    (localdir / PROGRAM).write_text(program().replace("/data/", f"{workdir}/"))
    place = result_of(run_here("python", "-c", "import braidfs; print(braidfs.__file__)"))
    assert place.startswith(str(localdir)) and not place.startswith(str(ROOT / "braidfs"))
    one, two = (workdir / "run1" / f"step-{number:09}" for number in (1, 2))

    training = run_here("python", PROGRAM)
    try:
        assert wait_until(lambda: one.exists() or training.poll() is not None, 300)
    finally:
        training.send_signal(signal.SIGKILL)
        said, _ = training.communicate(timeout=60)
    assert training.returncode == -signal.SIGKILL, said
    assert one.is_dir() and not two.exists()
    assert lanes_counted(cluster, "announced_reads") > before

    assert result_of(run_here("python", PROGRAM)) == f"epoch 2 is saved in {two}\n"
    counted = result_of(run_here("python", "-c", SHOW_STEPS, str(one), str(two)))
    assert counted.split() == [str(BATCHES), str(2 * BATCHES)], "it began anew"
    verified = result_of(run_here(*verify_line().replace("/data/", f"{workdir}/").split()))
    assert re.findall(r"^step (\d+) is whole", verified, re.M) == ["1", "2"], verified
