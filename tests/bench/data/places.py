"""The measured file systems: BraidFS on loopback, the disk under it, null FUSE, peers.

A place has a folder to work in and can make its client forget everything: BraidFS and null FUSE are
mounted again, a peer is stopped and started by its scripts, because all peers offer that and
nothing else. `chill` also drops what the kernel caches, the servers' part included.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tests.bench.data.bars import BRAID, LOCAL, NULL
from tests.bench.data.cost import Serving, with_children
from tests.bench.systems import CLIENT_OPTIONS, NULLFS
from tests.cluster import mounts
from tests.cluster.cluster import BIN, Cluster
from tests.cluster.numbers import native_counters, servers_counted
from tests.cluster.plan import make_plan
from tests.cluster.ports import free_port
from tests.cluster.process import Program
from tests.dev.steps import BUILD, StepError, console

PEER_SECONDS_MAX = 180
PEER_CLIENTS = {"mount", "fuse"}  # they are the names of their pid files


class Place(ABC):
    name: str
    folder: Path

    @abstractmethod
    def remount(self) -> None:
        """Its client has nothing cached afterwards; servers may have."""

    def serving(self) -> Serving:
        return Serving()

    def served_bytes(self) -> int | None:
        """The bytes that the storage servers have sent to clients so far; None if the place does
        not say it."""
        return None

    @contextlib.contextmanager
    def sealed(self, folder: Path) -> Iterator[Path | None]:
        """The folder, mounted once more for clients that never change it, with nothing cached at
        its client; None if the place has no such mount."""
        yield None

    def chill(self) -> None:
        """Nothing is cached afterwards, except by the disk itself."""
        os.sync()
        self.remount()
        Path("/proc/sys/vm/drop_caches").write_text("3")


class LocalPlace(Place):
    def __init__(self, folder: Path) -> None:
        self.name, self.folder = LOCAL, folder

    def remount(self) -> None:
        """The disk has no client; chill() drops what is cached of it."""


class BraidPlace(Place):
    def __init__(self, cluster: Cluster, folder: str = "bench") -> None:
        self.name, self.folder = BRAID, cluster.mount_path / folder
        self._cluster = cluster
        self.folder.mkdir(exist_ok=True)

    @property
    def cluster(self) -> Cluster:
        return self._cluster

    def remount(self) -> None:
        self._cluster.remount()

    @contextlib.contextmanager
    def sealed(self, folder: Path) -> Iterator[Path | None]:
        point = self._cluster.plan.state / "sealed"
        below = f"/{folder.relative_to(self._cluster.mount_path)}"
        with (
            self._is_sealed(folder),
            self._cluster.second_client(point, folder=below, options="ro,sealed"),
        ):
            yield point

    @contextlib.contextmanager
    def _is_sealed(self, folder: Path) -> Iterator[None]:
        subprocess.run([BIN / "braidfs", "seal", folder], check=True, stdout=subprocess.DEVNULL)
        try:
            yield
        finally:
            subprocess.run(
                [BIN / "braidfs", "unseal", folder], check=True, stdout=subprocess.DEVNULL
            )

    @contextlib.contextmanager
    def with_cache(self) -> Iterator[None]:
        """The place is mounted with a cache on the local disk, empty at first, until the end of the
        block."""
        directory = self._cluster.plan.state / "cache"
        try:
            with self._mounted_with(f"cache_dir={directory}", "cache_size=8GiB"):
                yield
        finally:
            shutil.rmtree(directory)

    @contextlib.contextmanager
    def _mounted_with(self, *options: str) -> Iterator[None]:
        without = self._cluster
        options = (*without.plan.client_options, *options)
        self._cluster = Cluster(replace(without.plan, client_options=options))
        try:
            self.remount()
            yield
        finally:
            self._cluster = without
            self.remount()

    @contextlib.contextmanager
    def kept(self, folder: Path, size: int) -> Iterator["KeptMounts"]:
        """The folder is sealed, and read through caches of that size, until the end of the
        block."""
        with self._is_sealed(folder):
            yield KeptMounts(self._cluster, folder, size)

    def serving(self) -> Serving:
        pid = self._cluster.client_pid()
        servers = [program.pid() for program in self._cluster.programs]
        return Serving((pid,) if pid else (), tuple(one for one in servers if one))

    def served_bytes(self) -> int | None:
        return servers_counted(self._cluster.plan, "read_bytes")


class KeptMounts:
    """Mounts of a sealed folder, one after another, each with the cache that the one before has
    filled."""

    def __init__(self, cluster: Cluster, folder: Path, size: int) -> None:
        self._cluster = cluster
        self._below = f"/{folder.relative_to(cluster.mount_path)}"
        self._point = cluster.plan.state / "kept"
        self._directory = cluster.plan.state / "kept-cache"
        self._words = (f"cache_dir={self._directory}", f"cache_size={size}")

    @contextlib.contextmanager
    def mounted(self, passes: bool) -> Iterator[tuple[Path, Callable[[str], int]]]:
        """The folder of the mount, and its counters."""
        port = free_port()
        words = ("ro", *self._words)
        options = ",".join((*words, "passthrough") if passes else words)
        listen = {"metrics_listen": f"127.0.0.1:{port}"}
        with self._cluster.second_client(
            self._point, folder=self._below, options=options, settings=listen
        ):
            yield self._point, lambda name: native_counters(port)[name]

    def clear(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)


class NullPlace(Place):
    """Files f0, f1, ... of one size; their number and size can be changed, because null FUSE stores
    none of them."""

    def __init__(self, scratch: Path, folder: Path) -> None:
        self.name, self.folder = NULL, folder
        self._scratch = scratch
        self._words: tuple[str, ...] = ("--files", "1", "--size", "4096")
        self._program: Program | None = None

    def shape(self, files: int, size: int) -> None:
        words = ("--files", str(files), "--size", str(size))
        if words != self._words or self._program is None:
            self._words = words
            self.remount()

    def remount(self) -> None:
        self.stop()
        self.folder.mkdir(exist_ok=True)
        self._program = Program(
            "nullfs", (str(NULLFS), *self._words, str(self.folder)), self._scratch
        )
        self._program.start()

    def stop(self) -> None:
        if mounts.is_mounted(self.folder):
            mounts.unmount(self.folder, lazy=True)
        if self._program is not None:
            self._program.stop()
            self._program = None

    def serving(self) -> Serving:
        pid = self._program.pid() if self._program else None
        return Serving((pid,) if pid else ())


class PeerPlace(Place):
    """A place that two scripts control: `NAME-up DIR` starts it and mounts it there, `NAME-down
    [wipe]` ends it. Its pid files, if it leaves some in $PEERS_STATE/run/NAME, allow to measure
    what it consumes."""

    def __init__(self, up: Path, state: Path) -> None:
        self.name = up.name.removesuffix("-up")
        self._up, self._state = up, state
        self._point = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=BUILD / "bench"))
        self.folder = self._point / "bench"

    def start(self) -> None:
        self._run(str(self._up), str(self._point))
        self.folder.mkdir(exist_ok=True)

    def remount(self) -> None:
        self._run(str(self._up.with_name(f"{self.name}-down")))
        self._run(str(self._up), str(self._point))

    def end(self) -> None:
        with contextlib.suppress(subprocess.SubprocessError):
            self._run(str(self._up.with_name(f"{self.name}-down")), "wipe")
        with contextlib.suppress(OSError):
            self._point.rmdir()

    def serving(self) -> Serving:
        client: list[int] = []
        servers: list[int] = []
        for file in (self._state / "run" / self.name).glob("*.pid"):
            pids = [int(word) for word in file.read_text().split() if word.isdigit()]
            (client if file.stem in PEER_CLIENTS else servers).extend(pids)
        return Serving(with_children(client), with_children(servers))

    def _run(self, *words: str) -> None:
        environment = {**os.environ, "PEERS_STATE": str(self._state)}
        # Daemons of a script may keep its standard output open, so this is a file, not a pipe.
        with tempfile.TemporaryFile() as output:
            try:
                subprocess.run(
                    words,
                    check=True,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    timeout=PEER_SECONDS_MAX,
                    env=environment,
                )
            except subprocess.CalledProcessError as error:
                output.seek(0)
                said = output.read().decode(errors="replace").strip()
                raise RuntimeError(f"{error}: {said[-300:]}") from None


@contextlib.contextmanager
def local_places() -> Iterator[Sequence[Place]]:
    """BraidFS with two storage servers, ext4 and null FUSE, on one disk; removed afterwards."""
    base = BUILD / "bench"
    base.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="run-", dir=base))
    plan = make_plan(scratch / "cluster", storage_servers=2, client_options=CLIENT_OPTIONS)
    cluster = Cluster(plan)
    null = NullPlace(scratch, scratch / "null")
    local = scratch / "local"
    local.mkdir()
    try:
        console.print("starting a cluster of two storage servers, and null FUSE")
        cluster.start()
        null.remount()
        yield BraidPlace(cluster), LocalPlace(local), null
    finally:
        cluster.stop()
        null.stop()
        shutil.rmtree(scratch)


def peers_in(folder: Path | None) -> list[Path]:
    """The NAME-up scripts of a folder."""
    ups = sorted(folder.glob("*-up")) if folder else []
    if folder and not ups:
        raise StepError(f"no NAME-up script in {folder}")
    return ups


@contextlib.contextmanager
def peer(up: Path) -> Iterator[PeerPlace]:
    """One peer, started and stopped again with all that it stored."""
    place = PeerPlace(up, BUILD / "bench" / "peers")
    try:
        place.start()
        yield place
    finally:
        place.end()
