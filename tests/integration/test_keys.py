"""Keys of clients on a real cluster: mounts that have them, and a program that attacks with them.

tests/unit/metaserver/test_keys.py covers every op. These tests use real mounts and storage servers,
revoke a key under load, and kill the metaserver.
"""

import contextlib
import errno
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio

from fscommon.auth.handshake import HelloFields
from fscommon.auth.key import Credential, load_credential
from fscommon.errors import AuthenticationError, BraidError, FsError, Status
from fscommon.layout.attributes import unpack_attributes
from fscommon.layout.capability import RIGHT_WRITE
from fscommon.layout.layout import unpack_layout
from fscommon.rpc.caller import Caller, open_caller
from fscommon.wire.header import FLAG_CAPABILITY
from fscommon.wire.keys import KeyRevoke, MountRoot, SessionGrant
from fscommon.wire.messages import (
    ClusterMap,
    Empty,
    Entry,
    GetAttr,
    Lookup,
    Open,
    Opened,
    SessionOpen,
)
from fscommon.wire.ops import Op
from tests.cluster import mounts
from tests.cluster.cluster import BIN, Cluster
from tests.cluster.numbers import native_counters
from tests.cluster.ports import free_port
from tests.cluster.process import wait_until
from tests.conftest import ClusterMaker

from .test_cli import Cli

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]
BYTES = os.urandom(2_500_000)
SECONDS = 20.0


@dataclass
class Keys:
    """Creates keys with the command line, and revokes those that are left at the end."""

    cli: Cli
    folder: Path
    count: int = 0

    def make(self, tree: Path, *words: str) -> Path:
        self.count += 1
        path = self.folder / f"{self.count}.key"
        name = f"{tree.name}-{self.count}"
        self.cli.json("key", "create", path, "--client", name, "--tree", tree, *words)
        return path

    def revoke(self, path: Path) -> Any:
        return self.cli.json("key", "revoke", f"{load_credential(path).id:016x}")


def made_and_revoked(cluster: Cluster, localdir: Path) -> Iterator[Keys]:
    made = Keys(Cli(cluster), localdir)
    yield made
    for path in localdir.glob("*.key"):
        made.revoke(path)


@pytest.fixture
def keys(cluster: Cluster, localdir: Path) -> Iterator[Keys]:
    yield from made_and_revoked(cluster, localdir)


@pytest.fixture
def trees(workdir: Path) -> Path:
    """A folder `mine` for keys, and `theirs` beside it."""
    for name in ("mine", "theirs"):
        (workdir / name / "sub").mkdir(parents=True)
        (workdir / name).chmod(0o777)
        (workdir / name / "file").write_bytes(BYTES)
    return workdir


def mounted(
    cluster: Cluster, tree: Path, key: Path, point: Path
) -> contextlib.AbstractContextManager[Path]:
    inside = f"/{tree.relative_to(cluster.mount_path)}"
    return cluster.second_client(point, folder=inside, options=f"key_file={key}")


def refused_mount(cluster: Cluster, folder: str, key: Path, point: Path, options: str = "") -> str:
    """The error message of a mount that is refused."""
    point.mkdir(exist_ok=True)
    words: list[str | Path] = [
        BIN / "mount.fuse.braidfs",
        cluster.plan.source(folder),
        point,
        "-o",
        f"key_file={key}",
    ]
    if options:
        words += ["-o", options]
    ended = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 32 and not mounts.is_mounted(point), ended
    return ended.stderr


def refused(number: int, change: Callable[[], Any]) -> None:
    with pytest.raises(OSError) as caught:
        change()
    assert caught.value.errno == number


def changes_of(point: Path) -> list[Callable[[], Any]]:
    file = point / "file"
    return [
        lambda: file.open("r+b"),
        lambda: (point / "new").write_bytes(b"x"),
        lambda: file.unlink(),
        lambda: (point / "sub").rmdir(),
        lambda: (point / "d").mkdir(),
        lambda: file.rename(point / "other"),
        lambda: os.link(file, point / "link"),
        lambda: (point / "s").symlink_to("file"),
        lambda: file.chmod(0o600),
        lambda: os.truncate(file, 0),
        lambda: os.setxattr(file, "user.a", b"v"),
        lambda: os.utime(file),
        lambda: os.mkfifo(point / "fifo"),
    ]


# ---- what a mount may do ------------------------------------------------------------------------


def test_a_read_only_key(cluster: Cluster, keys: Keys, trees: Path, localdir: Path) -> None:
    key = keys.make(trees / "mine", "--read-only")
    point = localdir / "mnt"
    with mounted(cluster, trees / "mine", key, point):
        assert (point / "file").read_bytes() == BYTES
        assert sorted(one.name for one in point.iterdir()) == ["file", "sub"]
        for change in changes_of(point):
            refused(errno.EROFS, change)
        # A client with the right to write changes it.
        (trees / "mine" / "file").write_bytes(b"changed")
        assert (point / "file").read_bytes() == b"changed"
        subprocess.run(["mount", "-i", "-o", "remount,rw", point], check=True, timeout=30)
        for change in changes_of(point):  # now the metaserver is what refuses
            refused(errno.EROFS, change)
    assert (trees / "mine" / "file").read_bytes() == b"changed"


def test_a_key_for_a_tree(cluster: Cluster, keys: Keys, trees: Path, localdir: Path) -> None:
    key = keys.make(trees / "mine")
    point = localdir / "mnt"
    for wrong in ("/", f"/{trees.name}/theirs"):
        said = refused_mount(cluster, wrong, key, point)
        assert f"is for :/{trees.name}/mine: mount HOST:/{trees.name}/mine" in said
    with mounted(cluster, trees / "mine", key, point):
        (point / "sub" / "new").write_bytes(BYTES)
        with (point / "sub" / "new").open("r+b") as file:
            file.seek(1_000_000)
            file.write(b"in the middle")
            os.fsync(file.fileno())
        seen = (trees / "mine" / "sub" / "new").read_bytes()
        assert seen == BYTES[:1_000_000] + b"in the middle" + BYTES[1_000_013:]
        for number in range(50):
            (point / f"small-{number}").write_bytes(b"%d" % number)
        (point / "small-0").rename(point / "sub" / "moved")
        (point / "small-1").unlink()
        assert (trees / "mine" / "sub" / "moved").read_bytes() == b"0"
        assert len(list((trees / "mine").iterdir())) == 50
    with mounted(cluster, trees / "mine" / "sub", key, point):  # a directory below is allowed too
        assert (point / "moved").read_bytes() == b"0"


def test_root_squash(cluster: Cluster, keys: Keys, trees: Path, localdir: Path) -> None:
    """Root of the client, who passes all checks of its kernel."""
    tree, point = trees / "mine", localdir / "mnt"
    (tree / "secret").write_bytes(b"root's")
    (tree / "secret").chmod(0o600)
    (tree / "shut").mkdir(mode=0o700)
    (tree / "private").write_bytes(b"a user's")
    (tree / "private").chmod(0o600)
    os.chown(tree / "private", 1000, 1000)
    with mounted(cluster, tree, keys.make(tree, "--squash-root"), point):
        assert (point / "file").read_bytes() == BYTES  # its mode is 0644
        (point / "made").write_bytes(BYTES)
        (point / "folder").mkdir()
        for name in ("made", "folder"):
            assert ((tree / name).stat().st_uid, (tree / name).stat().st_gid) == (65534, 65534)
        (point / "folder" / "deep").write_bytes(b"deep")
        for change in (
            lambda: (point / "secret").read_bytes(),
            lambda: (point / "file").open("r+b"),
            lambda: os.truncate(point / "file", 0),
            lambda: os.listdir(point / "shut"),
            lambda: (point / "shut" / "x").touch(),
        ):
            refused(errno.EACCES, change)
        for change in (
            lambda: os.chown(point / "made", 0, 0),
            lambda: (point / "secret").chmod(0o666),
            lambda: os.mknod(point / "dev", 0o020666, os.makedev(1, 3)),
            lambda: os.setxattr(point / "made", "trusted.a", b"v"),
        ):
            refused(errno.EPERM, change)
        as_user = ["sh", "-c", "cat private && echo more >> private && chmod 640 private"]
        ended = subprocess.run(
            as_user, cwd=point, user=1000, group=1000, check=True, capture_output=True, timeout=60
        )
        assert ended.stdout == b"a user's"
    assert (tree / "secret").read_bytes() == b"root's"
    assert (tree / "made").read_bytes() == BYTES
    assert (tree / "private").read_bytes() == b"a user'smore\n"


# ---- an attacker's program ----------------------------------------------------------------------


class Attacker:
    """Speaks the protocol by itself, with a client's key."""

    def __init__(self, cluster: Cluster, credential: Credential) -> None:
        self.metaserver = f"127.0.0.1:{cluster.plan.metaserver.port}"
        self.storage = f"127.0.0.1:{cluster.plan.storageservers[0].port}"
        self.credential = credential
        self.session = 0

    def connect(
        self, address: str, purpose: str, *, session: int = 0, secret: bytes = b"", key: int = -1
    ) -> contextlib.AbstractAsyncContextManager[Caller]:
        hello = HelloFields(
            purpose, "attacker", session=session, key=self.credential.id if key < 0 else key
        )
        secret = secret or self.credential.secret
        return open_caller(address, key=secret, hello=hello, timeout_s=SECONDS)

    async def shut_out(self, purpose: str, *, session: int, secret: bytes, key: int = -1) -> None:
        """The first storage server refuses the connection."""
        with pytest.raises(AuthenticationError):
            async with self.connect(self.storage, purpose, session=session, secret=secret, key=key):
                pass

    @contextlib.asynccontextmanager
    async def open_session(self) -> Any:
        async with self.connect(self.metaserver, "meta") as meta:
            while True:
                try:
                    asked = SessionOpen(0, "attacker", (), 0)
                    opened = await meta.call(Op.SESSION_OPEN, asked, SECONDS)
                    break
                except FsError as error:
                    assert error.status is Status.NOT_READY
                    await trio.sleep(0.1)
            self.session = opened.session
            yield meta
            await meta.call(Op.SESSION_CLOSE, Empty(), SECONDS)


async def answer(caller: Caller, op: Op, message: Any) -> Status:
    try:
        await caller.call(op, message, SECONDS)
    except FsError as error:
        return error.status
    return Status.OK


@pytest.mark.expects_log("could not prove")
def test_an_attacker_at_the_metaserver(
    cluster: Cluster, keys: Keys, trees: Path, localdir: Path
) -> None:
    attacker = Attacker(cluster, load_credential(keys.make(trees / "mine")))
    revoke = KeyRevoke(attacker.credential.id)
    outside = (trees / "theirs" / "file").stat().st_ino
    inside = (trees / "mine" / "file").stat().st_ino
    above = trees.stat().st_ino

    async def attack() -> None:
        async with attacker.open_session() as meta:
            assert await answer(meta, Op.GETATTR, GetAttr(inside)) is Status.OK
            for ino in (1, outside, above):
                assert await answer(meta, Op.GETATTR, GetAttr(ino)) is Status.ESTALE
                assert await answer(meta, Op.OPEN, Open(ino, writable=True)) is Status.ESTALE
            assert await answer(meta, Op.LOOKUP, Lookup(1, trees.name.encode())) is Status.ESTALE
            assert await answer(meta, Op.STATUS, Empty()) is Status.EPERM
        for purpose in ("admin", "server", "data"):
            async with attacker.connect(attacker.metaserver, purpose) as caller:
                assert await answer(caller, Op.STATUS, Empty()) is Status.EPERM
                assert await answer(caller, Op.KEY_REVOKE, revoke) is Status.EPERM
        for key, secret in (
            (0, attacker.credential.secret),  # it pretends to have the cluster key
            (attacker.credential.id + 1, attacker.credential.secret),
            (attacker.credential.id, bytes(32)),
        ):
            with pytest.raises(AuthenticationError):
                async with attacker.connect(attacker.metaserver, "meta", key=key, secret=secret):
                    pass

    trio.run(attack)
    lines = [line for line in audit_of(cluster) if "outcome=EPERM" in line]
    assert lines and all("op=KEY_REVOKE" in line and "by=attacker" in line for line in lines)
    assert f"key={trees.name}" in lines[-1] or "key=mine" in lines[-1]


def audit_of(cluster: Cluster) -> list[str]:
    text = (cluster.plan.state / "log" / "metaserver.log").read_text()
    return [line for line in text.splitlines() if " part=audit " in line]


@pytest.mark.expects_log("could not prove", "cut: refused a frame")
def test_an_attacker_at_a_storage_server(
    cluster: Cluster, keys: Keys, trees: Path, localdir: Path
) -> None:
    """The storage server accepts it for its own session only, and it can do what its capabilities
    allow."""
    attacker = Attacker(cluster, load_credential(keys.make(trees / "mine", "--read-only")))
    other = Attacker(cluster, load_credential(keys.make(trees / "theirs")))
    here = trees.name.encode()

    async def get_in(mine: int, secret: bytes) -> None:
        theirs, own = other.session, attacker.credential.secret
        await attacker.shut_out("data", session=mine, secret=own)
        await attacker.shut_out("data", session=theirs, secret=secret)
        await attacker.shut_out("data", session=0, secret=secret)
        await attacker.shut_out("server", session=mine, secret=secret)
        await attacker.shut_out("server", session=mine, secret=own, key=0)
        await attacker.shut_out("data", session=mine, secret=secret, key=0)

    async def attack() -> None:
        async with attacker.open_session() as meta, other.open_session() as theirs:
            grant: SessionGrant = await meta.call(Op.SESSION_GRANT, Empty(), SECONDS)
            mine, secret = attacker.session, grant.data_key
            await get_in(mine, secret)
            capability, place = await opened(meta, (here, b"mine"))
            stolen, _ = await opened(theirs, (here, b"theirs"))
            address = await address_of(meta, place.target)
            as_writer = bytearray(capability)
            as_writer[16] |= RIGHT_WRITE
            beside = place._replace(file_id=place.file_id + 1)
            async with attacker.connect(address, "data", session=mine, secret=secret) as storage:
                assert await touch(storage, Op.STAT, capability, place) is Status.OK
                for op, bad, where in (
                    (Op.PUNCH, capability, place),
                    (Op.PUNCH, bytes(as_writer), place),
                    (Op.STAT, stolen, place),
                    (Op.STAT, capability, beside),
                ):
                    assert await touch(storage, op, bad, where) is Status.BAD_CAPABILITY
                with pytest.raises(BraidError):  # the server answers BAD_REQUEST, or disconnects
                    await storage.exchange(
                        Op.DELETE, timeout_s=SECONDS, file_id=place.file_id, target=place.target
                    )

    trio.run(attack)
    assert (trees / "mine" / "file").read_bytes() == BYTES


class Place(NamedTuple):
    """Where an object is."""

    file_id: int
    target: int


async def opened(meta: Caller, names: tuple[bytes, ...]) -> tuple[bytes, Place]:
    """A capability to read `file` in that directory, and the place of its first object."""
    root: Entry = await meta.call(Op.MOUNT_ROOT, MountRoot(names), SECONDS)
    top = unpack_attributes(root.attributes).ino
    found: Entry = await meta.call(Op.LOOKUP, Lookup(top, b"file"), SECONDS)
    ino = unpack_attributes(found.attributes).ino
    reply: Opened = await meta.call(Op.OPEN, Open(ino, writable=False), SECONDS)
    layout = unpack_layout(reply.layout)
    return reply.capability, Place(layout.file_id, layout.targets[0])


async def address_of(meta: Caller, target: int) -> str:
    reply: ClusterMap = await meta.call(Op.CLUSTER_MAP, Empty(), SECONDS)
    return next(row.address for row in reply.targets if row.target == target)


async def touch(storage: Caller, op: Op, capability: bytes, place: Place) -> Status:
    try:
        await storage.exchange(
            op,
            timeout_s=SECONDS,
            flags=FLAG_CAPABILITY,
            body=capability,
            length=4096 if op is Op.PUNCH else 0,
            file_id=place.file_id,
            target=place.target,
        )
    except FsError as error:
        return error.status
    return Status.OK


# ---- revoked ------------------------------------------------------------------------------------


@pytest.mark.expects_warnings
@pytest.mark.expects_log(r"this mount is refused", "not durable|were lost|lost", "I/O|EIO|EACCES")
def test_revoked_while_it_writes(make_cluster: ClusterMaker, localdir: Path) -> None:
    cluster = make_cluster(storage_servers=1)
    keys = Keys(Cli(cluster), localdir)
    tree = cluster.mount_path / "mine"
    tree.mkdir()
    (tree / "read").write_bytes(BYTES)
    key = keys.make(tree)
    point = localdir / "mnt"
    with mounted(cluster, tree, key, point):
        seen: list[int] = []
        writer = threading.Thread(target=_write_until_refused, args=(point / "log", seen))
        with (point / "read").open("rb") as reader:
            assert reader.read(100) == BYTES[:100]
            writer.start()
            assert wait_until(lambda: (tree / "log").exists(), SECONDS)
            assert keys.revoke(key)["mounts"] == 1
            began = time.monotonic()
            writer.join(SECONDS)
            assert not writer.is_alive() and seen[0] in (errno.EACCES, errno.EIO)
            # The revoked client's write neither delays this one nor arrives later.
            with (tree / "log").open("ab") as ours:
                ours.write(b"ours")
            size = (tree / "log").stat().st_size
            for attempt in (
                lambda: os.listdir(point),
                lambda: (point / "new").mkdir(),
                lambda: os.pread(reader.fileno(), 100, 1_000_000),
            ):
                assert wait_until(lambda attempt=attempt: _fails(attempt), SECONDS)  # type: ignore[misc]
            # It takes less time than leases or requests need to expire.
            assert time.monotonic() - began < SECONDS
        assert (tree / "log").stat().st_size == size
        log = cluster.plan.state / "log" / "client-mnt.log"
        assert log.read_text().count("this mount is refused") == 1
        assert "was revoked at" in log.read_text()
        keys.make(tree).rename(key)  # the mount now uses the key in its key file
        assert wait_until(lambda: _can_list(point), SECONDS)
        (point / "new").write_bytes(b"written again")
        assert (tree / "new").read_bytes() == b"written again"
    assert keys.revoke(key)["mounts"] == 0
    assert "was revoked at" in refused_mount(cluster, "/mine", key, point)
    rows = keys.cli.json("key", "list", "--all")
    assert [(row["state"], row["sessions"]) for row in rows] == [("revoked", [])] * 2
    assert keys.cli.json("key", "list") == []


def _fails(attempt: Callable[[], Any]) -> bool:
    """The attempt fails; cached answers are used until the client learns that its key is
    refused."""
    try:
        attempt()
    except OSError as error:
        assert error.errno in (errno.EACCES, errno.EIO, errno.ESTALE)
        return True
    return False


def _can_list(point: Path) -> bool:
    try:
        return bool(os.listdir(point))
    except OSError:
        return False


def _write_until_refused(path: Path, seen: list[int]) -> None:
    end = time.monotonic() + 2 * SECONDS
    try:
        with path.open("wb", buffering=0) as file:
            while time.monotonic() < end:
                file.write(b"x" * 8192)
                os.fsync(file.fileno())
    except OSError as error:
        seen.append(error.errno or 0)


@pytest.mark.full
@pytest.mark.expects_warnings
def test_a_killed_metaserver(make_cluster: ClusterMaker, localdir: Path) -> None:
    """Operations that were answered to such a client are durable: it has nothing to replay."""
    cluster = make_cluster(storage_servers=1)
    keys = Keys(Cli(cluster), localdir)
    tree = cluster.mount_path / "mine"
    tree.mkdir()
    key = keys.make(tree)
    point = localdir / "mnt"
    script = "for i in $(seq 40); do echo $i > f$i; echo $i >> all; sleep 0.02; done"
    with mounted(cluster, tree, key, point):
        with subprocess.Popen(["sh", "-c", f"set -e; {script}"], cwd=point) as writer:
            assert wait_until(lambda: (tree / "f10").exists(), SECONDS)
            cluster.metaserver.kill()
            cluster.metaserver.start()
            assert writer.wait(2 * SECONDS) == 0
        expected = [b"%d\n" % number for number in range(1, 41)]
        assert (tree / "all").read_bytes() == b"".join(expected)
        assert [(tree / f"f{number}").read_bytes() for number in range(1, 41)] == expected
        log = (cluster.plan.state / "log" / "client-mnt.log").read_text()
        assert "connection to the metaserver lost" in log and "replay" not in log


@pytest.mark.expects_warnings
def test_its_lanes_make_files_and_none_is_lost(make_cluster: ClusterMaker, localdir: Path) -> None:
    """They use slots that the metaserver gave; after a kill, the metaserver gets proofs of these
    slots."""
    cluster = make_cluster(storage_servers=1)
    keys = Keys(Cli(cluster), localdir)
    tree = cluster.mount_path / "mine"
    tree.mkdir()
    key, point, port = keys.make(tree), localdir / "mnt", free_port()
    inside = f"/{tree.relative_to(cluster.mount_path)}"
    listen = {"metrics_listen": f"127.0.0.1:{port}"}
    with cluster.second_client(point, folder=inside, options=f"key_file={key}", settings=listen):
        folder = point / "folder"
        folder.mkdir()
        for number in range(1000):
            (folder / f"{number}").write_bytes(b"%d" % number)
            if number == 600:
                cluster.metaserver.kill()
                cluster.metaserver.start()
        assert native_counters(port)["births"] > 700
        fd = os.open(folder, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        seen = {int(one.name): one.read_bytes() for one in (tree / "folder").iterdir()}
        assert seen == {number: b"%d" % number for number in range(1000)}


# ---- key files and verbs ------------------------------------------------------------------------


def test_key_verbs(cluster: Cluster, keys: Keys, trees: Path, localdir: Path) -> None:
    cli, path = keys.cli, localdir / "gpu.key"
    words = ("--client", "gpu", "--tree", trees / "mine", "--read-only", "--expires", "30d")
    text = cli.text("key", "create", path, *words)
    assert f"of client gpu: reads :/{trees.name}/mine, until 20" in text
    assert path.stat().st_mode & 0o777 == 0o600
    assert cli.json("key", "check", path)["id"] == f"{load_credential(path).id:016x}"
    row = next(row for row in cli.json("key", "list") if row["client"] == "gpu")
    assert row["read_only"] and row["state"] == "good" and row["tree"] == f":/{trees.name}/mine"
    assert "in 30 d" in cli.text("key", "list")
    assert "File exists" in cli.run("key", "create", path, "--client", "x", code=2).stderr
    other = localdir / "other.key"
    assert "there is a key 'gpu'" in cli.run("key", "create", other, *words, code=1).stderr
    assert not other.exists()
    assert "need --client NAME" in cli.run("key", "create", other, "--read-only", code=2).stderr
    cli.run("key", "create", localdir / "no" / "x.key", "--client", "x", code=2)
    on_file = ("--client", "x", "--tree", trees / "mine" / "file")
    assert "no directory" in cli.run("key", "create", other, *on_file, code=1).stderr
    assert "mounting only" in cli.run("status", "-k", path, code=2).stderr
    assert "revoke it first" in cli.run("quota", "remove", "--tree", trees / "mine").stderr
    assert "gpu revoked" in cli.text("key", "revoke", "gpu")
    assert cli.run("key", "revoke", "gpu", code=2).stderr
    row = next(row for row in cli.json("key", "list", "--all") if row["client"] == "gpu")
    assert row["state"] == "revoked" and row["revoked_ns"]
    made = next(line for line in audit_of(cluster) if "name='gpu'" in line)
    assert "op=KEY_CREATE outcome=OK" in made and f"@{socket.gethostname()}" in made
    assert "op=KEY_REVOKE outcome=OK" in audit_of(cluster)[-1]


def test_a_part_of_a_limited_tree_needs_a_quota_of_its_own(keys: Keys, trees: Path) -> None:
    cli = keys.cli
    cli.run("quota", "set", "--tree", trees / "mine", "--bytes", "1G")
    words = ("--client", "part", "--tree", trees / "mine" / "sub")
    path = keys.folder / "part.key"
    assert "quota of a directory above" in cli.run("key", "create", path, *words, code=1).stderr
    cli.run("quota", "set", "--tree", trees / "mine" / "sub", "--bytes", "1M")
    cli.run("key", "create", path, *words)


def test_a_key_that_others_can_read_is_refused(
    cluster: Cluster, keys: Keys, trees: Path, localdir: Path
) -> None:
    key = keys.make(trees / "mine")
    key.chmod(0o640)
    assert "chmod 600" in refused_mount(cluster, "/", key, localdir / "mnt")
    key.chmod(0o600)
