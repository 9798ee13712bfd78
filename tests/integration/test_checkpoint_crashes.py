"""Four ranks on two mounts of one cluster save steps, and something is killed at random.

A rank is killed for good; a client (its keeper starts it again), the metaserver or a storage server
comes back while the ranks go on. After each round every visible step verifies, the newest loads,
each of its bytes is one attempt's, and no step that a rank was told of is missing. The seed decides
who is killed and when it is tried; the kernel and the scheduler decide the rest.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from braidfs.checkpoint import Checkpoints
from braidfs.checkpoint.commands import verify_steps
from tests.cluster import mounts
from tests.cluster.cluster import Cluster
from tests.cluster.process import wait_until
from tests.conftest import ROOT, ClusterMaker
from tests.integration.checkpoint_rank import content_of

pytestmark = [pytest.mark.mount, pytest.mark.timeout(5400), pytest.mark.expects_warnings]

PARTS = 4
STEPS = 3  # that the ranks try to save in a round
SEED = int(os.environ.get("BRAIDFS_TEST_SEED", "35"))
# What a rank hears when its client is killed (docs/decisions/0034-survival.md): bytes that were not
# durable are lost, an exclusive create may have been sent twice, and another rank heard of either.
TOLD = (
    "OSError: [Errno 5]",
    "OSError: [Errno 9]",
    "braidfs.checkpoint.errors.AttemptUsedError",
    "braidfs.checkpoint.errors.PartFailed",
)
VICTIMS = ("rank", "client", "metaserver", "storage server")


@dataclass
class Crashes:
    cluster: Cluster
    points: list[Path]
    chance: random.Random
    known: int = 0  # the newest step that a rank was told of
    next_step: int = 1
    hits: dict[str, int] = field(default_factory=dict)

    def round(self, number: int) -> None:
        victim = VICTIMS[number % len(VICTIMS)]
        first, attempt = self.next_step, f"round-{number}"
        ranks = [self._rank(part, attempt, first) for part in range(PARTS)]
        try:
            time.sleep(self.chance.random() * 0.8)  # no condition: it may hit anything
            if any(rank.poll() is None for rank in ranks):
                self.hits[victim] = self.hits.get(victim, 0) + 1
            self._kill(victim, ranks)
            self._end(victim, ranks)
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        self.next_step = first + STEPS
        self.judge()
        print(f"round {number}: killed {victim}, newest step told of: {self.known}", flush=True)

    def judge(self) -> None:
        for point in self.points:
            root = point / "run"
            answer = verify_steps(root, (), lambda count: None)
            assert answer.exit == 0, answer.lines
            newest = Checkpoints(root).latest()
            assert (newest.number if newest else 0) >= self.known, "a step that was told is gone"
            if newest is not None:
                for part in range(PARTS):
                    loaded = (newest.path / f"{part}.pt").read_bytes()
                    assert loaded == content_of(newest.number, newest.attempt, part)

    def _rank(self, part: int, attempt: str, first: int) -> "subprocess.Popen[str]":
        root = self.points[part % 2] / "run"
        words = map(str, (root, part, PARTS, attempt, first, first + STEPS - 1))
        return subprocess.Popen(
            [sys.executable, "-m", "tests.integration.checkpoint_rank", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def _kill(self, victim: str, ranks: list["subprocess.Popen[str]"]) -> None:
        if victim == "rank":
            self.chance.choice(ranks).kill()
        elif victim == "client":
            self._kill_client(self.chance.choice(self.points))
        else:
            servers = self.cluster.storageservers
            is_meta = victim == "metaserver"
            program = self.cluster.metaserver if is_meta else self.chance.choice(servers)
            program.kill()
            program.start()

    def _kill_client(self, point: Path) -> None:
        """The keeper starts it again, and the mount goes on."""
        pid = mounts.client_pid(point)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

        def is_back() -> bool:
            return mounts.client_pid(point) not in (None, pid) and os.path.isdir(point / "run")

        assert wait_until(is_back, 60)

    def _end(self, victim: str, ranks: list["subprocess.Popen[str]"]) -> None:
        if victim == "rank":  # the others would wait for it
            wait_until(lambda: all(rank.poll() is not None for rank in ranks), 1)
            for rank in ranks:
                rank.kill()
        for rank in ranks:
            out, complaints = rank.communicate(timeout=120)
            self.known = max([self.known, *map(int, out.split())])
            if victim == "client" and rank.returncode:  # it had taken bytes that are lost now
                assert complaints.splitlines()[-1].startswith(TOLD), complaints
                print(f"a rank was told: {complaints.splitlines()[-1]}", flush=True)
            elif victim != "rank":
                assert rank.returncode == 0, complaints


@pytest.fixture
def crashes(make_cluster: ClusterMaker, localdir: Path) -> Iterator[Crashes]:
    cluster = make_cluster(storage_servers=2, targets=1)
    with ExitStack() as stack:
        second = stack.enter_context(cluster.second_client(localdir / "client-1"))
        (cluster.mount_path / "run").mkdir()
        yield Crashes(cluster, [cluster.mount_path, second], random.Random(SEED))


def test_what_is_visible_is_whole_after_crashes(
    crashes: Crashes, sized: Callable[[int, int], int]
) -> None:
    print(f"again: BRAIDFS_TEST_SEED={SEED} ./dev test {Path(__file__).relative_to(ROOT)}")
    for number in range(sized(4, 200)):
        crashes.round(number)
    print("killed while ranks ran:", crashes.hits, "newest step told of:", crashes.known)
    assert sum(crashes.hits.values()) > 0 and crashes.known > 0
    for point in crashes.points:
        with contextlib.suppress(FileNotFoundError):
            Checkpoints(point / "run").tidy(age=0)
    crashes.judge()
