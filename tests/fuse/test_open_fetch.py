"""Small files that are fetched with their open(2): the kernel has their bytes before the open is
answered (docs/decisions/0045-fetched-with-the-open.md).
"""

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fsclient.pressure import memory_is_limited
from tests.cluster.cluster import Cluster
from tests.fuse.looks import lanes_counted, seen_from

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(
        memory_is_limited(), reason="this control group's memory is limited: nothing is fetched"
    ),
]

COUNT = 120
ROUNDS = 40


def head(number: int, version: int) -> bytes:
    return b"%6d of %6d\n" % (version, number)


def content(number: int, version: int = 0) -> bytes:
    return head(number, version) + b"%d\n" % number * (4000 + 97 * number)


def store(folder: Path) -> list[Path]:
    folder.mkdir()
    paths = [folder / f"{number}" for number in range(COUNT)]
    for number, path in enumerate(paths):
        path.write_bytes(content(number))
    return paths


@pytest.fixture
def files(cluster: Cluster, workdir: Path) -> list[Path]:
    """Files for a client that has not seen them."""
    paths = store(workdir / "set")
    cluster.remount()
    return paths


def stored(cluster: Cluster) -> int:
    return lanes_counted(cluster, "opens_stored")


def read_all(paths: Sequence[Path]) -> None:
    for number, path in enumerate(paths):
        assert path.read_bytes() == content(number)


def test_a_second_reading_asks_for_nothing_but_opens(cluster: Cluster, files: list[Path]) -> None:
    """READs would make the kernel ask for attributes once more, because it assumes a
    changed atime."""
    read_all(files)
    assert stored(cluster) >= COUNT // 3
    names = ("reads", "attributes_answered", "opens")
    before = [lanes_counted(cluster, name) for name in names]
    stored_ones = stored(cluster)
    read_all(files)
    reads, attributes, opens = (
        lanes_counted(cluster, name) - count for name, count in zip(names, before, strict=True)
    )
    assert (reads, opens) == (0, COUNT)
    assert attributes <= COUNT - stored_ones


def test_what_another_client_writes_is_seen(
    cluster: Cluster, files: list[Path], lasting: Path
) -> None:
    read_all(files)
    for number in range(0, COUNT, 7):
        seen_from(lasting, cluster, files[number]).write_bytes(content(number, 1))
        assert files[number].read_bytes() == content(number, 1)
    os.truncate(seen_from(lasting, cluster, files[1]), 10)
    assert files[1].read_bytes() == content(1)[:10]


@pytest.mark.parametrize("lanes", [1, 2])
def test_many_open_them_at_once_while_another_client_writes(
    cluster: Cluster, workdir: Path, tmp_path: Path, lanes: int
) -> None:
    """No reader sees bytes older than a write that had ended when the file was opened.

    No reader waits forever: a store into the page cache waits for pages that a READ has locked.
    """
    paths = store(workdir / "set")
    newest = [0] * COUNT
    done = threading.Event()

    def write() -> None:
        for version in range(1, ROUNDS + 1):
            number = version * 31 % COUNT
            with paths[number].open("r+b", buffering=0) as file:
                file.write(head(number, version))
            newest[number] = version
        done.set()

    def read(there: Sequence[Path], first: int) -> int:
        count = 0
        while not done.is_set() or count < COUNT:
            number = (first + count * 7) % COUNT
            oldest = newest[number]
            seen = there[number].read_bytes()
            version = int(seen.split(maxsplit=1)[0])
            assert seen == content(number, version)
            assert version >= oldest
            count += 1
        return count

    with (
        cluster.second_client(tmp_path / "other", options=f"lanes={lanes}") as other,
        ThreadPoolExecutor(9) as pool,
    ):
        there = [seen_from(other, cluster, path) for path in paths]
        readers = [pool.submit(read, there, 13 * reader) for reader in range(8)]
        pool.submit(write).result(60)
        assert sum(reader.result(60) for reader in readers) >= 8 * COUNT


def test_it_may_be_turned_off(cluster: Cluster, workdir: Path, tmp_path: Path) -> None:
    paths = store(workdir / "set")
    with cluster.second_client(tmp_path / "off", options="prefetch=off") as off:
        read_all([seen_from(off, cluster, path) for path in paths])
