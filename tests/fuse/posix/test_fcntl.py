"""fcntl(2): duplicates, flags and locks; dup(2), dup2(2), dup3(2); flock(2)."""

import errno
import fcntl
import os
import signal
import struct

import pytest

from tests.fuse.posix.calls import F_OFD_GETLK, F_OFD_SETLK, c, fails
from tests.fuse.posix.context import Folder, exit_code, in_child, spawn

LOCK = "hhqqi4x"  # struct flock: type, whence, start, length, pid


def locked(fd: int, kind: int, start: int = 0, length: int = 0, command: int = 6) -> None:
    """F_SETLK (6) unless told otherwise."""
    fcntl.fcntl(fd, command, struct.pack(LOCK, kind, os.SEEK_SET, start, length, 0))


def holder(
    fd: int, kind: int, start: int = 0, length: int = 0, command: int = 5
) -> tuple[int, ...]:
    """F_GETLK (5): type, whence, start, length, pid of what would be in the way."""
    raw = struct.pack(LOCK, kind, os.SEEK_SET, start, length, 0)
    return struct.unpack(LOCK, fcntl.fcntl(fd, command, raw))


def refused(path: str, kind: int, start: int = 0, length: int = 0) -> None:
    """In another process, which has no lock of its own: EAGAIN or EACCES."""
    in_child(lambda: fails("EAGAIN/EACCES", locked, os.open(path, os.O_RDWR), kind, start, length))


def granted(path: str, kind: int, start: int = 0, length: int = 0) -> None:
    in_child(lambda: locked(os.open(path, os.O_RDWR), kind, start, length))


RD, WR, UN = fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK


@pytest.mark.parametrize("name", ["dup", "dup2", "dup3", "F_DUPFD"])
def test_duplicates_share_the_description(d: Folder, name: str) -> None:
    """A duplicate shares file offset and file status flags."""
    fd = d.new(b"abcdef")
    calls = {
        "dup": lambda: c.dup(fd),
        "dup2": lambda: c.dup2(fd, 900),
        "dup3": lambda: c.dup3(fd, 900, os.O_CLOEXEC),
        "F_DUPFD": lambda: fcntl.fcntl(fd, fcntl.F_DUPFD, 900),
    }
    copy = calls[name]()
    d.fds.append(copy)
    os.lseek(copy, 4, os.SEEK_SET)
    assert os.read(fd, 9) == b"ef"
    os.close(fd)
    assert os.pread(copy, 3, 0) == b"abc"


def test_dup_ebadf(d: Folder) -> None:
    """EBADF: oldfd isn't an open file descriptor."""
    fails("EBADF", c.dup, d.closed())
    fails("EBADF", c.dup2, d.closed(), 5)


def test_dup3_einval(d: Folder) -> None:
    """dup3(2) EINVAL: oldfd was equal to newfd; flags contain an invalid value."""
    fd = d.new()
    fails("EINVAL", c.dup3, fd, fd, 0)
    fails("EINVAL", c.dup3, fd, 900, 1)


def test_f_dupfd_cloexec(d: Folder) -> None:
    """F_DUPFD_CLOEXEC: additionally set the close-on-exec flag."""
    fd = fcntl.fcntl(d.new(), fcntl.F_DUPFD_CLOEXEC, 0)
    d.fds.append(fd)
    assert fcntl.fcntl(fd, fcntl.F_GETFD) == fcntl.FD_CLOEXEC


def test_f_setfl_append(d: Folder) -> None:
    """F_SETFL may change O_APPEND: later writes go to the end."""
    fd = d.new(b"abc")
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
    assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND
    os.write(fd, b"def")
    assert os.pread(fd, 9, 0) == b"abcdef"


def test_f_setfl_append_off(d: Folder) -> None:
    """F_SETFL may take O_APPEND away again."""
    fd = d.fd(d.file(content=b"abc"), os.O_RDWR | os.O_APPEND)
    fcntl.fcntl(fd, fcntl.F_SETFL, 0)
    os.write(fd, b"X")
    assert os.pread(fd, 9, 0) == b"Xbc"


@pytest.mark.parametrize("flag", [os.O_NONBLOCK, os.O_NOATIME], ids=["O_NONBLOCK", "O_NOATIME"])
def test_f_setfl(d: Folder, flag: int) -> None:
    """F_SETFL sets O_NONBLOCK and O_NOATIME."""
    fd = d.new()
    fcntl.fcntl(fd, fcntl.F_SETFL, flag)
    assert fcntl.fcntl(fd, fcntl.F_GETFL) & flag


def test_f_setfl_ignores_access_mode(d: Folder) -> None:
    """F_SETFL: File access mode and file creation flags in arg are ignored."""
    fd = d.fd(d.file(), os.O_RDONLY)
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_RDWR | os.O_TRUNC)
    fails("EBADF", os.write, fd, b"x")


def test_fcntl_ebadf(d: Folder) -> None:
    """EBADF: fd is not an open file descriptor."""
    for command in (fcntl.F_GETFD, fcntl.F_GETFL, fcntl.F_DUPFD):
        fails("EBADF", c.fcntl, d.closed(), command, 0)


def test_fcntl_einval(d: Folder) -> None:
    """EINVAL: The value specified in op is not recognized by this kernel."""
    fails("EINVAL", c.fcntl, d.new(), 9999, 0)


@pytest.mark.parametrize(
    ("held", "asked", "free"), [(RD, RD, True), (RD, WR, False), (WR, RD, False), (WR, WR, False)]
)
def test_record_locks(d: Folder, held: int, asked: int, free: bool) -> None:
    """Any number of processes may hold a read lock, only one a write lock, which excludes all."""
    path = d.file(content=b"abc")
    locked(d.fd(path), held)
    (granted if free else refused)(path, asked)


@pytest.mark.parametrize(
    ("start", "length", "free"),
    [(0, 10, True), (0, 11, False), (10, 1, False), (19, 1, False), (20, 0, True), (0, 0, False)],
)
def test_record_lock_ranges(d: Folder, start: int, length: int, free: bool) -> None:
    """A lock is on a range of bytes; a length of 0 reaches to the end of the file and beyond."""
    path = d.file()
    locked(d.fd(path), WR, 10, 10)
    (granted if free else refused)(path, WR, start, length)


def test_record_lock_unlock_splits(d: Folder) -> None:
    """Unlocking the middle of a locked range leaves two locked ranges."""
    path = d.file()
    fd = d.fd(path)
    locked(fd, WR, 0, 30)
    locked(fd, UN, 10, 10)
    granted(path, WR, 10, 10)
    refused(path, WR, 9, 1)
    refused(path, WR, 20, 1)


def test_record_lock_converts(d: Folder) -> None:
    """If a process already has a lock on the region, it is converted to the new type."""
    path = d.file()
    fd = d.fd(path)
    locked(fd, WR)
    locked(fd, RD)
    granted(path, RD)
    locked(fd, WR)
    refused(path, RD)


def test_record_lock_is_the_process_own(d: Folder) -> None:
    """Locks of one process never conflict, through whichever descriptor."""
    path = d.file()
    locked(d.fd(path), WR)
    locked(d.fd(path), WR)
    refused(path, RD)


def test_record_lock_any_close_releases(d: Folder) -> None:
    """If a process closes any descriptor of a file, all of its locks on it are released."""
    path = d.file()
    fd = d.fd(path)
    locked(fd, WR)
    os.close(os.open(path, os.O_RDONLY))
    granted(path, WR)


def test_record_lock_is_not_inherited(d: Folder) -> None:
    """Record locks are not inherited by a child created via fork(2)."""
    path = d.file()
    fd = d.fd(path)
    locked(fd, WR)
    in_child(lambda: fails("EAGAIN/EACCES", locked, fd, WR))


def test_record_lock_ends_with_the_process(d: Folder) -> None:
    """The locks of a process that ends are released."""
    path = d.file()
    granted(path, WR)
    granted(path, WR)


def test_f_getlk_tells_the_holder(d: Folder) -> None:
    """F_GETLK returns details about one of the conflicting locks, and its holder's PID."""
    path = d.file()
    locked(d.fd(path), WR, 5, 7)
    pid = os.getpid()

    def body() -> None:
        found = holder(os.open(path, os.O_RDWR), RD)
        assert found == (WR, os.SEEK_SET, 5, 7, pid)

    in_child(body)


def test_f_getlk_of_a_free_range(d: Folder) -> None:
    """F_GETLK returns F_UNLCK in l_type if the lock could be placed."""
    path = d.file()
    locked(d.fd(path), WR, 5, 7)
    in_child(lambda: _is_free(path))


def _is_free(path: str) -> None:
    assert holder(os.open(path, os.O_RDWR), WR, 20, 5)[0] == UN


def test_record_lock_ebadf(d: Folder) -> None:
    """EBADF: the lock type requires a descriptor that is open for reading or for writing."""
    path = d.file()
    fails("EBADF", locked, d.fd(path, os.O_RDONLY), WR)
    fails("EBADF", locked, d.fd(path, os.O_WRONLY), RD)


def test_record_lock_einval(d: Folder) -> None:
    """EINVAL: a negative start, or a type that does not exist."""
    fd = d.new()
    fails("EINVAL", locked, fd, WR, -1)
    fails("EINVAL", locked, fd, 77)


def test_record_lock_waits_for_its_turn(d: Folder) -> None:
    """F_SETLKW waits until the lock is released."""
    path = d.file()
    fd = d.fd(path)
    locked(fd, WR)
    pid = spawn(lambda: locked(os.open(path, os.O_RDWR), WR, command=7))
    assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    locked(fd, UN)
    assert exit_code(pid) == 0


def test_record_lock_eintr(d: Folder) -> None:
    """EINTR: F_SETLKW was interrupted by a signal that was caught."""
    path = d.file()
    locked(d.fd(path), WR)

    def body() -> None:
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.siginterrupt(signal.SIGALRM, True)
        fd = os.open(path, os.O_RDWR)
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        raw = struct.pack(LOCK, WR, os.SEEK_SET, 0, 0, 0)
        fails("EINTR", c.fcntl, fd, 7, raw)

    in_child(body)


def test_record_lock_edeadlk(d: Folder) -> None:
    """EDEADLK: It was detected that the specified F_SETLKW would cause a deadlock."""
    path = d.file()
    fd = d.fd(path)
    locked(fd, WR, 0, 1)
    reader, writer = os.pipe()

    def body() -> None:
        mine = os.open(path, os.O_RDWR)
        locked(mine, WR, 1, 1)
        os.write(writer, b".")
        os._exit(_code_of_waiting(mine, 0))

    pid = spawn(body)
    os.read(reader, 1)
    mine = _code_of_waiting(fd, 1)  # the last process to wait gets the error
    locked(fd, UN)
    d.fds += [reader, writer]
    assert sorted([mine, exit_code(pid)]) == [0, errno.EDEADLK]


def _code_of_waiting(fd: int, start: int) -> int:
    """The errno of F_SETLKW; EINTR after two seconds."""
    signal.signal(signal.SIGALRM, _interrupt)
    signal.setitimer(signal.ITIMER_REAL, 2)
    try:
        locked(fd, WR, start, 1, command=7)
    except OSError as error:
        assert error.errno is not None
        return error.errno
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return 0


def _interrupt(*_: object) -> None:
    raise InterruptedError(errno.EINTR, "waited too long")


def test_ofd_lock_belongs_to_the_description(d: Folder) -> None:
    """F_OFD_SETLK: locks through two open file descriptions of one process conflict."""
    path = d.file()
    one, two = d.fd(path), d.fd(path)
    locked(one, WR, command=F_OFD_SETLK)
    fails("EAGAIN/EACCES", locked, two, WR, 0, 0, F_OFD_SETLK)
    assert holder(two, WR, command=F_OFD_GETLK)[4] == -1
    os.close(one)
    locked(two, WR, command=F_OFD_SETLK)


EX, SH, NB, FREE = fcntl.LOCK_EX, fcntl.LOCK_SH, fcntl.LOCK_NB, fcntl.LOCK_UN


@pytest.mark.parametrize(
    ("held", "asked", "free"), [(SH, SH, True), (SH, EX, False), (EX, SH, False), (EX, EX, False)]
)
def test_flock(d: Folder, held: int, asked: int, free: bool) -> None:
    """flock(2): more than one process may hold a shared lock, only one an exclusive lock."""
    path = d.file()
    c.flock(d.fd(path), held)
    fails("success" if free else "EAGAIN", c.flock, d.fd(path), asked | NB)


def test_flock_belongs_to_the_description(d: Folder) -> None:
    """flock() locks are associated with an open file description: duplicates share it."""
    path = d.file()
    fd = d.fd(path)
    copy = os.dup(fd)
    d.fds.append(copy)
    c.flock(fd, EX)
    c.flock(copy, EX | NB)
    os.close(fd)
    fails("EAGAIN", c.flock, d.fd(path), EX | NB)
    c.flock(copy, FREE)
    c.flock(d.fd(path), EX | NB)


def test_flock_is_inherited(d: Folder) -> None:
    """A child created by fork(2) refers to the same lock, and may release it."""
    path = d.file()
    fd = d.fd(path)
    c.flock(fd, EX)
    in_child(lambda: c.flock(fd, FREE))
    c.flock(d.fd(path), EX | NB)


def test_flock_converts(d: Folder) -> None:
    """Subsequent flock() calls on an already locked file convert the lock."""
    path = d.file()
    fd, other = d.fd(path), d.fd(path)
    c.flock(fd, EX)
    c.flock(fd, SH)
    c.flock(other, SH | NB)
    fails("EAGAIN", c.flock, fd, EX | NB)


def test_flock_close_releases(d: Folder) -> None:
    """The lock is released when all descriptors of the description are closed."""
    path = d.file()
    fd = d.fd(path)
    c.flock(fd, EX)
    os.close(fd)
    c.flock(d.fd(path), EX | NB)


def test_flock_of_a_reader(d: Folder) -> None:
    """An exclusive lock can be placed regardless of the mode in which the file was opened."""
    c.flock(d.fd(d.file(), os.O_RDONLY), EX | NB)


def test_flock_of_a_folder(d: Folder) -> None:
    """A directory can be locked."""
    c.flock(d.fd(d.path, os.O_RDONLY), EX | NB)
    fails("EAGAIN", c.flock, d.fd(d.path, os.O_RDONLY), EX | NB)


def test_flock_and_records_are_apart(d: Folder) -> None:
    """On local file systems flock() and fcntl() locks do not interact."""
    path = d.file()
    c.flock(d.fd(path), EX)
    granted(path, WR)


def test_flock_ebadf_einval(d: Folder) -> None:
    """EBADF: fd is not open. EINVAL: operation is invalid."""
    fails("EBADF", c.flock, d.closed(), EX)
    fails("EINVAL", c.flock, d.new(), 16)


def test_flock_eintr(d: Folder) -> None:
    """EINTR: while waiting to acquire a lock, the call was interrupted by a signal."""
    path = d.file()
    c.flock(d.fd(path), EX)

    def body() -> None:
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.siginterrupt(signal.SIGALRM, True)
        fd = os.open(path, os.O_RDWR)
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        fails("EINTR", c.flock, fd, EX)

    in_child(body)
