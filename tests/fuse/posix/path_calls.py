"""Every system call that takes a path, as rows of tables: one call each, given a case and a path.

`changes` marks the calls that need a writable file system, `creates` those that create the last
component, `follows` those that follow a symbolic link there. `AT_CALLS` take a directory descriptor
as well.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass

from tests.fuse.posix.calls import (
    AT_EACCESS,
    AT_REMOVEDIR,
    AT_SYMLINK_NOFOLLOW,
    SYS_FACCESSAT2,
    SYS_OPENAT2,
    Statx,
    c,
    times,
)
from tests.fuse.posix.context import Folder

BUFFER = 4096


@dataclass(frozen=True, slots=True)
class PathCall:
    name: str
    run: Callable[[Folder, object], object]
    changes: bool = False
    creates: bool = False
    follows: bool = True
    kind: str = "file"  # the last component must be of this kind: file, folder, link


def _buffer() -> bytes:
    return bytes(BUFFER)


def _close(fd: int) -> None:
    os.close(fd)


_NOW = times((1, 0), (1, 0))

PATH_CALLS = (
    PathCall("open", lambda d, p: _close(c.open(p, os.O_RDONLY | os.O_NONBLOCK))),
    PathCall(
        "open-O_WRONLY", lambda d, p: _close(c.open(p, os.O_WRONLY | os.O_NONBLOCK)), changes=True
    ),
    PathCall("open-O_TRUNC", lambda d, p: _close(c.open(p, os.O_RDWR | os.O_TRUNC)), changes=True),
    PathCall("open-O_PATH", lambda d, p: _close(c.open(p, os.O_PATH))),
    PathCall("open-O_DIRECTORY", lambda d, p: _close(c.open(p, os.O_DIRECTORY)), kind="folder"),
    PathCall(
        "open-O_CREAT",
        lambda d, p: _close(c.open(p, os.O_CREAT | os.O_RDWR, 0o644)),
        changes=True,
        creates=True,
    ),
    PathCall(
        "open-O_EXCL",
        lambda d, p: _close(c.open(p, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)),
        changes=True,
        creates=True,
        follows=False,
    ),
    PathCall(
        "open-O_TMPFILE",
        lambda d, p: _close(c.open(p, os.O_TMPFILE | os.O_RDWR, 0o644)),
        changes=True,
        kind="folder",
    ),
    PathCall("creat", lambda d, p: _close(c.creat(p, 0o644)), changes=True, creates=True),
    PathCall("mkdir", lambda d, p: c.mkdir(p, 0o755), changes=True, creates=True, follows=False),
    PathCall("rmdir", lambda d, p: c.rmdir(p), changes=True, follows=False, kind="folder"),
    PathCall("unlink", lambda d, p: c.unlink(p), changes=True, follows=False),
    PathCall("rename-from", lambda d, p: c.rename(p, d / "to"), changes=True, follows=False),
    PathCall(
        "rename-to",
        lambda d, p: c.rename(d.file("from"), p),
        changes=True,
        creates=True,
        follows=False,
    ),
    PathCall("link-from", lambda d, p: c.link(p, d / "to"), changes=True, follows=False),
    PathCall(
        "link-to", lambda d, p: c.link(d.file("from"), p), changes=True, creates=True, follows=False
    ),
    PathCall("symlink", lambda d, p: c.symlink("x", p), changes=True, creates=True, follows=False),
    PathCall("readlink", lambda d, p: c.readlink(p, _buffer(), BUFFER), follows=False, kind="link"),
    PathCall(
        "mknod", lambda d, p: c.mknod(p, 0o100644, 0), changes=True, creates=True, follows=False
    ),
    PathCall("mkfifo", lambda d, p: c.mkfifo(p, 0o644), changes=True, creates=True, follows=False),
    PathCall("chmod", lambda d, p: c.chmod(p, 0o600), changes=True),
    PathCall("chown", lambda d, p: c.chown(p, 1, 1), changes=True),
    PathCall("lchown", lambda d, p: c.lchown(p, 1, 1), changes=True, follows=False),
    PathCall("truncate", lambda d, p: c.truncate(p, 0), changes=True),
    PathCall("utimensat", lambda d, p: c.utimensat(-100, p, _NOW, 0), changes=True),
    PathCall(
        "lutimensat",
        lambda d, p: c.utimensat(-100, p, _NOW, AT_SYMLINK_NOFOLLOW),
        changes=True,
        follows=False,
    ),
    PathCall("stat", lambda d, p: c.stat(p, _buffer())),
    PathCall("lstat", lambda d, p: c.lstat(p, _buffer()), follows=False),
    PathCall("statx", lambda d, p: c.statx(-100, p, 0, 0x7FF, _statx())),
    PathCall("access", lambda d, p: c.access(p, os.R_OK)),
    PathCall("access-W_OK", lambda d, p: c.access(p, os.W_OK), changes=True),
    PathCall("faccessat2", lambda d, p: c.syscall(SYS_FACCESSAT2, -100, p, os.F_OK, AT_EACCESS)),
    PathCall("statfs", lambda d, p: c.statfs(p, _buffer())),
    PathCall("statvfs", lambda d, p: c.statvfs(p, _buffer())),
    PathCall("chdir", lambda d, p: c.chdir(p), kind="folder"),
    PathCall("getxattr", lambda d, p: c.getxattr(p, "user.x", _buffer(), BUFFER)),
    PathCall("setxattr", lambda d, p: c.setxattr(p, "user.x", b"v", 1, 0), changes=True),
    PathCall("listxattr", lambda d, p: c.listxattr(p, _buffer(), BUFFER)),
    PathCall("removexattr", lambda d, p: c.removexattr(p, "user.x"), changes=True),
    PathCall("lgetxattr", lambda d, p: c.lgetxattr(p, "user.x", _buffer(), BUFFER), follows=False),
    PathCall(
        "lsetxattr",
        lambda d, p: c.lsetxattr(p, "trusted.x", b"v", 1, 0),
        changes=True,
        follows=False,
    ),
    PathCall("execve", lambda d, p: c.execve(p, None, None)),
)


def _statx() -> Statx:
    return Statx()


@dataclass(frozen=True, slots=True)
class AtCall:
    name: str
    run: Callable[[Folder, int, object], object]
    creates: bool = False
    kind: str = "file"


AT_CALLS = (
    AtCall("openat", lambda d, at, p: _close(c.openat(at, p, os.O_RDONLY))),
    AtCall("openat-O_CREAT", lambda d, at, p: _close(c.openat(at, p, os.O_CREAT | 2, 0o600)), True),
    AtCall("openat2", lambda d, at, p: _close(c.syscall(SYS_OPENAT2, at, p, bytes(24), 24))),
    AtCall("mkdirat", lambda d, at, p: c.mkdirat(at, p, 0o755), True),
    AtCall("mknodat", lambda d, at, p: c.mknodat(at, p, 0o100644, 0), True),
    AtCall("mkfifoat", lambda d, at, p: c.mkfifoat(at, p, 0o644), True),
    AtCall("unlinkat", lambda d, at, p: c.unlinkat(at, p, 0)),
    AtCall(
        "unlinkat-AT_REMOVEDIR", lambda d, at, p: c.unlinkat(at, p, AT_REMOVEDIR), kind="folder"
    ),
    AtCall("renameat-from", lambda d, at, p: c.renameat(at, p, -100, d / "to")),
    AtCall("renameat-to", lambda d, at, p: c.renameat(-100, d.file("from"), at, p), True),
    AtCall("renameat2-from", lambda d, at, p: c.renameat2(at, p, -100, d / "to", 1)),
    AtCall("linkat-from", lambda d, at, p: c.linkat(at, p, -100, d / "to", 0)),
    AtCall("linkat-to", lambda d, at, p: c.linkat(-100, d.file("from"), at, p, 0), True),
    AtCall("symlinkat", lambda d, at, p: c.symlinkat("x", at, p), True),
    AtCall("readlinkat", lambda d, at, p: c.readlinkat(at, p, _buffer(), BUFFER), kind="link"),
    AtCall("fchmodat", lambda d, at, p: c.fchmodat(at, p, 0o600, 0)),
    AtCall("fchownat", lambda d, at, p: c.fchownat(at, p, 1, 1, 0)),
    AtCall("utimensat", lambda d, at, p: c.utimensat(at, p, _NOW, 0)),
    AtCall("fstatat", lambda d, at, p: c.fstatat(at, p, _buffer(), 0)),
    AtCall("statx", lambda d, at, p: c.statx(at, p, 0, 0x7FF, _statx())),
    AtCall("faccessat", lambda d, at, p: c.faccessat(at, p, os.R_OK, 0)),
    AtCall("faccessat2", lambda d, at, p: c.syscall(SYS_FACCESSAT2, at, p, 0, AT_EACCESS)),
)


def prepare(d: Folder, kind: str, name: str = "object") -> str:
    """An object of this kind, with the xattr that calls ask for."""
    if kind == "folder":
        return d.folder(name)
    if kind == "link":
        return d.link("target", name)
    return d.file(name)
