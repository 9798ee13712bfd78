"""`./dev up`, `./dev status` and `./dev down`, as the first page of the guide has them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.mounts import is_mounted
from tests.dev.steps import ROOT

pytestmark = [pytest.mark.mount, pytest.mark.timeout(600)]


def dev(*words: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tests.dev", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)


def test_a_cluster_for_people(tmp_path: Path) -> None:
    state, mount = tmp_path / "state", tmp_path / "mount"
    try:
        up = dev("up", "--state", state, "--mount", mount)
        assert up.returncode == 0, up.stderr
        assert f"is mounted at   {mount}" in up.stdout
        (mount / "file").write_text("kept")
        assert dev("status", "--state", state).returncode == 0
    finally:
        down = dev("down", "--state", state)
    assert down.returncode == 0, down.stderr
    assert not is_mounted(mount)
    assert dev("status", "--state", state).returncode == 1
