"""A mount whose files have two replicas: storage servers die, come back, and lose nothing.

Programs see no error, and no wrong byte; what they see is how long they had to wait.
"""

import hashlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.mirrors import mirrored
from tests.cluster.process import PATIENCE, wait_until
from tests.conftest import ClusterMaker

from .test_cli import Cli

pytestmark = [pytest.mark.mount, pytest.mark.timeout(240), pytest.mark.expects_warnings]

MIB = 1 << 20
REPAIRED_S = 60.0
STALL_S = 20.0  # 4 s after a kill and 10 s after a silence, where nothing else runs


class Writers:
    """Threads that write, sync and read their own files until they are told to stop."""

    def __init__(self, folder: Path, count: int) -> None:
        self.errors: list[str] = []
        self.longest_s = 0.0
        self.rounds = 0
        self.sums: dict[Path, str] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(folder / f"w{number}", number))
            for number in range(count)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive(), "a program hangs"
        assert self.errors == []

    def wait_rounds(self, more: int, seconds: float) -> None:
        goal = self.rounds + more
        assert wait_until(lambda: self.rounds >= goal or bool(self.errors), seconds), "no progress"

    def _run(self, folder: Path, seed: int) -> None:
        chance = random.Random(seed)
        folder.mkdir(parents=True)
        number = 0
        try:
            while not self._stop.is_set():
                number += 1
                self._round(folder / f"f{number % 40}", chance, number)
        except (OSError, AssertionError) as error:
            self.errors.append(f"{folder.name}: {error!r}")

    def _round(self, path: Path, chance: random.Random, number: int) -> None:
        size = chance.choice((300, 9_000, 70_000, 2 * MIB + 77))
        content = chance.randbytes(size)
        began = time.monotonic()
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            if number % 2:
                os.fsync(file.fileno())
        assert path.read_bytes() == content, path
        with self._lock:
            self.rounds += 1
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            self.sums[path] = hashlib.sha256(content).hexdigest()

    def check(self) -> None:
        """What was written is there, read anew."""
        for path, wanted in sorted(self.sums.items()):
            assert hashlib.sha256(path.read_bytes()).hexdigest() == wanted, path


@contextmanager
def writing(folder: Path, count: int = 3) -> Iterator[Writers]:
    writers = Writers(folder, count)
    writers.start()
    try:
        yield writers
    finally:
        writers.stop()


def read_anew(cluster: Cluster) -> None:
    """From now on nothing is read from what this machine's kernel or client keeps."""
    cluster.remount()


def degraded(cli: Cli) -> set[str]:
    return set(cli.text("find", ":/", "--type", "f", "--degraded").splitlines())


def is_whole(cli: Cli) -> bool:
    return wait_until(lambda: not degraded(cli), REPAIRED_S * PATIENCE)


@pytest.mark.parametrize("how", ["kill", pytest.param("stop", marks=pytest.mark.full)])
def test_a_server_dies_while_programs_write(make_cluster: ClusterMaker, how: str) -> None:
    """Killed, its process is gone at once; stopped, nobody hears that it is."""
    cluster = mirrored(make_cluster)
    cli, folder = Cli(cluster), cluster.mount_path / "d"
    folder.mkdir()
    victim = cluster.storageservers[1]
    with writing(folder) as writers:
        writers.wait_rounds(20, 60)
        writers.longest_s = 0.0
        if how == "kill":
            victim.kill()
        else:
            victim.signal(signal.SIGSTOP)
        writers.wait_rounds(60, 90)
        stall_s = writers.longest_s
        if how == "kill":
            cluster.start_servers()
        else:
            victim.signal(signal.SIGCONT)
        writers.wait_rounds(20, 60)
    print(f"the longest round took {stall_s:.2f} s after the server's end ({how})")
    assert stall_s < STALL_S * PATIENCE
    read_anew(cluster)
    writers.check()
    assert is_whole(cli), degraded(cli)
    read_anew(cluster)
    writers.check()


@pytest.mark.full
def test_each_server_may_die_once_files_are_whole(make_cluster: ClusterMaker) -> None:
    cluster = mirrored(make_cluster)
    cli, folder = Cli(cluster), cluster.mount_path / "d"
    folder.mkdir()
    with writing(folder) as writers:
        writers.wait_rounds(60, 90)
    os.sync()
    for victim in cluster.storageservers:
        victim.kill()
        read_anew(cluster)
        writers.check()
        with writing(folder / f"while-{victim.name}-is-gone") as more:
            more.wait_rounds(10, 60)
        cluster.start_servers()
        assert is_whole(cli), degraded(cli)
        more.check()
