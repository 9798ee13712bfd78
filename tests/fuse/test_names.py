"""Names and links: rename in all its forms, hard links, unlinked open files, long and odd names."""

import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.mount

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
RENAME_WHITEOUT = 4
_libc = ctypes.CDLL(None, use_errno=True)


def _rename2(old: Path, new: Path, flags: int) -> int:
    """renameat2(2): 0, or the errno."""
    at_cwd = -100
    result = _libc.renameat2(at_cwd, os.fsencode(old), at_cwd, os.fsencode(new), flags)
    return 0 if result == 0 else ctypes.get_errno()


def _errno(call: Callable[..., object], *arguments: object) -> int | None:
    with pytest.raises(OSError) as caught:
        call(*arguments)
    return caught.value.errno


def test_rename_replaces(workdir: Path) -> None:
    (workdir / "a").write_bytes(b"new")
    (workdir / "b").write_bytes(b"old")
    with (workdir / "b").open("rb") as old:
        (workdir / "a").rename(workdir / "b")
        assert old.read() == b"old"
    assert (workdir / "b").read_bytes() == b"new"
    assert os.listdir(workdir) == ["b"]


def test_rename_onto_itself_and_onto_a_hard_link(workdir: Path) -> None:
    (workdir / "a").write_bytes(b"x")
    (workdir / "a").rename(workdir / "a")
    os.link(workdir / "a", workdir / "b")
    (workdir / "a").rename(workdir / "b")  # POSIX: both names stay
    assert sorted(os.listdir(workdir)) == ["a", "b"]


def test_rename_flags(workdir: Path) -> None:
    (workdir / "a").write_bytes(b"a")
    (workdir / "b").write_bytes(b"b")
    assert _rename2(workdir / "a", workdir / "b", RENAME_NOREPLACE) == errno.EEXIST
    assert _rename2(workdir / "a", workdir / "c", RENAME_NOREPLACE) == 0
    assert _rename2(workdir / "c", workdir / "b", RENAME_EXCHANGE) == 0
    assert (workdir / "c").read_bytes() == b"b"
    assert (workdir / "b").read_bytes() == b"a"
    assert _rename2(workdir / "b", workdir / "none", RENAME_EXCHANGE) == errno.ENOENT
    assert (
        _rename2(workdir / "b", workdir / "c", RENAME_EXCHANGE | RENAME_NOREPLACE) == errno.EINVAL
    )


def test_exchange_of_a_file_and_a_folder(workdir: Path) -> None:
    (workdir / "file").write_bytes(b"f")
    (workdir / "folder" / "below").mkdir(parents=True)
    (workdir / "other").mkdir()
    before = workdir.stat().st_nlink, (workdir / "other").stat().st_nlink
    assert _rename2(workdir / "folder", workdir / "other" / "x", RENAME_EXCHANGE) == errno.ENOENT
    (workdir / "other" / "x").write_bytes(b"x")
    assert _rename2(workdir / "folder", workdir / "other" / "x", RENAME_EXCHANGE) == 0
    assert (workdir / "folder").read_bytes() == b"x"
    assert (workdir / "other" / "x" / "below").is_dir()
    assert (workdir / "other" / "x" / "..").stat().st_ino == (workdir / "other").stat().st_ino
    after = workdir.stat().st_nlink, (workdir / "other").stat().st_nlink
    # The value from before is for file systems that always report 1.
    assert after in {(before[0] - 1, before[1] + 1), before}


def test_rename_of_folders(workdir: Path) -> None:
    (workdir / "a" / "b").mkdir(parents=True)
    (workdir / "a" / "b" / "file").write_bytes(b"deep")
    (workdir / "full").mkdir()
    (workdir / "full" / "x").touch()
    (workdir / "empty").mkdir()
    (workdir / "file").touch()
    assert _errno(os.rename, workdir / "a", workdir / "a" / "b" / "c") == errno.EINVAL
    assert _errno(os.rename, workdir / "a", workdir / "full") in (errno.ENOTEMPTY, errno.EEXIST)
    assert _errno(os.rename, workdir / "a", workdir / "file") == errno.ENOTDIR
    assert _errno(os.rename, workdir / "file", workdir / "empty") == errno.EISDIR
    (workdir / "a").rename(workdir / "empty")
    assert (workdir / "empty" / "b" / "file").read_bytes() == b"deep"
    (workdir / "empty" / "b").rename(workdir / "top")
    assert (workdir / "top" / "..").stat().st_ino == workdir.stat().st_ino


def test_rename_of_a_missing_name(workdir: Path) -> None:
    assert _errno(os.rename, workdir / "none", workdir / "b") == errno.ENOENT
    (workdir / "a").touch()
    assert _errno(os.rename, workdir / "a", workdir / "none" / "b") == errno.ENOENT


def test_hard_links(workdir: Path) -> None:
    (workdir / "a").write_bytes(b"shared")
    os.link(workdir / "a", workdir / "b")
    assert (workdir / "a").stat().st_nlink == 2
    assert (workdir / "a").stat().st_ino == (workdir / "b").stat().st_ino
    with (workdir / "b").open("ab") as file:
        file.write(b"!")
    assert (workdir / "a").read_bytes() == b"shared!"
    (workdir / "a").unlink()
    assert (workdir / "b").stat().st_nlink == 1
    assert (workdir / "b").read_bytes() == b"shared!"


def test_hard_link_refusals(workdir: Path) -> None:
    (workdir / "a").touch()
    (workdir / "folder").mkdir()
    assert _errno(os.link, workdir / "a", workdir / "folder") == errno.EEXIST
    assert _errno(os.link, workdir / "folder", workdir / "x") == errno.EPERM
    assert _errno(os.link, workdir / "none", workdir / "x") == errno.ENOENT


def test_hard_link_of_a_symlink_is_of_the_symlink(workdir: Path) -> None:
    (workdir / "link").symlink_to("gone")
    os.link(workdir / "link", workdir / "other", follow_symlinks=False)
    assert os.readlink(workdir / "other") == "gone"
    assert (workdir / "link").lstat().st_nlink == 2


def test_unlinked_open_file_lives_until_closed(workdir: Path) -> None:
    with (workdir / "file").open("w+b", buffering=0) as file:
        file.write(b"a" * 3_000_000)
        (workdir / "file").unlink()
        assert os.listdir(workdir) == []
        assert os.fstat(file.fileno()).st_nlink == 0
        file.write(b"b")
        os.ftruncate(file.fileno(), 3_000_010)
        assert os.pread(file.fileno(), 20, 2_999_999) == b"ab" + bytes(9)
        os.fchmod(file.fileno(), 0o600)
        assert os.fstat(file.fileno()).st_size == 3_000_010


def test_unlinked_open_file_and_a_new_one_of_its_name(workdir: Path) -> None:
    path = workdir / "file"
    with path.open("w+b", buffering=0) as old:
        old.write(b"old")
        path.unlink()
        path.write_bytes(b"new")
        assert os.pread(old.fileno(), 10, 0) == b"old"
        assert path.stat().st_ino != os.fstat(old.fileno()).st_ino
    assert path.read_bytes() == b"new"


def test_file_replaced_while_open_lives_on(workdir: Path) -> None:
    (workdir / "a").write_bytes(b"a")
    with (workdir / "b").open("w+b", buffering=0) as victim:
        victim.write(b"b" * 10_000)
        (workdir / "a").rename(workdir / "b")
        assert os.pread(victim.fileno(), 20_000, 0) == b"b" * 10_000


def test_unlink_and_rmdir_refusals(workdir: Path) -> None:
    (workdir / "folder" / "x").mkdir(parents=True)
    (workdir / "file").touch()
    assert _errno(os.unlink, workdir / "folder") in (errno.EISDIR, errno.EPERM)
    assert _errno(os.rmdir, workdir / "file") == errno.ENOTDIR
    assert _errno(os.rmdir, workdir / "folder") == errno.ENOTEMPTY
    assert _errno(os.rmdir, workdir / "none") == errno.ENOENT
    assert _errno(os.mkdir, workdir / "file") == errno.EEXIST
    assert _errno(os.mkdir, workdir / "none" / "x") == errno.ENOENT


def test_removed_folder_that_is_open(workdir: Path) -> None:
    (workdir / "folder").mkdir()
    fd = os.open(workdir / "folder", os.O_RDONLY)
    (workdir / "folder").rmdir()
    assert os.listdir(fd) == []
    assert _errno(lambda: os.open("x", os.O_CREAT | os.O_WRONLY, dir_fd=fd)) == errno.ENOENT
    os.close(fd)


def test_link_counts_of_folders(workdir: Path) -> None:
    base = workdir.stat().st_nlink
    (workdir / "a").mkdir()
    (workdir / "b").mkdir()
    assert workdir.stat().st_nlink == base + 2
    (workdir / "a").rename(workdir / "b" / "a")
    assert workdir.stat().st_nlink == base + 1
    assert (workdir / "b").stat().st_nlink == 3
    (workdir / "b" / "a").rmdir()
    assert (workdir / "b").stat().st_nlink == 2


def test_symlinks(workdir: Path) -> None:
    for text in ("x", "../..", "/absolute/path", "a" * 4000, "b\u00fc"):
        (workdir / "link").symlink_to(text)
        assert os.readlink(workdir / "link") == text
        assert (workdir / "link").lstat().st_size == len(os.fsencode(text))
        (workdir / "link").unlink()
    os.symlink(b"\xff\xfe", os.fsencode(workdir) + b"/odd")
    assert os.readlink(os.fsencode(workdir) + b"/odd") == b"\xff\xfe"


def test_symlink_loop_and_length(workdir: Path) -> None:
    (workdir / "loop").symlink_to("loop")
    assert _errno(os.stat, workdir / "loop") == errno.ELOOP
    assert _errno(os.symlink, "a" * 4096, workdir / "long") == errno.ENAMETOOLONG
    assert _errno(os.readlink, workdir) == errno.EINVAL


def test_names_of_255_bytes(workdir: Path) -> None:
    for name in (b"n" * 255, "ü".encode() * 127):
        path = os.fsencode(workdir) + b"/" + name
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
        assert name in os.listdir(os.fsencode(workdir))
        os.rename(path, path[:-1])
        os.unlink(path[:-1])
    assert _errno(os.mkdir, workdir / ("n" * 256)) == errno.ENAMETOOLONG
    assert _errno(os.stat, workdir / ("n" * 256)) == errno.ENAMETOOLONG


def test_names_of_any_bytes(workdir: Path) -> None:
    base = os.fsencode(workdir)
    names = {bytes([byte]) for byte in range(1, 256) if byte not in b"/."}
    names |= {b"\xff\xfe\xfd", b" ", b"\n", b"-rf", b"...", b"a\\b", b"'\"", b".hidden", b"%s%n"}
    for name in names:
        with open(base + b"/" + name, "wb") as file:
            file.write(name)
    assert set(os.listdir(base)) == names
    for name in names:
        with open(base + b"/" + name, "rb") as file:
            assert file.read() == name


def test_names_differ_by_case_and_normalisation(workdir: Path) -> None:
    names = ["a", "A", "\u00e9", "e\u0301"]
    for name in names:
        (workdir / name).write_text(name)
    assert {name: (workdir / name).read_text() for name in names} == {n: n for n in names}


def test_path_of_path_max(workdir: Path) -> None:
    """A path of 4095 bytes works, also below folders that can only be reached in steps."""
    fd = os.open(workdir, os.O_RDONLY)
    length = len(os.fsencode(workdir))
    names = []
    while length + 201 < 4095:
        names.append("d" * 200)
        length += 201
    for name in names:
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    last = "f" * (4095 - length - 1)
    path = "/".join([str(workdir), *names, last])
    assert len(path) == 4095
    Path(path).write_bytes(b"deep")
    assert Path(path).read_bytes() == b"deep"
    assert _errno(os.stat, path + "x") == errno.ENAMETOOLONG
    os.close(fd)


def test_deep_tree(workdir: Path) -> None:
    path = workdir
    for number in range(300):
        path = path / f"{number}"
    path.mkdir(parents=True)
    (path / "file").write_bytes(b"bottom")
    assert (path / "file").read_bytes() == b"bottom"


def test_inode_numbers_are_not_reused(workdir: Path) -> None:
    seen = set()
    for _ in range(50):
        (workdir / "file").write_bytes(b"x")
        seen.add((workdir / "file").stat().st_ino)
        (workdir / "file").unlink()
    if "BRAIDFS_TEST_DIR" not in os.environ:  # ext4 does reuse inode numbers
        assert len(seen) == 50


def test_lookup_of_a_name_that_appears_and_goes(workdir: Path) -> None:
    for number in range(30):
        path = workdir / f"file-{number % 3}"
        assert not path.exists()
        path.touch()
        assert path.exists()
        path.unlink()
