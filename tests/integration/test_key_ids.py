"""Clients whose users have other ids in the cluster, and clients whose users are all one user.

There are real mounts beside one that has the cluster key, and a program that lies about its user;
tests/unit/metaserver/test_mapping.py covers every op.
"""

import errno
import os
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from fscommon.auth.key import load_credential
from fscommon.errors import Status
from fscommon.layout.attributes import unpack_attributes
from fscommon.wire.messages import SET_UID, Caller, Create, GetAttr, MkDir, Open, SetAttr
from fscommon.wire.ops import Op
from tests.cluster.cluster import Cluster

from .test_keys import SECONDS, Attacker, Keys, answer, made_and_revoked, mounted, refused

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]
MAP = ("--map-uid", "1000-1999:21000", "--map-gid", "100:500", "--map-gid", "1000-1999:21000")
# Ids in the cluster: the first is user 1005 of the client, the second another user.
OURS, THEIRS = (21005, 500), (1005, 100)
ACCESS = "system.posix_acl_access"


@pytest.fixture
def keys(cluster: Cluster, localdir: Path) -> Iterator[Keys]:
    yield from made_and_revoked(cluster, localdir)


@pytest.fixture
def tree(workdir: Path) -> Path:
    """A directory that every user may write, with one private file of each of two users."""
    workdir.chmod(0o755)
    tree = workdir / "mapped"
    tree.mkdir()
    tree.chmod(0o777)
    for name, owner in (("ours", OURS), ("theirs", THEIRS)):
        (tree / name).write_text(name)
        (tree / name).chmod(0o600)
        os.chown(tree / name, *owner)
    return tree


def run(place: Path, uid: int, gid: int, script: str, *words: object) -> str:
    """The output of a Python program that runs there as this user, who is in no other group."""
    ended = subprocess.run(
        [sys.executable, "-c", f"import os, sys\n{script}", *map(str, words)],
        cwd=place,
        user=uid,
        group=gid,
        extra_groups=[],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def tried(place: Path, uid: int, gid: int, expression: str) -> str:
    """The value of an expression that this user evaluates there, or the name of an errno."""
    script = (
        "import errno\ntry: print(eval(sys.argv[1]))\n"
        "except OSError as error: print(errno.errorcode[error.errno])"
    )
    return run(place, uid, gid, script, expression)


def owner(path: Path) -> tuple[int, int]:
    seen = path.lstat()
    return seen.st_uid, seen.st_gid


MAKE_ALL = """
os.umask(0o022)
os.mkdir('d'); os.symlink('to', 'd/link'); os.mkfifo('d/fifo')
for n in range(40): open(f'd/{n}', 'w').write('x' * n)
open('d/large', 'wb').write(bytes(3_000_000))
os.link('d/large', 'd/again'); os.rename('d/0', 'd/moved')
"""


def test_what_users_make_and_see(cluster: Cluster, keys: Keys, tree: Path, localdir: Path) -> None:
    point = localdir / "mnt"
    with mounted(cluster, tree, keys.make(tree, *MAP), point):
        run(point, 1005, 100, MAKE_ALL)
        for place, wanted in ((point, (1005, 100)), (tree, OURS)):
            names = [place / "d", *(place / "d").iterdir()]
            assert len(names) == 45 and {owner(name) for name in names} == {wanted}
        assert owner(point / "ours") == (1005, 100) and owner(point / "theirs") == (65534, 65534)
        assert tried(point, 1005, 100, "open('ours').read()") == "ours"
        assert tried(point, 1006, 100, "open('ours').read()") == "EACCES"
        for uid in (
            0,
            1005,
            65534,
        ):  # the client's kernel does not check root, but the metaserver does
            assert tried(point, uid, 100, "open('theirs').read()") == "EACCES"
        run(point, 0, 0, "open('of-root', 'w')")
        assert owner(tree / "of-root") == (65534, 65534) == owner(point / "of-root")


def test_changing_owners(cluster: Cluster, keys: Keys, tree: Path, localdir: Path) -> None:
    point = localdir / "mnt"
    with mounted(cluster, tree, keys.make(tree, *MAP), point):
        os.chown(point / "ours", 1006, 1001)
        assert owner(point / "ours") == (1006, 1001) and owner(tree / "ours") == (21006, 21001)
        for wanted in ((0, -1), (21007, -1), (-1, 0), (-1, 500)):
            refused(errno.EINVAL, lambda wanted=wanted: os.chown(point / "ours", *wanted))  # type: ignore[misc]
        refused(errno.EPERM, lambda: os.chown(point / "theirs", 1006, -1))
        refused(errno.EPERM, lambda: (point / "theirs").chmod(0o666))
        assert tried(point, 1007, 100, "os.chown('ours', 1007, -1)") == "EPERM"
        # Another client changes the owner while this one has it cached.
        os.chown(tree / "ours", 21010, 500)
        assert owner(point / "ours") == (1010, 100)
        assert tried(point, 1010, 100, "open('ours').read()") == "ours"
        (point / "ours").chmod(0o640)
        assert stat.S_IMODE((tree / "ours").stat().st_mode) == 0o640


def acl_with(*named: tuple[int, int, int]) -> bytes:
    """An ACL: rw- for the owner, and (tag, permissions, id) of others, within a mask of rwx."""
    nobody = 0xFFFFFFFF
    entries = sorted([(1, 6, nobody), (4, 0, nobody), (16, 7, nobody), (32, 0, nobody), *named])
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def test_acls_of_both(cluster: Cluster, keys: Keys, tree: Path, localdir: Path) -> None:
    point = localdir / "mnt"
    with mounted(cluster, tree, keys.make(tree, *MAP), point):
        os.setxattr(point / "ours", ACCESS, acl_with((2, 4, 1006), (8, 4, 1050)))
        assert os.getxattr(tree / "ours", ACCESS) == acl_with((2, 4, 21006), (8, 4, 21050))
        assert os.getxattr(point / "ours", ACCESS) == acl_with((2, 4, 1006), (8, 4, 1050))
        for place, shift in ((point, 0), (tree, 20_000)):
            assert tried(place, 1006 + shift, 7777, "open('ours').read()") == "ours"
            assert tried(place, 1008 + shift, 1050 + shift, "open('ours').read()") == "ours"
            assert tried(place, 1008 + shift, 7777, "open('ours').read()") == "EACCES"
        os.setxattr(tree / "ours", ACCESS, acl_with((2, 6, 21006), (2, 6, 4444)))
        assert os.getxattr(point / "ours", ACCESS) == acl_with((2, 6, 1006))
        refused(errno.EINVAL, lambda: os.setxattr(point / "ours", ACCESS, acl_with((2, 4, 4444))))


FILL = "f = open(sys.argv[1], 'wb'); f.write(bytes(1_500_000)); f.flush(); os.fsync(f.fileno())"


def test_quotas_are_of_the_clusters_users(
    cluster: Cluster, keys: Keys, tree: Path, localdir: Path
) -> None:
    point = localdir / "mnt"
    keys.cli.json("quota", "set", "--user", 21005, "--bytes", "1M")
    try:
        with mounted(cluster, tree, keys.make(tree, *MAP), point):
            script = f"try:\n  {FILL}\nexcept OSError as error: print(error.errno)"
            assert run(point, 1005, 100, script, "too-much") == str(errno.EDQUOT)
            run(point, 1006, 100, FILL, "enough")
            # This is user 1005 of the cluster, who has no limit.
            run(tree, 1005, 100, FILL, "another's")
            row = next(row for row in keys.cli.json("quota", "list") if row["number"] == 21005)
            assert 0 < row["bytes"] <= 1 << 20
    finally:
        keys.cli.json("quota", "remove", "--user", 21005)


CHANGE = """
open(sys.argv[1], 'a').write('y')
os.chmod(sys.argv[1], 0o640); os.utime(sys.argv[1], (1, 1)); os.chown(sys.argv[1], 7, 7)
"""


def test_where_all_are_one(cluster: Cluster, keys: Keys, tree: Path, localdir: Path) -> None:
    """The client's kernel would refuse users access to files of others, so it must not check rights
    here."""
    point, key = localdir / "mnt", keys.make(tree, "--squash-all", "21005:500")
    with mounted(cluster, tree, key, point):
        for uid in (0, 1234, 4321):
            name = f"made-{uid}"
            run(point, uid, uid, "os.umask(0o077); open(sys.argv[1], 'w').write('x')", name)
            assert owner(tree / name) == OURS == owner(point / name)
            run(point, 4321, 4321, CHANGE, name)
            assert (tree / name).read_text() == "xy" and owner(tree / name) == OURS
            assert tried(point, uid, uid, "open('ours').read()") == "ours"
            assert tried(point, uid, uid, "open('theirs').read()") == "EACCES"
            assert tried(point, uid, uid, "open('theirs', 'a')") == "EACCES"
            assert tried(point, uid, uid, "os.chmod('theirs', 0o666)") == "EPERM"
            assert tried(point, uid, uid, "os.setxattr('ours', 'security.x', b'1')") == "EPERM"
        (tree / "shut").mkdir(mode=0o700)
        (tree / "shut" / "file").write_text("inside")
        assert tried(point, 1234, 1234, "os.listdir('shut')") == "EACCES"
        assert tried(point, 1234, 1234, "open('shut/file').read()") == "EACCES"
        assert tried(point, 1234, 1234, "os.unlink('shut/file')") == "EACCES"
        (tree / "theirs").chmod(0o644)
        assert tried(point, 1234, 1234, "open('theirs').read()") == "theirs"
    assert (tree / "theirs").read_text() == "theirs"


def test_an_attackers_program(cluster: Cluster, keys: Keys, tree: Path) -> None:
    """The program has the key of a mapped client and sends any ids it likes."""
    attacker = Attacker(cluster, load_credential(keys.make(tree, *MAP)))
    top, theirs = tree.stat().st_ino, (tree / "theirs").stat().st_ino

    async def attack() -> None:
        async with attacker.open_session() as meta:
            for number, caller in enumerate(
                (
                    Caller(0, 0, 0),
                    Caller(1005_0, 0, 0),
                    Caller(21005, 500, 0, (0, 5, 500)),
                    Caller(2**32 - 1, 2**32 - 1, 0),
                    Caller(65534, 65534, 0),
                )
            ):
                made = await meta.call(
                    Op.MKDIR, MkDir(top, b"by-%d" % number, 0o777, caller), SECONDS
                )
                seen = unpack_attributes(made.attributes)
                assert (seen.uid, seen.gid) == (65534, 65534)
            for uid in (0, 1005, 21005):
                lie = Create(top, b"theirs", 0o666, False, True, Caller(uid, 100, 0))
                assert await answer(meta, Op.CREATE, lie) is Status.EACCES
                give = SetAttr(theirs, SET_UID, 0, uid, 0, 0, 0, 0, 0, 0, 0)
                assert await answer(meta, Op.SETATTR, give) in (Status.EPERM, Status.EINVAL)
            assert await answer(meta, Op.OPEN, Open(theirs, writable=False)) is Status.EACCES
            entry: Any = await meta.call(Op.GETATTR, GetAttr(theirs), SECONDS)
            assert unpack_attributes(entry.attributes).uid == 65534

    trio.run(attack)
    made = [tree / f"by-{number}" for number in range(5)]
    assert {owner(path) for path in made} == {(65534, 65534)}
    assert owner(tree / "theirs") == THEIRS
    for path in made:
        path.rmdir()


def test_a_map_in_the_command_line(
    cluster: Cluster, keys: Keys, tree: Path, localdir: Path
) -> None:
    keys.make(tree, *MAP)
    row = next(row for row in keys.cli.json("key", "list") if row["client"] == "mapped-1")
    assert row["map_uid"] == ["1000-1999:21000"] and row["squash_all"] is None
    assert row["map_gid"] == ["100:500", "1000-1999:21000"]
    shown = keys.cli.run("key", "list").stdout
    assert "ids mapped" in shown
    assert "mapped-1: users 1000-1999:21000; groups 100:500, 1000-1999:21000" in shown
    new = localdir / "new"
    refusals: tuple[tuple[tuple[str, ...], str], ...] = (
        (("--map-uid", "5"), "1000-1999:21000"),
        (("--map-uid", "9-5:1"), "ends before it begins"),
        (("--map-uid", "1-5:1-4"), "different lengths"),
        (("--squash-all", "5"), "is not UID:GID"),
    )
    for words, said in refusals:
        ended = keys.cli.run("key", "create", new, "--client", "x", *words, code=2)
        assert said in ended.stderr
    refusals = (
        (("--map-uid", "0-65535:100000"), "65534 is nobody"),
        (("--map-uid", "1:5", "--map-uid", "2:5"), "in common"),
        (("--squash-all", "0:0"), "neither of which is root's"),
        (("--map-uid", "0:0", "--squash-root"), "one of both"),
    )
    for words, said in refusals:
        ended = keys.cli.run("key", "create", new, "--client", "x", *words, code=1)
        assert said in ended.stderr
    ended = keys.cli.run("key", "create", new, "--map-uid", "1:2", code=2)
    assert "--client" in ended.stderr and not new.exists()
