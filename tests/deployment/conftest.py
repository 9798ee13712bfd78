"""Fixtures of deployment: a wheel of this checkout with everything that it requires, and Debian
packages."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.dev import deb, package


@dataclass(frozen=True, slots=True)
class Wheels:
    """`dependencies`: a folder for pip's --find-links, inside that of the wheel."""

    wheel: Path
    dependencies: Path

    def pip_words(self, folder: Path) -> list[str]:
        """The arguments of `pip install`, where `folder` is the wheel's."""
        dependencies = folder / self.dependencies.name
        return [
            "--disable-pip-version-check",
            "--quiet",
            "--no-index",
            "--find-links",
            str(dependencies),
            str(folder / self.wheel.name),
        ]


@pytest.fixture(scope="session")
def wheels(full: bool) -> Wheels:
    """The wheels of this checkout, in the quick form without the users' native module; with
    BRAIDFS_WHEELS=FOLDER those in that folder, e.g. of a release."""
    if folder := os.environ.get("BRAIDFS_WHEELS"):
        (wheel,) = Path(folder).glob("braidfs_server-*.whl")
        return Wheels(wheel, wheel.parent / "dependencies")
    return Wheels(package.wheel(native_users=full), package.dependencies())


@pytest.fixture(scope="session")
def environment(wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and what it requires, made without an index."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=300)
    words = [str(folder / "bin" / "pip"), "install", *wheels.pip_words(wheels.wheel.parent)]
    subprocess.run(words, check=True, timeout=300)
    return folder


@pytest.fixture(scope="session")
def debs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    if shutil.which("dh") is None:
        pytest.skip("debhelper is not installed: ./dev deb installs it")
    folder = tmp_path_factory.mktemp("debs")
    folder.chmod(0o755)
    return {path.name.partition("_")[0]: path for path in deb.deb(folder)}
