"""A tree that a client has listed and holds leases on is listed again without the metaserver."""

import mmap
import multiprocessing
import os
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.numbers import requests_shown
from tests.coherence.conftest import MountMaker
from tests.conftest import ClusterMaker
from tests.fuse.looks import lanes_counted

pytestmark = [pytest.mark.mount, pytest.mark.timeout(1200)]

Sized = Callable[[int, int], int]
HEARTBEATS = {"SESSION_RENEW", "HEARTBEAT", "REGISTER"}


def _asked(cluster: Cluster) -> dict[str, float]:
    """Requests of clients to the metaserver so far, by op."""
    counted = requests_shown(cluster.plan.metaserver)
    return {op: float(count) for op, count in counted.items() if op not in HEARTBEATS}


def _asked_at_rest(cluster: Cluster) -> dict[str, float]:
    """Requests so far, once the metaserver's counters include all answered ones, which takes a
    little."""
    asked = _asked(cluster)
    for _ in range(20):
        time.sleep(1.0)
        before, asked = asked, _asked(cluster)
        if asked == before:
            return asked
    pytest.fail("the metaserver is asked on and on")


def _grown(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {
        op: count - before.get(op, 0.0)
        for op, count in after.items()
        if count != before.get(op, 0.0)
    }


def _list(base: Path) -> list[str]:
    words = ["ls", "-lR", "--time-style=full-iso", str(base)]
    result = subprocess.run(words, check=True, capture_output=True, text=True, timeout=600)
    return result.stdout.replace(str(base), "").splitlines()


def _fill(base: Path, folders: int, files: int) -> None:
    for folder in range(folders):
        place = base / f"{folder}"
        place.mkdir(parents=True)
        for number in range(files):
            (place / f"{number}").touch()


def test_ls_of_leased_files_asks_nobody(make_cluster: ClusterMaker, sized: Sized) -> None:
    """With the most leases that lookups and listings may have by default: 7/8 of 100,000,
    directories included."""
    cluster = make_cluster(storage_servers=1)
    base, folders, files = cluster.mount_path / "tree", sized(8, 100), sized(250, 870)
    _fill(base, folders, files)
    cluster.remount()
    first = _list(base)
    assert len(first) > folders * files
    before = _asked_at_rest(cluster)
    answered = lanes_counted(cluster, "listings_answered")
    assert _list(base) == first
    answered = lanes_counted(cluster, "listings_answered") - answered
    assert answered >= 2 * folders, "the names of each, and that there are no more"
    asked = _grown(before, _asked_at_rest(cluster))
    print(f"{folders * files} files listed again: asked {asked or 'nothing'}")
    assert asked == {}


def test_a_kept_listing_shows_what_another_client_did(
    cluster: Cluster, workdir: Path, more_mounts: MountMaker
) -> None:
    here, there = (m / workdir.relative_to(cluster.mount_path) for m in more_mounts(cluster, 2))
    _fill(here, 3, 40)
    for number in range(10):
        assert _list(there) == _list(here) == _list(there)
        (here / "1" / f"new{number}").write_bytes(b"x" * number)
        (there / "2" / f"{number}").unlink()
        (here / "0" / f"{number}").rename(here / "1" / f"moved{number}")
        (there / "0" / "30").chmod(0o600 + number)


# ---- listings while names are created and removed -----------------------------------------------

KEPT = 60  # the number of files that exist at a time


class Counters:
    """Counters of files that are created and removed in turn, begun and done, in memory that is
    inherited by fork."""

    MAKING, MADE, REMOVING, REMOVED, OVER = range(5)

    def __init__(self) -> None:
        self._counters = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")

    def __getitem__(self, which: int) -> int:
        return self._counters[which]

    def __setitem__(self, which: int, number: int) -> None:
        self._counters[which] = number


def _change(folder: Path, counters: Counters, chance: random.Random) -> None:
    """Creates and removes numbered files, each of which exists for a while; sometimes nothing
    changes."""
    number = 0
    while not counters[Counters.OVER]:
        number += 1
        counters[Counters.MAKING] = number
        if number % 3:
            (folder / f"{number}").touch()
        else:
            (folder / f"{number}-first").touch()
            (folder / f"{number}-first").rename(folder / f"{number}")
        counters[Counters.MADE] = number
        if number > KEPT:
            counters[Counters.REMOVING] = number - KEPT
            (folder / f"{number - KEPT}").unlink()
            counters[Counters.REMOVED] = number - KEPT
        if chance.random() < 0.05:
            time.sleep(chance.random() / 5)


def _watch(folder: Path, counters: Counters) -> None:
    """Each listing has the files that existed all the time, and none that did not exist at all."""
    count = 0
    while not counters[Counters.OVER]:
        made, removed = counters[Counters.MADE], counters[Counters.REMOVED]
        names = os.listdir(folder)
        making, removing = counters[Counters.MAKING], counters[Counters.REMOVING]
        seen = {int(name) for name in names if name.isdigit()}
        assert len(names) == len(set(names)), "a name was listed twice"
        missed = set(range(removing + 1, made + 1)) - seen
        assert not missed, f"{sorted(missed)} were there when the listing began, and stayed"
        wrong = {number for number in seen if number <= removed or number > making}
        assert not wrong, f"{sorted(wrong)} were gone, or not there yet"
        count += 1
    assert count > 3


@pytest.mark.parametrize("where", ["the changing client", "another client", "both"])
def test_a_listing_while_names_come_and_go(
    cluster: Cluster, workdir: Path, more_mounts: MountMaker, where: str, sized: Sized
) -> None:
    here, there = (m / workdir.relative_to(cluster.mount_path) for m in more_mounts(cluster, 2))
    places = {"the changing client": [here] * 2, "another client": [there] * 2}
    counters, fork = Counters(), multiprocessing.get_context("fork")
    watchers = [
        fork.Process(target=_watch, args=(folder, counters))
        for folder in places.get(where, [here, there])
    ]
    changer = fork.Process(target=_change, args=(here, counters, random.Random(0)))
    for process in (changer, *watchers):
        process.start()
    changer.join(sized(3, 60))
    is_changing = changer.is_alive()
    counters[Counters.OVER] = 1
    for process in (changer, *watchers):
        process.join(60)
    print(f"{counters[Counters.MADE]} files")
    assert is_changing and [process.exitcode for process in (changer, *watchers)] == [0, 0, 0]
