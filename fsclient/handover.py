"""Restart without unmount: the process hands its mount to the program that it becomes (execve).

A signal (RESTART) begins it. The program on the disk is asked whether it takes over. Lanes stop
reading from the kernel, where requests then wait; requests that were read are answered; what was
written is at the targets and committed; every change of names is durable. If anything fails until
then, this process simply goes on. Then descriptors and state pass to the new program: same pid,
same cgroup, same session. It opens every open file again at the metaserver, under the numbers that
the kernel has for handles and inodes, and serves the waiting requests, with those that were left
unanswered (waits for locks), which the kernel sends again. docs/decisions/0032-restart.md. The
order of a mount's parts is in fsclient.mount.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import trio

from fscommon.errors import BraidError, FsError, TransportError
from fscommon.native import Datapath
from fscommon.wire.locks import HeldLock
from fscommon.wire.messages import Empty
from fscommon.wire.ops import Op

from .daemon import GENERATION
from .fs.delegated_changes import FIRST_HANDLE
from .fs.filesystem import FileSystem
from .fs.handed import HandedFiles
from .fs.locks import UNKNOWN_HANDLE
from .keeper import state_file
from .meta.client import MetaClient
from .survival import read_record

ENVIRONMENT: Final = "BRAIDFS_HANDED"  # descriptor of the state; "check": say if it fits
VERSION: Final = 2  # of the state: a program accepts only its own
CHECK: Final = "check"
CHECK_TIMEOUT_S: Final = 30.0
ANSWER_TIMEOUT_S: Final = 15.0
SYNC_TIMEOUT_S: Final = 60.0
NOTIFIED_TIMEOUT_S: Final = 5.0
POLL_S: Final = 0.01
HANDLES_OF_A_GENERATION: Final = 1 << 48


class NotHandedError(BraidError):
    """This process goes on with the mount; the message says why."""


class NoSuccessorError(NotHandedError):
    """The program that is on the disk now cannot go on with this mount."""


@dataclass(frozen=True, slots=True)
class HandedSession:
    session: int
    incarnation: int
    next_request: int
    durable: int


@dataclass(frozen=True, slots=True)
class Handed:
    """What the next process gets. fds: of the kernel's connection. agreed: what was negotiated at
    INIT. is_killed: the former process was killed. unclean: inodes of which bytes were lost with
    it."""

    generation: int
    in_background: bool
    mountpoint: str
    root_ino: int
    fds: tuple[int, ...]
    agreed: bytes
    session: HandedSession
    files: HandedFiles
    is_killed: bool = False
    unclean: tuple[int, ...] = ()


# ---- the process that leaves ----------------------------------------------------------------


async def leave(
    datapath: Datapath, files: FileSystem, meta: MetaClient, running: Callable[[], int]
) -> Callable[[], Handed]:
    """Prepares the mount to be handed over. Call the returned function for the state when no more
    requests are sent to the metaserver. running: returns how many handlers are running. Raises
    NotHandedError: nothing was changed."""
    await _check_successor()
    if not datapath.mounting.pause(True):
        datapath.mounting.pause(False)
        raise NotHandedError("the lanes do not stop reading")
    try:
        await _quiesce(datapath, files, meta, running)
    except BaseException as error:
        datapath.mounting.pause(False)
        files.inodes.resume()
        if isinstance(error, FsError | OSError):
            raise NotHandedError(f"what was written could not be made durable: {error}") from error
        raise
    connection = datapath.mounting.hand_over()
    handles = datapath.mounting.handles()
    await files.locks.leave()
    handed = HandedFiles.of(files, handles, datapath.mounting.backings())

    def state() -> Handed:
        core = meta.core
        session = HandedSession(core.session, core.incarnation, core.next_id, core.durable)
        return Handed(0, False, "", 0, tuple(connection.fds), connection.agreed, session, handed)

    return state


async def _quiesce(
    datapath: Datapath, files: FileSystem, meta: MetaClient, running: Callable[[], int]
) -> None:
    with trio.move_on_after(ANSWER_TIMEOUT_S) as answering:
        while datapath.mounting.unanswered() > files.locks.waiting_count:  # noqa: ASYNC110 - polls
            await trio.sleep(POLL_S)
    if answering.cancelled_caught:
        count = datapath.mounting.unanswered()
        raise NotHandedError(f"{count} requests wait, perhaps for a server")
    with trio.move_on_after(SYNC_TIMEOUT_S) as syncing:
        await files.delegated_changes.give_back_all()
        files.inodes.single_open()
        files.ahead.clear()
        files.inodes.unkeep_all()
        await files.sync()
        files.closer.flush()
        await meta.call(Op.BARRIER, Empty(), Empty)
    if syncing.cancelled_caught:
        raise NotHandedError("what was written could not be made durable in time")
    # A notification that waits for a page or a directory would wait for ever.
    told = await files.drains.notified(
        lambda token: datapath.names.lease_drop(token, (), 0), NOTIFIED_TIMEOUT_S
    )
    if not told or datapath.mounting.unanswered() > files.locks.waiting_count:
        raise NotHandedError("the kernel is still busy with notifications")
    if running() > files.locks.waiting_count:
        raise NotHandedError("a request is still running")


def _program() -> str:
    path = shutil.which(sys.argv[0])
    if path is None:
        raise NoSuccessorError(f"there is no program {sys.argv[0]}")
    return path


async def _check_successor() -> None:
    """Checks that the program which is on the disk now starts, and accepts this state."""
    environment = {**os.environ, ENVIRONMENT: CHECK}
    try:
        with trio.fail_after(CHECK_TIMEOUT_S):
            ended = await trio.run_process(
                [_program(), *sys.argv[1:]],
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                env=environment,
                stdin=subprocess.DEVNULL,
            )
    except (OSError, trio.TooSlowError) as error:
        raise NoSuccessorError(f"{sys.argv[0]} does not start: {error!r}") from error
    said = ended.stdout.decode(errors="replace").strip()
    if ended.returncode or said != str(VERSION):
        raise NoSuccessorError(
            f"{sys.argv[0]} does not take over: it says '{said}', exit code {ended.returncode}"
        )


def become(handed: Handed) -> None:
    """Becomes the program that goes on. Returns only by an OSError."""
    place = state_file(asdict(handed))
    os.set_inheritable(place, True)
    environment = {
        **os.environ,
        ENVIRONMENT: f"{VERSION}:{place}",
        GENERATION: str(handed.generation),
    }
    os.execve(_program(), sys.argv, environment)


# ---- the process that comes -----------------------------------------------------------------


def is_check() -> bool:
    """Whether this process must only say whether it would take over."""
    return os.environ.get(ENVIRONMENT) == CHECK


def is_taking() -> bool:
    """Whether this process takes over a mount."""
    return os.environ.get(ENVIRONMENT, CHECK) != CHECK


def taken() -> Handed | None:
    """The mount that this process takes over, if any."""
    version, _, fd = os.environ.pop(ENVIRONMENT, "").partition(":")
    if not fd:
        return None
    if version != str(VERSION):
        raise TransportError(f"a mount was handed over in version {version}, not {VERSION}")
    with os.fdopen(int(fd), "rb") as file:
        raw: dict[str, Any] = json.load(file)
    for number in raw["fds"]:
        os.set_inheritable(number, False)
    is_killed = "record" in raw
    if is_killed:  # the keeper knows little: the record says what was open
        files, unclean = read_record(raw["record"])
        os.close(raw["record"])
        session = HandedSession(raw["session"], 0, 1, 0)
    else:
        files, unclean = HandedFiles.read(raw["files"]), ()
        session = HandedSession(**raw["session"])
    return Handed(
        generation=raw["generation"],
        in_background=raw["in_background"],
        mountpoint=raw["mountpoint"],
        root_ino=raw["root_ino"],
        fds=tuple(raw["fds"]),
        agreed=bytes.fromhex(raw["agreed"]),
        session=session,
        files=files,
        is_killed=is_killed,
        unclean=unclean,
    )


async def restore(
    handed: Handed, datapath: Datapath, files: FileSystem, locks: tuple[HeldLock, ...]
) -> list[int]:
    """Opens again what was open; returns the inodes for which that failed. locks: those that the
    metaserver has for the session, if the former process could not report them."""
    # Also the files that cannot be opened again.
    datapath.mounting.backings_put(handed.files.backings, handed.files.handles)
    lost = await handed.files.restore(files)
    if handed.is_killed:
        for lock in locks:
            files.locks.take_back(lock, UNKNOWN_HANDLE)
        for ino in handed.unclean:
            datapath.inodes.failed(ino)
    return lost


def take_over(datapath: Datapath, handed: Handed) -> None:
    """Takes over the kernel's connection, in place of mounting. Raises OSError."""
    first = FIRST_HANDLE + handed.generation * HANDLES_OF_A_GENERATION
    datapath.mounting.take_over(list(handed.fds), handed.agreed, first)


def named(handed: Handed, previous: Handed | None, *, in_background: bool) -> Handed:
    """Adds what the next process must know of this one."""
    generation = 1 + (previous.generation if previous else 0)
    return replace(handed, generation=generation, in_background=in_background)
