"""`braidfs seal` and `unseal`: no user changes a sealed tree; a walk that met errors goes on."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster

from .test_cli import Cli

pytestmark = [pytest.mark.mount, pytest.mark.timeout(600)]


@pytest.fixture
def cli(cluster: Cluster) -> Cli:
    return Cli(cluster)


@pytest.fixture
def tree(workdir: Path) -> Path:
    top = workdir / "tree"
    for number in range(20):
        folder = top / f"{number % 4}" / f"{number}"
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"x" * number)
    (top / "link").symlink_to("0/0/file")
    (top / "outside").symlink_to(workdir)
    return top


CHANGES: dict[str, Callable[[Path], object]] = {
    "write": lambda top: (top / "0/0/file").open("ab").close(),
    "truncate": lambda top: os.truncate(top / "1/1/file", 0),
    "remove": lambda top: (top / "2/2/file").unlink(),
    "create": lambda top: (top / "3/3/new").touch(),
    "create at the top": lambda top: (top / "new").mkdir(),
    "rename": lambda top: (top / "0/4").rename(top / "0/moved"),
    "chmod": lambda top: (top / "0/0/file").chmod(0o600),
    "xattr": lambda top: os.setxattr(top / "0/0/file", "user.a", b"b"),
    "replace a link": lambda top: (top / "link").unlink(),
}


def test_a_sealed_tree_is_changed_by_nobody(cli: Cli, tree: Path) -> None:
    """Not even root can change it, which the tests are, until it is unsealed."""
    sealed = cli.json("seal", tree)
    assert (sealed["files"], sealed["directories"], sealed["failed"]) == (20, 25, 0)
    assert sealed["unchanged"] == 0
    for change in CHANGES.values():
        with pytest.raises(PermissionError):
            change(tree)
    assert (tree / "0/4/file").read_bytes() == b"xxxx"
    shown = subprocess.run(["lsattr", "-d", tree], check=True, capture_output=True, text=True)
    assert "i" in shown.stdout.split()[0]
    (tree.parent / "beside").touch()  # links were not followed
    assert cli.json("seal", tree)["unchanged"] == 45
    text = cli.run("unseal", tree).stdout
    assert "20 files and 25 directories are not sealed" in text
    for change in CHANGES.values():
        change(tree)


def test_one_file_is_sealed(cli: Cli, tree: Path) -> None:
    assert cli.json("seal", tree / "0/4/file", "--jobs", 1)["files"] == 1
    with pytest.raises(PermissionError):
        (tree / "0/4/file").write_bytes(b"")
    (tree / "0/4/other").touch()
    cli.run("unseal", tree / "0/4/file")
    (tree / "0/4/file").write_bytes(b"")


def test_what_cannot_be_sealed_is_named(cli: Cli, tree: Path) -> None:
    done = cli.run("seal", tree / "none", tree / "link", tree / "1", code=1)
    assert f"{tree}/none: No such file" in done.stderr
    assert f"{tree}/link: " in done.stderr
    assert "2 could not be changed" in done.stdout
    assert cli.json("unseal", tree / "1")["unchanged"] == 0
    cli.run("seal", code=2)
    cli.run("seal", tree, "--jobs", 0, code=2)
    assert cli.json("unseal", tree)["unchanged"] == 45
