"""`braidfs fsck` on real processes: clean while programs work and servers die; and faults that were
planted on the disks of storage servers are found, and mended as far as nothing is lost by it."""

import contextlib
import errno
import json
import os
import random
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cluster import mounts
from tests.cluster.cluster import Cluster
from tests.cluster.mirrors import mirrored
from tests.cluster.process import PATIENCE, wait_until
from tests.conftest import ClusterMaker

from .test_cli import Cli
from .test_mirrors_under_load import is_whole, writing

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300), pytest.mark.expects_warnings]

MIB: Final = 1 << 20
SIZE: Final = 3 * MIB + 77
DAY_S: Final = 86_400.0
FAULTS: Final = ("orphans", "missing", "doubly_named", "too_short")


def fsck(cli: Cli, *words: str, older: str = "0s") -> Any:
    """What the command has found, of whatever age."""
    ended = cli.end("fsck", "--older-than", older, *words, "--json")
    assert ended.code in (0, 3), ended
    found = json.loads(ended.stdout)
    assert found["clean"] == (ended.code == 0) and found["unread"] == {}, ended
    return found


def faults(found: Any) -> dict[str, list[Any]]:
    """Without ages."""
    rows = {key: [{**row, "age_s": 0} for row in found[key]] for key in FAULTS}
    return {key: some for key, some in rows.items() if some}


def write(path: Path) -> bytes:
    content = random.Random(path.name).randbytes(SIZE)
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return content


def objects_of(cluster: Cluster, path: Path) -> list[Path]:
    """The objects of the file with this path, the replicas of a stripe beside each other."""
    ino = path.stat().st_ino
    found = (cluster.plan.state / "targets").glob(f"*/objects/*/{ino:016x}.*")
    return sorted(found, key=lambda one: (one.name, str(one)))


@contextlib.contextmanager
def stopped(cluster: Cluster) -> Iterator[None]:
    """No storage server runs meanwhile."""
    cluster.unmount()
    for server in cluster.storageservers:
        server.stop()
    yield
    cluster.start_servers()
    cluster.mount()


# ---- planted faults -----------------------------------------------------------------------------


@pytest.mark.expects_log("fails its checksum", "a file gets its replicas later", "records lost")
def test_planted_faults(make_cluster: ClusterMaker) -> None:
    cluster = mirrored(make_cluster, repair={"scrub_days": 0})
    cli, folder = Cli(cluster), cluster.mount_path / "d"
    folder.mkdir()
    names = ("whole", "removed", "cut", "emptied", "lost", "single")
    cli.run("layout", "set", folder, "--replicas", "2")
    contents = {name: write(folder / name) for name in names[:-1]}
    (folder / "one").mkdir()
    cli.run("layout", "set", folder / "one", "--replicas", "1")
    contents["one/single"] = write(folder / "one" / "single")
    os.sync()
    assert faults(fsck(cli)) == {}
    objects = {name: objects_of(cluster, folder / name) for name in contents}
    whole = {path for paths in objects.values() for path in paths}
    with stopped(cluster):
        planted = plant(objects)
    # Their targets notice by themselves that records of these are lost, and tell: at any time, what
    # is too short becomes an orphan, as another object gets its place.
    replaced = {path.name for name in ("cut", "emptied") for path in objects[name]}
    found = fsck(cli)
    check_found(cluster, found, planted, replaced)
    again = fsck(cli)
    assert again["missing"] == found["missing"], "looking changes nothing"
    assert planted_orphans(again, replaced) == planted_orphans(found, replaced)
    assert shorts(again) <= shorts(found)

    day = fsck(cli, "--repair", older="1d")
    assert day["mended"] == 0 and day["orphans"] == [], "all of that is younger than a day"
    assert 3 <= day["left_out"]["young_objects"] <= 3 + 2
    assert {row["not_mended_because"] for row in day["missing"] + day["too_short"]} == {
        "its file has changed lately",
        "no other replica has what it should have",
    }
    mended = fsck(cli, "--repair")
    assert planted_orphans(mended, replaced) == planted_orphans(found, replaced)
    count = len(mended["orphans"]) + 1 + len(mended["too_short"])
    assert mended["mended"] == count and mended["summary"].endswith(f"; {count} mended"), mended
    assert is_whole(cli)
    check_mended(cluster, cli, contents, whole)


def shorts(found: Any) -> set[str]:
    return {row["path"] for row in found["too_short"]}


def planted_orphans(found: Any, replaced: set[str]) -> set[str]:
    """The names of the objects that nothing names, without those of `replaced`."""
    names = {
        f"{row['file_id']:016x}.{row['stripe'] | row['generation'] << 8:x}"
        for row in found["orphans"]
    }
    return names - replaced


def plant(objects: dict[str, list[Path]]) -> dict[str, Path]:
    """Breaks what lies on the disks. Returns what was planted, by its name in this test."""
    removed, cut, emptied = (objects[name][0] for name in ("removed", "cut", "emptied"))
    removed.unlink()
    os.truncate(cut, cut.stat().st_size // 2)
    os.truncate(emptied, 0)
    for path in (*objects["lost"][:2], objects["one/single"][1]):
        path.unlink()
    beside = objects["whole"][0]
    foreign = beside.with_name(f"{1 << 40:016x}.0")  # an id that no file had
    foreign.write_bytes(b"x" * 5000)
    late = beside.with_name(f"{beside.stem}.500")  # a copy that came when nobody waited for it
    shutil.copy(beside, late)
    nothing = beside.with_name(f"{1 << 41:016x}.1")
    nothing.touch()
    return {"foreign": foreign, "late": late, "nothing": nothing}


def check_found(cluster: Cluster, found: Any, planted: dict[str, Path], replaced: set[str]) -> None:
    assert planted_orphans(found, replaced) == {path.name for path in planted.values()}
    missing = sorted((row["path"], row["other_replica"]) for row in found["missing"])
    assert missing == [
        (":/d/lost", False),
        (":/d/lost", False),
        (":/d/one/single", False),
        (":/d/removed", True),
    ]
    short = {row["path"]: row for row in found["too_short"]}
    assert set(short) <= {":/d/cut", ":/d/emptied"}, "the others are being mended already"
    assert all(row["bytes"] < MIB for row in short.values())
    assert ":/d/emptied" not in short or short[":/d/emptied"]["bytes"] == 0
    assert all(row["other_replica"] for row in short.values())
    assert found["doubly_named"] == []
    assert found["summary"].startswith(f"{len(found['orphans']) + 4 + len(short)} faults in ")
    text = Cli(cluster).end("fsck", "--older-than", "0s")
    assert text.code == 3 and ":/d/removed" in text.stdout
    summary = text.stdout.splitlines()[-1]  # what is too short may have been mended since
    assert re.fullmatch(
        r"\d+ faults in 3\d objects of 6 files: "
        r"[345] orphans, 4 missing, 0 doubly named, \d too short",
        summary,
    )


def check_mended(cluster: Cluster, cli: Cli, contents: dict[str, bytes], whole: set[Path]) -> None:
    left = fsck(cli)
    assert {row["path"] for row in left["missing"]} == {":/d/lost", ":/d/one/single"}
    assert set(faults(left)) == {"missing"}, "what has no other replica stays"
    folder = cluster.mount_path / "d"
    cluster.remount()
    for name in ("lost", "one/single"):
        with pytest.raises(OSError) as caught:
            (folder / name).read_bytes()
        assert caught.value.errno == errno.EIO
        (folder / name).unlink()
        del contents[name]
    for name, content in contents.items():
        assert (folder / name).read_bytes() == content, name
    assert wait_until(lambda: fsck(cli)["clean"], 30 * PATIENCE), fsck(cli)
    for name in contents:
        objects = objects_of(cluster, folder / name)
        assert len(objects) == 6, objects
    assert all(path.exists() for path in whole if path.name.startswith("whole"))


def test_an_object_that_is_removed_under_a_running_server(make_cluster: ClusterMaker) -> None:
    """The server has it open, and may serve it for a while."""
    cluster = mirrored(make_cluster)
    cli, path = Cli(cluster), cluster.mount_path / "file"
    content = write(path)
    gone = objects_of(cluster, path)[0]
    gone.unlink()
    (row,) = fsck(cli)["missing"]
    assert row["path"] == ":/file" and row["other_replica"]
    assert fsck(cli, "--repair")["clean"], "what is mended is not wrong any more"
    assert is_whole(cli)
    assert wait_until(lambda: fsck(cli)["clean"], 30 * PATIENCE)
    cluster.remount()
    assert path.read_bytes() == content and not gone.exists()


# ---- under load ---------------------------------------------------------------------------------


class Churn:
    """A thread that makes, overwrites, cuts, renames and removes files. With `dies` its mount may
    end at any time."""

    def __init__(self, folder: Path, seed: int, *, dies: bool = False) -> None:
        self._folder = folder
        self._chance = random.Random(seed)
        self._dies = dies
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.errors: list[OSError] = []
        self.rounds = 0

    def __enter__(self) -> "Churn":
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "a program hangs"
        assert self._dies or self.errors == []

    def _run(self) -> None:
        try:
            self._folder.mkdir(exist_ok=True)
            while not self._stop.is_set():
                self._round()
                self.rounds += 1
        except OSError as error:
            self.errors.append(error)

    def _round(self) -> None:
        chance = self._chance
        path = self._folder / f"f{chance.randrange(30)}"
        size = chance.choice((100, 5000, 300_000, 2 * MIB))
        what: dict[str, Callable[[], object]] = {
            "write": lambda: path.write_bytes(chance.randbytes(size)),
            "append": lambda: _append(path, chance.randbytes(size)),
            "cut": lambda: os.truncate(path, size),
            "rename": lambda: path.rename(self._folder / f"f{chance.randrange(30)}"),
            "remove": path.unlink,
        }
        with contextlib.suppress(FileNotFoundError):
            what[chance.choice(("write", "write", "append", "cut", "rename", "remove"))]()


def _append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def test_clean_under_load(make_cluster: ClusterMaker, full: bool) -> None:
    """With no regard to ages: what clients are making is known."""
    cluster = mirrored(make_cluster)
    cli, folder = Cli(cluster), cluster.mount_path / "d"
    folder.mkdir()
    seen: list[Any] = []
    with writing(folder) as writers, Churn(folder / "churn", 1) as churn:
        writers.wait_rounds(10, 60)
        for _ in range(40 if full else 8):
            seen.append(fsck(cli))
            assert faults(seen[-1]) == {}, seen[-1]
    assert churn.rounds > 10
    assert max(one["objects"] for one in seen) > 30
    assert any(one["left_out"]["files_being_written"] for one in seen)
    os.sync()
    found = fsck(cli)
    assert faults(found) == {} and found["objects"] > 30
    cluster.remount()
    writers.check()


# ---- after kills --------------------------------------------------------------------------------


@pytest.mark.timeout(3000)
@pytest.mark.full
def test_clean_after_kills(make_cluster: ClusterMaker, localdir: Path, full: bool) -> None:
    """A client that dies leaves objects of files that it could not tell of: these are orphans when
    they are old enough, and nothing else is ever found."""
    kills = 300 if full else 6
    cluster = mirrored(make_cluster, session_timeout_s=4, lease_duration_s=4)
    cli, folder = Cli(cluster), cluster.mount_path / "d"
    folder.mkdir()
    other, chance = localdir / "other", random.Random(kills)
    other.mkdir()
    with writing(folder, 2) as writers:
        for number in range(kills):
            if number % 2:
                server = chance.choice(cluster.storageservers)
                time.sleep(chance.uniform(0.2, 1.5))
                server.kill()
                time.sleep(chance.uniform(0.0, 2.0))
                cluster.start_servers()
            else:
                kill_client(cluster, other, number, chance)
            if number % 20 in (4, 5):
                assert faults(look(cli)) == {}, "with regard to ages"
        writers.wait_rounds(5, 120)
    assert is_whole(cli)
    assert wait_until(lambda: len(look(cli)["unread"]) == 0, 30 * PATIENCE)
    assert faults(look(cli)) == {}
    found = fsck(cli)
    assert set(faults(found)) <= {"orphans"}, found
    assert fsck(cli, "--repair")["clean"]
    assert faults(fsck(cli)) == {}
    cluster.remount()
    writers.check()


def look(cli: Cli) -> Any:
    """By the command as it is, while servers may be down."""
    ended = cli.end("fsck", "--json")
    assert ended.code in (0, 3), ended
    return json.loads(ended.stdout)


def kill_client(cluster: Cluster, point: Path, number: int, chance: random.Random) -> None:
    """Mounts another client, lets it work for a while, and kills it."""
    with cluster.second_client(point):
        pid = mounts.client_pid(point)
        assert pid is not None
        with Churn(point / f"churn{number % 3}", number, dies=True) as churn:
            assert wait_until(lambda: churn.rounds > 0 or bool(churn.errors), 60 * PATIENCE)
            time.sleep(chance.uniform(0.0, 1.0))
            mounts.kill_client(pid)
            assert wait_until(lambda: mounts.client_pid(point) is None, 20)
        mounts.unmount(point, lazy=True)
