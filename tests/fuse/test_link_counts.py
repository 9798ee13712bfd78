"""A file that is opened while it is being unlinked has no names, whichever reply arrives last.

Libraries that use lock files (open, lock, fstat) rely on it: a lock on a file with a link count of
0 does not count.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster

pytestmark = [pytest.mark.mount, pytest.mark.timeout(120)]

ROUNDS = 100

# Opens FILE-N as soon as it is told to, and reports its link count when it is told that the name
# was removed.
_OPENER = """
import os, sys
folder, spins = sys.argv[1], int(sys.argv[2])
for line in sys.stdin:
    name = line.strip()
    for _ in range(int(name) * spins % 3000):
        pass
    try:
        fd = os.open(f"{folder}/{name}", os.O_RDWR)
    except FileNotFoundError:
        fd = -1
    print("opened" if fd >= 0 else "absent", flush=True)
    sys.stdin.readline()
    counts = "" if fd < 0 else " ".join(str(os.fstat(fd).st_nlink) for _ in range(3))
    print(counts, flush=True)
    if fd >= 0:
        os.close(fd)
"""


def _race(maker: Path, opener: Path, rounds: int, *, looks_first: bool) -> tuple[int, list[str]]:
    """How often the file was opened in time, and descriptions of wrong results."""
    opened, wrong = 0, []
    with subprocess.Popen(
        [sys.executable, "-c", _OPENER, str(opener), "37"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        for round_ in range(rounds):
            path = maker / str(round_)
            path.write_bytes(b"lock")
            if looks_first:
                (opener / str(round_)).stat()
            print(round_, file=process.stdin, flush=True)
            path.unlink()
            is_open = process.stdout.readline() == "opened\n"
            print("gone", file=process.stdin, flush=True)
            counts = process.stdout.readline().split()
            opened += is_open
            if is_open and counts != ["0"] * 3:
                wrong.append(f"{round_}: {counts}")
        process.stdin.close()
    return opened, wrong


@pytest.mark.parametrize("looks_first", [False, True])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_opened_while_it_is_unlinked(
    workdir: Path,
    cluster: Cluster,
    lasting: Path,
    *,
    full: bool,
    elsewhere: bool,
    looks_first: bool,
) -> None:
    there = lasting / workdir.relative_to(cluster.mount_path) if elsewhere else workdir
    rounds = ROUNDS * 60 if full else ROUNDS
    opened, wrong = _race(workdir, there, rounds, looks_first=looks_first)
    assert not wrong, wrong[:10]
    print(f"opened in time {opened} times of {rounds}")


def test_a_name_that_another_client_takes_away(
    workdir: Path, cluster: Cluster, lasting: Path
) -> None:
    there = lasting / workdir.relative_to(cluster.mount_path)
    for round_ in range(20):
        path = workdir / str(round_)
        path.write_bytes(b"lock")
        with path.open("rb") as file:
            assert os.fstat(file.fileno()).st_nlink == 1
            (there / str(round_)).unlink()
            assert os.fstat(file.fileno()).st_nlink == 0
