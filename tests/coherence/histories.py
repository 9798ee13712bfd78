"""Histories of several clients: scripts of operations, performed by processes, one per client.

`tests.model.linearizability` judges what each call was answered, and when. Scripts come from a
seed, which is printed; times are of CLOCK_MONOTONIC, the same for all processes.

A client that is evicted loses operations that were answered and not synced, and reports that by EIO
at the next fsync. Where that may happen, scripts are played *carefully*: a change counts when an
fsync after it has succeeded, and an operation that failed counts as neither done nor undone
(UNKNOWN).
"""

import errno
import fcntl
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from typing import Any

from tests.model.file_models import (
    OK,
    Add,
    Append,
    Create,
    Lookup,
    ReadAll,
    Release,
    Rename,
    TryLock,
    Unlink,
)
from tests.model.linearizability import NEVER, UNKNOWN, Operation

RECORD = 24  # the bytes of one record of an appended file
NO_INO = -1
FAILURES = ("EIO", "ETIMEDOUT", "ENOTCONN")  # these do not say whether the operation happened
Script = list[Any]
_JOIN_S = 300.0


@dataclass(frozen=True, slots=True)
class Manner:
    """How scripts are played: at most one operation every pace_s; carefully, with an fsync after
    every change; to the end, or only while a concurrent event lasts."""

    pace_s: float = 0.0
    is_careful: bool = False
    to_the_end: bool = True


PLAIN = Manner()


class Performer:
    """One client at work: performs operations below its own mount."""

    def __init__(self, base: Path, client: int) -> None:
        self.base = base
        self.client = client
        self._files: dict[tuple[str, int], int] = {}

    def _fd(self, name: str, flags: int) -> int:
        if (name, flags) not in self._files:
            self._files[name, flags] = os.open(self.base / name, flags | os.O_CREAT, 0o644)
        return self._files[name, flags]

    def perform(self, argument: Any) -> tuple[Any, Any]:
        """Performs one operation; returns the argument as it is judged, and the result."""
        try:
            return self._act(argument)
        except OSError as error:
            return argument, errno.errorcode[error.errno or 0]

    def _act(self, argument: Any) -> tuple[Any, Any]:
        match argument:
            case Create(name, _):
                fd = os.open(self.base / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
                ino = os.fstat(fd).st_ino
                os.close(fd)
                return Create(name, ino), OK
            case Unlink(name):
                (self.base / name).unlink()
            case Rename(old, new):
                os.rename(self.base / old, self.base / new)
            case Lookup(name):
                return argument, (self.base / name).stat().st_ino
            case _:
                return argument, self._bytes(argument)
        return argument, OK

    def _bytes(self, argument: Any) -> Any:
        match argument:
            case Append(file, record):
                fd = self._fd(file, os.O_WRONLY | os.O_APPEND)
                return OK if os.write(fd, record) == len(record) else "SHORT"
            case ReadAll(file):
                fd = os.open(self.base / file, os.O_RDONLY | os.O_CREAT, 0o644)
                octets = os.pread(fd, 1 << 20, 0)
                os.close(fd)
                return tuple(octets[at : at + RECORD] for at in range(0, len(octets), RECORD))
            case TryLock(file, _):
                fcntl.flock(self._fd(file, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
            case Release(file, _):
                fcntl.flock(self._fd(file, os.O_RDWR), fcntl.LOCK_UN)
            case Add(file, amount):
                return self._add(file, amount)
        return OK

    def _add(self, file: str, amount: int) -> int:
        fd = self._fd(file, os.O_RDWR)
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            before = int(os.pread(fd, 20, 0) or b"0")
            os.pwrite(fd, b"%020d" % (before + amount), 0)
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)
        return before


class CarefulPerformer(Performer):
    """Counts a change only when it was synced, and counts an operation that failed for lack of a
    server as unknown."""

    def __init__(self, base: Path, client: int) -> None:
        super().__init__(base, client)
        self._folder = os.open(base, os.O_RDONLY | os.O_DIRECTORY)
        self._lost_count = 0

    def perform(self, argument: Any) -> tuple[Any, Any]:
        judged, result = super().perform(argument)
        if result == OK and isinstance(argument, Create | Unlink | Rename | Append):
            result = self._synced(argument)
        if result not in FAILURES:
            return judged, result
        if isinstance(argument, Create):  # the inode number may be any
            self._lost_count += 1
            judged = Create(argument.name, NO_INO - 1 - self._lost_count * 64 - self.client)
        return judged, UNKNOWN

    def _synced(self, argument: Any) -> Any:
        is_append = isinstance(argument, Append)
        fd = self._fd(argument.file, os.O_WRONLY | os.O_APPEND) if is_append else self._folder
        try:
            os.fsync(fd)
        except OSError as error:
            return errno.errorcode[error.errno or 0]
        return OK


@dataclass(frozen=True, slots=True)
class _Part:
    """The parameters of one player. `stop`: a player that does not play to the end stops when it is
    set."""

    base: Path
    client: int
    script: Script
    manner: Manner
    start: Barrier
    stop: Event
    done: Connection


def _play(part: _Part) -> None:
    performer = (CarefulPerformer if part.manner.is_careful else Performer)(part.base, part.client)
    part.start.wait()
    history = []
    for wish in part.script:
        if part.stop.is_set() and not part.manner.to_the_end:
            break
        call = time.monotonic()
        argument, result = performer.perform(wish)
        answer = NEVER if result is UNKNOWN else time.monotonic()
        history.append(Operation(part.client, call, answer, argument, result))
        time.sleep(max(0.0, call + part.manner.pace_s - time.monotonic()))
    part.done.send(history)
    part.start.wait()  # no player releases its locks before all have finished
    os._exit(0)


def record(
    bases: Sequence[Path],
    scripts: Sequence[Script],
    meanwhile: Callable[[], None] | None = None,
    manner: Manner = PLAIN,
) -> list[Operation]:
    """Plays the scripts, each below its base in a process of its own; returns the history of all of
    them."""
    context = multiprocessing.get_context("fork")
    start = context.Barrier(len(scripts) + 1)
    stop = context.Event()
    players = []
    for client, (base, script) in enumerate(zip(bases, scripts, strict=True)):
        mine, theirs = context.Pipe(duplex=False)
        part = _Part(base, client, script, manner, start, stop, theirs)
        player = context.Process(target=_play, args=(part,), daemon=True)
        player.start()
        theirs.close()
        players.append((player, mine))
    start.wait()
    try:
        if meanwhile is not None:
            meanwhile()
    except BaseException:
        for player, _ in players:  # they would keep the mounts busy
            player.kill()
        raise
    stop.set()
    history: list[Operation] = []
    for _, mine in players:
        assert mine.poll(_JOIN_S), "a client does not come to an end"
        history += mine.recv()
    start.wait()
    for player, _ in players:
        player.join()
    return history


# ---- scripts -------------------------------------------------------------------------------------


def names_script(chance: random.Random, count: int, client: int, groups: int) -> Script:
    """Operations on two names that all clients share and one that is this client's own, in each
    group.

    Renames are between a shared name and the own one: the kernel looks up both names one after the
    other, and does nothing if another client has meanwhile moved the file so that both are the
    same. There is no link, because it looks up the old name first and links the inode afterwards,
    on a local file system too.
    """
    script: Script = []
    for _ in range(count):
        group = chance.randrange(groups)
        shared, own = f"g{group}-{chance.choice('ab')}", f"g{group}-own{client}"
        any_name = chance.choice([shared, shared, own])
        script.append(
            chance.choices(
                (
                    Create(any_name, NO_INO),
                    Unlink(any_name),
                    Rename(shared, own),
                    Rename(own, shared),
                    Lookup(any_name),
                ),
                (4, 3, 2, 2, 5),
            )[0]
        )
    return script


def appends_script(chance: random.Random, count: int, client: int, files: int) -> Script:
    script: Script = []
    for number in range(count):
        file = f"log{chance.randrange(files)}"
        octets = f"{client:02d}-{number:06d}".encode().ljust(RECORD - 1, b".") + b"\n"
        script.append(Append(file, octets) if chance.random() < 0.5 else ReadAll(file))
    return script


def locks_script(chance: random.Random, count: int, client: int, files: int) -> Script:
    script: Script = []
    for _ in range(count):
        file = f"lock{chance.randrange(files)}"
        script.append(TryLock(file, client) if chance.random() < 0.6 else Release(file, client))
    return script


def counter_script(chance: random.Random, count: int, files: int) -> Script:
    return [Add(f"count{chance.randrange(files)}", chance.randrange(1, 9)) for _ in range(count)]
