"""`./dev bench rebuild`: how fast what a lost server had is made again, and what clients notice.

A cluster of four storage servers, each a failure domain of its own, whose files have two replicas.
One server is killed for good while nobody uses the cluster and all files are large, and its targets
are removed as lost when the metaserver counts it as down; then another one, which has small files,
too, while programs read these. The device's own rate is that of a copy, with fsync, of as many
bytes on the disk below, which all servers share.
"""

import json
import os
import random
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.data.amounts import MIB
from tests.bench.data.streams import write_all, write_buffered
from tests.bench.replicas import cluster_with
from tests.bench.report import write_results
from tests.bench.state import settle
from tests.cluster.cluster import BIN, Cluster
from tests.dev.build import build
from tests.dev.steps import StepError, console

FILES, FILE_BYTES = 16, 256 * MIB
SMALL_FILES, SMALL_BYTES = 2000, 64 << 10
READERS = 2
IDLE_S = 10.0
REBUILT_S = 600.0
DOWN_S = 60.0
LEAST_OF_DEVICE = 0.7
MOST_OF_P99 = 2.0


class Readers:
    """Threads that read small files whole, each one that the kernel does not have."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._taken_s: list[float] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(READERS)]

    @contextmanager
    def reading(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join(60)

    def p99_ms(self) -> float:
        """Of what was read since the last call."""
        taken, self._taken_s = self._taken_s, []
        if len(taken) < 100:
            raise StepError(f"only {len(taken)} files were read")
        return statistics.quantiles(taken, n=100)[98] * 1000

    def _run(self, seed: int) -> None:
        chance = random.Random(seed)
        while not self._stop.is_set():
            path = self._folder / f"small{chance.randrange(SMALL_FILES)}"
            began = time.monotonic()
            file = os.open(path, os.O_RDONLY | os.O_DIRECT)
            os.read(file, SMALL_BYTES)
            os.close(file)
            self._taken_s.append(time.monotonic() - began)
            time.sleep(0.001)


def rebuild() -> bool:
    """True when every bar was met."""
    build(tests=True)
    with cluster_with(2) as place:
        cluster, state = place.cluster, place.cluster.plan.state
        write_all(place, FILES, FILE_BYTES, MIB, write_buffered)
        settle()
        device = _copy_rate(state / "copy")
        alone, _ = _lose(cluster, 0)
        for number in range(SMALL_FILES):
            (place.folder / f"small{number}").write_bytes(os.urandom(SMALL_BYTES))
        settle()
        readers = Readers(place.folder)
        with readers.reading():
            time.sleep(IDLE_S)
            before = readers.p99_ms()
            beside, files = _lose(cluster, 1)
            during = readers.p99_ms()
    content = {
        "device MB/s": device,
        "rebuild alone MB/s": alone,
        "rebuild beside readers, small files as well, MB/s": beside,
        "the same, files/s": files,
        "p99 before ms": before,
        "p99 during ms": during,
    }
    for name, value in content.items():
        console.print(f"  {name}: {value:,.2f}")
    below = []
    if alone < LEAST_OF_DEVICE * device:
        below.append(f"{alone / device:.2f} of the device, at least {LEAST_OF_DEVICE}")
    if during > MOST_OF_P99 * before:
        below.append(f"p99 is {during / before:.2f} of before, at most {MOST_OF_P99}")
    print(f"all values: {write_results('rebuild', {'values': content, 'below': below})}")
    for line in below:
        print(f"below the bar: {line}")
    return not below


def _copy_rate(path: Path) -> float:
    """MB/s of a copy on the disk that all servers share, of as many bytes as one of them has."""
    size = FILES * FILE_BYTES // 2
    with path.open("wb") as file:
        for _ in range(0, size, MIB):
            file.write(os.urandom(MIB))
        os.fsync(file.fileno())
    Path("/proc/sys/vm/drop_caches").write_text("3")
    began = time.monotonic()
    words = ["dd", f"if={path}", f"of={path}.2", "bs=1M", "conv=fsync"]
    subprocess.run(words, check=True, stderr=subprocess.DEVNULL)
    taken = time.monotonic() - began
    path.unlink()
    path.with_name(f"{path.name}.2").unlink()
    return size / taken / 1e6


def _lose(cluster: Cluster, number: int) -> tuple[float, float]:
    """Kills a server, and has its targets rebuilt. Returns MB/s and files/s."""
    server, name = cluster.storageservers[number], cluster.plan.storageservers[number].name
    used = _used(cluster, number)
    Path("/proc/sys/vm/drop_caches").write_text("3")
    server.kill()
    _wait_until_down(cluster, name)
    began_files, began = _rebuilt(cluster), time.monotonic()
    words = ["target", "remove", "--server", name, "--lost", "--yes"]
    _braidfs(cluster, *words, "--wait", "--timeout", str(REBUILT_S))
    taken = time.monotonic() - began
    return used / taken / 1e6, (_rebuilt(cluster) - began_files) / taken


def _braidfs(cluster: Cluster, *words: str) -> str:
    reach = ["-s", f"127.0.0.1:{cluster.plan.metaserver.port}", "-k", str(cluster.plan.key_file)]
    command = [str(BIN / "braidfs"), *words, *reach]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _wait_until_down(cluster: Cluster, name: str) -> None:
    until = time.monotonic() + DOWN_S
    while time.monotonic() < until:
        rows = json.loads(_braidfs(cluster, "node", "list", "--json"))
        if any(row["name"] == name and row["state"] == "down" for row in rows):
            return
        time.sleep(0.2)
    raise StepError(f"{name} was not counted as down within {DOWN_S:g} s")


def _rebuilt(cluster: Cluster) -> int:
    """How many files have got their replicas again."""
    rows = json.loads(_braidfs(cluster, "job", "list", "--json"))
    return sum(row["files"] for row in rows if row["kind"] == "repair")


def _used(cluster: Cluster, number: int) -> int:
    """How many bytes the server's targets hold."""
    name = cluster.plan.storageservers[number].name
    folders = (cluster.plan.state / "targets").glob(f"{name}-*")
    words = ["du", "-s", "--block-size=1", *map(str, folders)]
    shown = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return sum(int(line.split()[0]) for line in shown.splitlines())
