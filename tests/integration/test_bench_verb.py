"""`braidfs bench` on real mounts: parts, several nodes, wrong arguments, interruption. Sizes are
tiny.
"""

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from fsclient.validate.suites import BENCHES
from tests.cluster.cluster import Cluster

from .test_cli import Cli, Ended
from .test_validate import SMALL, interrupted, kept_in, left_in, measuring

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]


bench = partial(measuring, "bench")


@pytest.fixture
def two(cluster: Cluster, workdir: Path, localdir: Path) -> Iterator[tuple[Path, Path]]:
    """The same folder of the file system, on two mounts."""
    with cluster.second_client(localdir / "other") as other:
        yield workdir, other / workdir.name


@pytest.mark.full
def test_all_parts_on_two_nodes(two: tuple[Path, Path]) -> None:
    seen = json.loads(bench(*two, *SMALL, "--json").stdout)
    assert list(seen["parts"]) == list(BENCHES)
    for part, phases in seen["parts"].items():
        assert [one["phase"] for one in phases] == [one.name for one in BENCHES[part]]
        assert all(one["operations"] > 0 and one["p50_us"] > 0 for one in phases), part
        assert all(node["operations"] > 0 for one in phases for node in one["nodes"])
    network = {one["phase"]: one for one in seen["parts"]["network"]}
    assert network["round-trip"]["bytes"] == 4096 * network["round-trip"]["operations"]
    assert network["transfer"]["bytes_per_second"] > network["round-trip"]["bytes_per_second"]
    small = {one["phase"]: one for one in seen["parts"]["metadata"]}
    assert small["small-read"]["bytes"] == 2 * 2 * 20 * 4096
    assert seen["damage"] == [] and len(seen["nodes"]) == 2
    assert left_in(two[0]) == []


def test_one_part_at_a_time_and_wrong_arguments(
    cluster: Cluster, workdir: Path, localdir: Path
) -> None:
    def bench(*words: object, code: int = 0) -> Ended:
        return Cli(cluster).run("bench", *words, code=code)

    seen = bench(workdir, *SMALL, "--part", "metadata")
    assert "Write files of 4 KiB" in seen.stdout and "1 node" in seen.stdout
    assert "network" not in seen.stdout and "1/6 Create files" in seen.stderr
    seen = json.loads(bench(workdir, *SMALL, "--part", "network", "--json").stdout)
    assert list(seen["parts"]) == ["network"]
    assert all(one["operations"] > 0 for one in seen["parts"]["network"])
    assert "PATH" in bench(code=2).stderr
    assert "disks" in bench(workdir, "--part", "disks", code=2).stderr
    assert "at least 1 MiB" in bench(workdir, "--size", "1K", code=2).stderr
    assert "not BraidFS" in bench(localdir, *SMALL, "--part", "network", code=1).stderr
    assert "absolute PATH" in bench("here", "--hosts", "a", code=2).stderr
    assert os.listdir(workdir) == []


@pytest.mark.full
def test_it_goes_on_after_ctrl_c(
    workdir: Path, localdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finished parts are not measured again."""
    monkeypatch.setenv("XDG_STATE_HOME", str(localdir))
    words = (
        "--part",
        "metadata",
        "--part",
        "network",
        "--seconds",
        "2",
        "--size",
        "4M",
        "--jobs",
        "1",
        "--files",
        "20",
    )
    said = interrupted("bench", workdir, *words)
    assert "2/9 4 KiB of a server's memory" in said and "with --resume to continue" in said
    seen = bench(workdir, *words, "--resume")
    assert "1/9 Write small files (again, for the files)" in seen.stderr
    assert seen.stdout.count("network") == 1 and "Remove files of 4 KiB" in seen.stdout
    assert left_in(workdir) == [] and kept_in(localdir) == []
