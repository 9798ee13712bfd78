"""Extended attributes of all four namespaces, and POSIX ACLs by setfacl and getfacl."""

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuse.test_attributes import GROUP, USER, run_as

pytestmark = pytest.mark.mount


def _errno(call: Callable[..., object], *arguments: object) -> int | None:
    with pytest.raises(OSError) as caught:
        call(*arguments)
    return caught.value.errno


def _facl(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout


@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("name", ["user.a", "trusted.b", "security.c"])
def test_set_get_list_remove(workdir: Path, kind: str, name: str) -> None:
    path = workdir / kind
    path.mkdir() if kind == "folder" else path.touch()
    value = bytes(range(256))
    os.setxattr(path, name, value)
    assert os.getxattr(path, name) == value
    assert os.listxattr(path) == [name]
    os.setxattr(path, name, b"")
    assert os.getxattr(path, name) == b""
    os.removexattr(path, name)
    assert os.listxattr(path) == []
    assert _errno(os.getxattr, path, name) == errno.ENODATA
    assert _errno(os.removexattr, path, name) == errno.ENODATA


def test_create_and_replace_flags(workdir: Path) -> None:
    path = workdir / "file"
    path.touch()
    assert _errno(os.setxattr, path, "user.a", b"1", os.XATTR_REPLACE) == errno.ENODATA
    os.setxattr(path, "user.a", b"1", os.XATTR_CREATE)
    assert _errno(os.setxattr, path, "user.a", b"2", os.XATTR_CREATE) == errno.EEXIST
    os.setxattr(path, "user.a", b"3", os.XATTR_REPLACE)
    assert os.getxattr(path, "user.a") == b"3"


def test_many_attributes(workdir: Path) -> None:
    path = workdir / "file"
    path.touch()
    wanted = {f"user.name-{number}": b"%d" % number * 10 for number in range(50)}
    for name, value in wanted.items():
        os.setxattr(path, name, value)
    assert {name: os.getxattr(path, name) for name in os.listxattr(path)} == wanted


def test_limits(workdir: Path) -> None:
    path = workdir / "file"
    path.touch()
    os.setxattr(path, "user." + "n" * 250, b"x" * 2000)
    assert os.getxattr(path, "user." + "n" * 250) == b"x" * 2000
    assert _errno(os.setxattr, path, "user." + "n" * 251, b"x") in (
        errno.ERANGE,
        errno.ENAMETOOLONG,
    )
    assert _errno(os.setxattr, path, "user.big", b"x" * 65537) in (errno.E2BIG, errno.ENOSPC)


def test_large_value(workdir: Path) -> None:
    if "BRAIDFS_TEST_DIR" in os.environ:
        pytest.skip("ext4 keeps at most one block")
    path = workdir / "file"
    path.touch()
    os.setxattr(path, "user.big", b"v" * 65536)
    assert os.getxattr(path, "user.big") == b"v" * 65536


def test_attributes_survive_rename_and_go_with_the_file(workdir: Path) -> None:
    (workdir / "a").touch()
    os.setxattr(workdir / "a", "user.k", b"v")
    (workdir / "a").rename(workdir / "b")
    assert os.getxattr(workdir / "b", "user.k") == b"v"
    (workdir / "b").unlink()
    (workdir / "b").touch()
    assert os.listxattr(workdir / "b") == []


def test_user_attributes_of_symlinks_are_refused(workdir: Path) -> None:
    (workdir / "link").symlink_to("x")
    assert _errno(lambda: os.setxattr(workdir / "link", "user.a", b"1", follow_symlinks=False)) == (
        errno.EPERM
    )
    os.setxattr(workdir / "link", "trusted.a", b"1", follow_symlinks=False)
    assert os.getxattr(workdir / "link", "trusted.a", follow_symlinks=False) == b"1"


def test_trusted_attributes_are_roots_alone(workdir: Path) -> None:
    path = workdir / "file"
    path.touch()
    os.setxattr(path, "trusted.a", b"1")
    path.chmod(0o666)

    def body() -> None:
        assert _errno(os.setxattr, path, "trusted.b", b"1") == errno.EPERM
        os.setxattr(path, "user.mine", b"1")

    run_as(body)


def test_unknown_namespace(workdir: Path) -> None:
    (workdir / "file").touch()
    assert _errno(os.setxattr, workdir / "file", "nonsense.x", b"1") in (
        errno.EOPNOTSUPP,
        errno.EINVAL,
    )


def test_acl_gives_and_takes_rights(workdir: Path) -> None:
    path = workdir / "file"
    path.write_bytes(b"acl")
    path.chmod(0o600)
    run_as(lambda: _refused(path))
    _facl("setfacl", "-m", f"u:{USER}:r--", str(path))
    run_as(lambda: _readable(path))
    assert f"user:{USER}:r--" in _facl("getfacl", "-n", "-p", str(path))
    assert path.stat().st_mode & 0o070 == 0o040  # the mask appears as the group's bits
    path.chmod(0o600)
    run_as(lambda: _refused(path))
    _facl("setfacl", "-b", str(path))
    assert f"user:{USER}" not in _facl("getfacl", "-n", "-p", str(path))


def _readable(path: Path) -> None:
    path.read_bytes()


def _refused(path: Path) -> None:
    assert _errno(path.read_bytes) == errno.EACCES


def test_acl_of_a_group(workdir: Path) -> None:
    path = workdir / "file"
    path.write_bytes(b"acl")
    path.chmod(0o600)
    _facl("setfacl", "-m", "g:40001:rw-", str(path))
    run_as(lambda: _readable(path), groups=(40_000, 40_001))
    run_as(lambda: _refused(path), groups=(40_000,))


def test_default_acl_is_inherited(workdir: Path) -> None:
    folder = workdir / "folder"
    folder.mkdir()
    _facl("setfacl", "-d", "-m", f"u:{USER}:rwx,g:{GROUP}:r-x", str(folder))
    (folder / "file").write_bytes(b"x")
    (folder / "below").mkdir()
    assert f"user:{USER}:rwx" in _facl("getfacl", "-n", "-p", str(folder / "file"))
    below = _facl("getfacl", "-n", "-p", str(folder / "below"))
    assert f"default:user:{USER}:rwx" in below and f"\nuser:{USER}:rwx" in below
    _facl("setfacl", "-k", str(folder))
    assert "default:" not in _facl("getfacl", "-n", "-p", str(folder))


def test_default_acl_replaces_the_umask(workdir: Path) -> None:
    folder = workdir / "folder"
    folder.mkdir()
    _facl("setfacl", "-d", "-m", "u::rwx,g::rwx,o::---", str(folder))
    before = os.umask(0o077)
    try:
        os.close(os.open(folder / "file", os.O_CREAT | os.O_WRONLY, 0o666))
    finally:
        os.umask(before)
    assert (folder / "file").stat().st_mode & 0o777 == 0o660


def test_acl_survives_copying(workdir: Path) -> None:
    (workdir / "a").write_bytes(b"x")
    _facl("setfacl", "-m", f"u:{USER}:rwx", str(workdir / "a"))
    subprocess.run(["cp", "-a", str(workdir / "a"), str(workdir / "b")], check=True, timeout=60)
    assert f"user:{USER}:rwx" in _facl("getfacl", "-n", "-p", str(workdir / "b"))
