"""The trash as users see it: files that rm removed can be restored completely, and the trash gets
in no one's way.
"""

import errno
import json
import os
import shutil
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fsclient.cli.frame import run_cli
from fsclient.cli.main import cli
from tests.cluster.cluster import Cluster
from tests.cluster.process import wait_until
from tests.conftest import ClusterMaker
from tests.fuse.looks import lanes_counted, seen_from, wait_delegated

pytestmark = [pytest.mark.mount, pytest.mark.timeout(120)]

Capture = pytest.CaptureFixture[str]


@dataclass(frozen=True, slots=True)
class Trash:
    """`braidfs trash`; without a process of its own each time."""

    cluster: Cluster

    @property
    def reach(self) -> list[str]:
        plan = self.cluster.plan
        return ["-s", f"127.0.0.1:{plan.metaserver.port}", "-k", str(plan.key_file)]

    def __call__(self, *words: object, code: int = 0) -> Any:
        command = ["trash", *map(str, words), "--json", *self.reach]
        done = CliRunner().invoke(cli, command, catch_exceptions=False)
        assert done.exit_code == code, done.output
        return json.loads(done.stdout)

    def text(self, capsys: Capture, *words: object, code: int = 0) -> str:
        """The output that people see: both streams."""
        capsys.readouterr()
        assert run_cli(cli, ["trash", *map(str, words), *self.reach]) == code
        shown = capsys.readouterr()
        return shown.out + shown.err

    def listed(self, path: Path, *words: object) -> dict[str, dict[str, Any]]:
        return {os.path.relpath(row["path"], path): row for row in self("list", path, *words)}


@pytest.fixture
def trash(cluster: Cluster) -> Trash:
    return Trash(cluster)


@pytest.fixture
def folder(workdir: Path, trash: Trash) -> Iterator[Path]:
    """A directory with a trash."""
    path = workdir / "folder"
    path.mkdir()
    trash("enable", path, "--expire", "1h")
    yield path
    trash("enable", path)  # a test may have disabled it
    trash("disable", path)
    trash("purge", path, "--yes")


def looks(top: Path) -> dict[str, tuple[object, ...]]:
    """Everything below a directory: modes, owners, times, bytes, xattrs."""
    found: dict[str, tuple[object, ...]] = {}
    for root, folders, files in os.walk(top):
        for name in folders + files:
            path = Path(root) / name
            seen = path.lstat()
            content: object = None
            if path.is_symlink():
                content = path.readlink()
            elif path.is_file():
                content = path.read_bytes()
            xattrs = () if path.is_symlink() else tuple(sorted(os.listxattr(path)))
            # For a directory this is its last change.
            times = None if path.is_dir() else seen.st_mtime_ns
            found[str(path.relative_to(top))] = (
                seen.st_mode,
                seen.st_uid,
                seen.st_gid,
                seen.st_nlink,
                times,
                content,
                xattrs,
            )
    return found


def make_tree(top: Path) -> None:
    for number in range(4):
        inner = top / f"{number}" / "inner"
        inner.mkdir(parents=True)
        for size in (0, 10, 5000, 1_200_000):
            (inner / f"{size}").write_bytes(os.urandom(size))
        os.chmod(inner / "10", 0o4751)
        os.chown(inner / "5000", 1234, 4321)
        os.utime(inner / "5000", ns=(10**18, 10**18 + 5))
        os.symlink("nowhere", inner / "link")
        os.mkfifo(inner / "pipe")
        os.chmod(inner, 0o2770)
    os.setxattr(top / "0", b"user.kept", b"value")
    (top / "1" / os.fsdecode(b"n\xc3\xa4me \xff")).touch()


# ---- removal and restore -----------------------------------------------------------------------


def test_rm_r_and_back(cluster: Cluster, folder: Path, other: Path, trash: Trash) -> None:
    tree = folder / "tree"
    make_tree(tree)
    before = looks(tree)
    subprocess.run(["rm", "-r", str(tree)], check=True)
    assert os.listdir(folder) == [] and folder.stat().st_nlink == 2
    (row,) = trash("list", folder)
    assert row["path"] == str(tree) and row["type"] == "directory"
    assert row["inodes"] == 1 + len(before) and row["bytes"] == 4 * (10 + 5000 + 1_200_000)
    assert 3500 < (row["expires_ns"] - time.time_ns()) / 1e9 < 3600
    assert len(trash("list", folder, "--all")) == row["inodes"]
    done = trash("restore", tree)
    assert done == {"path": str(tree), "restored": row["inodes"], "taken": 0, "refused": []}
    assert looks(tree) == before
    assert looks(seen_from(other, cluster, tree)) == before
    assert trash("list", folder) == []
    cluster.remount()
    assert looks(tree) == before


def test_without_a_trash_nothing_is_kept(workdir: Path, folder: Path, trash: Trash) -> None:
    (workdir / "file").write_bytes(b"x")
    (workdir / "file").unlink()
    assert trash("list", workdir) == []
    (folder / "file").touch()
    (folder / "file").unlink()
    assert list(trash.listed(workdir)) == ["folder/file"]


def test_unlinks_that_lanes_answered(cluster: Cluster, folder: Path, trash: Trash) -> None:
    """In a delegated directory the client alone decides; the metaserver turns the batch into trash
    entries."""

    def change(number: int) -> None:
        (folder / f"first-{number}").touch()
        (folder / f"first-{number}").unlink()

    wait_delegated(cluster, "removals", change)
    trash("purge", folder, "--yes")
    names = [f"{number}" for number in range(200)]
    for name in names:
        (folder / name).write_bytes(name.encode() * 100)
    before = lanes_counted(cluster, "removals")
    for name in names:
        (folder / name).unlink()
        assert not (folder / name).exists()
    assert lanes_counted(cluster, "removals") - before > 100
    assert os.listdir(folder) == []
    assert sorted(trash.listed(folder)) == sorted(names)
    assert trash("restore", "--below", folder)["restored"] == 200
    assert sorted(os.listdir(folder)) == sorted(names)
    for name in names:
        assert (folder / name).read_bytes() == name.encode() * 100
        (folder / name).unlink()
    assert os.listdir(folder) == []
    assert len(trash("list", folder)) == 200


def test_a_restore_is_seen_by_every_client(
    cluster: Cluster, folder: Path, other: Path, trash: Trash
) -> None:
    there = seen_from(other, cluster, folder)
    (folder / "file").write_bytes(b"content")
    assert (there / "file").read_bytes() == b"content"
    (there / "file").unlink()
    for path in (folder, there):
        assert not (path / "file").exists(), "and that is known for certain now"
        assert os.listdir(path) == []
    trash("restore", folder / "file")
    for path in (folder, there):
        assert (path / "file").read_bytes() == b"content"
        assert os.listdir(path) == ["file"]
        assert (path / "file").stat().st_nlink == 1
    with (there / "file").open("ab") as file:
        file.write(b" and more")
    assert (folder / "file").read_bytes() == b"content and more"


def test_a_file_that_is_open_goes_on_in_the_trash(folder: Path, trash: Trash) -> None:
    path = folder / "file"
    with path.open("w+b", buffering=0) as file:
        file.write(b"before")
        path.unlink()
        assert os.fstat(file.fileno()).st_nlink == 0
        file.write(b" after")
        trash("restore", path)
        assert path.read_bytes() == b"before after"
        assert os.fstat(file.fileno()).st_nlink == 1
        file.write(b" again")
    assert path.read_bytes() == b"before after again"
    with path.open("rb") as file:
        path.unlink()
        assert trash("purge", path, "--yes")["purged"] == 1
        assert file.read() == b"before after again", "purged, but open"
    assert trash("list", folder) == []


def test_replaced_files_are_kept(folder: Path, trash: Trash) -> None:
    """Editors and checkpoints write this way: each version can be restored."""
    for number in range(4):
        (folder / "new").write_bytes(b"version %d" % number)
        os.rename(folder / "new", folder / "file")
    rows = trash("list", folder)
    assert [row["path"] for row in rows] == [str(folder / "file")] * 3
    trash("restore", folder / "file", "--to", folder / "last")
    assert (folder / "last").read_bytes() == b"version 2"
    trash("restore", folder / "file", "--id", rows[0]["id"], "--to", folder / "first")
    assert (folder / "first").read_bytes() == b"version 0"
    assert (folder / "file").read_bytes() == b"version 3"


def test_a_name_of_several_is_no_removal(folder: Path, trash: Trash) -> None:
    (folder / "a").write_bytes(b"x")
    os.link(folder / "a", folder / "b")
    (folder / "a").unlink()
    assert trash("list", folder) == []
    (folder / "b").unlink()
    assert list(trash.listed(folder)) == ["b"]


def test_files_that_never_had_a_name(folder: Path, trash: Trash) -> None:
    fd = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    os.write(fd, b"x")
    os.close(fd)
    assert trash("list", folder) == []


def test_what_is_below_comes_back_where_names_are_free(folder: Path, trash: Trash) -> None:
    """The directory still exists, and entries were removed in it at different times."""
    (folder / "sub").mkdir()
    for name in ("old", "sub/a", "sub/b", "sub/taken"):
        (folder / name).write_bytes(name.encode())
    (folder / "old").unlink()
    shutil.rmtree(folder / "sub")
    (folder / "sub").mkdir()
    (folder / "sub" / "taken").write_bytes(b"new")
    (folder / "sub" / "c").write_bytes(b"c")
    (folder / "sub" / "c").unlink()
    fd = os.open(folder / "sub", os.O_RDONLY)
    # Files that lanes removed are in the trash once the removals were reported to the metaserver.
    os.fsync(fd)
    os.close(fd)
    done = trash("restore", "--below", folder, "--since", "0.000001s")
    assert (done["restored"], done["taken"]) == (0, 0)
    done = trash("restore", "--below", folder, "--since", "1h")
    assert (done["restored"], done["taken"]) == (2, 1), "a new sub has the name of the old one"
    assert sorted(os.listdir(folder)) == ["old", "sub"]
    assert sorted(os.listdir(folder / "sub")) == ["c", "taken"]
    trash("restore", folder / "sub", "--to", folder / "former")
    assert looks(folder / "former").keys() == {"a", "b", "taken"}
    assert (folder / "former" / "taken").read_bytes() == b"sub/taken"
    assert trash.listed(folder) == {}


# ---- what cannot be done says so ---------------------------------------------------------------


def test_errors_say_what_to_do(folder: Path, workdir: Path, trash: Trash, capsys: Capture) -> None:
    def refused(*words: object) -> str:
        return trash.text(capsys, *words, code=1)

    (folder / "d").mkdir()
    (folder / "d" / "f").write_bytes(b"old")
    assert "nothing of this name is in the trash" in refused("restore", folder / "d" / "f")
    assert "--below" in refused("restore", folder / "d")
    (folder / "d" / "f").unlink()
    (folder / "d" / "f").write_bytes(b"new")
    text = refused("restore", folder / "d" / "f")
    assert "the name exists already" in text and "--to" in text
    assert "no such directory" in refused("restore", folder / "d" / "f", "--to", folder / "x" / "y")
    assert "something of this name" in refused(
        "restore", folder / "d" / "f", "--to", folder / "d" / "f"
    )
    assert "with id 77" in refused("restore", folder / "d" / "f", "--id", 77)
    shutil.rmtree(folder / "d")
    text = refused("restore", folder / "d" / "f")
    assert "gone, or in the trash itself" in text and "--to" in text
    trash("restore", folder / "d" / "f", "--to", workdir)
    assert (workdir / "f").read_bytes() == b"new", "what was removed last"
    assert "is no directory" in refused("enable", workdir / "f")
    assert "has no trash" in refused("disable", workdir)
    assert "neither there nor in the trash" in refused("list", workdir / "nowhere")
    assert "neither there nor in the trash" in refused("purge", workdir / "nowhere", "--yes")
    assert "ten years" in trash.text(capsys, "enable", folder, "--expire", "11000d", code=2)
    assert "leave out --to" in trash.text(capsys, "restore", "--below", folder, "--to", "x", code=2)


def test_a_purge_asks_first(folder: Path, trash: Trash) -> None:
    (folder / "file").touch()
    (folder / "file").unlink()
    command = ["trash", "purge", str(folder), *trash.reach]
    asked = CliRunner().invoke(cli, command, input="n\n")
    assert asked.exit_code == 1 and "1 inodes" in asked.output and "for good?" in asked.output
    assert list(trash.listed(folder)) == ["file"]
    assert CliRunner().invoke(cli, command, input="y\n").exit_code == 0
    assert trash.listed(folder) == {}


def test_text(folder: Path, trash: Trash, capsys: Capture) -> None:
    (folder / "d").mkdir()
    (folder / "d" / "f").write_bytes(bytes(2048))
    shutil.rmtree(folder / "d")
    text = trash.text(capsys, "list", folder)
    assert f"{folder / 'd'}/" in text and "2.0 KiB" in text and "in 60 min" in text
    assert f"{folder / 'd' / 'f'}" in trash.text(capsys, "list", folder, "--all")
    assert f"{folder / 'd' / 'f'}" in trash.text(capsys, "list", folder / "d")
    text = trash.text(capsys, "trees")
    assert ":/" + str(folder.relative_to(trash.cluster.mount_path)) in text and "60 min" in text
    assert "2 brought back" in trash.text(capsys, "restore", folder / "d")
    (folder / "d" / "f").unlink()
    assert "1 purged" in trash.text(capsys, "purge", folder, "--yes")
    assert trash.text(capsys, "enable", folder) == trash.text(capsys, "disable", folder) == ""


def test_trees_and_exceptions(folder: Path, trash: Trash) -> None:
    (folder / "scratch" / "kept").mkdir(parents=True)
    trash("disable", folder / "scratch")
    trash("enable", folder / "scratch" / "kept", "--expire", "2d")
    for path in (folder / "1", folder / "scratch" / "2", folder / "scratch" / "kept" / "3"):
        path.touch()
        path.unlink()
    assert sorted(trash.listed(folder)) == ["1", "scratch/kept/3"]
    rows = {row["path"].rpartition("/")[2]: row for row in trash("trees") if row["inodes"] < 2}
    seen = {name: (row["on"], row["expire_s"]) for name, row in rows.items()}
    assert seen["folder"] == (True, 3600)
    assert seen["scratch"] == (False, 0)
    assert seen["kept"] == (True, 2 * 86400) and rows["kept"]["inodes"] == 1


# ---- the end -----------------------------------------------------------------------------------


def restart(cluster: Cluster) -> None:
    """Sends kill -9 to the metaserver, and waits until its clients have come back."""
    cluster.metaserver.kill()
    cluster.metaserver.start()
    root = os.open(cluster.mount_path, os.O_RDONLY)
    os.fsync(root)
    os.close(root)


@pytest.mark.full
@pytest.mark.expects_warnings
def test_what_expires_is_gone_with_its_bytes(make_cluster: ClusterMaker) -> None:
    cluster = make_cluster(storage_servers=1, targets=1)
    trash, top = Trash(cluster), cluster.mount_path / "top"
    top.mkdir()
    trash("enable", top, "--expire", "1h")
    make_tree(top / "tree")
    (top / "kept").write_bytes(b"x" * 100_000)
    shutil.rmtree(top / "tree")
    objects = cluster.plan.target_path(cluster.plan.storageservers[0], 0) / "objects"
    count = sum(1 for path in objects.rglob("*") if path.is_file())
    assert count > 4, "the bytes of what was removed are still there"
    restart(cluster)
    assert trash("list", top)[0]["path"] == str(top / "tree"), "it survives a kill -9"
    trash("enable", top, "--expire", "1s")
    assert wait_until(lambda: trash("list", top) == [], 30)
    restart(cluster)

    def left() -> int:
        return sum(1 for path in objects.rglob("*") if path.is_file())

    assert wait_until(lambda: left() == 1, 60), "the file that is there has an object"
    assert trash("trees")[0]["inodes"] == 0
    assert (top / "kept").read_bytes() == b"x" * 100_000


@pytest.mark.full
@pytest.mark.expects_warnings
def test_removals_while_the_metaserver_is_killed(make_cluster: ClusterMaker) -> None:
    """Every unlinked file is in the trash, or is still there if its unlink was not answered: none
    is lost."""
    cluster = make_cluster(storage_servers=1, targets=1)
    trash, top = Trash(cluster), cluster.mount_path / "top"
    top.mkdir()
    trash("enable", top)
    names = [f"{number}" for number in range(600)]
    for name in names:
        (top / name).write_bytes(name.encode())
    removed: list[str] = []

    def remove() -> None:
        for name in names:
            (top / name).unlink()
            removed.append(name)

    remover = threading.Thread(target=remove)
    remover.start()
    wait_until(lambda: len(removed) > 50, 30)
    assert remover.is_alive()
    cluster.metaserver.kill()
    cluster.metaserver.start()
    remover.join(60)
    assert removed == names and os.listdir(top) == []
    assert sorted(trash.listed(top)) == sorted(names)
    assert trash("restore", "--below", top)["restored"] == len(names)
    assert all((top / name).read_bytes() == name.encode() for name in names)


def test_quota_and_du(folder: Path, trash: Trash) -> None:
    def ask(*words: object) -> Any:
        done = CliRunner().invoke(cli, [*map(str, words), "--json", *trash.reach])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    ask("quota", "set", "--tree", folder, "--bytes", "1M")
    try:
        (folder / "file").write_bytes(bytes(1 << 20))
        (folder / "file").unlink()
        with pytest.raises(OSError) as caught:
            (folder / "more").write_bytes(b"x")
        assert caught.value.errno == errno.EDQUOT, "what is in the trash counts"
        assert ask("du", folder)[0]["files"] == 1
        trash("purge", folder / "file", "--yes")
        assert wait_until(lambda: writes(folder / "more"), 20)
    finally:
        ask("quota", "remove", "--tree", folder)


def writes(path: Path) -> bool:
    try:
        return path.write_bytes(b"x") == 1
    except OSError:
        return False


def test_modes_of_what_is_listed(folder: Path, trash: Trash) -> None:
    for name, make in (("pipe", os.mkfifo), ("folder", os.mkdir)):
        make(folder / name)
    os.symlink("x", folder / "link")
    assert stat.S_ISFIFO((folder / "pipe").stat().st_mode)
    os.unlink(folder / "pipe")
    os.rmdir(folder / "folder")
    os.unlink(folder / "link")
    found = {name: row["type"] for name, row in trash.listed(folder).items()}
    assert found == {"pipe": "fifo", "folder": "directory", "link": "symlink"}
