"""The suite finds faults: for each planted fault a part of it runs, which must fail."""

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.fuse.posix.mutants import MUTANTS, Mutant
from tests.fuse.posix.mutated_cluster import VARIABLE

SECONDS_MAX = 200


@pytest.mark.full
@pytest.mark.mount
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_fault_is_caught(mutant: Mutant) -> None:
    """The case for the fault fails, and so the suite does."""
    file, name = mutant.case.split("::")
    path = f"tests/fuse/posix/{file}.py"
    words = ["-q", "-p", "no:cacheprovider", "--tb=line", "-k", f"braidfs and {name}", path]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        cwd=ROOT,
        env={**os.environ, VARIABLE: mutant.name},
    )
    assert result.returncode == 1, result.stdout[-4000:]
    assert f"FAILED {path}::{name}" in result.stdout, result.stdout[-4000:]


def test_a_dozen_faults_are_planted() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 12
