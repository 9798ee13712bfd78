"""The code of docs/train/data-sets.md runs as it is printed there, on a small tree.

tests/integration/test_torch.py runs it, in environments that have torch.
"""

import random
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from braidfs.data import Index

PAGE = Path(__file__).resolve().parents[2] / "docs" / "train" / "data-sets.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
COUNT = 200


def blocks() -> list[str]:
    return BLOCK.findall(PAGE.read_text())


def test_the_page_has_recipes() -> None:
    text = "".join(blocks())
    assert len(blocks()) >= 4
    for name in ("Files", "Announced", "StreamFiles", "read_files", "DistributedSampler"):
        assert name in text


def test_they_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """decode and train are what a reader has: a picture of fixed size, and a step."""
    data = tmp_path / "train"
    for number in range(COUNT):
        path = data / f"class-{number % 4}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.Random(number).randbytes(100 + number))
    Index.scan(data, (".jpg",)).save(tmp_path / "train.index")
    seen: list[int] = []
    module = types.ModuleType("recipes")
    monkeypatch.setitem(sys.modules, "recipes", module)
    space: dict[str, Any] = vars(module)
    space["decode"] = lambda data: data[:100].float()
    space["train"] = lambda pictures, classes: seen.append(len(pictures))
    steps = []
    for block in blocks():
        text = block.replace("/data/train", str(data))
        exec(compile(text, str(PAGE), "exec"), space)
        steps.append(sum(seen))
        seen.clear()
    # One epoch; three of half of the files each; three, and what is left of the last one; none.
    assert steps == [COUNT, 3 * COUNT // 2, 3 * COUNT + COUNT - 64, 0]
    assert isinstance(space["data"], memoryview) and torch.is_tensor(space["pictures"])
