"""One file, one writer, readers on other clients, no lock: each reader sees a prefix of what was
written, and no block older than one that it has seen (tests.coherence.prefixes has the rules).
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from pathlib import Path

import pytest

from tests.cluster import mounts
from tests.cluster.cluster import Cluster
from tests.coherence import prefixes
from tests.coherence.prefixes import Shared

pytestmark = [pytest.mark.mount, pytest.mark.timeout(900)]

Sized = Callable[[int, int], int]
Reader = Callable[[Path, Shared], str]
READERS: tuple[Reader, ...] = (
    prefixes.read_opened_anew,
    prefixes.read_opened_once,
    prefixes.follow,
    prefixes.read_mapped,
)
FLAGS = pytest.mark.parametrize("flags", [0, os.O_APPEND], ids=["write", "append"])


@pytest.fixture(scope="module")
def others(shared_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for the mounts of other clients; the first of them is mounted."""
    folder = tmp_path_factory.mktemp("prefixes")
    with shared_cluster.second_client(folder / "1"):
        yield folder
    while mounts.is_mounted(folder / "1"):
        mounts.unmount(folder / "1", lazy=True)


def _file_on(cluster: Cluster, workdir: Path, *roots: Path) -> list[Path]:
    """A new file, by its path on the cluster's own mount and on the others."""
    (workdir / "file").touch()
    place = (workdir / "file").relative_to(cluster.mount_path)
    return [cluster.mount_path / place, *(root / place for root in roots)]


def _writer(path: Path, flags: int, sized: Sized) -> Callable[[Shared], str]:
    """A writer that is slower with --full, so that the file does not outgrow its readers."""
    return lambda shared: prefixes.write_records(path, shared, flags, sized(3, 20) / 1000)


def _read_by_all(
    path: Path, readers: Sequence[Reader], writer: Callable[[Shared], str], seconds: float
) -> None:
    parts: list[Callable[[Shared], str]] = [writer, *(partial(reader, path) for reader in readers)]
    print(*prefixes.run(parts, seconds), sep="; ")


@FLAGS
@pytest.mark.parametrize("reader", READERS)
def test_a_reader_sees_a_prefix(
    cluster: Cluster, workdir: Path, others: Path, reader: Reader, flags: int, sized: Sized
) -> None:
    here, there = _file_on(cluster, workdir, others / "1")
    _read_by_all(there, [reader], _writer(here, flags, sized), sized(1, 30))


@pytest.mark.full
@FLAGS
def test_readers_on_three_clients_see_prefixes(
    cluster: Cluster, workdir: Path, others: Path, flags: int, sized: Sized
) -> None:
    with ExitStack() as stack:
        more = [stack.enter_context(cluster.second_client(others / name)) for name in "23"]
        here, *there = _file_on(cluster, workdir, others / "1", *more)
        parts = [_writer(here, flags, sized)]
        parts += [partial(reader, path) for reader, path in zip(READERS, there, strict=False)]
        print(*prefixes.run(parts, sized(1, 60)), sep="; ")


def test_processes_of_one_client_are_told_the_size(
    cluster: Cluster, workdir: Path, others: Path, sized: Sized
) -> None:
    """Several processes ask at once for the size of a file that another client writes."""
    here, there = _file_on(cluster, workdir, others / "1")
    askers = [prefixes.stat_opened_once, prefixes.stat_opened_anew] * 2
    _read_by_all(there, askers, _writer(here, 0, sized), sized(5, 30))


THERE = pytest.param(
    "another client",
    marks=pytest.mark.xfail(strict=False, reason="zeros of a page that Linux dropped, or SIGBUS"),
)


@pytest.mark.full
@pytest.mark.parametrize("where", ["the writer's client", THERE])
@pytest.mark.parametrize("readers", [READERS[:3], READERS], ids=["read", "map"])
@FLAGS
def test_many_readers_on_one_client(
    cluster: Cluster,
    workdir: Path,
    others: Path,
    where: str,
    flags: int,
    readers: Sequence[Reader],
    sized: Sized,
) -> None:
    """See the known gaps in docs/SEMANTICS.md."""
    here, there = _file_on(cluster, workdir, others / "1")
    path = there if where == "another client" else here
    _read_by_all(path, readers, _writer(here, flags, sized), sized(3, 30))


@pytest.mark.parametrize("readers", [4, pytest.param(8, marks=pytest.mark.full)])
def test_blocks_that_are_written_over(
    cluster: Cluster, workdir: Path, others: Path, readers: int, sized: Sized
) -> None:
    here, there = _file_on(cluster, workdir, others / "1")
    here.write_bytes(prefixes.block(0) * prefixes.BLOCKS)
    parts = [lambda shared: prefixes.rewrite(here, shared, 0.003)]
    for path, number in zip(cycle((here, there)), range(readers), strict=False):
        reader = partial(prefixes.read_backwards, anew=number % 4 > 1, is_writers=path == here)
        parts.append(partial(reader, path))
    print(*prefixes.run(parts, sized(1, 30)), sep="; ")
