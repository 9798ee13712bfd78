"""Idmapped mounts of a mount with the option `idmap`, and of one without it (Linux 6.12)."""

import errno
import os
import platform
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.idmapped import idmapped
from tests.fuse.test_attributes import run_as
from tests.fuse.test_quotas import quota_of
from tests.integration.test_cli import Cli
from tests.integration.test_keys import Keys, refused_mount

pytestmark = [pytest.mark.mount, pytest.mark.timeout(120)]

FIRST = 100_000


class Ids(TypedDict, total=False):
    """Who a process is to be, for run_as()."""

    uid: int
    gid: int
    groups: tuple[int, ...]


UID, GID = 1000, 100  # these are the ids in the file system
OWNER: Ids = {"uid": FIRST + UID, "gid": FIRST + GID}  # these are the ids on the idmapped mount
SUPERUSER: Ids = {"uid": 0, "gid": 0}
HAS_IDMAP = tuple(map(int, platform.release().split(".")[:2])) >= (6, 12)


@dataclass(frozen=True)
class Two:
    """One folder: on the mount itself, and on an idmapped mount of it."""

    plain: Path
    mapped: Path


@pytest.fixture
def two(cluster: Cluster, workdir: Path, localdir: Path) -> Iterator[Two]:
    if not HAS_IDMAP:
        pytest.skip("needs Linux 6.12")
    workdir.chmod(0o777)
    localdir.chmod(0o755)
    with cluster.second_client(localdir / "mnt", options="idmap") as point:
        plain = point / workdir.relative_to(cluster.mount_path)
        with idmapped(plain, localdir / "mapped", FIRST) as mapped:
            yield Two(plain, mapped)


def _ids(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_uid, found.st_gid


def _refused(call: Callable[..., object], *arguments: object) -> int | None:
    with pytest.raises(OSError) as caught:
        call(*arguments)
    return caught.value.errno


def _make_each(folder: Path) -> None:
    (folder / "file").touch()
    (folder / "folder").mkdir()
    (folder / "symlink").symlink_to("file")
    os.mkfifo(folder / "fifo")
    fd = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    assert (os.fstat(fd).st_uid, os.fstat(fd).st_gid) == (os.getuid(), os.getgid())
    os.close(fd)
    os.link(folder / "file", folder / "linked")


def test_what_is_made_belongs_to_the_mapped_user(two: Two) -> None:
    run_as(lambda: _make_each(two.mapped), **OWNER)
    for name in ("file", "folder", "symlink", "fifo", "linked"):
        assert _ids(two.plain / name) == (UID, GID), name
        assert _ids(two.mapped / name) == (FIRST + UID, FIRST + GID), name


def test_what_lanes_make_belongs_to_the_mapped_user(
    cluster: Cluster, two: Two, workdir: Path
) -> None:
    def many() -> None:
        for number in range(300):
            (two.mapped / "many" / f"{number}").write_bytes(b"x")

    run_as(lambda: (two.mapped / "many").mkdir(), **OWNER)
    run_as(many, **OWNER)
    run_as(lambda: (two.plain / "many" / "of root").touch(), uid=0, gid=0)
    seen = {_ids(path) for path in (workdir / "many").iterdir() if path.name != "of root"}
    assert seen == {(UID, GID)}, "to another client, too"
    assert _ids(workdir / "many" / "of root") == (0, 0)


def test_who_is_not_mapped_makes_nothing(two: Two) -> None:
    run_as(lambda: _check(_refused((two.mapped / "x").touch) == errno.EOVERFLOW), uid=UID, gid=GID)
    assert not (two.plain / "x").exists()


def _check(is_so: bool) -> None:
    assert is_so


def test_owners_are_mapped(two: Two) -> None:
    path = two.mapped / "file"
    (two.plain / "file").touch()
    os.chown(two.plain / "file", UID, GID)
    os.chown(path, FIRST + 7, FIRST + 8)
    assert (_ids(two.plain / "file"), _ids(path)) == ((7, 8), (FIRST + 7, FIRST + 8))
    assert _refused(os.chown, path, 5, 5) == errno.EOVERFLOW
    run_as(lambda: _check(_refused(os.chown, path, FIRST + 9, -1) == errno.EPERM), **OWNER)


def test_rights_are_those_of_the_mapped_user(two: Two) -> None:
    path = two.mapped / "file"
    (two.plain / "file").write_bytes(b"secret")
    os.chown(two.plain / "file", UID, GID)
    (two.plain / "file").chmod(0o600)
    run_as(lambda: _check(path.read_bytes() == b"secret"), **OWNER)
    run_as(lambda: path.chmod(0o640), **OWNER)
    run_as(lambda: _check(_refused(path.read_bytes) == errno.EACCES), uid=UID, gid=GID)
    run_as(lambda: _check(_refused(path.chmod, 0o666) == errno.EPERM), uid=UID, gid=GID)
    run_as(lambda: _check((two.plain / "file").read_bytes() == b"secret"), uid=UID, gid=GID)
    in_group: Ids = {"uid": FIRST + 1, "gid": FIRST + 1, "groups": (FIRST + GID,)}
    run_as(lambda: _check(path.read_bytes() == b"secret"), **in_group)


def _write(path: Path) -> None:
    with path.open("r+b", buffering=0) as file:
        file.write(b"written")


def _reserve(path: Path) -> None:
    with path.open("r+b", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, 8192)


def _copy(path: Path) -> None:
    with path.open("r+b", buffering=0) as file, (path.parent / "source").open("rb") as source:
        assert os.copy_file_range(source.fileno(), file.fileno(), 4096) == 4096


@pytest.mark.parametrize("way", [_write, _reserve, _copy, lambda path: os.truncate(path, 3)])
def test_set_ids_go_with_what_others_than_root_write(two: Two, way: Callable[[Path], None]) -> None:
    path = two.mapped / "file"
    (two.plain / "source").write_bytes(bytes(4096))
    (two.plain / "source").chmod(0o644)
    (two.plain / "file").write_bytes(b"program")
    for ids, left in ((OWNER, 0o777), (SUPERUSER, 0o6777)):
        os.chown(two.plain / "file", UID, GID)
        (two.plain / "file").chmod(0o6777)
        run_as(lambda: way(path), **ids)
        assert stat.S_IMODE((two.plain / "file").stat().st_mode) == left


def test_the_group_of_a_set_group_id_folder(two: Two) -> None:
    (two.plain / "folder").mkdir()
    os.chown(two.plain / "folder", UID, 200)
    (two.plain / "folder").chmod(0o2777)
    run_as(lambda: (two.mapped / "folder" / "file").touch(), **OWNER)
    assert _ids(two.plain / "folder" / "file") == (UID, 200)


def test_xattrs_of_root_are_listed_to_root(two: Two) -> None:
    (two.plain / "file").touch()
    os.setxattr(two.plain / "file", "trusted.hidden", b"x")
    os.setxattr(two.plain / "file", "user.shown", b"x")
    assert set(os.listxattr(two.plain / "file")) == {"trusted.hidden", "user.shown"}
    (two.plain / "file").chmod(0o666)
    run_as(lambda: _check(os.listxattr(two.mapped / "file") == ["user.shown"]), **OWNER)


def test_quotas_are_of_the_file_systems_user(cluster: Cluster, two: Two) -> None:
    quota = quota_of(cluster)
    run_as(lambda: (two.mapped / "mine").mkdir(), **OWNER)
    quota("set", "--user", UID, "--inodes", 5)
    try:

        def make_too_many() -> None:
            for number in range(50):
                (two.mapped / "mine" / f"{number}").touch()

        run_as(lambda: _check(_refused(make_too_many) == errno.EDQUOT), **OWNER)
        assert len(list((two.plain / "mine").iterdir())) <= 5
    finally:
        quota("remove", "--user", UID)


def test_without_the_option_it_is_refused(workdir: Path, localdir: Path) -> None:
    with pytest.raises(OSError) as caught, idmapped(workdir, localdir / "mapped", FIRST):
        pass
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize("words", [["--squash-root"], ["--map-uid", "1000-1009:21000"]])
def test_not_for_keys_that_know_users(
    cluster: Cluster, workdir: Path, localdir: Path, words: list[str]
) -> None:
    keys = Keys(Cli(cluster), localdir)
    (workdir / "mine").mkdir()
    key = keys.make(workdir / "mine", *words)
    folder = f"/{(workdir / 'mine').relative_to(cluster.mount_path)}"
    said = refused_mount(cluster, folder, key, localdir / "mnt", "idmap")
    assert "the mount option 'idmap' is not for a key that squashes or maps users" in said
    keys.revoke(key)
