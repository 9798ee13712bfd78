"""chmod(2), fchmod(2), fchmodat(2), fchmodat2(2), umask(2)."""

import os
from functools import partial

import pytest

from tests.fuse.posix.calls import AT_SYMLINK_NOFOLLOW, SYS_FCHMODAT2, c, fails
from tests.fuse.posix.context import GROUP, OTHER, OTHER_GROUP, USER, Folder, mode_of, watch
from tests.fuse.posix.test_mkdir_rmdir import make

CALLS = pytest.mark.parametrize("name", ["chmod", "fchmod", "fchmodat"])


def chmod(d: Folder, name: str, path: str, mode: int) -> None:
    if name == "chmod":
        c.chmod(path, mode)
    elif name == "fchmod":
        c.fchmod(d.fd(path, os.O_RDONLY | os.O_NONBLOCK), mode)
    else:
        c.fchmodat(-100, path, mode, 0)


@CALLS
@pytest.mark.parametrize("kind", ["file", "folder", "fifo"])
@pytest.mark.parametrize("mode", [0o000, 0o644, 0o777, 0o1755, 0o2755, 0o4755, 0o7777], ids=oct)
def test_chmod(d: Folder, name: str, kind: str, mode: int) -> None:
    """The new file mode is specified in mode: permissions, set-id bits and sticky bit."""
    path = make(d, kind)
    chmod(d, name, path, mode)
    assert mode_of(path) == mode


@CALLS
def test_type_bits_are_ignored(d: Folder, name: str) -> None:
    """Bits other than the permission bits are ignored: the type stays."""
    path = d.file()
    chmod(d, name, path, 0o170600)
    assert os.stat(path).st_mode == 0o100600


@CALLS
def test_umask_does_not_matter(d: Folder, name: str) -> None:
    """The umask of the process does not apply to chmod()."""
    path = d.file()
    os.umask(0o777)
    chmod(d, name, path, 0o666)
    assert mode_of(path) == 0o666


@CALLS
def test_times(d: Folder, name: str) -> None:
    """chmod() marks ctime of the file for update, also when the mode is the same."""
    path = d.file()
    for mode in (0o600, 0o600):
        before = watch(path)
        chmod(d, name, path, mode)
        assert before.moved() == "c"


@CALLS
def test_eperm(d: Folder, name: str) -> None:
    """EPERM: The effective UID does not match the owner, and the process is not privileged."""
    path = d.file(mode=0o666, owner=(OTHER, GROUP))
    before = watch(path)
    d.user(lambda: fails("EPERM", chmod, d, name, path, 0o777))
    assert (mode_of(path), before.moved()) == (0o666, "")


@CALLS
def test_by_the_owner(d: Folder, name: str) -> None:
    """The owner may change the mode of a file that he may not even read."""
    path = d.file(mode=0o444, owner=(USER, GROUP))
    d.user(lambda: chmod(d, name, path, 0o600))
    assert mode_of(path) == 0o600


@CALLS
def test_set_group_id_is_cleared_for_strangers(d: Folder, name: str) -> None:
    """If the owner is not in the group of the file, S_ISGID will be turned off, with success."""
    path = d.file(owner=(USER, OTHER_GROUP))
    d.user(lambda: chmod(d, name, path, 0o2755))
    assert mode_of(path) == 0o755


@CALLS
def test_set_group_id_is_kept_for_members(d: Folder, name: str) -> None:
    """The owner who is in the group of the file may set S_ISGID."""
    path = d.file(owner=(USER, OTHER_GROUP))
    d.user(lambda: chmod(d, name, path, 0o2755), groups=(OTHER_GROUP,))
    assert mode_of(path) == 0o2755


def test_set_user_id_by_the_owner(d: Folder) -> None:
    """The owner may set S_ISUID."""
    path = d.file(owner=(USER, OTHER_GROUP))
    d.user(lambda: c.chmod(path, 0o4755))
    assert mode_of(path) == 0o4755


def test_sticky_bit_of_a_file(d: Folder) -> None:
    """Linux: an unprivileged owner may set the sticky bit of a file; it means nothing."""
    path = d.file(owner=(USER, GROUP))
    d.user(lambda: c.chmod(path, 0o1755))
    assert mode_of(path) == 0o1755


def test_chmod_follows_links(d: Folder) -> None:
    """chmod() dereferences symbolic links."""
    path = d.file()
    c.chmod(d.link("file"), 0o600)
    assert (mode_of(path), mode_of(d / "link")) == (0o600, 0o777)


def test_fchmod_ebadf(d: Folder) -> None:
    """fchmod() EBADF: The file descriptor fd is not valid."""
    fails("EBADF", c.fchmod, d.closed(), 0o644)


def test_fchmod_of_a_reader(d: Folder) -> None:
    """fchmod() needs no write access through the descriptor."""
    c.fchmod(d.fd(d.file(), os.O_RDONLY), 0o600)
    assert mode_of(d / "file") == 0o600


def test_fchmod_of_an_unlinked_file(d: Folder) -> None:
    """fchmod() works on a file without a name."""
    fd = d.new()
    os.unlink(d / "file")
    c.fchmod(fd, 0o604)
    assert os.fstat(fd).st_mode & 0o7777 == 0o604


def test_fchmodat2_nofollow_of_a_link(d: Folder) -> None:
    """fchmodat2() EOPNOTSUPP: a symbolic link has no mode of its own to change."""
    d.link("x")
    fails("EOPNOTSUPP", c.syscall, SYS_FCHMODAT2, -100, d / "link", 0o600, AT_SYMLINK_NOFOLLOW)


def test_fchmodat2_nofollow_of_a_file(d: Folder) -> None:
    """fchmodat2() AT_SYMLINK_NOFOLLOW changes a file that is no link."""
    c.syscall(SYS_FCHMODAT2, -100, d.file(), 0o600, AT_SYMLINK_NOFOLLOW)
    assert mode_of(d / "file") == 0o600


def test_fchmodat2_einval(d: Folder) -> None:
    """fchmodat2() EINVAL: Invalid flag specified in flags."""
    fails("EINVAL", c.syscall, SYS_FCHMODAT2, -100, d.file(), 0o600, 0x40000)


def test_mode_takes_effect_at_once(d: Folder) -> None:
    """A process is refused as soon as the mode says so, and let in again."""
    path = d.file(mode=0o600)
    for mode, wanted in ((0o600, "EACCES"), (0o604, "success"), (0o640, "EACCES")):
        os.chmod(path, mode)
        d.user(partial(fails, wanted, _open_and_close, path))


def _open_and_close(path: str) -> None:
    os.close(os.open(path, os.O_RDONLY))


def test_search_permission_takes_effect_at_once(d: Folder) -> None:
    """Search permission of a folder counts for what is below it, whatever was looked up before."""
    d.folder(mode=0o755)
    path = d.file("folder/file")
    d.user(lambda: _open_and_close(path))
    os.chmod(d / "folder", 0o700)
    d.user(lambda: fails("EACCES", _open_and_close, path))


def test_read_permission_of_a_folder(d: Folder) -> None:
    """EACCES: a folder that may be searched but not read is not listed; its files open."""
    d.folder(mode=0o711)
    path = d.file("folder/file")
    d.user(lambda: fails("EACCES", os.listdir, d / "folder"))
    d.user(lambda: _open_and_close(path))


def test_unsearchable_folder_is_listed(d: Folder) -> None:
    """Read permission alone gives the names, but nothing behind them."""
    d.folder(mode=0o744)
    d.file("folder/file")

    def body() -> None:
        assert os.listdir(d / "folder") == ["file"]
        fails("EACCES", os.stat, d / "folder/file")

    d.user(body)
