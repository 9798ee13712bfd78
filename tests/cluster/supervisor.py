"""Does what systemd does for a service of Type=notify with a store of descriptors, where there is
no systemd: it receives the program's notifications, keeps the descriptors that it is given, and
starts the program again with them.
"""

import ctypes
import json
import os
import platform
import select
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.cluster.process import wait_until

WAIT_SECONDS_MAX = 60
_FDS_MAX = 250
_LIBC = ctypes.CDLL(None, use_errno=True)
_SYS_KCMP = {"x86_64": 312, "aarch64": 272}
# A process of its own starts the program: a process forked from the tests would first close the
# files that they have open in the mount, which no process serves at that time. The descriptors
# become 3, 4, ... Orphans become its children, as systemd's.
_STARTER = """
import ctypes, fcntl, json, os, select, socket, sys
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
end = socket.socket(fileno=int(sys.argv[1]))
while True:
    if not select.select([end], [], [], 0.02)[0]:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            continue
        if pid:
            end.send(f"{pid} {os.waitstatus_to_exitcode(status)}".encode())
        continue
    octets, fds, _, _ = socket.recv_fds(end, 1 << 17, 250)
    if not octets:
        break
    asked = json.loads(octets)
    pid = os.fork()
    if not pid:
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 600) for fd in fds]
        log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1), os.dup2(log, 2)
        os.closerange(3, 600)
        for number, fd in enumerate(high):
            os.dup2(fd, 3 + number)
        os.closerange(600, 1200)
        asked["environment"]["LISTEN_PID"] = str(os.getpid())
        os.execvpe(asked["words"][0], asked["words"], asked["environment"])
    for fd in fds:
        os.close(fd)
    end.send(str(pid).encode())
"""


class Supervisor:
    """One service. `store`: (name, descriptor) in the order in which they came."""

    def __init__(self, folder: Path, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self.words = list(words)
        self.store: list[tuple[str, int]] = []
        self.said: Counter[str] = Counter()
        self.pid = 0
        self._declared = 0  # MAINPID
        self.log = folder / "service.log"
        path = str(folder / "notify")
        self._environment = {**os.environ, **environment, "NOTIFY_SOCKET": path}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(path)
        self._starter, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._starter.settimeout(WAIT_SECONDS_MAX)
        with theirs:
            words_ = [sys.executable, "-c", _STARTER, str(theirs.fileno())]
            self._process = subprocess.Popen(words_, pass_fds=[theirs.fileno()])
        self._stopping, self._told = os.pipe()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def start(self) -> int:
        """Starts the program; returns its pid when it is ready."""
        ready = self.said["READY=1"]
        environment = dict(self._environment)
        if self.store:
            names = ":".join(name for name, _ in self.store)
            environment |= {"LISTEN_FDS": str(len(self.store)), "LISTEN_FDNAMES": names}
        asked = {"words": self.words, "environment": environment, "log": str(self.log)}
        fds = [fd for _, fd in self.store]
        socket.send_fds(self._starter, [json.dumps(asked).encode()], fds)
        self.pid = int(self._answer(1)[0])
        served = wait_until(lambda: self.said["READY=1"] > ready, WAIT_SECONDS_MAX)
        assert served, self.log.read_text()
        return self.pid

    def end(self, number: int) -> int:
        """Sends it a signal; returns how it ended."""
        os.kill(self.pid, number)
        return self._ended()

    def _ended(self) -> int:
        """Waits for the end of the main process, which another process of the service may have
        become meanwhile (MAINPID)."""
        while True:
            pid, code = map(int, self._answer(2))
            if pid in (self.pid, self._declared):
                self.pid = 0
                return code

    def _answer(self, words: int) -> list[str]:
        """The starter's next answer of so many words; it also tells of processes that ended long
        after the supervisor had given them up."""
        while True:
            answer = self._starter.recv(100).decode().split()
            if len(answer) == words:
                return answer

    def forget(self) -> None:
        """Closes all stored descriptors."""
        for _, fd in self.store:
            os.close(fd)
        self.store.clear()

    def names(self) -> Counter[str]:
        return Counter(name for name, _ in self.store)

    def stop(self) -> None:
        if self.pid:
            self.end(signal.SIGKILL)
        self._starter.close()
        self._process.wait(WAIT_SECONDS_MAX)
        os.close(self._told)
        self._thread.join(WAIT_SECONDS_MAX)
        os.close(self._stopping)
        self._socket.close()
        self.forget()

    def _listen(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._stopping, select.POLLIN)
        while all(fd != self._stopping for fd, _ in poll.poll()):
            octets, fds, _, _ = socket.recv_fds(self._socket, 4096, _FDS_MAX)
            self._hear(octets.decode(), fds)

    def _hear(self, text: str, fds: list[int]) -> None:
        words = dict(line.partition("=")[::2] for line in text.splitlines())
        name = words.get("FDNAME", "stored")
        if "FDSTORE" in words and words.get("FDPOLL") == "0":
            new = [fd for fd in fds if not any(_is_same(fd, held) for _, held in self.store)]
            self.store += [(name, fd) for fd in new]
            fds = [fd for fd in fds if fd not in new]
        if "FDSTOREREMOVE" in words:
            for one, fd in [row for row in self.store if row[0] == name]:
                self.store.remove((one, fd))
                os.close(fd)
        for fd in fds:
            os.close(fd)
        self._declared = int(words.get("MAINPID", self._declared))
        self.said.update(text.splitlines())


def _is_same(one: int, other: int) -> bool:
    """Whether both are the same open file description, as kcmp(2) says."""
    own = os.getpid()
    return bool(_LIBC.syscall(_SYS_KCMP[platform.machine()], own, own, 0, one, other) == 0)
