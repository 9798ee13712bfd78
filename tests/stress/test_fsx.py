"""fsx by two processes on one file of the mount; the seed is printed and can be given again."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.stress import fsx

pytestmark = [pytest.mark.mount, pytest.mark.timeout(1800)]


def test_two_processes_on_one_file(workdir: Path, sized: Callable[[int, int], int]) -> None:
    seed = int(os.environ.get("BRAIDFS_TEST_SEED", random.SystemRandom().randrange(1 << 30)))
    assert fsx.run([workdir / "fsx"] * 2, sized(2500, 100_000), seed)
