"""The users' package is small, needs nothing, and works where nothing else is installed."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.dev import users_package
from tests.dev.build import USERS_PROJECT, project_version
from tests.dev.steps import ROOT

pytestmark = pytest.mark.timeout(900)
IMPORT_SECONDS_MAX = 0.030
_TIMED = """
import sys, time
begun = time.perf_counter()
import braidfs
taken = time.perf_counter() - begun
assert "torch" not in sys.modules and "numpy" not in sys.modules
print(taken)
"""
_USED = """
import braidfs, importlib.metadata, os
assert braidfs.where("/proc") is None and braidfs.path("/a") == "/a"
try:
    braidfs.Announcer(os.getcwd())
except OSError as error:
    print(os.path.dirname(braidfs.__file__), importlib.metadata.version("braidfs"), error.errno)
"""
_READS = """
import array, os, sys, _braidfs_reader, braidfs
path = sys.executable.encode()
names, size, count = (path + b"\\0") * 64, os.path.getsize(path), 64
table, pool = array.array("q", [0, 0, 0] * count), _braidfs_reader.Pool()
pool.sizes(names, table, 4)
assert set(table[2::3]) == {size}
arena = bytearray(size * count)
table = array.array("q", [one for n in range(count) for one in (n * size, size, 0)])
pool.read(names, table, arena, 4)
assert set(table[2::3]) == {size} and arena == open(path, "rb").read() * count
print(_braidfs_reader.__file__)
"""


@pytest.fixture(scope="module")
def pure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel without native code."""
    return users_package.pure_wheel(tmp_path_factory.mktemp("pure"))


def run(*words: object) -> str:
    result = subprocess.run(
        [*map(str, words)], check=False, capture_output=True, text=True, timeout=600, cwd="/"
    )
    assert result.returncode == 0, f"{words}: {result.stderr or result.stdout}"
    return result.stdout


def installed(folder: Path, what: Path) -> Path:
    """The Python of a new environment with this wheel and nothing else, not even pip."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    made = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", made, "--disable-pip-version-check"]
    run(*pip, "install", "--quiet", "--no-index", what)
    return made


def installed_for(version: str, folder: Path, what: Path) -> Path:
    """The same for another version of Python, with its own pip."""
    python = users_package.python_of(version)
    if python is None:
        pytest.skip(f"this machine has no Python {version}")
    run(python, "-m", "venv", folder)
    pip = [folder / "bin" / "pip", "--disable-pip-version-check"]
    run(*pip, "install", "--quiet", "--no-index", what)
    return folder / "bin" / "python"


def answer(python: Path, code: str) -> str:
    """What this code prints, without the checkout on its path."""
    return run(python, "-I", "-c", code)


def names_in(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_both_packages_have_one_version() -> None:
    server = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    users = tomllib.loads(USERS_PROJECT.read_text())["project"]
    assert users["version"] == server["version"]
    assert f"braidfs=={server['version']}" in server["dependencies"]
    assert users["dependencies"] == [] and users["requires-python"] == ">=3.10"


def test_the_wheel_holds_the_package_and_no_more(pure: Path) -> None:
    assert pure.name == f"braidfs-{project_version()}-py3-none-any.whl"
    names = {name for name in names_in(pure) if ".dist-info/" not in name}
    here = {str(path.relative_to(ROOT)) for path in (ROOT / "braidfs").rglob("*.py")}
    assert names == here | {"braidfs/py.typed"}
    with zipfile.ZipFile(pure) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        text = archive.read(metadata).decode()
        (points,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "braid = braidfs.fsspec:BraidFileSystem" in archive.read(points).decode()
    needed = re.findall(r"^Requires-Dist: (.+)$", text, re.M)
    assert needed and all("extra ==" in one for one in needed)
    assert any(name.endswith("licenses/LICENSE") for name in names_in(pure))


def test_it_works_where_nothing_else_is(pure: Path, tmp_path: Path) -> None:
    python = installed(tmp_path / "venv", pure)
    place, version, number = answer(python, _USED).split()
    assert place.startswith(str(tmp_path)) and version == project_version() and number == "25"


@pytest.mark.full
def test_its_import_is_quick(pure: Path, tmp_path: Path) -> None:
    python = installed(tmp_path / "venv", pure)
    taken = min(float(answer(python, _TIMED)) for _ in range(9))
    assert taken <= IMPORT_SECONDS_MAX, f"import braidfs took {taken * 1000:.1f} ms"


@pytest.mark.full
@pytest.mark.parametrize("version", users_package.PYTHONS)
def test_it_works_in_each_python(pure: Path, tmp_path: Path, version: str) -> None:
    python = installed_for(version, tmp_path / "venv", pure)
    assert answer(python, _USED).split()[1] == project_version()
    run(python, "-m", "compileall", "-q", "-f", tmp_path / "venv" / "lib")


@pytest.mark.full
def test_wheels_with_native_code_fit_other_machines(tmp_path: Path) -> None:
    if not users_package.READER.exists():
        pytest.skip("this checkout has no native/reader")
    made = users_package.users_wheels(tmp_path, every_python=True)
    native = [wheel for wheel in made if not wheel.name.endswith("-any.whl")]
    assert native and all("-manylinux_2_28_" in wheel.name for wheel in native)
    for wheel in native:
        held = [name for name in names_in(wheel) if name.endswith(".so")]
        assert len(held) == 1 and held[0].startswith("_braidfs_reader."), held
        version = re.findall(r"-cp3(\d+)-", wheel.name)[0]
        python = installed_for(f"3.{version}", tmp_path / f"venv-{version}", wheel)
        assert answer(python, _READS).startswith(str(tmp_path))


@pytest.mark.full
def test_the_source_distribution_needs_no_compiler(tmp_path: Path) -> None:
    if not users_package.READER.exists():
        pytest.skip("this checkout has no native/reader")
    archive = users_package.users_source_distribution(tmp_path)
    with tarfile.open(archive) as opened:
        held = {name.partition("/")[2] for name in opened.getnames()}
    assert {"pyproject.toml", "LICENSE", "README.md", "braidfs/__init__.py"} <= held
    words = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps"]
    run("env", "CXX=/bin/false", *words, "-w", tmp_path, archive)
    (made,) = tmp_path.glob("*.whl")
    assert made.name.endswith("-py3-none-any.whl")
