"""Metaservers that get a state back: after a damaged store, after a journal that is lost for good,
and without one that is gone for good. Real programs over a real etcd.
"""

import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from fscommon.auth.handshake import HelloFields
from fscommon.auth.key import load_key
from fscommon.errors import RefusedError
from fscommon.net.stream import connect
from metaserver.group_status import FORGET_S
from tests.cluster.cluster import Cluster
from tests.cluster.etcd import EtcdCluster
from tests.cluster.process import PATIENCE, Program, wait_until

from .test_meta_switch import GroupCli

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300), pytest.mark.expects_warnings]
FOLLOWS_S_MAX = 40.0 * PATIENCE
FILES = 200
PAGE = 4096


@dataclass
class Group:
    """Two metaservers. While nothing has happened, the first one is active."""

    cluster: Cluster
    etcd: EtcdCluster

    @property
    def cli(self) -> GroupCli:
        return GroupCli(self.cluster)

    @property
    def first(self) -> Program:
        return self.cluster.metaservers[0]

    @property
    def second(self) -> Program:
        return self.cluster.metaservers[1]

    def directory(self, program: Program) -> Path:
        """The state directory."""
        return self.cluster.plan.state / ("meta" if program == self.first else program.name)

    def make_files(self, name: str) -> None:
        folder = self.cluster.mount_path / name
        folder.mkdir()
        for number in range(FILES):
            (folder / f"file {number}").write_bytes(b"%d" % number)
        os.sync()

    def has_files(self, name: str) -> bool:
        folder = self.cluster.mount_path / name
        return {one.name: one.read_bytes() for one in folder.iterdir()} == {
            f"file {number}": b"%d" % number for number in range(FILES)
        }

    def roles(self) -> dict[str, str]:
        """By name; {} while nobody answers."""
        ended = self.cli.end("status", "--json")
        return self.cli.roles() if ended.code in (0, 3) else {}

    def kept(self) -> dict[str, str]:
        """Where metaservers keep damaged stores, by their names."""
        rows = self.cli.status()["metaservers"]
        return {row["name"]: row["damaged_store"] for row in rows if row["damaged_store"]}

    def wait_followed(self) -> None:
        """Until the standby has all."""

        def has_all() -> bool:
            rows = self.cli.status()["metaservers"]
            return len(rows) == 2 and all(
                row["behind"] == 0 and row["seconds_since_report"] < 5 for row in rows
            )

        assert wait_until(has_all, FOLLOWS_S_MAX)

    def wait_active(self, program: Program) -> None:
        assert wait_until(lambda: self.roles().get(program.name) == "active", FOLLOWS_S_MAX)


@pytest.fixture
def group(two_metaservers: Cluster, etcd: EtcdCluster) -> Group:
    return Group(two_metaservers, etcd)


def said(program: Program, words: str) -> int:
    """How often its log says so."""
    return program.log_path.read_text().count(words)


def wait_said(program: Program, words: str, times: int = 1) -> None:
    assert wait_until(lambda: said(program, words) >= times, FOLLOWS_S_MAX), f"never: {words}"


# ---- a damaged store ----------------------------------------------------------------------------


def _cut(data: Path) -> None:
    os.truncate(data, 2 * PAGE + 100)


def _empty(data: Path) -> None:
    os.truncate(data, 0)


def _meta_pages(data: Path) -> None:
    with data.open("r+b") as file:
        for page in (0, 1):
            file.seek(page * PAGE + 16)
            file.write(b"\x5a" * 8)


def _middle(data: Path) -> None:
    """Some bytes of each page behind the first ones."""
    content = bytearray(data.read_bytes())
    where = random.Random(3)
    for page in range(2, len(content) // PAGE):
        for _ in range(8):
            content[page * PAGE + where.randrange(PAGE)] ^= 0x5A
    data.write_bytes(content)


@pytest.mark.expects_log("the store is damaged")
@pytest.mark.parametrize(
    "damage",
    [_middle, *(pytest.param(one, marks=pytest.mark.full) for one in (_cut, _empty, _meta_pages))],
)
def test_a_damaged_store_is_copied_anew(group: Group, damage: Callable[[Path], None]) -> None:
    group.make_files("before")
    group.wait_followed()
    second, directory = group.second, group.directory(group.second)
    copies = said(second, "took a copy of the state")
    second.stop()
    damage(directory / "store" / "data.mdb")
    damaged = (directory / "store" / "data.mdb").read_bytes()
    second.start()
    wait_said(second, "took a copy of the state", copies + 1)
    assert said(second, "the store is damaged") == 1
    (kept,) = directory.glob("store.damaged-*")
    assert wait_until(lambda: group.kept() == {second.name: str(kept)}, FOLLOWS_S_MAX)
    group.wait_followed()
    assert (kept / "data.mdb").read_bytes() == damaged
    assert not (directory / "store.former").exists()
    shown = group.cli.text("status", code=3).replace("\n", " ")
    assert "the store of metaserver metaserver-2" in shown and kept.name in shown
    group.make_files("meanwhile")
    group.first.kill()
    group.wait_active(second)
    assert group.has_files("before") and group.has_files("meanwhile")
    shutil.rmtree(kept)
    assert wait_until(lambda: group.kept() == {}, FOLLOWS_S_MAX)


@pytest.mark.expects_log("the store is damaged")
def test_without_an_active_metaserver_a_damaged_one_waits(group: Group) -> None:
    group.make_files("before")
    group.wait_followed()
    first, second = group.first, group.second
    group.cluster.unmount()
    second.stop()
    first.stop()
    terms = said(first, "event=active")
    assert terms == 1
    _meta_pages(group.directory(first) / "store" / "data.mdb")
    first.start()
    wait_said(first, "needs a copy of the state")
    refused = group.cli.run("status", code=4).stderr
    assert "the store was damaged, and is kept as" in refused
    assert not wait_until(lambda: said(first, "event=active") > terms, 8.0), "it has no names"
    first.kill()
    first.start()  # it is no new beginning, either
    assert "the store was damaged" in group.cli.run("status", code=4).stderr
    second.start()
    group.wait_active(second)
    wait_said(first, "took a copy of the state")
    group.cluster.mount()
    assert group.has_files("before")
    group.wait_followed()


# ---- a journal that is lost for good ------------------------------------------------------------


def recover(group: Group, program: Program, *words: str) -> "subprocess.CompletedProcess[str]":
    config = program.argv[-1]
    return subprocess.run(
        (program.argv[0], "--config", config, "--recover-from-local", *words),
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60 * PATIENCE,
    )


def lose_engine(group: Group) -> None:
    """The engine's data are gone, and another one is put in its place, with the same address."""
    (member,) = group.etcd.members
    member.program.kill()
    (data,) = member.program.state.glob("data-*")
    shutil.rmtree(data)


async def refusal(address: str, key_file: Path, epoch: int) -> str:
    """What a storage server says to a metaserver with that epoch of the map; "": welcome."""
    hello = HelloFields("server", "metaserver", session=epoch)
    try:
        stream = await connect(address, key=load_key(key_file), hello=hello, timeout_s=10)
    except RefusedError as error:
        return str(error.__cause__ or error)
    await stream.aclose()
    return ""


def test_a_new_journal_is_begun_from_the_store_of_one(group: Group) -> None:
    cluster, first, second = group.cluster, group.first, group.second
    group.make_files("before")
    group.wait_followed()
    cluster.unmount()
    ended = recover(group, second)
    assert ended.returncode == 1 and "is in use by another process" in ended.stderr
    second.stop()
    ended = recover(group, second, "--yes")
    assert ended.returncode == 1 and "nothing is lost. Start braidfs-metaserver" in ended.stderr
    lose_engine(group)
    first.kill()
    ended = recover(group, first, "--yes")
    assert ended.returncode == 1 and "wait for it: nothing is lost then" in ended.stderr

    group.etcd.start()
    ended = recover(group, first)
    assert ended.returncode == 1 and "--yes goes on without a question" in ended.stderr
    assert "active was metaserver. It lacks nothing, unless" in ended.stderr
    ended = recover(group, first, "--yes")
    assert ended.returncode == 0, ended
    assert "the journal is begun with" in ended.stdout
    again = recover(group, first, "--yes")
    assert again.returncode == 1 and "nothing is lost" in again.stderr

    copies = said(second, "took a copy of the state")
    second.start()  # it has no part in the new journal, and must not begin one
    first.start()
    group.wait_active(first)
    wait_said(second, "took a copy of the state", copies + 1)
    cluster.mount()
    assert group.has_files("before")
    group.make_files("after")
    group.wait_followed()

    (server,) = cluster.plan.storageservers
    address, key_file = f"127.0.0.1:{server.port}", cluster.plan.key_file
    wait_said(cluster.storageservers[0], "event=registered")
    assert "of before a restore or a recovery" in trio.run(refusal, address, key_file, 2048)
    assert trio.run(refusal, address, key_file, 0) == ""
    first.kill()
    group.wait_active(second)
    assert group.has_files("before") and group.has_files("after")


# ---- one that is gone for good ------------------------------------------------------------------


@pytest.mark.full  # a metaserver counts as gone after a minute
def test_one_that_is_gone(group: Group) -> None:
    group.wait_followed()
    cli, second = group.cli, group.second
    assert "metaserver is active" in cli.run("meta", "forget", "metaserver", code=1).stderr
    assert "no metaserver nobody" in cli.run("meta", "forget", "nobody", code=1).stderr
    second.kill()
    refused = cli.run("meta", "forget", "metaserver-2", code=1).stderr
    assert "metaserver-2 has been heard of" in refused and refused.count("\n") == 1
    forgotten: list[dict[str, object]] = []

    def is_forgotten() -> bool:
        ended = cli.end("meta", "forget", "metaserver-2", "--json")
        if ended.code == 0:
            forgotten.append(json.loads(ended.stdout))
        return ended.code == 0

    assert wait_until(is_forgotten, FORGET_S + FOLLOWS_S_MAX)
    assert forgotten[0]["name"] == "metaserver-2"
    assert float(str(forgotten[0]["seconds_since_report"])) >= FORGET_S
    assert set(group.roles()) == {"metaserver"}
    second.start()
    group.wait_followed()  # it is a member again
