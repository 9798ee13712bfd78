"""A process that locks what it is told to lock, for tests of locks: one JSON array a line in, one
line out.

Commands: ["open", name, path, flags], ["close", name], ["dup", name, copy], ["fcntl", name, type,
start, length, wait], ["ofd", …same], ["flock", name, operation], ["getlk", name, type, start,
length], ["write", name, offset, text], ["read", name, offset, length], ["fork", name]: a child that
keeps a copy of everything until the parent says ["reap"]. The answer is ["ok", result] or ["errno",
name of it]. The process handles signals and does nothing in the handler.
"""

import errno
import fcntl
import json
import os
import signal
import struct
import sys
from typing import Any

F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW = 36, 37, 38
_FLOCK = struct.Struct("hhqqi4x")
TYPES = {"read": fcntl.F_RDLCK, "write": fcntl.F_WRLCK, "none": fcntl.F_UNLCK}
NAMES = {number: name for name, number in TYPES.items()}


class Worker:
    def __init__(self) -> None:
        self.fds: dict[str, int] = {}
        self.child = 0

    def open(self, name: str, path: str, flags: int) -> None:
        self.fds[name] = os.open(path, flags, 0o644)

    def close(self, name: str) -> None:
        os.close(self.fds.pop(name))

    def dup(self, name: str, copy: str) -> None:
        self.fds[copy] = os.dup(self.fds[name])

    def fcntl(self, name: str, kind: str, start: int, length: int, wait: bool) -> None:
        command = fcntl.F_SETLKW if wait else fcntl.F_SETLK
        self._fcntl(name, command, kind, start, length)

    def ofd(self, name: str, kind: str, start: int, length: int, wait: bool) -> None:
        self._fcntl(name, F_OFD_SETLKW if wait else F_OFD_SETLK, kind, start, length)

    def _fcntl(self, name: str, command: int, kind: str, start: int, length: int) -> bytes:
        request = _FLOCK.pack(TYPES[kind], os.SEEK_SET, start, length, 0)
        return fcntl.fcntl(self.fds[name], command, request)

    def getlk(self, name: str, kind: str, start: int, length: int) -> list[Any]:
        reply = self._fcntl(name, fcntl.F_GETLK, kind, start, length)
        found, _, at, size, pid = _FLOCK.unpack(reply)
        return ["none"] if found == fcntl.F_UNLCK else [NAMES[found], at, size, pid]

    def flock(self, name: str, operation: int) -> None:
        fcntl.flock(self.fds[name], operation)

    def write(self, name: str, offset: int, text: str) -> int:
        return os.pwrite(self.fds[name], text.encode(), offset)

    def read(self, name: str, offset: int, length: int) -> str:
        return os.pread(self.fds[name], length, offset).decode()

    def fork(self, _name: str) -> int:
        self.child = os.fork()
        if self.child == 0:
            signal.pause()
            os._exit(0)
        return self.child

    def reap(self) -> None:
        os.kill(self.child, signal.SIGKILL)
        os.waitpid(self.child, 0)

    def pid(self) -> int:
        return os.getpid()


class _InterruptedError(Exception):
    pass


def _interrupted(_number: int, _frame: object) -> None:
    raise _InterruptedError


def main() -> None:
    signal.signal(signal.SIGUSR1, _interrupted)
    worker = Worker()
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        try:
            answer = ["ok", getattr(worker, command)(*arguments)]
        except OSError as error:
            answer = ["errno", errno.errorcode[error.errno or 0]]
        except _InterruptedError:
            answer = ["errno", "EINTR"]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
