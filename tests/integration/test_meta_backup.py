"""`braidfs meta` on a cluster: a backup beside a writer, a restore in its place, and what of the
time between them is kept, lost, and never mixed up.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from metaserver.state_directory import held
from tests.cluster.cluster import BIN, Cluster
from tests.cluster.plan import SHORT_SESSIONS
from tests.cluster.process import wait_until
from tests.conftest import ClusterMaker

from .test_cli import Cli

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]
SIZES = (0, 1, 900, 70_000, 3_000_000)


def content(name: str, size: int) -> bytes:
    return (hashlib.sha256(name.encode()).digest() * (size // 32 + 1))[:size]


def write_all(folder: Path, count: int) -> None:
    folder.mkdir()
    for number in range(count):
        path = folder / f"f{number}"
        with path.open("wb") as file:
            file.write(content(path.name, SIZES[number % len(SIZES)]))
            file.flush()
            os.fsync(file.fileno())
        os.setxattr(path, "user.number", str(number).encode())


def check_all(folder: Path, numbers: Iterable[int]) -> None:
    for number in numbers:
        path = folder / f"f{number}"
        assert path.read_bytes() == content(path.name, SIZES[number % len(SIZES)]), path
        assert os.getxattr(path, "user.number") == str(number).encode()


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Another thread makes, renames and removes files meanwhile."""
    folder.mkdir()
    stop = threading.Event()
    errors: list[OSError] = []

    def work() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            path = folder / f"{number}"
            try:
                path.write_bytes(b"x" * (number % 5000))
                path.rename(folder / f"renamed {number % 50}")
            except OSError as error:
                errors.append(error)
                return

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert wait_until(lambda: any(folder.iterdir()), 30)
        yield
    finally:
        stop.set()
        thread.join()
    assert errors == []


def state_of(cluster: Cluster) -> Path:
    return cluster.plan.state / "meta"


def fsck(cluster: Cluster) -> None:
    words = (sys.executable, "-m", "metaserver.fsck", str(state_of(cluster)))
    checked = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout) == (0, ""), checked


@pytest.mark.expects_warnings
@pytest.mark.expects_log("has lost")
def test_names_come_back(make_cluster: ClusterMaker, localdir: Path) -> None:
    cli = Cli(make_cluster(storage_servers=2, targets=1, settings=SHORT_SESSIONS))
    cluster, mount = cli.cluster, cli.cluster.mount_path
    write_all(mount / "before", 40)
    done = _backed_up_beside_a_writer(cli, localdir)
    write_all(mount / "after", 10)
    newest = max(path.stat().st_ino for path in (mount / "after").iterdir())
    _remove(cluster, mount / "before" / "f4")
    _restored(cli, Path(done["file"]), localdir, done["inodes"])

    cluster.metaserver.start()
    cluster.mount()
    assert not (mount / "after").exists()
    check_all(mount / "before", [number for number in range(40) if number != 4])
    with pytest.raises(OSError, match="error"):
        (mount / "before" / "f4").read_bytes()  # the name is back, its bytes are not
    write_all(mount / "new", 40)
    assert min(path.stat().st_ino for path in (mount / "new").iterdir()) > newest
    cluster.remount()
    check_all(mount / "new", range(40))
    assert cli.json("status")["health"] == "healthy"
    cluster.unmount()
    cluster.metaserver.stop()
    fsck(cluster)


def _backed_up_beside_a_writer(cli: Cli, localdir: Path) -> Any:
    backup = localdir / "names.backup"
    with writing(cli.cluster.mount_path / "beside"):
        done = cli.json("meta", "backup", backup)
    assert backup.stat().st_mode & 0o777 == 0o600 and backup.stat().st_size == done["bytes"]
    assert list(localdir.glob("*.part")) == []
    seen = cli.json("meta", "verify", backup)
    same = ("records", "inodes", "transaction", "cluster")
    assert [seen[key] for key in same] == [done[key] for key in same]
    assert done["inodes"] >= 43
    return done


def _remove(cluster: Cluster, path: Path) -> None:
    """Removes a file, and waits until its objects are gone."""
    ino = path.stat().st_ino
    path.unlink()
    servers = cluster.plan.storageservers

    def is_gone() -> bool:
        places = (cluster.plan.target_path(server, 0) / "objects" for server in servers)
        return not any(list(place.glob(f"*/{ino:016x}.*")) for place in places)

    assert wait_until(is_gone, 30)


def _restored(cli: Cli, backup: Path, localdir: Path, inodes: int) -> None:
    cluster, state = cli.cluster, state_of(cli.cluster)
    refused = cli.run("meta", "restore", backup, state, code=2).stderr
    assert "is in use by another process: a running metaserver" in refused
    cluster.unmount()
    cluster.metaserver.stop()
    refused = cli.run("meta", "restore", backup, state, code=2).stderr
    assert "has a metadata store: move" in refused
    (state / "store").rename(localdir / "store of before")
    _damaged_is_refused(cli, backup, localdir)
    restored = cli.json("meta", "restore", backup, state)
    assert restored["inodes"] == inodes and restored["sessions"] == 1
    fsck(cluster)


def _damaged_is_refused(cli: Cli, backup: Path, localdir: Path) -> None:
    raw = bytearray(backup.read_bytes())
    raw[len(raw) // 2] ^= 1
    damaged = localdir / "damaged.backup"
    damaged.write_bytes(raw)
    said = cli.run("meta", "restore", damaged, state_of(cli.cluster), code=1).stderr
    assert f"{damaged}: block" in said and "damaged" in said
    assert f"{damaged}: block" in cli.run("meta", "verify", damaged, code=1).stderr
    assert not (state_of(cli.cluster) / "store").exists()


@pytest.mark.expects_warnings
@pytest.mark.expects_log("lost", "evicted")
def test_a_mount_that_stays_gets_a_new_session(make_cluster: ClusterMaker, localdir: Path) -> None:
    cli = Cli(make_cluster(storage_servers=1, targets=2, settings=SHORT_SESSIONS))
    cluster, mount = cli.cluster, cli.cluster.mount_path
    write_all(mount / "before", 10)
    backup = localdir / "names.backup"
    cli.json("meta", "backup", backup)
    write_all(mount / "after", 10)
    incarnations = _sessions(cli)
    cluster.metaserver.stop()
    shutil.rmtree(state_of(cluster) / "store")
    cli.run("meta", "restore", backup, state_of(cluster))
    cluster.metaserver.start()
    assert wait_until(lambda: _names(mount) == {"before"}, 60)
    assert _sessions(cli).isdisjoint(incarnations)
    check_all(mount / "before", range(10))
    write_all(mount / "new", 10)
    cluster.remount()
    check_all(mount / "new", range(10))
    check_all(mount / "before", range(10))


def _names(folder: Path) -> set[str]:
    try:
        return {path.name for path in folder.iterdir()}
    except OSError:
        return set()


def _sessions(cli: Cli) -> set[int]:
    return {row["session"] for row in cli.json("client", "list")}


def test_backups_in_a_directory_are_kept_by_number(cluster: Cluster, localdir: Path) -> None:
    cli = Cli(cluster)
    folder = localdir / "backups"
    folder.mkdir()
    for hour in range(5):
        (folder / f"braidfs-20200101T{hour:02}0000Z.backup").write_bytes(b"old")
    (folder / "braidfs-note.txt").write_bytes(b"of somebody else")
    killed, in_work = (folder / f"braidfs-20200101T00000{n}Z.backup.part" for n in (1, 2))
    for path in (killed, in_work):
        path.write_bytes(b"half")
    os.utime(killed, (0, 0))
    text = cli.text("meta", "backup", folder, "--keep", 2)
    assert "4 older backups were removed" in text
    assert in_work.exists() and not killed.exists()
    in_work.unlink()
    left = sorted(path.name for path in folder.iterdir())
    assert left[0] == "braidfs-20200101T040000Z.backup" and left[2] == "braidfs-note.txt"
    assert len(left) == 3
    cli.run("meta", "verify", folder / left[1])


def test_a_state_directory_has_one_metaserver(cluster: Cluster, localdir: Path) -> None:
    state, config = localdir / "state", localdir / "metaserver.toml"
    config.write_text(
        f'state_directory = "{state}"\nkey_file = "{cluster.plan.key_file}"\n'
        'listen = "127.0.0.1:0"\n'
    )

    def refused() -> str:
        words = (str(BIN / "braidfs-metaserver"), "--config", str(config))
        ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
        assert ended.returncode == 1 and "Traceback" not in ended.stderr, ended
        assert not (state / "store").exists()
        return ended.stderr

    with held(state):
        assert f"{state} is in use by another process" in refused()
    (state / "store.restoring").mkdir()
    assert f"a restore into {state} was interrupted" in refused()


def test_what_a_backup_refuses(cluster: Cluster, localdir: Path) -> None:
    cli = Cli(cluster)
    file = localdir / "names.backup"
    file.write_bytes(b"precious")
    assert "--force replaces it" in cli.run("meta", "backup", file, code=2).stderr
    assert "it is no backup" in cli.run("meta", "verify", file, code=1).stderr
    cli.run("meta", "backup", file, "--force")
    cli.run("meta", "verify", file)
    assert "no such directory" in cli.run("meta", "backup", "/nonexistent/x", code=2).stderr
    assert "--keep needs a directory" in cli.run("meta", "backup", file, "--keep", 1, code=2).stderr
    assert "No such file" in cli.run("meta", "verify", localdir / "nothing", code=1).stderr
    log = cluster.metaserver.log_path.read_text()
    assert "op=BACKUP_BEGIN outcome=OK" in log
