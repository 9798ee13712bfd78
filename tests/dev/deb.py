"""`./dev deb`: Debian packages of the three programs and of psycopg, in dist.

packaging/debian says what is in them; debhelper does the work. Their content is built before: the
wheel and those that it requires (tests.dev.package), units and man pages of this checkout. The
packages fit the Debian release whose Python the checkout uses.
"""

import email.utils
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.dev import package
from tests.dev.steps import BUILD, ROOT, console, quiet_step

_WORK = BUILD / "deb"
_PACKAGING = ROOT / "packaging"


def deb(folder: Path = package.DIST) -> list[Path]:
    """Builds the packages and removes older ones in the folder."""
    wheel, dependencies = package.wheel(), package.dependencies()
    version = wheel.name.split("-")[1]
    source = _source(version, [wheel, *dependencies.glob("*.whl")])
    pip = f"{sys.executable} -m pip --disable-pip-version-check --no-input"
    quiet_step(
        "Debian packages",
        ["dpkg-buildpackage", "-b", "-us", "-uc"],
        folder=source,
        environment={"PIP": pip},
    )
    for old in folder.glob("braidfs*.deb"):
        old.unlink()
    found = [Path(shutil.move(made, folder / made.name)) for made in sorted(_WORK.glob("*.deb"))]
    for one in found:
        console.print(f"[green]✓[/] {one}: {one.stat().st_size / 1e6:.1f} MB", soft_wrap=True)
    return found


def _source(version: str, wheels: Iterable[Path]) -> Path:
    """The folder in which dpkg-buildpackage works."""
    shutil.rmtree(_WORK, ignore_errors=True)
    source = _WORK / f"braidfs-{version}"
    shutil.copytree(_PACKAGING / "debian", source / "debian")
    for name in ("admin.toml", "client.toml", "examples"):
        (source / "debian" / name).rename(source / name)
    for unit in (_PACKAGING / "systemd").iterdir():
        shutil.copy2(unit, source / "debian" / unit.name)
    shutil.copytree(ROOT / "docs" / "man", source / "man")
    (source / "wheels").mkdir()
    for wheel in wheels:
        os.link(wheel, source / "wheels" / wheel.name)
    (source / "debian" / "changelog").write_text(_changelog(version))
    return source


def _changelog(version: str) -> str:
    seconds = os.environ.get("SOURCE_DATE_EPOCH")
    when = email.utils.formatdate(float(seconds) if seconds else None)
    return (
        f"braidfs ({version}) unstable; urgency=medium\n\n"
        "  * The changes are in CHANGELOG.md of the source.\n\n"
        f" -- BraidFS developers <braidfs@localhost>  {when}\n"
    )
