"""braidfs.checkpoint.torch with the versions of PyTorch that can be had, and on two mounts.

PyTorch is no part of the environment of these tests. The long form makes one for it
(tests.dev.extras), and runs tests/torch there. BRAIDFS_TORCH_VERSIONS=2.7.1,2.13.0 names versions
to try; without it, it is the newest one that pyproject.toml allows. BRAIDFS_TORCH_PYTHON names the
Python of an environment that is there already.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from braidfs.checkpoint import Checkpoints
from tests.cluster import mounts
from tests.cluster.cluster import Cluster
from tests.dev.extras import folder_of, requirements_of
from tests.dev.steps import ROOT
from tests.torch.start import job

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]

MIB = 1 << 20
VERSIONS = os.environ.get("BRAIDFS_TORCH_VERSIONS", "newest").split(",")
WITH_IT = ("numpy", "safetensors", "pytest>=8", "pytest-timeout>=2.3")


def python_with_torch(version: str) -> str:
    if (given := os.environ.get("BRAIDFS_TORCH_PYTHON")) and version == "newest":
        return given
    bench = [one for one in requirements_of("bench") if one.startswith("torch")]
    wanted = bench if version == "newest" else [f"torch=={version}"]
    return str(folder_of(f"torch-{version}", [*wanted, *WITH_IT]) / "bin" / "python")


@pytest.mark.parametrize("version", VERSIONS)
def test_everything_that_needs_torch(version: str) -> None:
    """Runs the tests of checkpoints in tests/torch; what they print is shown when one fails."""
    command = [python_with_torch(version), "-m", "pytest", "-q", "--confcutdir=tests/torch"]
    command += ["-p", "no:cacheprovider", "-o", "timeout=600", "tests/torch"]
    command += ["--ignore-glob=tests/torch/test_*data.py"]  # test_torch_data.py runs those
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    assert " passed" in done.stdout


@pytest.fixture
def two_mounts(
    cluster: Cluster, workdir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, Path]]:
    """A new folder, on both."""
    point = tmp_path_factory.mktemp("two") / "other"
    point.mkdir()
    with cluster.second_client(point) as other:
        yield workdir, other / workdir.relative_to(cluster.mount_path)
    while mounts.is_mounted(point):
        mounts.unmount(point, lazy=True)


@pytest.mark.mount
def test_four_ranks_on_two_mounts(two_mounts: tuple[Path, Path]) -> None:
    """Each writer's checkpoint, by each reader, from the other mount, with each way of sharing."""
    one, other = two_mounts
    size = 16 * MIB
    works: list[dict[str, object]] = []
    for step, kind, past_cache in ((1, "ours", False), (2, "ours", True), (3, "torch", False)):
        given = {"path": kind, "step": step, "size": size}
        works.append(
            {"action": "save", "kind": kind, "seed": 10 * step, "direct": past_cache, **given}
        )
        for reader, share in (("torch", None), ("ours", None), ("ours", "node"), ("ours", "job")):
            check = {"kind": reader, "share": share, "check": 10 * step}
            works.append({"action": "load", **check, **given})
    saves, loads = works[::5], [work for work in works if work["action"] == "load"]
    paths = [one, one, other, other]
    for ranks, part in ((paths, saves), (list(reversed(paths)), loads)):
        with job(python_with_torch("newest"), ranks, part) as running:
            for _ in part:
                assert all(seen["bytes"] >= size for seen in running.next())
    assert [found.number for found in Checkpoints(other / "ours").steps()] == [1, 2]
