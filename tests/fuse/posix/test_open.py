"""open(2), creat(2), openat(2): flags, modes, and the errnos that are not about the path."""

import fcntl
import os
import resource
import stat

import pytest

from tests.fuse.posix.calls import BAD, SYS_OPENAT2, c, fails
from tests.fuse.posix.context import (
    GROUP,
    OTHER_GROUP,
    USER,
    Folder,
    content_of,
    in_child,
    mode_of,
    umask,
    watch,
)

NEW = os.O_CREAT | os.O_RDWR
EXCLUSIVE = NEW | os.O_EXCL
ACCESS_MODES = pytest.mark.parametrize(
    "flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR], ids=["O_RDONLY", "O_WRONLY", "O_RDWR"]
)


def test_lowest_descriptor(d: Folder) -> None:
    """open() returns the lowest-numbered descriptor not currently open for the process."""
    path = d.file()
    first, second = d.fd(path), d.fd(path)
    os.close(first)
    assert c.open(path, os.O_RDONLY) == first < second


def test_offset_starts_at_the_beginning(d: Folder) -> None:
    """The file offset is set to the beginning of the file."""
    fd = d.fd(d.file(content=b"abc"))
    assert c.lseek(fd, 0, os.SEEK_CUR) == 0


def test_append_offset_starts_at_the_beginning(d: Folder) -> None:
    """O_APPEND: the offset is moved before each write, not by open()."""
    fd = d.fd(d.file(content=b"abc"), os.O_RDWR | os.O_APPEND)
    assert c.lseek(fd, 0, os.SEEK_CUR) == 0


def test_o_append_writes_at_the_end(d: Folder) -> None:
    """O_APPEND: Before each write(2), the file offset is positioned at the end of the file."""
    path = d.file(content=b"abc")
    fd = d.fd(path, os.O_RDWR | os.O_APPEND)
    os.lseek(fd, 0, os.SEEK_SET)
    os.write(fd, b"def")
    assert content_of(path) == b"abcdef"
    assert os.lseek(fd, 0, os.SEEK_CUR) == 6


def test_o_append_after_another_descriptor_wrote(d: Folder) -> None:
    """O_APPEND: the end is that of the moment of the write."""
    path = d.file()
    first, second = (d.fd(path, os.O_WRONLY | os.O_APPEND) for _ in range(2))
    for index in range(20):
        os.write((first, second)[index % 2], b"%02d" % index)
    assert content_of(path) == b"".join(b"%02d" % index for index in range(20))


def test_o_append_and_pwrite(d: Folder) -> None:
    """BUGS of pwrite(2): with O_APPEND, Linux appends whatever the offset."""
    path = d.file(content=b"abc")
    os.pwrite(d.fd(path, os.O_RDWR | os.O_APPEND), b"X", 0)
    assert content_of(path) == b"abcX"


def test_o_creat_makes_a_regular_file(d: Folder) -> None:
    """O_CREAT: If path does not exist, create it as a regular file."""
    os.close(c.open(d / "file", NEW, 0o644))
    found = os.stat(d / "file")
    assert stat.S_ISREG(found.st_mode)
    assert (found.st_size, found.st_nlink) == (0, 1)


def test_o_creat_of_an_existing_file_leaves_it(d: Folder) -> None:
    """O_CREAT has no effect on a file that exists: bytes, mode and times stay."""
    path = d.file(content=b"abc", mode=0o640)
    before = watch(path)
    os.close(c.open(path, NEW, 0o777))
    assert (before.moved(), mode_of(path), content_of(path)) == ("", 0o640, b"abc")


@pytest.mark.parametrize("mode", [0o000, 0o400, 0o644, 0o777, 0o1755, 0o4755, 0o2755], ids=oct)
def test_o_creat_mode(d: Folder, mode: int) -> None:
    """The mode of the created file is (mode & ~umask)."""
    with umask(0o022):
        os.close(c.open(d / "file", NEW, mode))
    assert mode_of(d / "file") == mode & ~0o022


@pytest.mark.parametrize("bits", [0o000, 0o077, 0o777, 0o027], ids=oct)
def test_o_creat_umask(d: Folder, bits: int) -> None:
    """The umask of the process takes bits away from the mode."""
    with umask(bits):
        os.close(c.open(d / "file", NEW, 0o777))
    assert mode_of(d / "file") == 0o777 & ~bits


def test_o_creat_mode_is_for_later_opens(d: Folder) -> None:
    """mode applies to future accesses: an open() that creates a read-only file may write it."""
    os.chmod(d.path, 0o777)

    def body() -> None:
        fd = c.open(d / "file", NEW, 0o000)
        os.write(fd, b"abc")
        fails("EACCES", c.open, d / "file", os.O_RDONLY)

    d.user(body)
    assert content_of(d / "file") == b"abc"


def test_o_creat_owner(d: Folder) -> None:
    """The owner of the new file is the effective user ID, the group the effective group ID."""
    os.chmod(d.path, 0o777)
    d.user(lambda: c.open(d / "file", NEW, 0o644))
    assert (os.stat(d / "file").st_uid, os.stat(d / "file").st_gid) == (USER, GROUP)


def test_o_creat_group_of_a_set_group_id_folder(d: Folder) -> None:
    """In a directory with the set-group-ID bit, the group is that of the directory."""
    os.chown(d.path, 0, OTHER_GROUP)
    os.chmod(d.path, 0o2777)
    d.user(lambda: c.open(d / "file", NEW, 0o644))
    assert os.stat(d / "file").st_gid == OTHER_GROUP


def test_o_creat_set_group_id_is_refused_to_strangers(d: Folder) -> None:
    """A set-group-ID file of a group that its creator is not in loses the bit."""
    os.chown(d.path, 0, OTHER_GROUP)
    os.chmod(d.path, 0o2777)
    d.user(lambda: c.open(d / "file", NEW, 0o2755))
    assert mode_of(d / "file") == 0o755


def test_o_creat_set_group_id_is_kept_for_members(d: Folder) -> None:
    """A member of the inherited group may create a set-group-ID file."""
    os.chown(d.path, 0, OTHER_GROUP)
    os.chmod(d.path, 0o2777)
    d.user(lambda: c.open(d / "file", NEW, 0o2755), groups=(OTHER_GROUP,))
    assert mode_of(d / "file") == 0o2755


def test_o_creat_times(d: Folder) -> None:
    """If the file is created, all its times and mtime and ctime of the parent are marked."""
    before = watch(d.path)
    os.close(c.open(d / "file", NEW, 0o644))
    found = os.stat(d / "file")
    assert before.moved() == "mc"
    assert found.st_atime_ns == found.st_mtime_ns == found.st_ctime_ns > before.mtime


def test_o_creat_follows_a_dangling_link(d: Folder) -> None:
    """O_CREAT without O_EXCL follows a dangling symbolic link and creates its target."""
    os.close(c.open(d.link("target"), NEW, 0o644))
    assert os.path.exists(d / "target")


def test_eexist_exclusive(d: Folder) -> None:
    """EEXIST: path already exists and O_CREAT and O_EXCL were used."""
    fails("EEXIST", c.open, d.file(), EXCLUSIVE, 0o644)


@pytest.mark.parametrize("kind", ["folder", "fifo", "link", "dangling", "loop"])
def test_eexist_exclusive_other_kinds(d: Folder, kind: str) -> None:
    """EEXIST: a symbolic link or any other object has the name, wherever the link leads."""
    make = {
        "folder": lambda: d.folder("name"),
        "fifo": lambda: d.fifo("name"),
        "link": lambda: d.link(d.file("target"), "name"),
        "dangling": lambda: d.link("nowhere", "name"),
        "loop": lambda: d.link("name", "name"),
    }
    fails("EEXIST", c.open, make[kind](), EXCLUSIVE, 0o644)


def test_exclusive_creates(d: Folder) -> None:
    """O_EXCL: Ensure that this call creates the file."""
    d.fds.append(c.open(d / "file", EXCLUSIVE, 0o600))
    assert mode_of(d / "file") == 0o600


def test_eexist_leaves_times(d: Folder) -> None:
    """A create that failed marks no time of the directory."""
    path = d.file()
    before = watch(d.path)
    fails("EEXIST", c.open, path, EXCLUSIVE, 0o644)
    assert before.moved() == ""


def test_o_trunc(d: Folder) -> None:
    """O_TRUNC: a regular file opened for writing is truncated to length 0."""
    path = d.file(content=b"abc" * 1000)
    os.close(c.open(path, os.O_WRONLY | os.O_TRUNC))
    assert os.stat(path).st_size == 0


def test_o_trunc_times(d: Folder) -> None:
    """O_TRUNC marks mtime and ctime for update."""
    path = d.file(content=b"abc")
    before = watch(path)
    os.close(c.open(path, os.O_WRONLY | os.O_TRUNC))
    assert before.moved() == "mc"


def test_o_trunc_keeps_mode_and_owner(d: Folder) -> None:
    """O_TRUNC: mode and owner are unchanged."""
    path = d.file(content=b"abc", mode=0o640, owner=(USER, GROUP))
    os.close(c.open(path, os.O_WRONLY | os.O_TRUNC))
    found = os.stat(path)
    assert (found.st_mode & 0o7777, found.st_uid, found.st_gid) == (0o640, USER, GROUP)


def test_o_trunc_old_bytes_are_gone(d: Folder) -> None:
    """After O_TRUNC a write beyond the beginning leaves zeros before it."""
    path = d.file(content=b"x" * 9000)
    os.pwrite(d.fd(path, os.O_RDWR | os.O_TRUNC), b"end", 8000)
    assert content_of(path) == bytes(8000) + b"end"


def test_o_trunc_is_seen_by_other_descriptors(d: Folder) -> None:
    """O_TRUNC acts on the file: a descriptor opened before sees length 0."""
    path = d.file(content=b"abc")
    fd = d.fd(path)
    os.close(c.open(path, os.O_WRONLY | os.O_TRUNC))
    assert os.read(fd, 10) == b""
    assert os.fstat(fd).st_size == 0


def test_o_trunc_needs_write_permission(d: Folder) -> None:
    """EACCES: O_TRUNC was specified and write permission is denied."""
    path = d.file(content=b"abc", mode=0o444)
    d.user(lambda: fails("EACCES", c.open, path, os.O_RDONLY | os.O_TRUNC))
    assert content_of(path) == b"abc"


def test_o_trunc_of_a_fifo(d: Folder) -> None:
    """O_TRUNC is ignored for a FIFO."""
    d.fds.append(c.open(d.fifo(), os.O_RDWR | os.O_TRUNC))


def test_creat_is_open(d: Folder) -> None:
    """creat() is open() with flags equal to O_CREAT|O_WRONLY|O_TRUNC."""
    path = d.file(content=b"abc")
    fd = c.creat(path, 0o600)
    d.fds.append(fd)
    assert os.fstat(fd).st_size == 0
    assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
    fails("EBADF", os.read, fd, 1)


def test_creat_makes_the_file(d: Folder) -> None:
    """creat(): the file is created with the mode."""
    d.fds.append(c.creat(d / "new", 0o604))
    assert mode_of(d / "new") == 0o604


@ACCESS_MODES
def test_access_mode_is_reported(d: Folder, flags: int) -> None:
    """The access mode of a description is what open() was asked for."""
    fd = d.fd(d.file(), flags)
    assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == flags


def test_ebadf_read_of_a_writer(d: Folder) -> None:
    """read(2) EBADF: fd is not open for reading."""
    fails("EBADF", os.read, d.fd(d.file(content=b"abc"), os.O_WRONLY), 1)


def test_ebadf_write_of_a_reader(d: Folder) -> None:
    """write(2) EBADF: fd is not open for writing."""
    fails("EBADF", os.write, d.fd(d.file(), os.O_RDONLY), b"x")


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_CREAT])
def test_eisdir(d: Folder, flags: int) -> None:
    """EISDIR: path refers to a directory and the access requested involved writing."""
    fails("EISDIR", c.open, d.folder(), flags, 0o644)


def test_eisdir_trailing_slash(d: Folder) -> None:
    """EISDIR: O_CREAT with a trailing slash cannot make a directory."""
    fails("EISDIR", c.open, d / "new/", NEW, 0o644)


def test_enotdir_o_directory(d: Folder) -> None:
    """ENOTDIR: O_DIRECTORY was specified and path was not a directory."""
    fails("ENOTDIR", c.open, d.file(), os.O_DIRECTORY)


def test_o_directory_follows_links(d: Folder) -> None:
    """O_DIRECTORY opens a directory through a symbolic link."""
    d.folder()
    d.fd(d.link("folder"), os.O_DIRECTORY)


def test_enotdir_trailing_slash(d: Folder) -> None:
    """ENOTDIR: a trailing slash after the name of a file."""
    fails("ENOTDIR", c.open, d.file() + "/", os.O_RDONLY)


def test_eloop_o_nofollow(d: Folder) -> None:
    """ELOOP: path was a symbolic link and flags specified O_NOFOLLOW but not O_PATH."""
    d.file()
    fails("ELOOP", c.open, d.link("file"), os.O_NOFOLLOW)


def test_o_nofollow_of_a_file(d: Folder) -> None:
    """O_NOFOLLOW: Symbolic links in earlier components are still followed."""
    d.folder()
    d.file("folder/file")
    d.link("folder")
    d.fd(d / "link/file", os.O_RDONLY | os.O_NOFOLLOW)


def test_enotdir_o_nofollow_o_directory(d: Folder) -> None:
    """ENOTDIR: O_NOFOLLOW|O_DIRECTORY of a symbolic link."""
    d.folder()
    fails("ENOTDIR/ELOOP", c.open, d.link("folder"), os.O_NOFOLLOW | os.O_DIRECTORY)


def test_o_path_of_a_link(d: Folder) -> None:
    """O_PATH|O_NOFOLLOW returns a descriptor that refers to the symbolic link."""
    fd = d.fd(d.link("target"), os.O_PATH | os.O_NOFOLLOW)
    assert stat.S_ISLNK(os.fstat(fd).st_mode)
    assert os.readlink("", dir_fd=fd) == "target"


@pytest.mark.parametrize(
    "name", ["read", "write", "fchmod", "fchown", "ftruncate", "fgetxattr", "ioctl", "mmap"]
)
def test_o_path_ebadf(d: Folder, name: str) -> None:
    """O_PATH: other file operations fail with the error EBADF."""
    fd = d.fd(d.file(content=b"abc"), os.O_PATH)
    calls = {
        "read": lambda: c.read(fd, bytes(4), 4),
        "write": lambda: c.write(fd, b"x", 1),
        "fchmod": lambda: c.fchmod(fd, 0o600),
        "fchown": lambda: c.fchown(fd, 1, 1),
        "ftruncate": lambda: c.ftruncate(fd, 0),
        "fgetxattr": lambda: c.fgetxattr(fd, "user.x", bytes(4), 4),
        "ioctl": lambda: c.ioctl(fd, 0x80086601, bytes(8)),
        "mmap": lambda: c.mmap(None, 4096, 1, 1, fd, 0),
    }
    fails("EBADF", calls[name])


def test_o_path_needs_no_permission(d: Folder) -> None:
    """O_PATH requires no permissions on the object itself; fstat(2) works."""
    path = d.file(content=b"abc", mode=0o000)
    d.user(lambda: os.fstat(os.open(path, os.O_PATH)))


def test_o_path_of_a_folder_and_openat(d: Folder) -> None:
    """O_PATH: passing the descriptor as dirfd of openat() works."""
    d.folder()
    d.file("folder/file", b"abc")
    at = d.fd(d / "folder", os.O_PATH)
    fd = c.openat(at, "file", os.O_RDONLY)
    d.fds.append(fd)
    assert os.read(fd, 9) == b"abc"


@pytest.mark.parametrize(
    ("mode", "flags"),
    [(0o266, os.O_RDONLY), (0o466, os.O_WRONLY), (0o466, os.O_RDWR), (0o266, os.O_RDWR)],
)
@pytest.mark.parametrize("who", ["owner", "group", "others"])
def test_eacces(d: Folder, mode: int, flags: int, who: str) -> None:
    """EACCES: The requested access is not allowed; the first class that fits decides."""
    shifted = {"owner": mode, "group": 0o600 | (mode >> 3 & 0o70) | 6, "others": 0o660 | mode >> 6}
    owner = {"owner": (USER, GROUP), "group": (0, GROUP), "others": (0, 0)}[who]
    path = d.file(mode=shifted[who], owner=owner)
    d.user(lambda: fails("EACCES", c.open, path, flags))


@pytest.mark.parametrize("who", ["owner", "group", "supplementary", "others"])
def test_permission_granted(d: Folder, who: str) -> None:
    """Read and write access is given by the class of the caller alone."""
    mode = {"owner": 0o600, "group": 0o060, "supplementary": 0o060, "others": 0o006}[who]
    owner = {"owner": (USER, 0), "group": (0, GROUP), "supplementary": (0, 77)}.get(who, (0, 0))
    path = d.file(mode=mode, owner=owner)
    d.user(lambda: os.open(path, os.O_RDWR), groups=(76, 77))


def test_root_needs_no_permission(d: Folder) -> None:
    """A process with CAP_DAC_OVERRIDE opens any file."""
    os.write(d.fd(d.file(mode=0o000)), b"x")


def test_eacces_create_in_a_folder_without_write(d: Folder) -> None:
    """EACCES: the file did not exist and write access to the parent is not allowed."""
    d.user(lambda: fails("EACCES", c.open, d / "new", NEW, 0o644))
    assert not os.path.exists(d / "new")


def test_existing_file_in_a_folder_without_write(d: Folder) -> None:
    """O_CREAT of a file that exists needs no write access to the parent."""
    path = d.file(mode=0o666)
    d.user(lambda: c.open(path, NEW, 0o644))


def test_permission_is_checked_at_open_alone(d: Folder) -> None:
    """Access is checked when the file is opened: a later chmod() does not end it."""
    path = d.file(content=b"abc", owner=(USER, GROUP))

    def body() -> None:
        fd = os.open(path, os.O_RDWR)
        os.chmod(path, 0o000)
        assert os.read(fd, 3) == b"abc"
        assert os.write(fd, b"d") == 1
        fails("EACCES", c.open, path, os.O_RDONLY)

    d.user(body)


def test_eperm_o_noatime(d: Folder) -> None:
    """EPERM: O_NOATIME was specified, but the caller is not the owner and not privileged."""
    path = d.file(mode=0o666)
    d.user(lambda: fails("EPERM", c.open, path, os.O_RDONLY | os.O_NOATIME))


def test_o_noatime_by_the_owner(d: Folder) -> None:
    """O_NOATIME: the owner may; reading does not update the access time."""
    path = d.file(content=b"abc", owner=(USER, GROUP))
    before = watch(path)
    d.user(lambda: os.read(os.open(path, os.O_RDONLY | os.O_NOATIME), 3))
    assert before.moved() == ""


def test_emfile(d: Folder) -> None:
    """EMFILE: The per-process limit on the number of open file descriptors has been reached."""
    path = d.file()

    def body() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
        fails("EMFILE", c.open, path, os.O_RDONLY)

    in_child(body)


def test_einval_o_tmpfile_read_only(d: Folder) -> None:
    """EINVAL: O_TMPFILE was specified without O_WRONLY or O_RDWR."""
    fails("EINVAL", c.open, d.path, os.O_TMPFILE | os.O_RDONLY, 0o600)


def test_einval_o_direct_unaligned(d: Folder) -> None:
    """O_DIRECT: a read of an unaligned buffer is EINVAL, or is done."""
    fd = d.fd(d.file(content=bytes(8192)), os.O_RDWR | os.O_DIRECT)
    try:
        assert len(os.pread(fd, 4096, 0)) == 4096
    except OSError as error:
        assert error.errno == 22


def test_o_direct_writes_aligned(d: Folder) -> None:
    """O_DIRECT: aligned transfers read back, also through a buffered descriptor."""
    import mmap  # noqa: PLC0415

    block = mmap.mmap(-1, 8192)
    block.write(b"d" * 8192)
    fd = d.fd(d / "file", os.O_CREAT | os.O_RDWR | os.O_DIRECT)
    assert os.write(fd, block) == 8192
    assert content_of(d / "file") == b"d" * 8192


def test_o_cloexec(d: Folder) -> None:
    """O_CLOEXEC: Enable the close-on-exec flag for the new file descriptor."""
    fd = c.open(d.file(), os.O_RDONLY | os.O_CLOEXEC)
    d.fds.append(fd)
    assert fcntl.fcntl(fd, fcntl.F_GETFD) == fcntl.FD_CLOEXEC


@pytest.mark.parametrize("flag", [os.O_SYNC, os.O_DSYNC], ids=["O_SYNC", "O_DSYNC"])
def test_o_sync(d: Folder, flag: int) -> None:
    """O_SYNC, O_DSYNC: write operations complete with synchronized I/O; the flag is kept."""
    fd = d.fd(d.file(), os.O_RDWR | flag)
    assert os.write(fd, b"abc") == 3
    assert fcntl.fcntl(fd, fcntl.F_GETFL) & flag == flag
    assert content_of(d / "file") == b"abc"


def test_open_of_an_unlinked_name(d: Folder) -> None:
    """A file whose name is gone lives for its descriptors, and its name can be used again."""
    path = d.file(content=b"old")
    fd = d.fd(path)
    os.unlink(path)
    d.file(content=b"new")
    assert (os.read(fd, 9), content_of(path)) == (b"old", b"new")
    assert os.fstat(fd).st_nlink == 0


def test_two_opens_have_two_offsets(d: Folder) -> None:
    """A call to open() creates a new open file description with an offset of its own."""
    path = d.file(content=b"abcdef")
    first, second = d.fd(path), d.fd(path)
    assert (os.read(first, 3), os.read(second, 2)) == (b"abc", b"ab")


def test_openat2_resolve_no_symlinks(d: Folder) -> None:
    """openat2(2) RESOLVE_NO_SYMLINKS: ELOOP for any symbolic link."""
    d.folder()
    d.file("folder/file")
    d.link("folder")
    how = bytes(16) + (4).to_bytes(8, "little")
    fails("ELOOP", c.syscall, SYS_OPENAT2, -100, d / "link/file", how, 24)


def test_openat2_resolve_beneath(d: Folder) -> None:
    """openat2(2) RESOLVE_BENEATH: EXDEV for a path that leaves the directory."""
    at = d.fd(d.folder(), os.O_RDONLY)
    how = bytes(16) + (8).to_bytes(8, "little")
    fails("EXDEV", c.syscall, SYS_OPENAT2, at, "../file", how, 24)


def test_openat2_efault(d: Folder) -> None:
    """openat2(2) EFAULT: how is outside the accessible address space."""
    fails("EFAULT", c.syscall, SYS_OPENAT2, -100, d.file(), BAD, 24)


def test_openat2_einval(d: Folder) -> None:
    """openat2(2) EINVAL: size is smaller than any known version of struct open_how."""
    fails("EINVAL", c.syscall, SYS_OPENAT2, -100, d.file(), bytes(8), 8)


def test_open_of_a_link_to_a_link(d: Folder) -> None:
    """Symbolic links are followed up to the file, forty of them at most."""
    d.file(content=b"abc")
    d.link("file", "link0")
    for index in range(1, 41):
        d.link(f"link{index - 1}", f"link{index}")
    assert content_of(d / "link39") == b"abc"
    fails("ELOOP", c.open, d / "link40", os.O_RDONLY)


def test_close_ebadf_twice(d: Folder) -> None:
    """close(2) EBADF: fd isn't a valid open file descriptor."""
    fd = d.fd(d.file())
    assert c.close(fd) == 0
    fails("EBADF", c.close, fd)


def test_close_keeps_written_bytes(d: Folder) -> None:
    """close(2): what was written is there for the next open()."""
    fd = d.new()
    os.write(fd, b"abc")
    os.close(fd)
    assert content_of(d / "file") == b"abc"
