"""The wheel installs in a clean environment and works there; the source distribution builds."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.deployment.conftest import Wheels
from tests.dev import package
from tests.dev.build import project_version
from tests.dev.steps import ROOT

pytestmark = pytest.mark.timeout(1500)  # this includes a first build of the native module
JOBS = "fsclient/validate/jobs"
UNITS = ROOT / "packaging" / "systemd"


def run(*words: object) -> str:
    result = subprocess.run(
        [*map(str, words)], check=False, capture_output=True, text=True, timeout=600, cwd="/"
    )
    assert result.returncode == 0, f"{words}: {result.stderr or result.stdout}"
    return result.stdout


def test_wheel_holds_what_is_shipped_and_no_more(wheels: Wheels) -> None:
    with zipfile.ZipFile(wheels.wheel) as archive:
        names = archive.namelist()
    shared = {name.partition(".data/data/")[2] for name in names if ".data/data/" in name}
    assert {f"share/braidfs/packaging/systemd/{unit.name}" for unit in UNITS.iterdir()} <= shared
    pages = {page.name for page in (ROOT / "docs" / "man").iterdir()}
    assert pages == {Path(name).name for name in shared if name.startswith("share/man/")}
    jobs = {f"fsclient/validate/jobs/{job.name}" for job in (ROOT / JOBS).iterdir()}
    assert jobs and jobs <= set(names)
    strange = ("tests", "braidfs/", "_braidfs_reader")
    assert not [name for name in names if "__pycache__" in name or name.startswith(strange)]


def test_wheel_works_in_a_clean_environment(environment: Path, tmp_path: Path) -> None:
    bin_ = environment / "bin"
    assert project_version() in run(bin_ / "braidfs", "--version")
    run(bin_ / "braidfs", "key", "create", tmp_path / "key")
    config = tmp_path / "metaserver.toml"
    config.write_text(f'state_directory = "{tmp_path}/state"\nkey_file = "{tmp_path}/key"\n')
    run(bin_ / "braidfs", "config", "show", config)
    where = run(bin_ / "python", "-I", "-c", "import braidfs; print(braidfs.__file__)")
    assert where.startswith(str(environment)), "the wheel requires the users' package"
    where = run(bin_ / "python", "-c", "import _braidfs_native as n; print(n.__file__)")
    assert where.startswith(str(environment))
    script = "from fscommon.native import make_chunk_server as m; m(lane_count=1, io='syscall')"
    run(bin_ / "python", "-c", script)
    usage = subprocess.run([bin_ / "mount.fuse.braidfs"], check=False, capture_output=True)
    assert usage.returncode == 1 and b"usage" in usage.stderr


def test_source_distribution_is_whole(tmp_path: Path) -> None:
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "-C", str(ROOT), "ls-files"],
        check=False,
        capture_output=True,
        text=True,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    wanted = {name for name in listed.stdout.splitlines() if (ROOT / name).exists()}
    missing = wanted - package.names_in(package.source_distribution(tmp_path))
    assert {name for name in missing if not name.startswith(".ci/")} == set()


def test_source_distribution_is_made_where_no_mount_can_be(tmp_path: Path) -> None:
    source = package.export(tmp_path / "source")
    if source == ROOT:
        pytest.skip("not a git checkout")
    assert (source / "pyproject.toml").exists()
    assert not [name for name in (".build", ".venv", ".git", "dist") if (source / name).exists()]


@pytest.mark.full
def test_source_distribution_builds(tmp_path: Path) -> None:
    archive = package.source_distribution(tmp_path)
    words = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps"]
    run("env", "CMAKE_CXX_COMPILER_LAUNCHER=", *words, "-w", tmp_path, archive)
    (made,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(made) as built:
        assert any(name.startswith("_braidfs_native.") for name in built.namelist())
