"""Whole targets go while programs write and read: a storage server that dies for good, and targets
that are emptied. No program sees an error or a wrong byte, and everything is whole in the end."""

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.mirrors import mirrored
from tests.cluster.process import PATIENCE, wait_until
from tests.conftest import ClusterMaker

from .test_cli import Cli
from .test_mirrors_under_load import degraded, read_anew, writing

pytestmark = [pytest.mark.mount, pytest.mark.timeout(420), pytest.mark.expects_warnings]

SERVERS = 4
DONE_S = 120.0
FILES = 60


class Readers:
    """Threads that read files which nobody writes, and one that is always being written."""

    def __init__(self, folder: Path) -> None:
        self.errors: list[str] = []
        self.reads = 0
        self._contents: dict[Path, bytes] = {}
        self._stop = threading.Event()
        chance = random.Random(7)
        for number in range(FILES):
            path = folder / f"r{number}"
            size = chance.choice((200, 5_000, 300_000, 3 << 20))
            self._contents[path] = chance.randbytes(size)
            path.write_bytes(self._contents[path])
        self._log = folder / "log"
        self._threads = [
            threading.Thread(target=self._run, args=(one,)) for one in (self._read, self._append)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, work: Any) -> None:
        try:
            work()
        except (OSError, AssertionError) as error:
            self.errors.append(repr(error))

    def _read(self) -> None:
        chance = random.Random(8)
        held = {path: path.open("rb", buffering=0) for path in list(self._contents)[::3]}
        while not self._stop.is_set():
            path = chance.choice(list(self._contents))
            wanted, file = self._contents[path], held.get(path)
            if file is not None and chance.random() < 0.5:
                drop_pages(file.fileno())
                content = os.pread(file.fileno(), 4 << 20, 0)
            else:
                content = path.read_bytes()
            if path == self._log:  # more comes all the time
                content = content[: len(wanted)]
            assert content == wanted, path
            self.reads += 1
        for file in held.values():
            file.close()

    def _append(self) -> None:
        """A file that one program has open all the time, and writes a few times a second."""
        with self._log.open("wb", buffering=0) as file:
            while not self._stop.is_set():
                line = os.urandom(30_000)
                file.write(line)
                self._contents[self._log] = self._contents.get(self._log, b"") + line
                if len(self._contents[self._log]) % 90_000 == 0:
                    os.fsync(file)
                time.sleep(0.2)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive(), "a program hangs"
        assert self.errors == []
        assert self.reads > 20

    def check(self) -> None:
        for path, content in self._contents.items():
            assert path.read_bytes() == content, path


def drop_pages(fd: int) -> None:
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def reading(folder: Path) -> Iterator[Readers]:
    readers = Readers(folder)
    try:
        yield readers
    finally:
        readers.stop()


def job(cli: Cli, kind: str) -> dict[str, Any]:
    """The newest job of this kind."""
    found = [one for one in cli.json("job", "list") if one["kind"] == kind]
    return dict(found[-1]) if found else {"state": "none"}


def is_done(cli: Cli, kind: str, seconds: float = DONE_S) -> bool:
    return wait_until(lambda: job(cli, kind)["state"] == "done", seconds * PATIENCE)


def states(cli: Cli) -> dict[int, str]:
    return {one["target"]: one["state"] for one in cli.json("target", "list")}


def server_of(cluster: Cluster, cli: Cli, target: int) -> int:
    """The index of the storage server that has the target."""
    [name] = [one["node_name"] for one in cli.json("target", "list") if one["target"] == target]
    return int(name.rpartition("-")[2]) - 1


def objects_on(cluster: Cluster, server: int) -> int:
    """How many objects lie on the only target of a storage server."""
    folder = cluster.plan.target_path(cluster.plan.storageservers[server], 0) / "objects"
    return sum(1 for path in folder.glob("*/*"))


@contextmanager
def restarting(cluster: Cluster) -> Iterator[Callable[[], None]]:
    """Gives a function that kills the metaserver and starts it again. Another process starts it,
    which has no file of the mount open: the new program's process would close those, and wait for
    the metaserver."""
    waits, tells = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            if os.read(waits, 1) == b"x":
                cluster.metaserver.start()
            code = 0
        finally:
            os._exit(code)

    def restart() -> None:
        cluster.metaserver.kill()
        os.write(tells, b"x")

    try:
        yield restart
    finally:
        os.write(tells, b"-")
        assert os.waitpid(pid, 0)[1] == 0
        os.close(waits)
        os.close(tells)


def folders(cluster: Cluster, cli: Cli) -> tuple[Path, Path]:
    """One whose files have two replicas, and one whose files have one."""
    two, one = cluster.mount_path / "two", cluster.mount_path / "one"
    two.mkdir()
    one.mkdir()
    cli.run("layout", "set", one, "--replicas", 1)
    return two, one


def test_a_server_that_dies_for_good_is_made_up_for(make_cluster: ClusterMaker) -> None:
    cluster = mirrored(make_cluster, servers=SERVERS, repair={"rebuild_after_s": 5})
    cli = Cli(cluster)
    two = cluster.mount_path / "two"
    two.mkdir()
    with writing(two) as writers, reading(two) as readers:
        writers.wait_rounds(30, 60)
        cluster.storageservers[1].kill()
        killed_s = time.monotonic()
        assert wait_until(lambda: job(cli, "rebuild")["state"] != "none", 60 * PATIENCE)
        assert is_done(cli, "rebuild"), cli.json("job", "list")
        print(f"whole after {time.monotonic() - killed_s:.1f} s: {job(cli, 'rebuild')}")
        writers.wait_rounds(30, 60)
    assert wait_until(lambda: not degraded(cli), 60 * PATIENCE), degraded(cli)
    assert cli.text("find", ":/two", "--type", "f", "--lost") == ""
    read_anew(cluster)
    writers.check()
    readers.check()
    cluster.storageservers[2].kill()  # another one may go now
    read_anew(cluster)
    writers.check()
    readers.check()
    cluster.start_servers()


def test_a_target_is_emptied_under_programs(make_cluster: ClusterMaker) -> None:
    """With files of one replica and of two; the metaserver is restarted in the middle."""
    cluster = mirrored(make_cluster, servers=SERVERS)
    cli = Cli(cluster)
    two, one = folders(cluster, cli)
    with (
        restarting(cluster) as restart,
        writing(two, 2) as writers,
        writing(one, 2) as others,
        reading(one) as readers,
    ):
        writers.wait_rounds(40, 60)
        others.wait_rounds(40, 60)
        server = server_of(cluster, cli, 2)
        assert objects_on(cluster, server) > 10
        cli.run("target", "drain", 2)
        time.sleep(3)
        restart()
        assert wait_until(lambda: cli.end("job", "list").code == 0, 60 * PATIENCE)
        assert is_done(cli, "drain", 240), cli.json("job", "list")
        print(f"emptied: {job(cli, 'drain')}")
        assert objects_on(cluster, server) == 0
        cli.run("target", "remove", 2, "--yes")
        assert 2 not in states(cli)
        writers.wait_rounds(10, 60)
        others.wait_rounds(10, 60)
        cluster.storageservers[server].stop()
        writers.wait_rounds(10, 60)
        others.wait_rounds(10, 60)
    read_anew(cluster)
    for each in (writers, others, readers):
        each.check()
    assert not degraded(cli)
