"""setxattr(2), getxattr(2), listxattr(2), removexattr(2), their l- and f-forms; xattr(7)."""

import os

import pytest

from tests.fuse.posix.calls import BAD, XATTR_CREATE, XATTR_REPLACE, c, fails
from tests.fuse.posix.context import GROUP, OTHER, USER, Folder, content_of, watch
from tests.fuse.posix.test_mkdir_rmdir import make

NAME = "user.name"


def set_by(d: Folder, form: str, path: str, value: bytes, flags: int = 0) -> None:
    if form == "f":
        c.fsetxattr(d.fd(path, os.O_RDONLY), NAME, value, len(value), flags)
    else:
        getattr(c, f"{form}setxattr")(path, NAME, value, len(value), flags)


FORMS = pytest.mark.parametrize("form", ["", "l", "f"], ids=["path", "l-form", "f-form"])


@FORMS
@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("value", [b"v", b"", bytes(range(256))], ids=["one", "empty", "bytes"])
def test_set_and_get(d: Folder, form: str, kind: str, value: bytes) -> None:
    """setxattr() sets the value, which may have zero length and any bytes."""
    path = make(d, kind)
    set_by(d, form, path, value)
    assert os.getxattr(path, NAME) == value


@FORMS
def test_replaces(d: Folder, form: str) -> None:
    """By default an extended attribute is created, or its value replaced."""
    path = d.file()
    for value in (b"one", b"a longer value", b"x"):
        set_by(d, form, path, value)
        assert os.getxattr(path, NAME) == value
    assert os.listxattr(path) == [NAME]


@FORMS
def test_eexist_create(d: Folder, form: str) -> None:
    """EEXIST: XATTR_CREATE was specified, and the attribute exists already."""
    path = d.file()
    set_by(d, form, path, b"one", XATTR_CREATE)
    fails("EEXIST", set_by, d, form, path, b"two", XATTR_CREATE)
    assert os.getxattr(path, NAME) == b"one"


@FORMS
def test_enodata_replace(d: Folder, form: str) -> None:
    """ENODATA: XATTR_REPLACE was specified, and the attribute does not exist."""
    path = d.file()
    fails("ENODATA", set_by, d, form, path, b"one", XATTR_REPLACE)
    set_by(d, form, path, b"one")
    set_by(d, form, path, b"two", XATTR_REPLACE)
    assert os.getxattr(path, NAME) == b"two"


@FORMS
def test_einval_flags(d: Folder, form: str) -> None:
    """EINVAL: an invalid flag."""
    fails("EINVAL", set_by, d, form, d.file(), b"v", 4)


def test_create_and_replace_together(d: Folder) -> None:
    """XATTR_CREATE with XATTR_REPLACE cannot succeed."""
    path = d.file()
    fails("ENODATA/EEXIST/EINVAL", set_by, d, "", path, b"v", 3)


@pytest.mark.parametrize("name", ["getxattr", "removexattr", "lgetxattr", "lremovexattr"])
def test_enodata(d: Folder, name: str) -> None:
    """ENODATA: The named attribute does not exist."""
    tail = (bytes(9), 9) if "get" in name else ()
    fails("ENODATA", getattr(c, name), d.file(), NAME, *tail)


def test_get_size(d: Folder) -> None:
    """If size is zero, getxattr() returns the current size of the attribute."""
    os.setxattr(d.file(), NAME, b"abcdef")
    assert c.getxattr(d / "file", NAME, None, 0) == 6


def test_get_erange(d: Folder) -> None:
    """ERANGE: The size of the value buffer is too small to hold the result."""
    os.setxattr(d.file(), NAME, b"abcdef")
    fails("ERANGE", c.getxattr, d / "file", NAME, bytes(5), 5)


def test_list_size_and_erange(d: Folder) -> None:
    """listxattr(): size 0 returns the size of the list; ERANGE if the buffer is too small."""
    os.setxattr(d.file(), NAME, b"abcdef")
    assert c.listxattr(d / "file", None, 0) == len(NAME) + 1
    fails("ERANGE", c.listxattr, d / "file", bytes(3), 3)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_list(d: Folder, kind: str) -> None:
    """listxattr() retrieves the names, each once; an unmarked file has none."""
    path = make(d, kind)
    assert os.listxattr(path) == []
    names = {f"user.n{index}" for index in range(20)}
    for name in names:
        os.setxattr(path, name, b"v")
    assert sorted(os.listxattr(path)) == sorted(names)


def test_remove(d: Folder) -> None:
    """removexattr() removes that attribute alone."""
    path = d.file()
    os.setxattr(path, "user.a", b"1")
    os.setxattr(path, "user.b", b"2")
    os.removexattr(path, "user.a")
    assert os.listxattr(path) == ["user.b"]
    fails("ENODATA", os.getxattr, path, "user.a")


@pytest.mark.parametrize("name", ["setxattr", "removexattr"])
def test_times(d: Folder, name: str) -> None:
    """Setting and removing an attribute marks ctime."""
    path = d.file()
    os.setxattr(path, NAME, b"v")
    before = watch(path)
    os.setxattr(path, NAME, b"w") if name == "setxattr" else os.removexattr(path, NAME)
    assert before.moved() == "c"


@pytest.mark.parametrize("name", ["nothing", "unknown.x", ".x"])
def test_eopnotsupp_namespace(d: Folder, name: str) -> None:
    """EOPNOTSUPP: The namespace prefix of name is not valid."""
    fails("EOPNOTSUPP", os.setxattr, d.file(), name, b"v")
    fails("EOPNOTSUPP/ENODATA", os.getxattr, d / "file", name)


@pytest.mark.parametrize("length", [0, 256])
def test_erange_name(d: Folder, length: int) -> None:
    """ERANGE: a name without bytes, or of more than XATTR_NAME_MAX (255)."""
    name = "user." + "n" * (length - 5) if length else ""
    fails("ERANGE", c.setxattr, d.file(), name, b"v", 1, 0)
    fails("ERANGE", c.getxattr, d / "file", name, bytes(9), 9)


def test_name_of_255_bytes(d: Folder) -> None:
    """A name may have 255 bytes, the prefix included."""
    name = "user." + "n" * 250
    os.setxattr(d.file(), name, b"v")
    assert os.listxattr(d / "file") == [name]


def test_einval_empty_user_name(d: Folder) -> None:
    """EINVAL: the prefix alone is no name."""
    fails("EINVAL", os.setxattr, d.file(), "user.", b"v")


def test_e2big(d: Folder) -> None:
    """E2BIG: The value is larger than XATTR_SIZE_MAX (64 KiB)."""
    fails("E2BIG", os.setxattr, d.file(), NAME, bytes(65_537))


def test_value_of_a_page(d: Folder) -> None:
    """Values of 3000 bytes are kept whole."""
    os.setxattr(d.file(), NAME, b"v" * 3000)
    assert os.getxattr(d / "file", NAME) == b"v" * 3000


def test_efault(d: Folder) -> None:
    """EFAULT: name or value points outside the accessible address space."""
    path = d.file()
    fails("EFAULT", c.setxattr, path, BAD, b"v", 1, 0)
    fails("EFAULT", c.setxattr, path, NAME, BAD, 1, 0)
    os.setxattr(path, NAME, b"abc")
    fails("EFAULT", c.getxattr, path, NAME, BAD, 9)
    fails("EFAULT", c.listxattr, path, BAD, 99)


@pytest.mark.parametrize("kind", ["link", "fifo", "socket", "device"])
def test_eperm_user_of_special_files(d: Folder, kind: str) -> None:
    """EPERM: user.* is allowed for regular files and directories only."""
    if kind == "link":
        path = d.link("x")
    elif kind == "fifo":
        path = d.fifo()
    else:
        path = d / "node"
        c.mknod(path, 0o140644 if kind == "socket" else 0o020644, os.makedev(1, 3))
    fails("EPERM", c.lsetxattr, path, NAME, b"v", 1, 0)


def test_eacces_user_write(d: Folder) -> None:
    """EACCES: setting a user attribute needs write permission on the file."""
    path = d.file(mode=0o644)
    d.user(lambda: fails("EACCES", os.setxattr, path, NAME, b"v"))
    os.setxattr(path, NAME, b"v")
    d.user(lambda: fails("EACCES", os.removexattr, path, NAME))


def test_eacces_user_read(d: Folder) -> None:
    """EACCES: reading a user attribute needs read permission on the file."""
    path = d.file(mode=0o622)
    os.setxattr(path, NAME, b"v")
    d.user(lambda: fails("EACCES", os.getxattr, path, NAME))
    os.chmod(path, 0o644)
    d.user(lambda: os.getxattr(path, NAME))


def test_list_needs_no_permission(d: Folder) -> None:
    """listxattr() needs no permission on the file itself."""
    path = d.file(mode=0o600)
    os.setxattr(path, NAME, b"v")
    d.user(lambda: os.listxattr(path))


def test_user_by_a_writer(d: Folder) -> None:
    """Write permission is enough: the writer need not be the owner."""
    path = d.file(mode=0o666)
    d.user(lambda: os.setxattr(path, NAME, b"v"))
    assert os.getxattr(path, NAME) == b"v"


def test_user_in_a_sticky_folder(d: Folder) -> None:
    """EPERM: user.* of a sticky directory is for its owner."""
    path = d.folder(mode=0o1777, owner=(OTHER, GROUP))
    d.user(lambda: fails("EPERM", os.setxattr, path, NAME, b"v"))


def test_trusted_by_root(d: Folder) -> None:
    """trusted.* is visible and accessible to processes with CAP_SYS_ADMIN."""
    path = d.file()
    os.setxattr(path, "trusted.x", b"v")
    assert os.getxattr(path, "trusted.x") == b"v"
    assert os.listxattr(path) == ["trusted.x"]


def test_trusted_eperm(d: Folder) -> None:
    """EPERM or ENODATA: trusted.* for anybody else."""
    path = d.file(owner=(USER, GROUP), mode=0o666)
    os.setxattr(path, "trusted.x", b"v")
    d.user(lambda: fails("EPERM", os.setxattr, path, "trusted.y", b"v"))
    d.user(lambda: fails("EPERM/ENODATA", os.getxattr, path, "trusted.x"))


def test_trusted_is_not_listed(d: Folder) -> None:
    """listxattr() leaves out what the process has no access to."""
    path = d.file(mode=0o666)
    os.setxattr(path, "trusted.x", b"v")

    def body() -> None:
        assert os.listxattr(path) == []

    d.user(body)


def test_security_eperm(d: Folder) -> None:
    """EPERM: security.* needs CAP_SYS_ADMIN to set."""
    path = d.file(owner=(USER, GROUP))
    d.user(lambda: fails("EPERM", os.setxattr, path, "security.x", b"v"))
    os.setxattr(path, "security.x", b"v")
    assert os.getxattr(path, "security.x") == b"v"


def test_trusted_of_a_link(d: Folder) -> None:
    """lsetxattr() sets attributes of the symbolic link itself."""
    d.file()
    os.setxattr(d.link("file"), "trusted.x", b"v", follow_symlinks=False)
    assert os.getxattr(d / "link", "trusted.x", follow_symlinks=False) == b"v"
    assert os.listxattr(d / "file") == []


def test_setxattr_follows(d: Folder) -> None:
    """setxattr() follows a symbolic link."""
    d.file()
    os.setxattr(d.link("file"), NAME, b"v")
    assert os.listxattr(d / "file") == [NAME]


def test_attributes_outlive_rename_and_link(d: Folder) -> None:
    """Extended attributes belong to the inode."""
    path = d.file(content=b"abc")
    os.setxattr(path, NAME, b"v")
    os.link(path, d / "other")
    os.rename(path, d / "new")
    assert os.getxattr(d / "new", NAME) == os.getxattr(d / "other", NAME) == b"v"


def test_new_file_of_the_same_name_has_none(d: Folder) -> None:
    """A file that takes a used name starts without attributes."""
    os.setxattr(d.file(), NAME, b"v")
    os.unlink(d / "file")
    assert os.listxattr(d.file()) == []


def test_attributes_leave_the_content(d: Folder) -> None:
    """Setting an attribute changes neither size nor bytes nor mtime."""
    path = d.file(content=b"abc")
    before = os.stat(path)
    os.setxattr(path, NAME, b"v" * 1000)
    assert (os.stat(path).st_size, os.stat(path).st_mtime_ns) == (3, before.st_mtime_ns)
    assert content_of(path) == b"abc"


def test_capability_is_dropped_by_write(d: Folder) -> None:
    """capabilities(7): writing to a file removes its security.capability."""
    path = d.file(content=b"abc", mode=0o777)
    value = bytes.fromhex("0100000200040000000000000000000000000000")
    os.setxattr(path, "security.capability", value)
    d.user(lambda: os.write(os.open(path, os.O_WRONLY), b"x"))
    assert os.listxattr(path) == []


def test_capability_is_dropped_by_chown(d: Folder) -> None:
    """capabilities(7): chown() removes security.capability."""
    path = d.file(mode=0o777)
    value = bytes.fromhex("0100000200040000000000000000000000000000")
    os.setxattr(path, "security.capability", value)
    os.chown(path, USER, GROUP)
    assert os.listxattr(path) == []


@pytest.mark.parametrize("name", ["fsetxattr", "fgetxattr", "flistxattr", "fremovexattr"])
def test_ebadf(d: Folder, name: str) -> None:
    """EBADF: fd is not a valid descriptor."""
    tails = {
        "fsetxattr": (NAME, b"v", 1, 0),
        "fgetxattr": (NAME, bytes(9), 9),
        "flistxattr": (bytes(9), 9),
        "fremovexattr": (NAME,),
    }
    fails("EBADF", getattr(c, name), d.closed(), *tails[name])
