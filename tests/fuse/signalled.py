"""Every call that a file system offers, repeated while handled signals arrive all the time.

Run as a program: FOLDER, seconds, signals a second, 1 with SA_RESTART or 0 without, and how many
threads. Each call's outcome is determined by the calls before it, so every other outcome is
reported: one line for each kind, and the number of rounds in the last line. Python would repeat
calls that a signal ended, so the calls use libc directly.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path

AT_FDCWD = -100
RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE = 1, 2
SA_RESTART = 0x10000000
COPIED_AT_SERVERS = 256 << 10
SIGNALS = (signal.SIGALRM, signal.SIGCHLD, signal.SIGPROF, signal.SIGURG)
_libc = ctypes.CDLL(None, use_errno=True)
for _name in ("lseek", "pread", "pwrite", "copy_file_range", "getxattr", "listxattr", "getdents64"):
    getattr(_libc, _name).restype = ctypes.c_long
_libc.lseek.argtypes = (ctypes.c_int, ctypes.c_long, ctypes.c_int)
_libc.ftruncate.argtypes = (ctypes.c_int, ctypes.c_long)
_libc.truncate.argtypes = (ctypes.c_char_p, ctypes.c_long)
_libc.pread.argtypes = _libc.pwrite.argtypes = (
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_size_t,
    ctypes.c_long,
)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)


class _Action(ctypes.Structure):
    _fields_ = (
        ("handler", _HANDLER),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


def ignore_in_a_handler(number: int, *, restarts: bool) -> None:
    """Installs a handler in C: a Python one would set a flag that makes the interpreter repeat
    calls."""
    action = _Action()
    action.handler = ctypes.cast(_libc.getppid, _HANDLER)
    action.flags = SA_RESTART if restarts else 0
    assert _libc.sigaction(number, ctypes.byref(action), None) == 0


class Calls:
    """The calls of one thread, in a folder of its own."""

    def __init__(self, folder: Path, wrong: Counter[str]) -> None:
        self.folder = os.fsencode(folder)
        self.wrong = wrong
        self.rounds = 0
        folder.mkdir()

    def call(self, name: str, *words: object, gives: int | None = 0) -> int:
        """`gives`: the value that it must return, or minus an errno; None: anything but an
        error."""
        ctypes.set_errno(0)
        found = int(getattr(_libc, name)(*words))
        if found < 0:
            found = -ctypes.get_errno()
        if found != gives and (gives is not None or found < 0):
            said = errno.errorcode.get(-found, str(found)) if found < 0 else str(found)
            self.wrong[f"{name} gave {said}, not {gives}"] += 1
        return found

    def path(self, name: str) -> bytes:
        return self.folder + b"/" + name.encode()

    def round(self) -> None:
        self.rounds += 1
        for step in (self._names, self._attributes, self._bytes, self._folders):
            step()

    def open(self, name: str, flags: int) -> int:
        return self.call("open", self.path(name), flags, 0o644, gives=None)

    def _names(self) -> None:
        a, b, link = self.path("a"), self.path("b"), self.path("link")
        fd = self.open("a", os.O_CREAT | os.O_EXCL | os.O_RDWR)
        self.call("close", fd)
        self.call("open", a, os.O_CREAT | os.O_EXCL, 0o644, gives=-errno.EEXIST)
        self.call("link", a, b)
        self.call("link", a, b, gives=-errno.EEXIST)
        self.call("rename", b, self.path("c"))
        self.call("rename", b, self.path("c"), gives=-errno.ENOENT)
        self.call("symlink", b"a", link)
        self.call("readlink", link, ctypes.create_string_buffer(9), 9, gives=1)
        self.call("mknod", b, 0o100644, 0)
        self.call("renameat2", AT_FDCWD, b, AT_FDCWD, a, RENAME_NOREPLACE, gives=-errno.EEXIST)
        self.call("renameat2", AT_FDCWD, b, AT_FDCWD, a, RENAME_EXCHANGE)
        self.call("access", a, os.R_OK)
        for name in (a, b, link, self.path("c")):
            self.call("unlink", name)
            self.call("unlink", name, gives=-errno.ENOENT)

    def _attributes(self) -> None:
        path = self.path("file")
        self.call("close", self.open("file", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        for mode in (0o600, 0o640):
            self.call("chmod", path, mode)
            if os.stat(path).st_mode & 0o7777 != mode:
                self.wrong["chmod did something else"] += 1
        self.call("chown", path, os.getuid(), os.getgid())
        self.call("utimensat", AT_FDCWD, path, None, 0)
        self.call("setxattr", path, b"user.x", b"value", 5, 1)
        self.call("setxattr", path, b"user.x", b"value", 5, 1, gives=-errno.EEXIST)
        self.call("getxattr", path, b"user.x", ctypes.create_string_buffer(9), 9, gives=5)
        self.call("listxattr", path, ctypes.create_string_buffer(99), 99, gives=7)
        self.call("removexattr", path, b"user.x")
        self.call("removexattr", path, b"user.x", gives=-errno.ENODATA)
        self.call("truncate", path, 1000)
        self.call("statfs", path, ctypes.create_string_buffer(256))
        self.call("unlink", path)

    def _bytes(self) -> None:
        size = 300_000
        octets, memory = bytes(range(256)) * (size // 256 + 1), mmap.mmap(-1, size)
        room = (ctypes.c_char * size).from_buffer(memory)  # it is aligned, for O_DIRECT
        fd = self.open("bytes", os.O_CREAT | os.O_EXCL | os.O_RDWR)
        self.call("pwrite", fd, octets, size, 0, gives=size)
        self.call("fsync", fd)
        self.call("pread", fd, room, size, 0, gives=size)
        if room.raw != octets[:size]:
            self.wrong["pread read other bytes"] += 1
        self.call("lseek", fd, 0, os.SEEK_HOLE, gives=size)
        self.call("lseek", fd, 0, os.SEEK_SET)
        # No other process wants this lock.
        for lock in (fcntl.LOCK_SH, fcntl.LOCK_EX, fcntl.LOCK_UN):
            self.call("flock", fd, lock)
        other = self.open("other", os.O_CREAT | os.O_EXCL | os.O_RDWR)
        self._copy(fd, other, COPIED_AT_SERVERS)
        self.call("ftruncate", fd, 10_000)
        self.call("fallocate", fd, 0, 0, 40_000)
        self.call("fallocate", fd, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 0, 4096)
        self.call("fdatasync", fd)
        for each in (fd, other):
            self.call("close", each)
        direct = self.open("other", os.O_RDONLY | os.O_DIRECT)
        self.call("pread", direct, room, 4096, 4096, gives=4096)
        if room.raw[:4096] != octets[4096:8192]:
            self.wrong["copy_file_range copied other bytes"] += 1
        self.call("close", direct)
        self.call("unlink", self.path("bytes"))
        self.call("unlink", self.path("other"))

    def _copy(self, source: int, sink: int, length: int) -> None:
        """Linux copies what the servers do not copy, until a signal arrives, as on ext4."""
        while length > 0:
            ctypes.set_errno(0)
            copied = int(_libc.copy_file_range(source, None, sink, None, length, 0))
            if copied <= 0 and ctypes.get_errno() != errno.EINTR:
                self.wrong[f"copy_file_range gave {copied}, errno {ctypes.get_errno()}"] += 1
                return
            length -= max(copied, 0)

    def _folders(self) -> None:
        path = self.path("folder")
        self.call("mkdir", path, 0o755)
        self.call("mkdir", path, 0o755, gives=-errno.EEXIST)
        self.call("close", self.open("folder/in", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        self.call("rmdir", path, gives=-errno.ENOTEMPTY)
        fd = self.open("folder", os.O_RDONLY | os.O_DIRECTORY)
        self.call("getdents64", fd, ctypes.create_string_buffer(4096), 4096, gives=72)
        self.call("getdents64", fd, ctypes.create_string_buffer(4096), 4096)
        self.call("fsync", fd)
        self.call("close", fd)
        self.call("rename", path, self.path("moved"))
        self.call("unlink", self.path("moved/in"))
        self.call("rmdir", self.path("moved"))


def _send(threads: list[threading.Thread], period_s: float, stopping: threading.Event) -> None:
    """Signals each thread in turn, so that all of them get signals."""
    number = 0
    while not stopping.wait(period_s):
        for thread in threads:
            number += 1
            if thread.ident is not None and thread.is_alive():
                signal.pthread_kill(thread.ident, SIGNALS[number % len(SIGNALS)])


def main(folder: Path, seconds: float, rate: float, restarts: bool, count: int) -> None:
    for number in SIGNALS:
        ignore_in_a_handler(number, restarts=restarts)
    wrong: Counter[str] = Counter()
    end = time.monotonic() + seconds
    calls = [Calls(folder / f"calls-{os.getpid()}-{index}", wrong) for index in range(count)]

    def work(one: Calls) -> None:
        while time.monotonic() < end:
            one.round()

    threads = [threading.Thread(target=work, args=(one,)) for one in calls]
    stopping = threading.Event()
    for thread in threads:
        thread.start()
    sender = threading.Thread(target=_send, args=(threads, 1 / rate, stopping))
    sender.start()
    for thread in threads:
        thread.join()
    stopping.set()
    sender.join()
    for what, often in sorted(wrong.items()):
        print(f"{often} times {what}")
    print(min(one.rounds for one in calls))


if __name__ == "__main__":
    place, seconds, rate, restarts, count = sys.argv[1:]
    main(Path(place), float(seconds), float(rate), restarts == "1", int(count))
