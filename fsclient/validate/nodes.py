"""The driver's end of a worker: a process on this machine, or one behind ssh.

One request at a time and its answer, each with a deadline. The worker is in a session of its own,
so that Ctrl-C reaches the driver alone; closing its input makes it clean up and end.
"""

import json
import math
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import trio

from fscommon.errors import BraidError

from .worker import LEFT_WORDS

HOSTS_MAX: Final = 4096
ANSWER_BYTES_MAX: Final = 8 << 20
ERRORS_BYTES_MAX: Final = 4096
_RANGE: Final = re.compile(r"\[(\d{1,6})-(\d{1,6})\]")


class NodeError(BraidError):
    """A node cannot take part. The message has its name and what to do."""


class DamageError(NodeError):
    """The bytes that were read are not those that were written."""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """A node. words: the command that starts its worker."""

    name: str
    path: str
    words: tuple[str, ...]


def local_nodes(paths: Sequence[str]) -> list[NodePlan]:
    """Makes each path a node of its own, with a worker on this machine."""
    words = (sys.executable, "-c", "from fsclient.validate.worker import serve; serve()")
    return [NodePlan(path, path, words) for path in paths]


def remote_nodes(hosts: Sequence[str], path: str, ssh: Sequence[str]) -> list[NodePlan]:
    remote = "exec braidfs validate --worker"
    return [NodePlan(host, path, (*ssh, host, remote)) for host in hosts]


def expand_hosts(text: str) -> list[str]:
    """The names in a list like "gpu[01-16],login". Raises ValueError for another text."""
    parts = [part.strip() for part in text.split(",")]
    if sum(map(_count, parts)) > HOSTS_MAX:
        raise ValueError(f"more than {HOSTS_MAX} hosts")
    return [name for part in parts for name in _expand(part)]


def _count(part: str) -> int:
    """How many names a part stands for, computed without making them."""
    return math.prod(max(0, int(last) - int(first) + 1) for first, last in _RANGE.findall(part))


def _expand(part: str) -> list[str]:
    if match := _RANGE.search(part):
        first, last, width = int(match[1]), int(match[2]), len(match[1])
        if first > last:
            raise ValueError(f"'{part}' is no range of hosts")
        ends = (f"{part[: match.start()]}{n:0{width}}" for n in range(first, last + 1))
        return [name for end in ends for name in _expand(end + part[match.end() :])]
    if not re.fullmatch(r"[A-Za-z0-9_.@:%-]+", part) or part.startswith("-"):
        raise ValueError(f"'{part}' is not the name of a host")
    return [part]


class Node:
    """A worker that was started. One task at a time talks to it."""

    def __init__(self, plan: NodePlan, process: trio.Process) -> None:
        self.plan = plan
        self._process = process
        self._unread = bytearray()
        self._errors = bytearray()

    @classmethod
    async def start(cls, plan: NodePlan, nursery: trio.Nursery) -> "Node":
        try:
            process = await trio.lowlevel.open_process(
                plan.words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise NodeError(f"{plan.name}: {plan.words[0]}: {error.strerror}") from error
        node = cls(plan, process)
        nursery.start_soon(node._gather_errors)
        return node

    async def _gather_errors(self) -> None:
        assert self._process.stderr is not None
        async for part in self._process.stderr:
            self._errors += part
            del self._errors[:-ERRORS_BYTES_MAX]

    async def ask(self, request: str, seconds_max: float, **fields: Any) -> dict[str, Any]:
        """Sends a request and returns the answer. Raises NodeError, which names the node."""
        line = json.dumps({"request": request, **fields}).encode() + b"\n"
        assert self._process.stdin is not None
        try:
            with trio.fail_after(seconds_max):
                await self._process.stdin.send_all(line)
                answer = json.loads(await self._line())
        except trio.TooSlowError:
            raise NodeError(f"{self.plan.name} gave no answer in {seconds_max:.0f} s") from None
        except (trio.BrokenResourceError, ValueError):
            raise await self._gone() from None
        if "error" in answer:
            kind = DamageError if answer.get("is_damage") else NodeError
            raise kind(f"{self.plan.name}: {answer['error']}")
        assert isinstance(answer, dict)
        return answer

    async def _line(self) -> bytes:
        """Reads a line. Raises ValueError if the output ends, or has no line."""
        assert self._process.stdout is not None
        while b"\n" not in self._unread:
            part = await self._process.stdout.receive_some(65536)
            if not part or len(self._unread) > ANSWER_BYTES_MAX:
                raise ValueError("no line")
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return bytes(line)

    async def _gone(self) -> NodeError:
        with trio.move_on_after(2):
            await self._process.wait()  # so that its last output has been read
            await trio.sleep(0.1)
        told = self._errors.decode(errors="replace").strip().splitlines()
        code = self._process.returncode
        why = told[-1] if told else f"exit {code}"
        return NodeError(f"{self.plan.name}: its worker ended: {why}")

    async def end(self) -> bool:
        """Lets the worker clean up and end. Returns whether it ended by the caller's deadline."""
        assert self._process.stdin is not None and self._process.stdout is not None
        await self._process.stdin.aclose()
        try:
            async for _ in self._process.stdout:
                pass
            await self._process.wait()
        finally:
            if self._process.returncode is None:
                self._process.kill()
        return True

    def left(self) -> str:
        """What the worker could not remove at its end; "" if nothing."""
        for line in self._errors.decode(errors="replace").splitlines():
            if line.startswith(LEFT_WORDS):
                return f"{self.plan.name}: {line}"
        return ""
