"""braidfs client restart and abort: send signals to the processes of mounts on this host."""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
import trio
from rich.console import Console

from fscommon.errors import BraidError, ConfigError

from ..daemon import GENERATION
from ..kernel import FILE_SYSTEM_TYPE, mount_table, unescape
from .frame import Command, json_option, run_trio, show

_GENERATION: Final = f"{GENERATION}=".encode()
_POLL_S: Final = 0.05
_FUSE: Final = "/dev/fuse"
_CONNECTION = "fuse_connection:"  # a line in fdinfo
_PROGRAMS: Final = (b"mount.fuse.braidfs", b"braidfs")


class NotToldError(BraidError):
    """The mount serves as before, or not at all; the message says which."""


@click.command(
    "restart",
    cls=Command,
    examples=[
        ("braidfs client restart /data", "After an upgrade: open files, maps and locks stay."),
        ("braidfs client restart", "All mounts of this host, one after the other."),
    ],
)
@click.argument("directories", nargs=-1, metavar="[DIRECTORY]...")
@click.option(
    "--timeout",
    type=click.FloatRange(1, 3600),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="How long each mount may take.",
)
@json_option
def restart(directories: tuple[str, ...], timeout: float, as_json: bool) -> None:
    """Restart mounts in the program that is installed now, without unmounting.

    What was written is made durable first; requests of programs wait meanwhile, for a second or so.
    A mount that cannot hand over now (for instance because a server does not answer) goes on as it
    is, and its log says why. Only root, or the user who mounted, may do this.
    """
    found = [_restart(one, timeout) for one in _mounts(directories)]
    show(found, as_json, lambda console: _print(console, found))


@click.command(
    "abort",
    cls=Command,
    examples=[
        ("braidfs client abort /data", "Programs that hang there get EIO, now."),
        ("braidfs client abort --json", "On all mounts of this host."),
    ],
)
@click.argument("directories", nargs=-1, metavar="[DIRECTORY]...")
@json_option
def abort(directories: tuple[str, ...], as_json: bool) -> None:
    """Fail all requests that wait for a server on mounts of this host, before their timeouts.

    Reads and writes that wait get EIO; written bytes that no server has yet are lost, which the
    next fsync or close of their file reports. The mount goes on: later requests wait again. Its log
    says how many requests failed. Only root, or the user who mounted, may do this.
    """
    found = [{"mountpoint": one, "pid": _tell(one, signal.SIGUSR2)} for one in _mounts(directories)]
    lines = [f"{one['mountpoint']}: told (process {one['pid']})" for one in found]
    show(found, as_json, lambda console: console.print("\n".join(lines), markup=False))


def _mounts(directories: Sequence[str]) -> list[str]:
    """The named mounts, or all. Raises ConfigError."""
    mounted = [line.mountpoint for line in mount_table() if line.kind == FILE_SYSTEM_TYPE]
    wanted = [os.path.abspath(one) for one in directories] or mounted  # noqa: PTH100 - no lstat
    for one in wanted:
        if one not in mounted:
            raise ConfigError(f"no BraidFS is mounted on {one}")
    return wanted


def _tell(mountpoint: str, number: int) -> int:
    """Sends the signal to the process that serves the mount, if it handles it. Returns its pid."""
    pid = client_pid(mountpoint)
    if pid is None:
        raise NotToldError(f"the process that serves {mountpoint} was not found")
    if not _listens(pid, number):
        raise NotToldError(
            f"process {pid}, which serves {mountpoint}, does not handle this signal: it is older, "
            "or has just started"
        )
    try:
        os.kill(pid, number)
    except PermissionError as error:
        raise NotToldError(f"process {pid}, which serves {mountpoint}: {error}") from error
    return pid


def _restart(mountpoint: str, timeout_s: float) -> dict[str, Any]:
    began = time.monotonic()
    before = generation_of(client_pid(mountpoint) or 0)
    pid = _tell(mountpoint, signal.SIGUSR1)
    run_trio(_wait, mountpoint, pid, before, timeout_s)
    seconds = round(time.monotonic() - began, 2)
    return {
        "mountpoint": mountpoint,
        "pid": pid,
        "generation": generation_of(pid),
        "seconds": seconds,
    }


async def _wait(mountpoint: str, pid: int, before: int, timeout_s: float) -> None:
    """Waits until the next program serves."""
    with trio.move_on_after(timeout_s):
        while generation_of(pid) == before:  # noqa: ASYNC110 - of another process
            await trio.sleep(_POLL_S)
        await trio.to_thread.run_sync(os.statvfs, mountpoint, abandon_on_cancel=True)
        return
    if generation_of(pid) == before:
        raise NotToldError(f"{mountpoint} goes on as it is: the log of process {pid} says why")
    raise NotToldError(f"{mountpoint} does not answer: see its log")


def client_pid(mountpoint: str) -> int | None:
    """The process that serves the mount: it has the kernel's connection open, whose number Linux
    6.18 shows; otherwise its command line names the mount."""
    number = _connection_number(mountpoint)
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        is_client = any(word.rpartition(b"/")[2] in _PROGRAMS for word in words[:2])
        is_named = os.fsencode(mountpoint) in [word.rstrip(b"/") or b"/" for word in words]
        if is_client and _serves(folder, number, is_named=is_named):
            return int(folder.name)
    return None


def _connection_number(mountpoint: str) -> str:
    """The connection of the topmost mount there, without access to it: its process may hang."""
    lines = os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).split("\n")
    devices = [
        words[2] for words in map(str.split, lines) if words and unescape(words[4]) == mountpoint
    ]
    return devices[-1].rpartition(":")[2] if devices else ""


def _serves(process: Path, number: str, *, is_named: bool) -> bool:
    """Whether the process serves the mount; the keeper only has its connection open."""
    try:
        connections = [fd.name for fd in (process / "fd").iterdir() if _points_to(fd, _FUSE)]
        told = [(process / "fdinfo" / fd).read_text().split() for fd in connections]
    except OSError:
        return False
    numbers = {words[words.index(_CONNECTION) + 1] for words in told if _CONNECTION in words}
    return number in numbers if numbers else is_named and bool(connections)


def _points_to(fd: Path, path: str) -> bool:
    try:
        return os.readlink(fd) == path  # noqa: PTH115 - no object for each descriptor
    except OSError:
        return False  # the descriptor was closed meanwhile


def _listens(pid: int, number: int) -> bool:
    """Whether the process handles this signal, which would end another process."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    caught = next((line.split()[1] for line in lines if line.startswith("SigCgt")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def generation_of(pid: int) -> int:
    """How often the mount was handed over; -1: there is no such process."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return -1
    found = [word for word in words if word.startswith(_GENERATION)]
    return int(found[0].removeprefix(_GENERATION)) if found else 0


def _print(console: Console, found: Sequence[dict[str, Any]]) -> None:
    for one in found:
        console.print(
            f"{one['mountpoint']}: restarted, {one['seconds']:g} s (process {one['pid']}, "
            f"generation {one['generation']})",
            markup=False,
        )
