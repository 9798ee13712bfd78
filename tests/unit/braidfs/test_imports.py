"""`import braidfs` is quick, and needs nothing but Python."""

import subprocess
import sys

import pytest

from tests.dev.steps import ROOT

SECONDS_MAX = 0.030  # of `import braidfs` alone, without Python's own start
FOREIGN = ["torch", "numpy", "fsspec", "trio", "msgpack", "fscommon", "fsclient", "_braidfs_native"]
_TIMED = """
import sys, time
begun = time.perf_counter()
import braidfs
print(time.perf_counter() - begun)
"""


def run(code: str) -> str:
    """Runs it in a Python without packages, where only this checkout is found."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}"
    words = [sys.executable, "-I", "-S", "-c", code]
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout


def test_it_imports_nothing_foreign() -> None:
    code = "import braidfs, braidfs.mounts, braidfs.announce; print(*sys.modules)"
    assert not set(run(code).split()) & set(FOREIGN)
    assert "braidfs.mounts" not in run("import braidfs; print(*sys.modules)").split()


@pytest.mark.full
def test_it_is_quick() -> None:
    taken = min(float(run(_TIMED)) for _ in range(9))
    assert taken <= SECONDS_MAX, f"import braidfs took {taken * 1000:.1f} ms"


def test_data_sets_import_nothing_foreign() -> None:
    code = "from braidfs.data import Announced, Files, Index, read_files; print(*sys.modules)"
    assert not set(run(code).split()) & set(FOREIGN)
