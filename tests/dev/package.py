"""`./dev wheel`: writes the packages for users (tests.dev.users_package) and for administrators
into dist/.

The wheel of administrators, braidfs_server, contains man pages, units, playbooks and the native
module as the tests ran it, without its debug sections: nothing is compiled twice. `pip install
braidfs_server-*.tar.gz` builds from the source distribution. The backend that pyproject.toml names
builds both, with the packages of this virtual environment. Dependencies are collected as wheels
(pyfuse3 is built, because PyPI has only its source), so that hosts need neither an index nor a
compiler.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.dev.build import MODULE_FOLDER, build, build_lock
from tests.dev.steps import BUILD, ROOT, console, quiet_step
from tests.dev.users_package import backend_words, fitting_wheel, users_wheels

DIST = ROOT / "dist"
DEPENDENCIES = DIST / "dependencies"
_MODULE = BUILD / "module"
_WHEELS = "braidfs_server-*.whl"
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")


def wheel(folder: Path = DIST, *, native_users: bool = True) -> Path:
    """Builds the wheel of administrators, and those of users that it requires. Removes older ones
    in the folder. native_users: also the users' wheel with native code, which takes a minute."""
    build()
    folder.mkdir(parents=True, exist_ok=True)
    with build_lock(), tempfile.TemporaryDirectory(dir=folder) as made:
        _copy_module()
        settings = {"cmake.define.BRAIDFS_MODULE_FOLDER": str(_MODULE)}
        quiet_step("Wheel", backend_words("build_wheel", Path(made), settings))
        (new,) = Path(made).glob(_WHEELS)
        new.replace(folder / new.name)  # other processes may be about to copy the one before
        _drop(old for old in folder.glob(_WHEELS) if old.name != new.name)
    users_wheels(folder, native=native_users)
    return _told(folder.glob(_WHEELS))


def source_distribution(folder: Path = DIST) -> Path:
    _drop(folder.glob("braidfs_server-*.tar.gz"))
    with tempfile.TemporaryDirectory(prefix="braidfs-source-") as place:
        source = export(Path(place) / "source")
        words = backend_words("build_sdist", folder.absolute(), {})
        quiet_step("Source distribution", words, folder=source)
    return _told(folder.glob("braidfs_server-*.tar.gz"))


def export(folder: Path) -> Path:
    """A copy of the files that git does not ignore.

    It is needed because the backend looks into every folder of the one in which it runs, and below
    .build there may be a mount whose server is gone. Without git it is the checkout itself.
    """
    words = ["git", "-c", "safe.directory=*", "-C", str(ROOT), "ls-files", "-coz"]
    listed = subprocess.run([*words, "--exclude-standard"], check=False, capture_output=True)
    if listed.returncode != 0:
        return ROOT
    for name in map(os.fsdecode, filter(None, listed.stdout.split(b"\0"))):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def _copy_module() -> None:
    """Copies the module of this checkout and its stub to _MODULE."""
    shutil.rmtree(_MODULE, ignore_errors=True)
    _MODULE.mkdir()
    for path in MODULE_FOLDER.glob("_braidfs_native*"):
        if path.suffix == ".so":
            quiet_step("Wheel: strip", ["strip", "-o", str(_MODULE / path.name), str(path)])
        elif path.suffix == ".pyi":
            shutil.copy2(path, _MODULE)


def dependencies(folder: Path = DEPENDENCIES) -> Path:
    """Wheels of everything that the wheel in dist requires, with a journal in PostgreSQL too, and
    the users' package among them; existing ones of others are kept."""
    (newest,) = DIST.glob(_WHEELS)
    folder.mkdir(parents=True, exist_ok=True)
    with build_lock():
        wanted = f"{newest}[postgresql]"
        _copy_users_wheel(folder)
        words = [*_PIP, "wheel", "--find-links", str(folder), "-w", str(folder), wanted]
        quiet_step("Wheels of dependencies", words)
        _drop(folder.glob(_WHEELS))
        wheels = sorted(folder.glob("*.whl"))
        made = folder.with_suffix(f".tar.{os.getpid()}")
        with tarfile.open(made, "w") as archive:
            for one in wheels:
                archive.add(one, one.name)
        made.replace(folder.with_suffix(".tar"))
    console.print(f"[green]✓[/] {folder}, {folder.name}.tar: {len(wheels)} wheels")
    return folder


def _copy_users_wheel(folder: Path) -> None:
    """Copies the users' wheel in dist that fits this Python best, and drops others there."""
    chosen = fitting_wheel(DIST)
    copied = folder / f"{chosen.name}.{os.getpid()}"
    shutil.copy2(chosen, copied)
    copied.replace(folder / chosen.name)  # other processes may be about to install the one before
    _drop(old for old in folder.glob("braidfs-*.whl") if old.name != chosen.name)


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
