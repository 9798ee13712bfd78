"""chown(2), fchown(2), lchown(2), fchownat(2)."""

import os

import pytest

from tests.fuse.posix.calls import AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW, c, fails
from tests.fuse.posix.context import GROUP, OTHER, OTHER_GROUP, USER, Folder, mode_of, watch
from tests.fuse.posix.test_mkdir_rmdir import make

CALLS = pytest.mark.parametrize("name", ["chown", "lchown", "fchown", "fchownat"])
KEEP = 0xFFFFFFFF


def chown(d: Folder, name: str, path: str, uid: int, gid: int) -> None:
    if name == "fchown":
        c.fchown(d.fd(path, os.O_RDONLY | os.O_NONBLOCK), uid, gid)
    elif name == "fchownat":
        c.fchownat(-100, path, uid, gid, 0)
    else:
        getattr(c, name)(path, uid, gid)


def owner_of(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_uid, found.st_gid


@CALLS
@pytest.mark.parametrize("kind", ["file", "folder", "fifo"])
def test_chown(d: Folder, name: str, kind: str) -> None:
    """chown() changes the owner and group of the file."""
    path = make(d, kind)
    chown(d, name, path, USER, GROUP)
    assert owner_of(path) == (USER, GROUP)


@CALLS
@pytest.mark.parametrize(("uid", "gid"), [(KEEP, GROUP), (USER, KEEP), (KEEP, KEEP)])
def test_minus_one_keeps(d: Folder, name: str, uid: int, gid: int) -> None:
    """If the owner or group is specified as -1, then that ID is not changed."""
    path = d.file(owner=(1, 2))
    chown(d, name, path, uid, gid)
    assert owner_of(path) == (1 if uid == KEEP else uid, 2 if gid == KEEP else gid)


@CALLS
def test_ids_of_32_bits(d: Folder, name: str) -> None:
    """User and group IDs have 32 bits."""
    path = d.file()
    chown(d, name, path, 0xFFFFFFFD, 0xFFFFFFFC)
    assert owner_of(path) == (0xFFFFFFFD, 0xFFFFFFFC)


@CALLS
def test_times(d: Folder, name: str) -> None:
    """chown() marks ctime of the file for update."""
    path = d.file()
    before = watch(path)
    chown(d, name, path, USER, GROUP)
    assert before.moved() == "c"


@CALLS
@pytest.mark.parametrize(
    ("owner", "uid", "gid"),
    [
        ((USER, GROUP), OTHER, KEEP),
        ((USER, GROUP), KEEP, OTHER_GROUP),
        ((OTHER, GROUP), KEEP, GROUP),
        ((OTHER, GROUP), USER, KEEP),
        ((0, 0), USER, GROUP),
    ],
)
def test_eperm(d: Folder, name: str, owner: tuple[int, int], uid: int, gid: int) -> None:
    """EPERM: The calling process did not have the required permissions."""
    path = d.file(owner=owner, mode=0o666)
    d.user(lambda: fails("EPERM", chown, d, name, path, uid, gid))
    assert owner_of(path) == owner


@CALLS
def test_owner_gives_to_his_groups(d: Folder, name: str) -> None:
    """The owner of a file may change the group to any group of which he is a member."""
    path = d.file(owner=(USER, GROUP))
    d.user(lambda: chown(d, name, path, KEEP, OTHER_GROUP), groups=(77, OTHER_GROUP))
    assert owner_of(path) == (USER, OTHER_GROUP)


@CALLS
def test_owner_keeps_what_it_is(d: Folder, name: str) -> None:
    """An unprivileged owner may set the owner and group that the file has."""
    path = d.file(owner=(USER, OTHER_GROUP))
    d.user(lambda: chown(d, name, path, USER, KEEP))
    assert owner_of(path) == (USER, OTHER_GROUP)


@CALLS
@pytest.mark.parametrize(("mode", "left"), [(0o6755, 0o755), (0o6744, 0o2744), (0o4711, 0o711)])
def test_set_id_bits_are_cleared(d: Folder, name: str, mode: int, left: int) -> None:
    """S_ISUID, and S_ISGID of a group-executable file, are cleared; also for root (Linux)."""
    path = d.file(mode=mode)
    chown(d, name, path, USER, GROUP)
    assert mode_of(path) == left


@CALLS
def test_set_id_bits_are_cleared_for_the_owner(d: Folder, name: str) -> None:
    """When an unprivileged user changes the group, S_ISUID and S_ISGID are cleared."""
    path = d.file(mode=0o6755, owner=(USER, GROUP))
    d.user(lambda: chown(d, name, path, KEEP, OTHER_GROUP), groups=(OTHER_GROUP,))
    assert mode_of(path) == 0o755


@CALLS
def test_folders_keep_their_set_group_id(d: Folder, name: str) -> None:
    """The set-id bits of a directory are left alone."""
    path = d.folder(mode=0o2755)
    chown(d, name, path, USER, GROUP)
    assert mode_of(path) == 0o2755


def test_chown_follows_links(d: Folder) -> None:
    """chown() dereferences a symbolic link."""
    d.file()
    c.chown(d.link("file"), USER, GROUP)
    assert (owner_of(d / "file"), owner_of(d / "link")) == ((USER, GROUP), (0, 0))


def test_lchown_does_not_follow(d: Folder) -> None:
    """lchown() changes the symbolic link itself; its mode stays 0777."""
    d.file()
    c.lchown(d.link("file"), USER, GROUP)
    assert (owner_of(d / "file"), owner_of(d / "link")) == ((0, 0), (USER, GROUP))
    assert mode_of(d / "link") == 0o777


def test_lchown_of_a_dangling_link(d: Folder) -> None:
    """lchown() does not need the target."""
    c.lchown(d.link("nowhere"), USER, GROUP)
    assert owner_of(d / "link") == (USER, GROUP)


def test_fchownat_nofollow(d: Folder) -> None:
    """fchownat() AT_SYMLINK_NOFOLLOW: operate on the link itself, like lchown(2)."""
    d.file()
    c.fchownat(-100, d.link("file"), USER, GROUP, AT_SYMLINK_NOFOLLOW)
    assert (owner_of(d / "file"), owner_of(d / "link")) == ((0, 0), (USER, GROUP))


def test_fchownat_empty_path(d: Folder) -> None:
    """fchownat() AT_EMPTY_PATH: operate on the file referred to by dirfd."""
    fd = d.new()
    c.fchownat(fd, "", USER, GROUP, AT_EMPTY_PATH)
    assert owner_of(d / "file") == (USER, GROUP)


def test_fchownat_einval(d: Folder) -> None:
    """fchownat() EINVAL: Invalid flag specified in flags."""
    fails("EINVAL", c.fchownat, -100, d.file(), 1, 1, 0x40000)


def test_fchown_ebadf(d: Folder) -> None:
    """fchown() EBADF: The descriptor is not valid."""
    fails("EBADF", c.fchown, d.closed(), 1, 1)


def test_fchown_of_an_unlinked_file(d: Folder) -> None:
    """fchown() works on a file without a name."""
    fd = d.new()
    os.unlink(d / "file")
    c.fchown(fd, USER, GROUP)
    assert os.fstat(fd).st_uid == USER


def test_owner_decides_the_class(d: Folder) -> None:
    """The new owner's class counts at once: the group's bits are not for him."""
    path = d.file(mode=0o066)
    d.user(lambda: os.close(os.open(path, os.O_RDWR)))
    os.chown(path, USER, GROUP)
    d.user(lambda: fails("EACCES", c.open, path, os.O_RDWR))


def test_many_supplementary_groups(d: Folder) -> None:
    """setgroups(2): every one of a process's groups counts, sixty of them too."""
    groups = tuple(range(50_000, 50_060))
    path = d.file(mode=0o060, owner=(0, groups[-1]))
    d.user(lambda: os.close(os.open(path, os.O_RDWR)), groups=groups)
    d.user(lambda: fails("EACCES", c.open, path, os.O_RDWR), groups=groups[:-1])
