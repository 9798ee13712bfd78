"""Recipes of the pages of docs/train, and nodes that run them.

A recipe is a section (`## TITLE`) of such a page with code in it. A block of Python or Bash that
begins with `# NAME` is the program of that name. In a block of Bash without a name, `pip install …`
says which packages it needs, `apt-get install …` which of Debian's, `export …` which environment.
Pages write `/mnt/train` for the mount. So a node here
is a mount namespace, in which a folder of a real mount is found at that path: the programs run as
they stand, and two nodes have the same path with another client behind it.
"""

import ast
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.dev.extras import folder_of
from tests.dev.guide import DOCS
from tests.dev.steps import ROOT

INDEX = "train/recipes.md"
MOUNTPOINT = Path("/mnt/train")
# What pip is given instead of a package's name: torch as a whole comes with libraries for GPUs.
PINNED = {"torch": "torch==2.13.0"}
_BLOCK = re.compile(r"^```(python|bash)\n(?:# (\S+)\n)?(.*?)^```$", re.M | re.S)
_PIP = re.compile(r"^pip install (.+)$", re.M)
_APT = re.compile(r"^apt-get install (.+)$", re.M)
_EXPORT = re.compile(r"^export (\w+)=(\S+)", re.M)


@dataclass(frozen=True)
class Recipe:
    """A section of a page. `programs`: text by file name."""

    page: str
    title: str
    programs: dict[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    debian: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    def python(self) -> str:
        """The Python of an environment that has the packages of the page's recipes and no others.
        It is made when it is first needed, which takes minutes for those with torch."""
        packages = {package for one in recipes_of(self.page) for package in one.packages}
        wanted = [PINNED.get(package, package) for package in sorted(packages)]
        return str(folder_of(f"recipes-{Path(self.page).stem}", wanted) / "bin" / "python")

    def need_debian(self) -> None:
        """Installs the packages of Debian that are missing, or skips the test."""
        missing = [one for one in self.debian if not _is_installed(one)]
        if missing:
            words = [
                "apt-get",
                "-o",
                "DPkg::Lock::Timeout=300",
                "install",
                "-y",
                "--no-install-recommends",
                *missing,
            ]
            said = subprocess.run(words, check=False, capture_output=True, text=True, timeout=500)
            if said.returncode:
                reason = (said.stderr.strip() or said.stdout.strip()).splitlines()[-1:]
                pytest.skip(f"{', '.join(missing)} cannot be installed: {reason}")


def _is_installed(package: str) -> bool:
    words = ["dpkg-query", "-W", "-f", "${db:Status-Status}", package]
    said = subprocess.run(words, check=False, capture_output=True, text=True)
    return said.stdout == "installed"


def pages() -> list[str]:
    """The pages that the table of recipes names."""
    found = re.findall(r"^\| \[.+\]\((\S+?)#\S+\) \|", (DOCS / INDEX).read_text(), re.M)
    return sorted({f"train/{page}" for page in found})


def recipes_of(page: str) -> Iterator[Recipe]:
    for section in re.split(r"^## ", (DOCS / page).read_text(), flags=re.M)[1:]:
        title, _, text = section.partition("\n")
        blocks = list(_BLOCK.findall(text))
        if not blocks:
            continue
        programs = {name: body for _, name, body in blocks if name}
        commands = "\n".join(body for _, name, body in blocks if not name)
        pip, apt = _PIP.findall(commands), _APT.findall(commands)
        yield Recipe(
            page,
            title,
            programs,
            packages=tuple(" ".join(pip).split()),
            debian=tuple(" ".join(apt).split()),
            environment=dict(_EXPORT.findall(commands)),
        )


def recipe(page: str, title: str) -> Recipe:
    found = [one for one in recipes_of(f"train/{page}") if one.title == title]
    assert found, f"docs/train/{page} has no section '{title}' with code"
    return found[0]


def check_syntax(name: str, text: str) -> None:
    """Raises SyntaxError, or fails: a program of a page that cannot be read."""
    if name.endswith(".py"):
        ast.parse(text, name)
        return
    said = subprocess.run(["bash", "-n"], input=text, check=False, capture_output=True, text=True)
    assert said.returncode == 0, f"{name}: {said.stderr}"


@dataclass(frozen=True)
class Node:
    """One that sees `folder`, of a mount, as /mnt/train. `scratch` is a local folder: programs lie
    there, and it is their home and their working directory."""

    folder: Path
    scratch: Path

    def start(
        self, of: Recipe, program: str, *words: str, **environment: str
    ) -> "subprocess.Popen[str]":
        for name, text in of.programs.items():
            (self.scratch / name).write_text(text)
        file = self.scratch / program
        runner = of.python() if program.endswith(".py") else "bash"
        # A tmpfs hides what the machine has in /mnt, so that nothing of it must exist.
        inside = (
            'mount -t tmpfs none /mnt && mkdir /mnt/train && mount --bind "$0" /mnt/train'
            ' && exec "$@"'
        )
        command = ["unshare", "--mount", "sh", "-c", inside, str(self.folder), runner, str(file)]
        path = f"{Path(of.python()).parent}:" if of.packages else ""
        return subprocess.Popen(
            [*command, *words],
            cwd=self.scratch,
            env={
                "PATH": path + os.environ["PATH"],
                "HOME": str(self.scratch),
                "PYTHONPATH": str(ROOT),
                "PYTHONDONTWRITEBYTECODE": "1",
                "OMP_NUM_THREADS": "1",
                **of.environment,
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, of: Recipe, program: str, *words: str, **environment: str) -> str:
        """What the program printed. It fails the test if the program fails."""
        return result_of(self.start(of, program, *words, **environment))


def numbered_files(folder: Path, size: int) -> int:
    """Makes 200 files of this many bytes in four folders. The sum of all bytes."""
    total = 0
    for number in range(200):
        content = bytes([number % 251]) * size
        total += sum(content)
        path = folder / f"{number % 4}" / f"{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return total


def result_of(process: "subprocess.Popen[str]", limit_s: float = 300) -> str:
    try:
        said, _ = process.communicate(timeout=limit_s)
    finally:
        process.kill()
    assert process.returncode == 0, said[-4000:]
    return said


def make_nodes(folders: list[Path], scratch: Path) -> list[Node]:
    """One node for each folder."""
    nodes = []
    for number, folder in enumerate(folders):
        home = scratch / f"node{number}"
        home.mkdir()
        nodes.append(Node(folder, home))
    return nodes
