"""Hosts on this machine: each has namespaces, a root, an address and a systemd of its own.

A `Site` is one network (a bridge in a network namespace of its own, so this machine's network is
not changed) and the hosts on it. A host's root is this machine's root under an overlay that is
discarded later, so packages are installed and everything else is new. host_init.sh creates it.
"""

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.cluster.networks import NetworkError, Switch
from tests.cluster.process import wait_until

INIT = Path(__file__).with_name("host_init.sh")
NETWORK = "10.177.0"
BOOT_SECONDS_MAX = 60
RUN_SECONDS_MAX = 120
_NUMBERS = itertools.count(1)  # of sites: several may stand at the same time
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class HostError(Exception):
    """A command on a host, or the host itself, failed; the message is what was printed."""


def why_no_hosts() -> str | None:
    """A reason why this machine cannot have such hosts; None if it can."""
    if os.geteuid() != 0:
        return "needs root: makes hosts of namespaces"
    if not Path("/lib/systemd/systemd").exists() or _unified() is None:
        return "needs systemd and cgroup2"
    return None if Path("/dev/fuse").exists() else "needs /dev/fuse"


def _unified() -> Path | None:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split(" ")
        if kind == "cgroup2":
            return Path(place)
    return None


def _copy(console: int, log: Path) -> None:
    """Copies what the host prints on its console to the log, until the host ends."""
    with log.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while said := os.read(console, 4096):
            file.write(said)
    os.close(console)


class Host:
    """One host. It runs from start() to stop(); `pid` is its PID 1 as numbered on this machine."""

    def __init__(self, site: "Site", name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.pid = 0
        self._site = site
        self._folder = site.folder / name
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self._site.folder / f"{self.name}.log"

    @property
    def _cgroup(self) -> Path:
        root = _unified()
        assert root is not None
        return root / f"{self._site.name}-{self.name}"

    def start(self) -> None:
        self._folder.mkdir()
        self._cgroup.mkdir()
        inner = [
            "unshare",
            "--mount",
            "--pid",
            "--net",
            "--uts",
            "--ipc",
            "--cgroup",
            "--fork",
            "--kill-child",
            "bash",
            str(INIT),
            str(self._folder),
            self.name,
            str(self._site.shared),
        ]
        enter = f'echo $$ >"{self._cgroup}/cgroup.procs"; exec "$@"'
        console, terminal = os.openpty()
        with os.fdopen(terminal, "wb") as output:
            self._process = subprocess.Popen(
                ["bash", "-c", enter, "host", *inner],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            self.log.touch()
            threading.Thread(target=_copy, args=(console, self.log), daemon=True).start()
        if not wait_until(self._is_up, BOOT_SECONDS_MAX):
            raise HostError(f"{self.name} did not start: {self.log.read_text()[-2000:]}")

    def _is_up(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise HostError(f"{self.name} did not start: {self.log.read_text()[-2000:]}")
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        words = children.read_text().split()
        if not words or Path(f"/proc/{words[0]}/comm").read_text().strip() != "systemd":
            return False
        self.pid = int(words[0])
        return self.run("systemctl", "is-system-running", check=False).stdout.strip() == "running"

    def connect(self, switch: Switch) -> None:
        """Plugs it into the bridge of the site."""
        try:
            switch.plug(self.name, str(self.pid), self.address, self.command(()))
        except NetworkError as error:
            raise HostError(str(error)) from error

    def command(self, words: Sequence[str]) -> list[str]:
        return [
            "nsenter",
            "-t",
            str(self.pid),
            "-a",
            "-w",
            "env",
            "-i",
            f"PATH={PATH}",
            "HOME=/root",
            "LANG=C.UTF-8",
            *words,
        ]

    def run(
        self, *words: object, check: bool = True, stdin: str | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Runs a command on the host. Raises HostError when it fails and `check` is set."""
        texts = [*map(str, words)]
        result = subprocess.run(
            self.command(texts),
            check=False,
            capture_output=True,
            text=True,
            input=stdin,
            timeout=RUN_SECONDS_MAX,
        )
        if check and result.returncode != 0:
            what = (result.stderr + result.stdout).strip()
            raise HostError(f"{self.name}: {' '.join(texts)}: exit {result.returncode}: {what}")
        return result

    def text(self, *words: object) -> str:
        return self.run(*words).stdout

    def put(self, source: Path, place: str) -> None:
        """Copies a file there."""
        self.run("install", "-D", "-m", "644", "/dev/stdin", place, stdin=source.read_text())

    def let_services_start(self) -> None:
        """Images for containers have a file by which no package may start a service."""
        self.run("rm", "-f", "/usr/sbin/policy-rc.d")

    def install_packages(self, *patterns: str) -> "subprocess.CompletedProcess[str]":
        """Installs Debian packages from the folder of the site. What they need is installed."""
        files = " ".join(f"/mnt/{pattern}" for pattern in patterns)
        return self.run("sh", "-c", f"DEBIAN_FRONTEND=noninteractive dpkg -i {files}")

    def stop(self) -> None:
        """Ends the host at once, as a power failure does, with its namespaces and everything in
        them."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
        if not wait_until(self._forgotten, 30):
            print(f"{self._cgroup} is still in use", file=sys.stderr)

    def power_off(self) -> None:
        """Shuts down in order: units are stopped, then the host ends."""
        assert self._process is not None
        os.kill(self.pid, signal.SIGRTMIN + 4)
        self._process.wait(180)

    def _forgotten(self) -> bool:
        try:
            for folder, _, _ in os.walk(self._cgroup, topdown=False):
                Path(folder).rmdir()
        except OSError:
            return False
        return True


class Site:
    """The hosts by name, in the given order: addresses count from 1. All hosts have `shared` at
    /mnt."""

    def __init__(self, folder: Path, shared: Path, names: Sequence[str]) -> None:
        self.folder = folder
        self.shared = shared
        self.name = f"braidfs-{os.getpid()}-site{next(_NUMBERS)}"
        self._switch = Switch(self.name)
        self.hosts = {
            name: Host(self, name, f"{NETWORK}.{number}") for number, name in enumerate(names, 1)
        }

    def start(self) -> None:
        self._switch.start()
        for host in self.hosts.values():
            host.start()
            host.connect(self._switch)

    def cut(self, name: str) -> None:
        """From now on all packets to and from that host are lost; neither end is notified."""
        self._switch.unplug(name)

    def restore(self, name: str) -> None:
        self._switch.plug_again(name)

    def stop(self) -> None:
        for host in self.hosts.values():
            host.stop()
        self._switch.stop()


@contextlib.contextmanager
def site(shared: Path, *names: str) -> Iterator[Site]:
    """Hosts for the time of the block."""
    folder = Path(tempfile.mkdtemp(prefix="braidfs-hosts-"))
    made = Site(folder, shared, names)
    try:
        made.start()
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)
