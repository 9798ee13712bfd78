"""A signal that a program handles ends no call on a file, as on a local disk.

Waits for locks are interruptible: see test_locks.py.
"""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster

pytestmark = [pytest.mark.mount, pytest.mark.timeout(240)]

SIGNALLED = Path(__file__).with_name("signalled.py")
QUICK_S, FULL_S = 4.0, 30.0
RATE = 300
THREADS = 2


def _under_signals(folders: list[Path], seconds: float, *, restarts: bool) -> None:
    """Runs one process in each folder."""
    words = (str(seconds), str(RATE), "1" if restarts else "0", str(THREADS))
    running = [
        subprocess.Popen(
            (sys.executable, SIGNALLED, folder, *words), stdout=subprocess.PIPE, text=True
        )
        for folder in folders
    ]
    for one in running:
        said, _ = one.communicate(timeout=seconds + 120)
        *wrong, rounds = said.splitlines()
        assert wrong == []
        assert int(rounds) > 0
        assert one.returncode == 0


@pytest.mark.parametrize("restarts", (True, False), ids=("SA_RESTART", "none"))
def test_every_call_under_signals(
    cluster: Cluster, workdir: Path, lasting: Path, restarts: bool
) -> None:
    """Both mounts at once, in folders of their own and in one that both change."""
    there = lasting / workdir.relative_to(cluster.mount_path)
    _under_signals([workdir, there], QUICK_S, restarts=restarts)
    (workdir / "new").touch()
    assert (there / "new").exists(), "signals have not made it deaf to others"


@pytest.mark.full
@pytest.mark.parametrize("restarts", (True, False), ids=("SA_RESTART", "none"))
def test_every_call_under_signals_for_long(
    cluster: Cluster, workdir: Path, lasting: Path, restarts: bool
) -> None:
    there = lasting / workdir.relative_to(cluster.mount_path)
    _under_signals([workdir, workdir, there, there], FULL_S, restarts=restarts)


def test_what_others_change_is_seen_under_signals(
    cluster: Cluster, workdir: Path, lasting: Path
) -> None:
    there = lasting / workdir.relative_to(cluster.mount_path)
    runner = threading.Thread(
        target=_under_signals, args=([workdir], QUICK_S), kwargs={"restarts": True}
    )
    path = workdir / "file"
    path.touch()
    runner.start()
    try:
        for number in range(1, 31):
            assert path.stat().st_size == number - 1
            (there / "file").write_bytes(b"x" * number)
            assert path.stat().st_size == number
            (there / f"new {number}").touch()
            assert (workdir / f"new {number}").exists()
    finally:
        runner.join()
