"""`./dev wheel`: what is handed to administrators, in dist/.

The wheel carries the native module, man pages, units and playbooks. Its build folder
(.build/TAG) is kept, so a second build compiles what changed. The source distribution is what
`pip install braidfs-*.tar.gz` builds from. Both are made by the backend that pyproject.toml names,
with the packages of this virtual environment. Dependencies are gathered as wheels (pyfuse3 is
built: PyPI has its source alone), so that hosts need neither an index nor a compiler.
"""

import shutil
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

from tests.dev.build import build_lock
from tests.dev.steps import ROOT, console, quiet_step

DIST = ROOT / "dist"
DEPENDENCIES = DIST / "dependencies"
_BACKEND = "import scikit_build_core.build as backend, sys; print(backend.{hook}(sys.argv[1]))"
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")


def wheel(folder: Path = DIST) -> Path:
    """Build it; older ones in the folder go."""
    with build_lock():
        _drop(folder.glob("braidfs-*.whl"))
        environment = {"CMAKE_CXX_COMPILER_LAUNCHER": "ccache"} if shutil.which("ccache") else {}
        words = [sys.executable, "-c", _BACKEND.format(hook="build_wheel"), str(folder)]
        quiet_step("Wheel", words, environment=environment)
    return _told(folder.glob("braidfs-*.whl"))


def source_distribution(folder: Path = DIST) -> Path:
    _drop(folder.glob("braidfs-*.tar.gz"))
    words = [sys.executable, "-c", _BACKEND.format(hook="build_sdist"), str(folder)]
    quiet_step("Source distribution", words)
    return _told(folder.glob("braidfs-*.tar.gz"))


def dependencies(folder: Path = DEPENDENCIES) -> Path:
    """Wheels of everything that the wheel in dist requires; what is there already is kept."""
    (newest,) = DIST.glob("braidfs-*.whl")
    folder.mkdir(parents=True, exist_ok=True)
    words = [*_PIP, "wheel", "--find-links", str(folder), "-w", str(folder), str(newest)]
    quiet_step("Wheels of dependencies", words)
    _drop(folder.glob("braidfs-*.whl"))
    console.print(f"[green]✓[/] {folder}: {len(list(folder.glob('*.whl')))} wheels", markup=True)
    return folder


def names_in(archive: Path) -> set[str]:
    """Paths in a source distribution, below its one folder."""
    with tarfile.open(archive) as opened:
        return {member.name.partition("/")[2] for member in opened if member.isfile()}


def _drop(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink()


def _told(found: Iterable[Path]) -> Path:
    (made,) = found
    console.print(f"[green]✓[/] {made}: {made.stat().st_size / 1e6:.1f} MB", soft_wrap=True)
    return made
