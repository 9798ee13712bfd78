"""Flipped bits on the devices of storage servers: a scrub finds all of them and mends them, and no
reader sees an error.
"""

import os
import random
import threading
import time
from pathlib import Path

import pytest

from fscommon.limits import BLOCK_SIZE
from tests.cluster.cluster import Cluster
from tests.cluster.mirrors import mirrored
from tests.cluster.objects import flip_bit, home_of, object_files
from tests.cluster.process import PATIENCE, wait_until
from tests.conftest import ClusterMaker

from .test_cli import Cli

pytestmark = [
    pytest.mark.mount,
    pytest.mark.timeout(600),
    pytest.mark.expects_warnings,
    pytest.mark.expects_log("block fails its checksum", "a scrub found an object"),
]

QUIET = {"scrub_days": 0}  # nothing is scrubbed by itself
UNHEALTHY = 3  # of fsclient.cli.frame


class Files:
    """Files of a mount, each with one stripe, what they have, and where their objects lie."""

    def __init__(self, cluster: Cluster, sizes: list[int], replicas: int = 2) -> None:
        self.cluster = cluster
        folder = cluster.mount_path / "d"
        folder.mkdir()
        Cli(cluster).run("layout", "set", folder, "--replicas", replicas, "--stripe-width", 1)
        rng = random.Random(len(sizes))
        self.contents: dict[Path, bytes] = {}
        for number, size in enumerate(sizes):
            path = folder / f"file{number}"
            self.contents[path] = rng.randbytes(size)
            path.write_bytes(self.contents[path])
            with path.open("rb") as file:
                os.fsync(file)
        self.inos = {path: path.stat().st_ino for path in self.contents}

    def objects(self, path: Path) -> list[Path]:
        return object_files(self.cluster.plan.state / "targets", self.inos[path])

    def block(self, path: Path, at: int) -> bytes:
        return self.contents[path][at : at + BLOCK_SIZE]

    def read_all(self) -> list[str]:
        """Reads all files from storage servers. Returns what was wrong."""
        wrong = []
        for path, content in self.contents.items():
            try:
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                    if file.read() != content:
                        wrong.append(f"{path.name} has other bytes")
            except OSError as error:
                wrong.append(f"{path.name}: {error}")
        return wrong

    def flip(self, path: Path, replica: int, at: int, rng: random.Random) -> None:
        block = self.block(path, at)
        offset = at + rng.randrange(len(block))
        flip_bit(self.objects(path)[replica], offset, rng.randrange(8), block)

    def are_on_both_devices(self, path: Path, at: int) -> bool:
        return all(home_of(one, at, self.block(path, at)) for one in self.objects(path))


@pytest.mark.parametrize("flips", [pytest.param(60), pytest.param(1000, marks=pytest.mark.full)])
def test_flipped_bits_are_mended_under_readers(make_cluster: ClusterMaker, flips: int) -> None:
    cluster = mirrored(make_cluster, repair=QUIET)
    cli = Cli(cluster)
    rng = random.Random(flips)
    sizes = [rng.choice((5000, 70_000, 1 << 20, (3 << 20) + 17)) for _ in range(flips // 3)]
    files = Files(cluster, sizes)
    places = [
        (path, at)
        for path, content in files.contents.items()
        for at in range(0, len(content), BLOCK_SIZE)
    ]
    flipped = rng.sample(places, flips)
    for path, at in flipped:
        files.flip(path, rng.randrange(2), at, rng)
    assert not all(files.are_on_both_devices(*place) for place in flipped)
    wrong: list[str] = []
    ends = threading.Event()

    def read_on() -> None:
        while not ends.is_set():
            wrong.extend(files.read_all())

    reader = threading.Thread(target=read_on)
    reader.start()
    try:
        found = cli.json("scrub", "--now", "--wait", "--timeout", 300)
    finally:
        ends.set()
        reader.join()
    assert wrong == []
    assert found["left"] == 0 and found["dropped"] == 0 and found["passes"] == 1
    assert {one["outcome"] for one in found["findings"]} == {"mended"}
    assert {one["ino"] for one in found["findings"]} == {files.inos[path] for path, _ in flipped}
    assert all(files.are_on_both_devices(*place) for place in flipped)
    assert files.read_all() == []


def test_what_a_reader_meets_is_mended_at_once(make_cluster: ClusterMaker) -> None:
    cluster = mirrored(make_cluster, repair=QUIET)
    cli = Cli(cluster)
    files = Files(cluster, [1 << 20] * 4)
    rng = random.Random(1)
    for path in files.contents:  # a client may read from either
        files.flip(path, 0, 0, rng)
        files.flip(path, 1, BLOCK_SIZE, rng)
    assert files.read_all() == []

    def is_mended() -> bool:
        return all(
            files.are_on_both_devices(path, at) for path in files.contents for at in (0, BLOCK_SIZE)
        )

    assert wait_until(is_mended, 30 * PATIENCE)
    found = cli.json("scrub", "--paths")
    assert found["passes"] == 0 and found["left"] == 0
    paths = {one["path"] for one in found["findings"]}
    assert paths == {f":/d/{path.name}" for path in files.contents}


def test_without_a_replica_damage_is_found_and_stays(make_cluster: ClusterMaker) -> None:
    cluster = mirrored(make_cluster, replicas=1, repair=QUIET)
    cli = Cli(cluster)
    files = Files(cluster, [1 << 20, 1 << 20], replicas=1)
    damaged, whole = files.contents
    flip = random.Random(1)
    files.flip(damaged, 0, 3 * BLOCK_SIZE, flip)
    found = cli.json("scrub", "--wait", damaged, code=UNHEALTHY)
    assert [(one["what"], one["outcome"], one["blocks"]) for one in found["findings"]] == [
        ("damaged", "left", 1)
    ]
    found = cli.json("scrub", "--wait", whole)
    assert (found["findings"], found["files_asked"]) == ([], 1)
    assert cli.text("scrub", "--wait", whole).startswith("1 file there: scrubbed\n")
    assert wait_until(lambda: _is_kept(cluster, cli), 30 * PATIENCE), "also over a restart"
    with damaged.open("r+b") as file:
        file.write(files.contents[damaged])
        os.fsync(file)
    assert cli.json("scrub", "--wait", damaged)["left"] == 0


def _is_kept(cluster: Cluster, cli: Cli) -> bool:
    time.sleep(3)
    cluster.metaserver.kill()
    cluster.metaserver.start()
    return cli.end("scrub").code == UNHEALTHY


def test_an_object_without_records_is_made_again(make_cluster: ClusterMaker) -> None:
    cluster = mirrored(make_cluster, repair=QUIET)
    cli = Cli(cluster)
    files = Files(cluster, [(2 << 20) + 5])
    (path,) = files.contents
    before = files.objects(path)
    for server in cluster.storageservers:
        server.stop()
    with before[0].open("r+b") as file:  # of its first record page
        file.seek(100)
        file.write(b"\xff" * 64)
    cluster.start_servers()
    assert wait_until(
        lambda: all(row["state"] == "up" for row in cli.json("node", "list")), 40 * PATIENCE
    )
    found = cli.json("scrub", "--wait", path)
    assert [(one["what"], one["outcome"]) for one in found["findings"]] == [
        ("records lost", "dropped")
    ]

    def has_two() -> bool:
        now = files.objects(path)
        return len(now) == 2 and before[0] not in now

    assert wait_until(has_two, 60 * PATIENCE)
    assert cli.json("scrub", "--wait", path)["left"] == 0
    assert files.read_all() == []
