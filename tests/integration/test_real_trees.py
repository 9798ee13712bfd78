"""Real input: trees of tens of thousands of files, a repository, a build, a database, one big file.

Everything is written once and then compared three times: as written, after a remount (the client's
memory is empty), and after a restart of every server (the servers' memory is empty).
"""

import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.process import wait_until
from tests.conftest import ClusterMaker

pytestmark = [pytest.mark.mount, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]


def _run(*words: str | Path, folder: Path | None = None) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    result = subprocess.run(
        words,
        cwd=folder,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        errors="replace",
    )
    assert result.returncode == 0, f"{words}: {result.stdout[-2000:]}{result.stderr[-2000:]}"
    return result.stdout


def _walk(tree: Path) -> Iterator[Path]:
    for folder, _, files in os.walk(tree):
        for name in sorted(files):
            yield Path(folder) / name


def _copy_some(source: Path, sink: Path, count: int) -> int:
    """Copies the first `count` files of a tree with cp -a; returns how many there were."""
    chosen = [path for _, path in zip(range(count), _walk(source), strict=False)]
    names = "\0".join(str(path.relative_to(source)) for path in chosen)
    sink.mkdir(parents=True)
    subprocess.run(
        ["rsync", "-a", "--from0", "--files-from=-", f"{source}/", f"{sink}/"],
        input=names.encode(errors="surrogateescape"),
        check=True,
    )
    return len(chosen)


def _same(one: Path, other: Path) -> None:
    _run("diff", "-r", "--no-dereference", one, other)


@pytest.fixture
def source_tree(localdir: Path, full: bool) -> Path:
    """The tree that is copied in: all of /usr/share and the virtual environment, or a part
    of them."""
    tree = localdir / "tree"
    if full:
        tree.mkdir()
        _run("cp", "-a", "/usr/share", tree / "share")
        _run("cp", "-a", ROOT / ".venv", tree / "venv")
        return tree
    _copy_some(Path("/usr/share"), tree / "share", 500)
    _copy_some(ROOT / ".venv", tree / "venv", 250)
    return tree


@pytest.mark.expects_warnings
def test_trees_survive_remount_and_restart(
    cluster: Cluster, workdir: Path, source_tree: Path
) -> None:
    _run("cp", "-a", source_tree, workdir / "tree")
    _same(source_tree, workdir / "tree")
    cluster.remount()
    _same(source_tree, workdir / "tree")
    cluster.restart_servers()
    _same(source_tree, workdir / "tree")
    cluster.remount()
    _same(source_tree, workdir / "tree")
    _run("rsync", "-an", "--delete", f"{source_tree}/", f"{workdir}/tree/")
    _run("rm", "-r", workdir / "tree")
    assert os.listdir(workdir) == []


def test_rsync_finds_nothing_to_do_the_second_time(workdir: Path, localdir: Path) -> None:
    _copy_some(ROOT / "docs", localdir / "docs", 100)
    _run("rsync", "-a", f"{localdir}/docs/", f"{workdir}/docs/")
    again = _run("rsync", "-ai", f"{localdir}/docs/", f"{workdir}/docs/")
    assert again == ""


def test_tar_round_trip(workdir: Path, localdir: Path) -> None:
    _copy_some(ROOT / "native", localdir / "native", 300)
    _run("tar", "-C", localdir, "-cf", workdir / "archive.tar", "native")
    _run("tar", "-C", workdir, "-xf", workdir / "archive.tar")
    _same(localdir / "native", workdir / "native")


def test_git_clone_and_fsck(workdir: Path) -> None:
    git = ("git", "-c", "safe.directory=*")
    _run(*git, "clone", "--quiet", f"file://{ROOT}", workdir / "clone")
    _run(*git, "-C", workdir / "clone", "fsck", "--full", "--strict")
    assert _run(*git, "-C", workdir / "clone", "status", "--porcelain") == ""
    (workdir / "clone" / "new.txt").write_text("new\n")
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    _run(*git, "-C", workdir / "clone", "add", "new.txt")
    _run(*git, *identity, "-C", workdir / "clone", "commit", "-qm", "new")
    _run(*git, "-C", workdir / "clone", "gc", "--quiet")
    _run(*git, "-C", workdir / "clone", "fsck", "--full")


def test_compiling_a_c_program(workdir: Path) -> None:
    (workdir / "src").mkdir()
    for number in range(12):
        (workdir / "src" / f"part{number}.c").write_text(
            f"int part{number}(int x) {{ return x + {number}; }}\n"
        )
    calls = " + ".join(f"part{number}(0)" for number in range(12))
    declared = "".join(f"int part{number}(int);\n" for number in range(12))
    (workdir / "src" / "main.c").write_text(
        f'#include <stdio.h>\n{declared}int main(void) {{ printf("%d\\n", {calls}); return 0; }}\n'
    )
    (workdir / "Makefile").write_text(
        "OBJECTS := $(patsubst src/%.c,%.o,$(wildcard src/*.c))\n"
        "program: $(OBJECTS)\n\t$(CC) -g -o $@ $^\n"
        "%.o: src/%.c\n\t$(CC) -g -c -o $@ $<\n"
    )
    _run("make", "-j4", folder=workdir)
    assert _run(workdir / "program") == "66\n"
    assert "up to date" in _run("make", folder=workdir)


def test_pytest_of_a_small_package(workdir: Path) -> None:
    package = workdir / "project"
    (package / "sums").mkdir(parents=True)
    (package / "sums" / "__init__.py").write_text("def add(a, b):\n    return a + b\n")
    (package / "test_sums.py").write_text(
        "import pathlib, sums\n"
        "def test_add(): assert sums.add(1, 2) == 3\n"
        "def test_files(tmp_path):\n"
        "    (tmp_path / 'x').write_text('y')\n"
        "    assert (tmp_path / 'x').read_text() == 'y'\n"
    )
    words = [sys.executable, "-m", "pytest", "-q", "--basetemp", str(workdir / "tmp"), str(package)]
    assert "2 passed" in _run(*words, "-p", "no:cacheprovider", "-c", "/dev/null", folder=package)
    assert list((package / "sums" / "__pycache__").glob("*.pyc"))


@pytest.mark.parametrize("journal", ["WAL", "DELETE"])
def test_sqlite(workdir: Path, journal: str, sized: Callable[[int, int], int]) -> None:
    rows = sized(2000, 20_000)
    path = workdir / "base.sqlite"
    with _base(path) as base:
        assert base.execute(f"pragma journal_mode={journal}").fetchone()[0] == journal.lower()
        base.execute("create table t (k integer primary key, v blob)")
    for start in range(0, rows, 200):
        with _base(path) as base:
            base.execute("begin immediate")
            base.executemany(
                "insert into t values (?, ?)",
                [(k, hashlib.sha256(b"%d" % k).digest() * 20) for k in range(start, start + 200)],
            )
            base.execute("commit")
    with _base(path) as base:
        base.execute("delete from t where k % 3 = 0")
        base.execute("update t set v = zeroblob(5000) where k % 7 = 0")
        base.execute("vacuum" if journal == "DELETE" else "pragma wal_checkpoint")
    copy = workdir / "copy.sqlite"
    shutil.copy(path, copy)
    for file in (path, copy):
        with _base(file) as base:
            assert base.execute("pragma integrity_check").fetchone()[0] == "ok"
            kept = base.execute("select count(*) from t").fetchone()[0]
            assert kept == rows - len(range(0, rows, 3))


def _base(path: Path) -> "closing[sqlite3.Connection]":
    return closing(sqlite3.connect(path, isolation_level=None))


def test_big_file_by_dd(
    cluster: Cluster, workdir: Path, localdir: Path, sized: Callable[[int, int], int]
) -> None:
    size = sized(256 << 20, 4 << 30)
    source = localdir / "source"
    digest = hashlib.sha256()
    key = os.urandom(1 << 20)
    with source.open("wb") as file:
        for number in range(size >> 20):
            piece = bytes(number & 255) + key[number & 255 :]
            digest.update(piece)
            file.write(piece)
    _run("dd", f"if={source}", f"of={workdir}/big", "bs=1M", "conv=fsync", "status=none")
    assert _sha256(workdir / "big") == digest.hexdigest()
    cluster.remount()
    assert _sha256(workdir / "big") == digest.hexdigest()


def _sha256(path: Path) -> str:
    return _run("sha256sum", path).split()[0]


def test_removed_files_give_their_space_back(make_cluster: ClusterMaker) -> None:
    cluster = make_cluster()
    big = cluster.mount_path / "big"

    def stored() -> int:
        words = ["du", "-s", "--block-size=1", str(cluster.plan.state / "targets")]
        return int(subprocess.run(words, check=False, capture_output=True).stdout.split()[0])

    before = stored()
    with big.open("wb") as file:
        file.write(os.urandom(64 << 20))
        os.fsync(file.fileno())
    assert stored() > before + (60 << 20)
    big.unlink()
    assert wait_until(lambda: stored() < before + (10 << 20), 60), stored() - before
