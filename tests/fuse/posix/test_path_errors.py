"""The errnos that the man page of every call with a path lists for the path itself.

One case for each pair of call and sentence; the calls are the rows of `path_calls`.
"""

import os

import pytest

from tests.fuse.posix.calls import BAD, c, fails
from tests.fuse.posix.context import Folder, in_child
from tests.fuse.posix.path_calls import AT_CALLS, PATH_CALLS, AtCall, PathCall, prepare


def every(*rows: PathCall | AtCall) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("call", rows, ids=lambda row: row.name)


@every(*PATH_CALLS)
def test_enoent_prefix_missing(d: Folder, call: PathCall) -> None:
    """ENOENT: A component of the path prefix does not exist."""
    fails("ENOENT", call.run, d, d / "missing/name")


@every(*PATH_CALLS)
def test_enoent_prefix_is_a_dangling_link(d: Folder, call: PathCall) -> None:
    """ENOENT: A component of the path prefix is a dangling symbolic link."""
    d.link("nowhere", "dangling")
    fails("ENOENT", call.run, d, d / "dangling/name")


@every(*PATH_CALLS)
def test_enoent_empty(d: Folder, call: PathCall) -> None:
    """ENOENT: path is an empty string."""
    fails("ENOENT", call.run, d, "")


@every(*(row for row in PATH_CALLS if not row.creates))
def test_enoent_name_missing(d: Folder, call: PathCall) -> None:
    """ENOENT: The named file does not exist; a name of 255 bytes is not too long."""
    fails("ENOENT", call.run, d, d / "missing")
    fails("ENOENT", call.run, d, d / ("n" * 255))


@every(*(row for row in PATH_CALLS if not row.creates and row.follows))
def test_enoent_dangling_link(d: Folder, call: PathCall) -> None:
    """ENOENT: The last component is a symbolic link to a file that does not exist."""
    fails("ENOENT", call.run, d, d.link("nowhere"))


@every(*PATH_CALLS)
def test_enotdir_prefix(d: Folder, call: PathCall) -> None:
    """ENOTDIR: A component of the path prefix is not a directory."""
    fails("ENOTDIR", call.run, d, d.file("plain") + "/name")


@every(*PATH_CALLS)
def test_enotdir_prefix_link_to_file(d: Folder, call: PathCall) -> None:
    """ENOTDIR: A component of the path prefix is a symbolic link to a file."""
    d.file("plain")
    fails("ENOTDIR", call.run, d, d.link("plain") + "/name")


@every(*PATH_CALLS)
def test_enametoolong_component(d: Folder, call: PathCall) -> None:
    """ENAMETOOLONG: The length of a component exceeds NAME_MAX (255)."""
    fails("ENAMETOOLONG", call.run, d, d / ("n" * 256))


@every(*PATH_CALLS)
def test_enametoolong_prefix_component(d: Folder, call: PathCall) -> None:
    """ENAMETOOLONG: A component of the path prefix exceeds NAME_MAX."""
    fails("ENAMETOOLONG", call.run, d, d / ("n" * 256 + "/name"))


@every(*PATH_CALLS)
def test_enametoolong_path(d: Folder, call: PathCall) -> None:
    """ENAMETOOLONG: The length of the path exceeds PATH_MAX (4096, the NUL included)."""
    fails("ENAMETOOLONG", call.run, d, d.path + "/." * 2048 + "/name")


@every(*PATH_CALLS)
def test_eloop_prefix(d: Folder, call: PathCall) -> None:
    """ELOOP: Too many symbolic links were encountered in resolving the path."""
    d.link("loop-b", "loop-a")
    d.link("loop-a", "loop-b")
    fails("ELOOP", call.run, d, d / "loop-a/name")


@every(*(row for row in PATH_CALLS if row.follows))
def test_eloop_name(d: Folder, call: PathCall) -> None:
    """ELOOP: The last component is a symbolic link that leads to itself."""
    fails("ELOOP", call.run, d, d.link("link"))


@every(*PATH_CALLS)
def test_eacces_prefix(d: Folder, call: PathCall) -> None:
    """EACCES: Search permission is denied for a component of the path prefix."""
    os.chmod(d.path, 0o777)
    d.folder("closed", 0o766)
    prepare(d, call.kind, "closed/object")
    d.user(lambda: fails("EACCES", call.run, d, d / "closed/object"))


@every(*PATH_CALLS)
def test_efault(d: Folder, call: PathCall) -> None:
    """EFAULT: path points outside the accessible address space."""
    fails("EFAULT", call.run, d, BAD)


@every(*(row for row in PATH_CALLS if row.changes))
def test_erofs(d: Folder, call: PathCall) -> None:
    """EROFS: The file resides on a read-only file system."""
    name = "new" if call.creates else call.kind
    from_elsewhere = call.name in ("rename-from", "rename-to", "link-from", "link-to")
    wanted = "EXDEV/EROFS" if from_elsewhere else "EROFS"
    fails(wanted, call.run, d, f"{d.place.readonly}/{name}")


@every(*(row for row in PATH_CALLS if not row.changes))
def test_read_only_file_system_is_readable(d: Folder, call: PathCall) -> None:
    """EROFS is for changes alone: the call gets through to the file."""
    try:
        in_child(lambda: call.run(d, f"{d.place.readonly}/{call.kind}"))
    except OSError as error:
        assert error.errno != 30


@every(*AT_CALLS)
def test_at_ebadf(d: Folder, call: AtCall) -> None:
    """EBADF: path is relative but dirfd is neither AT_FDCWD nor a valid descriptor."""
    fails("EBADF", call.run, d, d.closed(), "object")


@every(*AT_CALLS)
def test_at_enotdir(d: Folder, call: AtCall) -> None:
    """ENOTDIR: path is relative and dirfd refers to a file other than a directory."""
    fails("ENOTDIR", call.run, d, d.new(), "object")


@every(*AT_CALLS)
def test_at_is_relative_to_the_descriptor(d: Folder, call: AtCall) -> None:
    """If path is relative, it is interpreted relative to the directory that dirfd refers to."""
    d.folder("base")
    at = d.fd(d / "base", os.O_RDONLY)
    if not call.creates:
        prepare(d, call.kind, "base/object")
    call.run(d, at, "object")
    takes = call.name.startswith(("unlink", "renameat-from", "renameat2-from"))
    assert os.path.lexists(d / "base/object") is not takes


@every(*AT_CALLS)
def test_at_absolute_path_ignores_the_descriptor(d: Folder, call: AtCall) -> None:
    """If path is absolute, then dirfd is ignored."""
    if not call.creates:
        prepare(d, call.kind)
    call.run(d, d.closed(), d / "object")


@every(*AT_CALLS)
def test_at_fdcwd(d: Folder, call: AtCall) -> None:
    """If path is relative and dirfd is AT_FDCWD, it is relative to the working directory."""

    def body() -> None:
        os.chdir(d.path)
        if not call.creates:
            prepare(d, call.kind)
        call.run(d, -100, "object")

    in_child(body)


@every(*AT_CALLS)
def test_at_removed_directory(d: Folder, call: AtCall) -> None:
    """ENOENT: path is relative to a directory that has been removed."""
    d.folder("base")
    at = d.fd(d / "base", os.O_RDONLY)
    c.rmdir(d / "base")
    fails("ENOENT", call.run, d, at, "object")
