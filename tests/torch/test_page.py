"""The code of docs/train/pytorch-checkpoints.md runs, block after block, as it is on the page."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from braidfs.checkpoint import Checkpoints
from braidfs.checkpoint.torch import Reader, Writer

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "train" / "pytorch-checkpoints.md"
SECONDS_MAX = 250
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)


def _blocks(folder: Path) -> list[tuple[str, str]]:
    text = PAGE.read_text().replace("/mnt/braid", str(folder))
    return [(language, block) for language, block in BLOCK.findall(text)]


@pytest.mark.filterwarnings("ignore")
def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    (_, program), (shell, command), *others = _blocks(tmp_path)
    assert program.startswith("# train.py\n") and shell == "sh"
    (tmp_path / "train.py").write_text(program)
    words = shlex.split(command)
    assert words[0] == "torchrun"
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", *words[1:]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for _ in range(2):
        # Without its sleep the program aborts at times when it ends (3 of 40 runs with PyTorch
        # 2.13, others at work). All three cores showed the same thread, which is of PyTorch:
        # c10d::ProcessGroupGloo::runLoop, ~AsyncBroadcastWork, c10::TensorImpl::decref_pyobject,
        # pybind11::gil_scoped_acquire, PyEval_AcquireThread, pthread_exit (the interpreter is
        # ending), std::terminate. Nothing of ours was on it.
        done = subprocess.run(
            run,
            cwd=tmp_path,
            env=environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
        )
        assert done.returncode == 0, done.stderr[-5000:]
    cps = Checkpoints(tmp_path / "run7")
    assert [one.number for one in cps.steps()] == [20, 30, 40]
    assert all(one.parts == 2 for one in cps.steps())
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 4))
    values = {"model": {name: one.clone() for name, one in model.state_dict().items()}}
    names: dict[str, Any] = {"torch": torch, "dcp": dcp, "cps": cps, "Reader": Reader}
    names |= {"Writer": Writer, "model": model, "state": values}
    for language, block in others:
        assert language == "python"
        exec(block, names)
    newest = cps.latest()
    assert newest is not None and newest.number == 100
    for name, one in model.state_dict().items():
        assert torch.equal(names["stock"]["model"][name], values["model"][name])
        assert one.abs().sum() > 0
