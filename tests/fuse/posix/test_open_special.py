"""open(2) of FIFOs, sockets and devices; execve(2) of files."""

import os
import shutil
import signal
import stat

from tests.fuse.posix.calls import c, fails
from tests.fuse.posix.context import GROUP, USER, Folder, exit_code, in_child, spawn


def test_enxio_fifo_without_reader(d: Folder) -> None:
    """ENXIO: O_NONBLOCK|O_WRONLY, the file is a FIFO, no process has it open for reading."""
    fails("ENXIO", c.open, d.fifo(), os.O_WRONLY | os.O_NONBLOCK)


def test_fifo_reader_does_not_block(d: Folder) -> None:
    """O_NONBLOCK: opening a FIFO for reading returns without delay."""
    reader = d.fd(d.fifo(), os.O_RDONLY | os.O_NONBLOCK)
    writer = d.fd(d / "fifo", os.O_WRONLY | os.O_NONBLOCK)
    os.write(writer, b"abc")
    assert os.read(reader, 9) == b"abc"


def test_eintr_fifo(d: Folder) -> None:
    """EINTR: while blocked waiting to complete an open of a FIFO, a signal was caught."""

    def body() -> None:
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.siginterrupt(signal.SIGALRM, True)
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        fails("EINTR", c.open, d / "fifo", os.O_RDONLY)

    d.fifo()
    in_child(body)


def test_enxio_socket(d: Folder) -> None:
    """ENXIO: The file is a UNIX domain socket."""
    c.mknod(d / "socket", stat.S_IFSOCK | 0o644, 0)
    fails("ENXIO", c.open, d / "socket", os.O_RDWR)


def test_enxio_device_without_driver(d: Folder) -> None:
    """ENXIO: The file is a device special file and no corresponding device exists."""
    c.mknod(d / "device", stat.S_IFCHR | 0o644, os.makedev(240, 250))
    fails("ENXIO", c.open, d / "device", os.O_RDWR)


def test_device_of_the_number(d: Folder) -> None:
    """A character device node opens the driver of its number: 1,3 is the null device."""
    c.mknod(d / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    fd = d.fd(d / "null", os.O_RDWR)
    assert (os.write(fd, b"abc"), os.read(fd, 3)) == (3, b"")


def test_etxtbsy(d: Folder) -> None:
    """ETXTBSY: path refers to an executable image being executed and write was requested."""
    shutil.copy("/bin/sleep", d / "program")
    pid = os.spawnv(os.P_NOWAIT, d / "program", ["program", "60"])
    try:
        while os.readlink(f"/proc/{pid}/exe") != os.path.realpath(d / "program"):
            pass
        fails("ETXTBSY", c.open, d / "program", os.O_WRONLY)
        fails("ETXTBSY", c.truncate, d / "program", 0)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_execve_etxtbsy(d: Folder) -> None:
    """execve(2) ETXTBSY: the file is open for writing by a process."""
    shutil.copy("/bin/true", d / "program")
    d.fd(d / "program", os.O_RDWR)
    in_child(lambda: fails("ETXTBSY", os.execv, d / "program", ["program"]))


def test_execve(d: Folder) -> None:
    """execve(2): a program on the file system runs."""
    shutil.copy("/bin/true", d / "program")
    assert os.spawnv(os.P_WAIT, d / "program", ["program"]) == 0


def test_execve_eacces(d: Folder) -> None:
    """execve(2) EACCES: Execute permission is denied for the file, for root too."""
    in_child(lambda: fails("EACCES", os.execv, d.file(mode=0o666), ["x"]))


def test_execve_enoexec(d: Folder) -> None:
    """execve(2) ENOEXEC: The file is not in a recognized format."""
    path = d.file(content=b"no program", mode=0o755)
    in_child(lambda: fails("ENOEXEC", c.execve, path, None, None))


def test_execve_set_user_id(d: Folder) -> None:
    """execve(2): the set-user-ID bit gives the process the owner of the file."""
    shutil.copy("/usr/bin/id", d / "program")
    os.chown(d / "program", USER, GROUP)
    os.chmod(d / "program", 0o4755)
    reader, writer = os.pipe()

    def body() -> None:
        os.dup2(writer, 1)
        os.spawnv(os.P_WAIT, d / "program", ["id", "-u"])

    assert exit_code(spawn(body)) == 0
    os.close(writer)
    with os.fdopen(reader) as answers:
        assert answers.read() == f"{USER}\n"
