"""A folder for the clusters of one benchmark, on the disk of the checkout."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.dev.steps import BUILD


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """All users may read in it: engines run as users of their own. It is removed afterwards."""
    base = BUILD / "bench"
    base.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="run-", dir=base))
    try:
        scratch.chmod(0o755)
        yield scratch
    finally:
        shutil.rmtree(scratch)
