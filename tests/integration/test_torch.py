"""braidfs.checkpoint.torch and braidfs.data with the versions of PyTorch that can be had, and
checkpoints on two mounts.

PyTorch is no part of the environment of these tests. The long form makes environments for it
(tests.dev.extras), and runs tests/torch there: one that is kept, with the newest version that
pyproject.toml allows, and one after another for all others of tests/torch/versions.py, each of
which is removed after its turn. A version that pip does not install is skipped, with what pip said.
BRAIDFS_TORCH_VERSIONS=2.7.1,2.13 names versions to try instead; "newest" is the one that is kept.
BRAIDFS_TORCH_PYTHON names the Python of an environment that is there already, instead of that one.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from braidfs.checkpoint import Checkpoints
from tests.cluster import mounts
from tests.cluster.cluster import Cluster
from tests.dev.build import READER_FOLDER
from tests.dev.extras import NotInstalledError, folder_for_a_turn, folder_of, requirements_of
from tests.dev.steps import BUILD, ROOT
from tests.torch import versions
from tests.torch.start import job

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]

MIB = 1 << 20
VERSIONS = os.environ.get("BRAIDFS_TORCH_VERSIONS", ",".join(versions.ALL)).split(",")
WITH_IT = ("numpy", "safetensors", "pytest>=8", "pytest-timeout>=2.3")


def kept_python() -> str:
    """The Python of the environment that stays, with the newest version that is allowed."""
    if given := os.environ.get("BRAIDFS_TORCH_PYTHON"):
        return given
    bench = [one for one in requirements_of("bench") if one.startswith("torch")]
    return str(folder_of("torch-newest", [*bench, *WITH_IT]) / "bin" / "python")


@contextmanager
def python_with_torch(version: str) -> Iterator[str]:
    kept = kept_python()
    if version == "newest" or versions.is_of(_installed_in(kept), version):
        yield kept
        return
    with folder_for_a_turn([versions.requirement(version), *WITH_IT]) as folder:
        yield str(folder / "bin" / "python")


def _installed_in(python: str) -> str:
    words = [python, "-c", "import importlib.metadata as m; print(m.version('torch'))"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize("version", VERSIONS)
def test_everything_that_needs_torch(version: str) -> None:
    """Runs tests/torch; what they print is shown when one fails."""
    try:
        with python_with_torch(version) as python:
            command = [python, "-m", "pytest", "-q", "--confcutdir=tests/torch"]
            command += ["-p", "no:cacheprovider", "-o", "timeout=600", "tests/torch"]
            environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{READER_FOLDER}"}
            done = subprocess.run(
                command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True
            )
    except NotInstalledError as error:
        pytest.skip(f"PyTorch {version} cannot be installed: {error}")
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    assert " passed" in done.stdout


def test_what_cannot_be_installed_has_a_reason(tmp_path: Path) -> None:
    missing = tmp_path / "missing.whl"
    with (
        pytest.raises(NotInstalledError, match=r"ERROR: .*missing\.whl"),
        folder_for_a_turn([str(missing)]),
    ):
        raise AssertionError("it was installed")
    assert not (BUILD / "turn").exists()


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
        with job(kept_python(), ranks, part) as running:
            for _ in part:
                assert all(seen["bytes"] >= size for seen in running.next())
    assert [found.number for found in Checkpoints(other / "ours").steps()] == [1, 2]
