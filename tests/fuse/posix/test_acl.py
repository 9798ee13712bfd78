"""acl(5): system.posix_acl_access and system.posix_acl_default, given and taken as xattrs."""

import os
import struct

import pytest

from tests.fuse.posix.calls import c, fails
from tests.fuse.posix.context import GROUP, OTHER, OTHER_GROUP, USER, Folder, mode_of, umask

ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
USER_OBJ, NAMED_USER, GROUP_OBJ, NAMED_GROUP, MASK, REST = 1, 2, 4, 8, 16, 32
NONE = 0xFFFFFFFF
Entry = tuple[int, int, int]


def acl(*entries: Entry) -> bytes:
    return struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", tag, bits, number) for tag, bits, number in entries
    )


def full(owner: int, group: int, rest: int, mask: int | None = None, *named: Entry) -> bytes:
    users = [entry for entry in named if entry[0] == NAMED_USER]
    groups = [entry for entry in named if entry[0] == NAMED_GROUP]
    masks = [] if mask is None else [(MASK, mask, NONE)]
    last = (REST, rest, NONE)
    return acl((USER_OBJ, owner, NONE), *users, (GROUP_OBJ, group, NONE), *groups, *masks, last)


def entries(raw: bytes) -> list[Entry]:
    found = [struct.unpack_from("<HHI", raw, at) for at in range(4, len(raw), 8)]
    return [(tag, bits, number) for tag, bits, number in found]


def bits_of(path: str, tag: int, name: str = ACCESS) -> int:
    return next(bits for kind, bits, _ in entries(os.getxattr(path, name)) if kind == tag)


def opened(path: str, flags: int) -> None:
    os.close(os.open(path, flags))


@pytest.mark.parametrize("bits", range(8))
@pytest.mark.parametrize("who", ["user", "group"])
def test_named_entry(d: Folder, bits: int, who: str) -> None:
    """A named user or group has the permissions of its entry, within the mask."""
    path = d.file(mode=0o600)
    named = (NAMED_USER, bits, USER) if who == "user" else (NAMED_GROUP, bits, GROUP)
    os.setxattr(path, ACCESS, full(6, 0, 0, 7, named))

    def body() -> None:
        for flags, needed in ((os.O_RDONLY, 4), (os.O_WRONLY, 2), (os.O_RDWR, 6)):
            fails("success" if bits & needed == needed else "EACCES", opened, path, flags)

    d.user(body)


@pytest.mark.parametrize("mask", range(8))
def test_mask(d: Folder, mask: int) -> None:
    """The mask limits named users, named groups and the owning group."""
    path = d.file(mode=0o600)
    os.setxattr(path, ACCESS, full(6, 0, 0, mask, (NAMED_USER, 6, USER)))

    def body() -> None:
        fails("success" if mask & 4 else "EACCES", opened, path, os.O_RDONLY)
        fails("success" if mask & 2 else "EACCES", opened, path, os.O_WRONLY)

    d.user(body)
    assert mode_of(path) == 0o600 | mask << 3


def test_mask_does_not_limit_the_owner(d: Folder) -> None:
    """The owner and others are not limited by the mask."""
    path = d.file(mode=0o600, owner=(USER, GROUP))
    os.setxattr(path, ACCESS, full(6, 7, 6, 0, (NAMED_USER, 7, 99)))
    d.user(lambda: opened(path, os.O_RDWR))
    d.user(lambda: opened(path, os.O_RDWR), uid=OTHER, gid=OTHER_GROUP)


def test_named_user_comes_before_groups(d: Folder) -> None:
    """If a named user entry matches, no group entry is checked."""
    path = d.file(mode=0o600)
    named = ((NAMED_USER, 0, USER), (NAMED_GROUP, 6, GROUP))
    os.setxattr(path, ACCESS, full(6, 6, 6, 7, *named))
    d.user(lambda: fails("EACCES", opened, path, os.O_RDONLY))


def test_any_group_may_grant(d: Folder) -> None:
    """Access is granted if any of the matching group entries grants it."""
    path = d.file(mode=0o600, owner=(0, GROUP))
    os.setxattr(path, ACCESS, full(6, 0, 0, 7, (NAMED_GROUP, 4, OTHER_GROUP)))
    d.user(lambda: opened(path, os.O_RDONLY), groups=(OTHER_GROUP,))
    d.user(lambda: fails("EACCES", opened, path, os.O_RDONLY))


def test_groups_do_not_add_up(d: Folder) -> None:
    """One entry must have all the requested permissions; the entry of others is then not
    checked."""
    path = d.file(mode=0o600, owner=(0, GROUP))
    os.setxattr(path, ACCESS, full(6, 4, 6, 7, (NAMED_GROUP, 2, OTHER_GROUP)))
    d.user(lambda: fails("EACCES", opened, path, os.O_RDWR), groups=(OTHER_GROUP,))


def test_acl_sets_the_mode(d: Folder) -> None:
    """The permission bits become those of owner, mask and others."""
    path = d.file(mode=0o600)
    os.setxattr(path, ACCESS, full(7, 1, 5, 6, (NAMED_USER, 7, USER)))
    assert mode_of(path) == 0o765


def test_minimal_acl_is_the_mode(d: Folder) -> None:
    """An ACL of three entries is the mode: it is not kept as an attribute."""
    path = d.file(mode=0o600)
    os.setxattr(path, ACCESS, full(7, 5, 1))
    assert mode_of(path) == 0o751
    fails("ENODATA", os.getxattr, path, ACCESS)


def test_chmod_changes_the_mask(d: Folder) -> None:
    """chmod() of a file with an extended ACL changes owner, mask and others."""
    path = d.file(mode=0o600)
    os.setxattr(path, ACCESS, full(6, 4, 0, 7, (NAMED_USER, 7, USER)))
    os.chmod(path, 0o715)
    assert [bits_of(path, tag) for tag in (USER_OBJ, GROUP_OBJ, MASK, REST)] == [7, 4, 1, 5]
    assert bits_of(path, NAMED_USER) == 7


def test_chmod_without_acl_changes_the_group(d: Folder) -> None:
    """Without an extended ACL there is no mask: the group class is the group."""
    path = d.file(mode=0o640)
    os.chmod(path, 0o604)
    fails("ENODATA", os.getxattr, path, ACCESS)


def test_get_is_what_was_set(d: Folder) -> None:
    """getxattr() gives the entries in their order."""
    raw = full(6, 4, 0, 5, (NAMED_USER, 7, 5), (NAMED_USER, 1, 9), (NAMED_GROUP, 3, 8))
    os.setxattr(d.file(), ACCESS, raw)
    assert entries(os.getxattr(d / "file", ACCESS)) == entries(raw)


def test_remove(d: Folder) -> None:
    """Removing the access ACL leaves the permission bits as the only rule."""
    path = d.file(mode=0o600)
    os.setxattr(path, ACCESS, full(6, 0, 0, 6, (NAMED_USER, 6, USER)))
    os.removexattr(path, ACCESS)
    fails("ENODATA", os.getxattr, path, ACCESS)
    d.user(lambda: fails("EACCES", opened, path, os.O_RDONLY), gid=OTHER_GROUP)


def test_is_listed(d: Folder) -> None:
    """listxattr() shows the ACL attributes."""
    d.folder()
    raw = full(7, 5, 0, 7, (NAMED_USER, 7, USER))
    os.setxattr(d / "folder", ACCESS, raw)
    os.setxattr(d / "folder", DEFAULT, raw)
    assert sorted(os.listxattr(d / "folder")) == [ACCESS, DEFAULT]


BROKEN = {
    "version": b"\3\0\0\0" + full(6, 4, 4)[4:],
    "short": full(6, 4, 4)[:-1],
    "tag": acl((USER_OBJ, 6, NONE), (GROUP_OBJ, 4, NONE), (64, 4, NONE), (REST, 4, NONE)),
    "bits": full(15, 4, 4),
    "no_owner": acl((GROUP_OBJ, 4, NONE), (REST, 4, NONE)),
    "no_mask": full(6, 4, 4, None, (NAMED_USER, 7, USER)),
    "two_masks": acl((USER_OBJ, 6, NONE), (GROUP_OBJ, 4, NONE), (MASK, 4, NONE), (MASK, 4, NONE)),
    "order": acl((REST, 4, NONE), (GROUP_OBJ, 4, NONE), (USER_OBJ, 6, NONE)),
}


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("name", [ACCESS, DEFAULT], ids=["access", "default"])
def test_einval(d: Folder, broken: str, name: str) -> None:
    """EINVAL (EOPNOTSUPP for the version): the ACL is not valid."""
    path = d.folder(mode=0o755)
    fails("EINVAL/EOPNOTSUPP", os.setxattr, path, name, BROKEN[broken])
    assert (mode_of(path), os.listxattr(path)) == (0o755, [])


def test_eperm(d: Folder) -> None:
    """EPERM: only the owner may change an ACL, whatever the mode says."""
    path = d.file(mode=0o666)
    raw = full(6, 6, 6, 7, (NAMED_USER, 7, USER))
    d.user(lambda: fails("EPERM", os.setxattr, path, ACCESS, raw))
    os.setxattr(path, ACCESS, raw)
    d.user(lambda: fails("EPERM", os.removexattr, path, ACCESS))


def test_by_the_owner(d: Folder) -> None:
    """The owner may give a file to others by name."""
    path = d.file(mode=0o600, owner=(USER, GROUP))
    d.user(lambda: os.setxattr(path, ACCESS, full(6, 0, 0, 6, (NAMED_USER, 6, OTHER))))
    d.user(lambda: opened(path, os.O_RDWR), uid=OTHER, gid=OTHER_GROUP)


def test_eopnotsupp_link(d: Folder) -> None:
    """EOPNOTSUPP: symbolic links have no ACLs."""
    fails("EOPNOTSUPP", c.lsetxattr, d.link("x"), ACCESS, full(6, 4, 4), 28, 0)


def test_eacces_default_of_a_file(d: Folder) -> None:
    """EACCES: default ACLs exist for directories only."""
    fails("EACCES", os.setxattr, d.file(), DEFAULT, full(6, 4, 4))


def test_default_is_inherited_by_files(d: Folder) -> None:
    """A new file inherits the default ACL as its access ACL; the umask has no effect."""
    d.folder()
    os.setxattr(d / "folder", DEFAULT, full(7, 5, 0, 7, (NAMED_USER, 7, USER)))
    with umask(0o077):
        os.close(os.open(d / "folder/file", os.O_CREAT | os.O_RDWR, 0o666))
    assert mode_of(d / "folder/file") == 0o660
    assert bits_of(d / "folder/file", NAMED_USER) == 7
    d.user(lambda: opened(d / "folder/file", os.O_RDWR))


def test_default_is_inherited_by_folders(d: Folder) -> None:
    """A new directory inherits the default ACL as access ACL and as default ACL."""
    d.folder()
    raw = full(7, 5, 0, 7, (NAMED_USER, 7, USER))
    os.setxattr(d / "folder", DEFAULT, raw)
    os.mkdir(d / "folder/below", 0o777)
    assert entries(os.getxattr(d / "folder/below", DEFAULT)) == entries(raw)
    assert bits_of(d / "folder/below", NAMED_USER) == 7


@pytest.mark.parametrize("mode", [0o777, 0o640, 0o600, 0o000], ids=oct)
def test_default_and_mode(d: Folder, mode: int) -> None:
    """The permissions of the mode of creation limit owner, mask and others."""
    d.folder()
    os.setxattr(d / "folder", DEFAULT, full(7, 5, 1, 7, (NAMED_USER, 7, USER)))
    os.close(os.open(d / "folder/file", os.O_CREAT | os.O_RDWR, mode))
    assert mode_of(d / "folder/file") == mode & 0o771


@pytest.mark.parametrize("kind", ["mkfifo", "mknod"])
def test_default_is_inherited_by_nodes(d: Folder, kind: str) -> None:
    """FIFOs and nodes inherit the default ACL too."""
    d.folder()
    os.setxattr(d / "folder", DEFAULT, full(7, 7, 7, 7, (NAMED_USER, 7, USER)))
    getattr(os, kind)(d / "folder/node", 0o600)
    assert (mode_of(d / "folder/node"), bits_of(d / "folder/node", MASK)) == (0o600, 0)


def test_default_is_not_inherited_by_links(d: Folder) -> None:
    """Symbolic links inherit nothing."""
    d.folder()
    os.setxattr(d / "folder", DEFAULT, full(7, 7, 7, 7, (NAMED_USER, 7, USER)))
    d.link("x", "folder/link")
    assert os.listxattr(d / "folder/link", follow_symlinks=False) == []
    assert mode_of(d / "folder/link") == 0o777


def test_default_of_three_entries(d: Folder) -> None:
    """A minimal default ACL acts in the place of the umask."""
    d.folder()
    os.setxattr(d / "folder", DEFAULT, full(6, 6, 2))
    os.close(os.open(d / "folder/file", os.O_CREAT | os.O_RDWR, 0o777))
    assert mode_of(d / "folder/file") == 0o662


def test_default_gives_no_access_itself(d: Folder) -> None:
    """The default ACL plays no role in access to the directory itself."""
    d.folder(mode=0o700)
    os.setxattr(d / "folder", DEFAULT, full(7, 7, 7, 7, (NAMED_USER, 7, USER)))
    d.user(lambda: fails("EACCES", os.listdir, d / "folder"))
    assert mode_of(d / "folder") == 0o700


def test_search_by_acl(d: Folder) -> None:
    """Search permission of a folder may come from a named entry."""
    d.folder(mode=0o700)
    d.file("folder/file", mode=0o644)
    os.setxattr(d / "folder", ACCESS, full(7, 0, 0, 7, (NAMED_USER, 1, USER)))
    d.user(lambda: opened(d / "folder/file", os.O_RDONLY))
    d.user(lambda: fails("EACCES", os.listdir, d / "folder"))


def test_set_group_id_is_cleared_for_strangers(d: Folder) -> None:
    """Setting an ACL clears S_ISGID when the owner is not in the group."""
    path = d.file(mode=0o2755, owner=(USER, OTHER_GROUP))
    d.user(lambda: os.setxattr(path, ACCESS, full(7, 5, 5, 7, (NAMED_USER, 7, OTHER))))
    assert mode_of(path) & 0o2000 == 0
