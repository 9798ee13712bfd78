"""Environments of those extras of pyproject.toml that few people need, beside the product's
environment.

Each is created in .build/NAME when it is first needed, and created again when its packages have
changed. Those that are needed for one turn only, of many that are large, are removed after it.
"""

import fcntl
import shutil
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.dev.steps import BUILD, ROOT, StepError, quiet_step

_TURN = "turn"  # the one folder of all environments for a turn


class NotInstalledError(Exception):
    """pip did not install the packages; the message is what it said of the reason."""


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


@contextmanager
def folder_for_a_turn(wanted: Sequence[str]) -> Iterator[Path]:
    """The folder of an environment with the wanted packages, which is removed afterwards.

    There is one at a time in a checkout, so the disk has room for one (PyTorch with its libraries
    for GPUs takes 7 GB), and pip keeps no copy of what it fetched. A call waits for the turn of
    another process to end. Raises NotInstalledError."""
    folder = BUILD / _TURN
    BUILD.mkdir(exist_ok=True)
    with (BUILD / f"{_TURN}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            try:
                _make(folder, wanted, sys.executable, ["--no-cache-dir"])
            except StepError as error:
                raise NotInstalledError(_said_by_pip(str(error))) from error
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _said_by_pip(end_of_log: str) -> str:
    """Its errors, and which requirements exclude each other."""
    lines = end_of_log.splitlines()
    errors = [line.strip() for line in lines if line.startswith(("ERROR: ", "    The "))]
    return "; ".join(errors or lines[-2:])


def python_of(extra: str, packages: Sequence[str]) -> str:
    """The Python of the environment EXTRA, which has those of the extra's packages."""
    wanted = [one for one in requirements_of(extra) if one.startswith(tuple(packages))]
    return str(folder_of(f"{extra}-{'-'.join(packages)}", wanted) / "bin" / "python")


def _make(folder: Path, wanted: Sequence[str], python: str, options: Sequence[str] = ()) -> None:
    make = [python, "-m", "venv", "--clear", str(folder)]
    quiet_step(f"Environment of {folder.name}", make)
    pip = [str(folder / "bin" / "pip"), "install", "--disable-pip-version-check", "--no-input"]
    quiet_step(f"Packages of {folder.name}", [*pip, *options, *wanted])
