"""Builds the native half and makes the checkout importable in its virtual environment.

CMake and ninja build the native half directly in .build/native (with ccache if it is installed and
not disabled), so a build without changes takes a fraction of a second; and, as a project of its
own, the small module of the users' package in .build/reader. One .pth file puts the checkout and
the modules' folders on sys.path, and the commands of pyproject.toml's [project.scripts]
are written to .venv/bin: this is an editable install without a build backend. Python is compiled in
advance for the guest of tests/rdma, which sees this checkout read-only and would compile it at each
start of a program.
"""

import compileall
import fcntl
import os
import shutil
import site
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.dev.steps import BUILD, ROOT, quiet_step, tool

NATIVE = ROOT / "native"
NATIVE_BUILD = BUILD / "native"
MODULE_FOLDER = NATIVE_BUILD / "bindings"
USERS_PROJECT = ROOT / "packaging" / "users" / "pyproject.toml"
MODULE_TARGETS = ("_braidfs_native", "_braidfs_native_stub")
READER = NATIVE / "reader"
READER_FOLDER = BUILD / "reader"
GTEST = Path("/usr/include/gtest/gtest.h")

_SCRIPT = """#!{python}
# Written by ./dev: the entry point {entry} of this checkout.
import gc
import sys

gc.disable()  # modules have no garbage, but searching it is a tenth of a program's start
from {module} import {function}

gc.enable()
sys.exit({function}())
"""


@contextmanager
def build_lock() -> Iterator[None]:
    """Only one build at a time runs in a checkout."""
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def cmake_build(
    name: str, text: str, options: Sequence[str] = (), targets: Sequence[str] = ()
) -> Path:
    """Configures .build/NAME when options or the set of sources changed, then builds."""
    words = [*_cmake_options(), *options]
    folder = _configure(name, text, NATIVE, words)
    goals = ["--target", *targets] if targets else []
    quiet_step(f"{text}: build", ["cmake", "--build", str(folder), *goals])
    return folder


def reader_build(name: str, text: str, options: Sequence[str] = ()) -> Path:
    """Builds the module _braidfs_reader, a project of its own, in .build/NAME."""
    words = [*_common_options(), *options]
    folder = _configure(name, text, READER, words)
    quiet_step(f"{text}: build", ["cmake", "--build", str(folder)])
    return folder


def _configure(name: str, text: str, project: Path, words: Sequence[str]) -> Path:
    folder = BUILD / name
    wanted = "\n".join([*words, *_sources(project)])
    stamp = folder / "configured.txt"
    if not stamp.exists() or stamp.read_text() != wanted:
        quiet_step(f"{text}: configure", ["cmake", "-S", str(project), "-B", str(folder), *words])
        stamp.write_text(wanted)
    return folder


def _cmake_options() -> list[str]:
    words = _common_options()
    if _has_ccache():
        return [*words, "-DBRAIDFS_ONCE=OFF", "-UCMAKE_CXX_FLAGS_RELWITHDEBINFO"]
    # Everything is compiled, so less is: common headers once, and for debuggers lines but no types.
    few_symbols = "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O2 -g1 -DNDEBUG"
    return [*words, "-DBRAIDFS_ONCE=ON", few_symbols]


def _common_options() -> list[str]:
    words = ["-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}"]
    return [*words, "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if _has_ccache() else words


def _has_ccache() -> bool:
    return shutil.which("ccache") is not None and "CCACHE_DISABLE" not in os.environ


def _sources(project: Path) -> list[str]:
    # CMake searches folders and test files when it configures, not when it builds.
    names = {"CMakeLists.txt", ".cpp"}
    found = (path for path in project.rglob("*") if {path.name, path.suffix} & names)
    mine = (path for path in found if project == READER or not path.is_relative_to(READER))
    return sorted(str(path.relative_to(project)) for path in mine)


def build(*, tests: bool = False) -> None:
    """Builds everything that the programs need; with `tests`, native tests and benchmarks too.

    Both are one CMake folder, so that no source is compiled twice.
    """
    with build_lock():
        options = ("-DBRAIDFS_TESTS=ON",) if GTEST.exists() else ()
        cmake_build("native", "Native module", options, MODULE_TARGETS)
        reader_build("reader", "Reader module")
        if tests:
            cmake_build("native", "Native tests", options)
        _write_path_file()
        _write_scripts()
        _compile_python()


def _write_path_file() -> None:
    path = Path(site.getsitepackages()[0]) / "braidfs.pth"
    _write(path, f"{ROOT}\n{MODULE_FOLDER}\n{READER_FOLDER}\n")


def _project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def _compile_python() -> None:
    programs = _project()["tool"]["scikit-build"]["wheel"]["packages"]
    for package in ("braidfs", *programs, "tests"):
        # A program that imports the module reports its errors.
        compileall.compile_dir(ROOT / package, quiet=2)


def project_version() -> str:
    """The version that pyproject.toml names; packaging/users/pyproject.toml names it again."""
    return str(_project()["project"]["version"])


def _write_scripts() -> None:
    project = _project()["project"]
    _write_metadata(project)
    _write_metadata(tomllib.loads(USERS_PROJECT.read_text())["project"])
    for name, entry in project["scripts"].items():
        module, function = entry.split(":")
        text = _SCRIPT.format(python=sys.executable, entry=entry, module=module, function=function)
        _write(Path(tool(name)), text, mode=0o755)


def _write_metadata(project: dict[str, Any]) -> None:
    """Writes the metadata from which importlib.metadata reads version and entry points."""
    packages = Path(site.getsitepackages()[0])
    name, version = project["name"].replace("-", "_"), project["version"]
    folder = packages / f"{name}-{version}.dist-info"
    for old in packages.glob(f"{name}-*.dist-info"):
        if old != folder:
            shutil.rmtree(old)
    folder.mkdir(exist_ok=True)
    head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n"
    _write(folder / "METADATA", head)
    lines = []
    for group, points in project.get("entry-points", {}).items():
        lines += [f"[{group}]", *(f"{key} = {place}" for key, place in points.items()), ""]
    _write(folder / "entry_points.txt", "\n".join(lines))


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    if path.exists() and path.read_text() == text:
        return
    path.write_text(text)
    path.chmod(mode)


def has_fuse() -> bool:
    return os.access("/dev/fuse", os.R_OK | os.W_OK)
