"""What a case works with: its folder on the file system under test, and other users.

`Folder` creates files, folders and links with the mode and owner that a case needs, and closes the
descriptors that it returned. `Folder.user` runs a function in a child process with other ids: no
user of the system is needed, because only numbers count. `tick` waits until the clock that file
systems use for times has moved, so that two times differ.
"""

import os
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

USER, GROUP = 12345, 23456
OTHER, OTHER_GROUP = 12346, 23457
_COARSE = 5  # CLOCK_REALTIME_COARSE of clock_gettime(2)


@dataclass(frozen=True, slots=True)
class Place:
    """One file system under test."""

    name: str
    root: Path
    readonly: str  # a read-only mount of a part of it: file, folder, folder/inner, link, fifo
    busy: str  # it is a folder on it that is a mount point
    elsewhere: str  # a folder on another file system


@dataclass(slots=True)
class Folder:
    """The folder of one case."""

    place: Place
    path: str
    fds: list[int] = field(default_factory=list)

    def __truediv__(self, name: str) -> str:
        return f"{self.path}/{name}"

    def file(
        self,
        name: str = "file",
        content: bytes = b"",
        mode: int = 0o644,
        owner: tuple[int, int] | None = None,
    ) -> str:
        path = self / name
        fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o644)
        if content:
            os.write(fd, content)
        os.close(fd)
        return _own(path, mode, owner)

    def folder(
        self, name: str = "folder", mode: int = 0o755, owner: tuple[int, int] | None = None
    ) -> str:
        os.mkdir(self / name)
        return _own(self / name, mode, owner)

    def link(self, target: str, name: str = "link") -> str:
        os.symlink(target, self / name)
        return self / name

    def fifo(self, name: str = "fifo", mode: int = 0o644) -> str:
        os.mkfifo(self / name)
        os.chmod(self / name, mode)
        return self / name

    def fd(self, path: str, flags: int = os.O_RDWR, mode: int = 0o644) -> int:
        """An open descriptor; it is closed after the case unless the case closed it."""
        self.fds.append(os.open(path, flags, mode))
        return self.fds[-1]

    def new(self, content: bytes = b"", name: str = "file") -> int:
        """A descriptor, open for reading and writing, of a new file; its offset is 0."""
        fd = self.fd(self / name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        if content:
            os.pwrite(fd, content, 0)
        return fd

    def closed(self) -> int:
        """A number that is no open descriptor."""
        return 1_000_000

    def user(
        self,
        body: Callable[[], object],
        *,
        uid: int = USER,
        gid: int = GROUP,
        groups: tuple[int, ...] = (),
    ) -> None:
        as_user(body, uid, gid, groups)

    def close(self) -> None:
        for fd in self.fds:
            with suppress(OSError):
                os.close(fd)


def _own(path: str, mode: int, owner: tuple[int, int] | None) -> str:
    if owner:
        os.chown(path, *owner)
    if mode not in (0o644, 0o755) or owner or os.stat(path).st_mode & 0o7777 != mode:
        os.chmod(path, mode)
    return path


def spawn(body: Callable[[], object]) -> int:
    """Starts `body` in a child process, which ends with 0 or, after an exception, 1; its pid."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            body()
            code = 0
        finally:
            os._exit(code)
    return pid


def exit_code(pid: int) -> int:
    """Waits for a child; returns its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def in_child(body: Callable[[], object]) -> None:
    """Runs `body` in a child process; its exception is raised here."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer = b""
        try:
            body()
        except OSError as error:
            answer = pickle.dumps(OSError(error.errno, str(error)))
        except BaseException as error:
            answer = pickle.dumps(AssertionError(str(error) or repr(error)))
        os.write(writer, b"." + answer[:60_000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answers:
        answer = answers.read()
    os.waitpid(pid, 0)
    if not answer:
        raise AssertionError("the child process died")
    if answer[1:]:
        raise pickle.loads(answer[1:])


def as_user(
    body: Callable[[], object], uid: int = USER, gid: int = GROUP, groups: tuple[int, ...] = ()
) -> None:
    """Runs `body` in a child process with these ids and no capability."""

    def become() -> None:
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        os.umask(0o022)
        body()

    in_child(become)


@contextmanager
def umask(bits: int) -> Iterator[None]:
    before = os.umask(bits)
    try:
        yield
    finally:
        os.umask(before)


def tick() -> None:
    """Returns once the kernel's coarse clock is past now (some 10 ms), and so past every time stamp
    until now.

    This includes fine time stamps (ext4 has them since Linux 6.13), which may be ahead of a clock
    that has just moved.
    """
    now = time.time_ns()
    while time.clock_gettime_ns(_COARSE) <= now:
        pass


def mode_of(path: str) -> int:
    return os.lstat(path).st_mode & 0o7777


def content_of(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


@dataclass(frozen=True, slots=True)
class Times:
    """The three times of a file, which can be asked later which of them moved."""

    path: str
    atime: int
    mtime: int
    ctime: int

    def moved(self) -> str:
        """The letters of the times that rose since then: a, m, c."""
        now = times_of(self.path)
        pairs = (
            ("a", self.atime, now.atime),
            ("m", self.mtime, now.mtime),
            ("c", self.ctime, now.ctime),
        )
        return "".join(letter for letter, before, after in pairs if after > before)


def times_of(path: str) -> Times:
    found = os.lstat(path)
    return Times(path, found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)


def watch(path: str) -> Times:
    """The times now. The clock moves before this returns, so that later stamps are larger."""
    found = times_of(path)
    tick()
    return found
