"""Network namespaces on one bridge: they stand for the links of a cluster, which tests can cut.

A `Switch` is a network namespace with a bridge, so this machine's own network is not changed; other
namespaces are plugged into it. A `Network` is a switch with places, each a namespace with an
address, in which programs of a cluster run (`Place.enter` goes before their words). nftables at the
bridge drops packets from one place to another, until `restore`: neither sender nor receiver is
notified, as with a pulled cable. All names contain the pid of this process, and `stop` removes
everything.
"""

import contextlib
import ctypes
import itertools
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

NAMESPACES = Path("/run/netns")
PORT_NAME_MAX = 15  # Linux allows no longer names
SECONDS_MAX = 60
_CLONE_NEWNET = 0x40000000
_numbers = itertools.count(1)


class NetworkError(Exception):
    """ip or nft failed; the message is what was printed."""


def why_no_networks() -> str | None:
    """A reason why this machine cannot have such networks, or cannot cut them; None if it can."""
    if os.geteuid() != 0:
        return "needs root: makes network namespaces"
    for program in ("ip", "nft", "nsenter"):
        if shutil.which(program) is None:
            return f"needs {program}(8)"
    name = f"braidfs-{os.getpid()}-try"
    try:
        run("ip", "netns", "add", name)
        run("ip", "netns", "exec", name, "nft", "add", "table", "bridge", "cuts")
    except NetworkError as error:
        return f"no network namespaces with nftables here: {error}"
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
    return None


def run(*words: str, stdin: str | None = None) -> str:
    result = subprocess.run(
        words, check=False, capture_output=True, text=True, timeout=SECONDS_MAX, input=stdin
    )
    if result.returncode != 0:
        raise NetworkError(f"{' '.join(words)}: {(result.stderr or result.stdout).strip()}")
    return result.stdout


@dataclass(frozen=True, slots=True)
class Switch:
    """A bridge in a network namespace of its own."""

    name: str

    def start(self) -> None:
        run("ip", "netns", "add", self.name)
        run("ip", "-n", self.name, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", self.name, "link", "set", "bridge", "up")

    def stop(self) -> None:
        subprocess.run(["ip", "netns", "delete", self.name], check=False, capture_output=True)

    @staticmethod
    def port(name: str) -> str:
        """The bridge's end of the link of that name."""
        return f"p-{name}"[:PORT_NAME_MAX]

    def plug(self, name: str, namespace: str, address: str, inside: Sequence[str]) -> None:
        """Links the switch to a namespace (its name, or the pid of a process in it), where the link
        is eth0 with that address. `inside`: the first words of commands that run there."""
        here, port = ("ip", "-n", self.name), self.port(name)
        run(*here, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        run(*here, "link", "set", port, "master", "bridge", "up")
        run(*inside, "ip", "address", "add", f"{address}/24", "dev", "eth0")
        run(*inside, "ip", "link", "set", "eth0", "up")

    def unplug(self, name: str) -> None:
        """Takes the link from the bridge: its other end stays up, and its packets are lost."""
        run("ip", "-n", self.name, "link", "set", self.port(name), "nomaster")

    def plug_again(self, name: str) -> None:
        run("ip", "-n", self.name, "link", "set", self.port(name), "master", "bridge")


@dataclass(frozen=True, slots=True)
class Place:
    """A network namespace with an address. HERE is the one in which the tests began, with the
    loopback's address."""

    address: str = "127.0.0.1"
    namespace: str = ""

    @property
    def enter(self) -> tuple[str, ...]:
        """The words that go before those of a program that runs here."""
        return ("nsenter", f"--net={NAMESPACES / self.namespace}") if self.namespace else ()

    def call(self, act: Callable[[], T]) -> T:
        """Calls act() in a thread in this namespace."""
        if not self.namespace:
            return act()
        results: list[T | BaseException] = []

        def enter_and_act() -> None:
            try:
                _set_namespace(NAMESPACES / self.namespace)
                results.append(act())
            except BaseException as error:
                results.append(error)

        thread = threading.Thread(target=enter_and_act)
        thread.start()
        thread.join()
        if isinstance(results[0], BaseException):
            raise results[0]
        return results[0]


def _set_namespace(path: Path) -> None:
    """Sets the namespace of this thread only, for as long as it lives."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(fd, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {path}")
    finally:
        os.close(fd)


@dataclass(frozen=True, slots=True)
class Cut:
    """Packets from one place to another are lost; "" stands for every place."""

    source: str
    sink: str


class Network:
    """Places by name."""

    def __init__(self, names: Sequence[str], network: str = "10.178.0") -> None:
        prefix = f"braidfs-{os.getpid()}-{next(_numbers)}"
        self._switch = Switch(prefix)
        self.places = {
            name: Place(f"{network}.{number}", f"{prefix}-{name}")
            for number, name in enumerate(names, 1)
        }

    def start(self) -> None:
        self._switch.start()
        self._nft(
            "add table bridge cuts; add chain bridge cuts forward"
            " { type filter hook forward priority 0; policy accept; }"
        )
        for name, place in self.places.items():
            run("ip", "netns", "add", place.namespace)
            run("ip", "-n", place.namespace, "link", "set", "lo", "up")
            self._switch.plug(name, place.namespace, place.address, place.enter)

    def stop(self) -> None:
        for place in self.places.values():
            words = ["ip", "netns", "delete", place.namespace]
            subprocess.run(words, check=False, capture_output=True)
        self._switch.stop()

    def cut(self, *cuts: Cut) -> None:
        """From now on these links are cut, and no others."""
        self._nft("; ".join(["flush chain bridge cuts forward", *map(self._rule, cuts)]))

    def restore(self) -> int:
        """Ends all cuts. Returns how many packets were lost."""
        lost = self._lost()
        self.cut()
        return lost

    def _rule(self, cut: Cut) -> str:
        ends = [
            f'{which} "{self._switch.port(name)}"'
            for which, name in (("iifname", cut.source), ("oifname", cut.sink))
            if name
        ]
        return f"add rule bridge cuts forward {' '.join(ends)} counter drop"

    def _nft(self, commands: str) -> None:
        text = commands.replace("; add ", "\nadd ")
        run("ip", "netns", "exec", self._switch.name, "nft", "-f", "-", stdin=f"{text}\n")

    def _lost(self) -> int:
        words = ("nft", "-j", "list", "chain", "bridge", "cuts", "forward")
        listed = json.loads(run("ip", "netns", "exec", self._switch.name, *words))
        rules = (one["rule"]["expr"] for one in listed["nftables"] if "rule" in one)
        return sum(_packets(expression) for rule in rules for expression in rule)


def _packets(expression: dict[str, Any]) -> int:
    return int(expression.get("counter", {}).get("packets", 0))


def both_ways(name: str) -> tuple[Cut, Cut]:
    """Cuts in both directions between that place and all others."""
    return Cut(name, ""), Cut("", name)


@contextlib.contextmanager
def network(*names: str) -> Iterator[Network]:
    """The places, for the time of the block."""
    made = Network(names)
    try:
        made.start()
        yield made
    finally:
        made.stop()
