"""Environments of those extras of pyproject.toml that few people need, beside the product's
environment.

Each is created in .build/NAME when it is first needed, and created again when its packages have
changed.
"""

import fcntl
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from tests.dev.steps import BUILD, ROOT, quiet_step


def requirements_of(extra: str) -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: list[str] = project["optional-dependencies"][extra]
    return found


def folder_of(name: str, wanted: Sequence[str], python: str = sys.executable) -> Path:
    """The folder of the environment NAME, with the wanted packages in it, made by that Python."""
    folder = BUILD / name
    stamp = folder / "requirements.txt"
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "extras.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text().split("\n") != list(wanted):
            _make(folder, wanted, python)
            stamp.write_text("\n".join(wanted))
    return folder


def python_of(extra: str, packages: Sequence[str]) -> str:
    """The Python of the environment EXTRA, which has those of the extra's packages."""
    wanted = [one for one in requirements_of(extra) if one.startswith(tuple(packages))]
    return str(folder_of(f"{extra}-{'-'.join(packages)}", wanted) / "bin" / "python")


def _make(folder: Path, wanted: Sequence[str], python: str) -> None:
    make = [python, "-m", "venv", "--clear", str(folder)]
    quiet_step(f"Environment of {folder.name}", make)
    pip = [str(folder / "bin" / "pip"), "install", "--disable-pip-version-check", "--no-input"]
    quiet_step(f"Packages of {folder.name}", [*pip, *wanted])
