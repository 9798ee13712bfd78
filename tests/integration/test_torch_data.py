"""A DataLoader of torch on a mount that was told the order. test_torch.py runs the other tests of
braidfs.data that need torch."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.dev.build import READER_FOLDER
from tests.dev.steps import ROOT
from tests.fuse.looks import lanes_counted
from tests.integration.test_torch import kept_python

COUNT = 400
SECONDS_MAX = 1200
PROGRAM = ROOT / "tests" / "torch" / "announced_epoch.py"


@pytest.fixture(scope="session")
def python() -> str:
    """The Python of an environment with torch, numpy and pytest."""
    return kept_python()


def run(words: list[str], **given: object) -> str:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{READER_FOLDER}"}
    done = subprocess.run(
        words,
        check=False,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env=environment,
        input=json.dumps(given),
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.full
@pytest.mark.mount
@pytest.mark.timeout(600)
def test_a_loader_reads_in_the_announced_order(
    python: str, cluster: Cluster, workdir: Path
) -> None:
    """Four workers read what was announced: the mount has the files in memory before."""
    for number in range(COUNT):
        path = workdir / f"{number % 7}" / f"{number:04}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"%d\n" % number * 5000)
    cluster.remount()
    before = lanes_counted(cluster, "announced_reads")
    seen = json.loads(run([python, str(PROGRAM)], root=str(workdir), workers=4))
    assert seen["rows"] == seen["order"] and sorted(seen["rows"]) == list(range(COUNT))
    assert seen["wrong"] == 0
    # A file is read from memory, or it was fetched too late, or it came with its open.
    assert lanes_counted(cluster, "announced_reads") - before >= COUNT // 2
