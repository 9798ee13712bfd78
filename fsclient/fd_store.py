"""Uses the supervisor's store of descriptors to hold a mount that is a service.

systemd does for braidfs-mount@.service what the keeper (fsclient.keeper) does for a mount in the
background: it holds the kernel's connection and the record of what is open when the client ends,
for whatever reason, and the unit starts the next client with them. The unit must request this
(BRAIDFS_FD_STORE, FileDescriptorStoreMax=). docs/decisions/0034-survival.md. Names in the store,
with the generation G of the process that stored them:

    main      the kernel's connection, the same in all generations
    lanes-G   its clones
    record-G  what is open; native writes it
    state-G   JSON, rewritten in place: what else the next process must know
    left-G    JSON of a process that left in order and knew everything; used by one start alone

A generation that is stored completely removes the one before. What a next process does with it is
in fsclient.handover, whose environment variable it gets.
"""

import json
import os
import re
from collections.abc import Sequence
from typing import Any, Final

from fscommon.supervisor import (
    given_descriptors,
    is_supervised,
    notify_supervisor,
    supervisor_has_read,
)

from .keeper import GENERATION, HANDED, state_file

ASKED: Final = "BRAIDFS_FD_STORE"
STATE_SIZE: Final = 16384  # has room for the longest path
_NAME: Final = re.compile(r"(lanes|record|state|left)-(\d{1,9})")
_MAIN: Final = "main"


def is_there() -> bool:
    return is_supervised() and os.environ.get(ASKED) == "1"


class FdStore:
    """The generation that this process keeps in the store."""

    def __init__(self) -> None:
        self._state = -1

    def hold(self, version: int, state: dict[str, Any], record: int, fds: Sequence[int]) -> None:
        """Stores a generation. state: as for the keeper; its generation is that of the next
        process. Raises OSError."""
        words = json.dumps({**state, "version": version}).encode()
        if len(words) > STATE_SIZE:
            raise OSError(f"the state of the mount has {len(words)} bytes")
        if self._state < 0:
            own = state["generation"] - 1
            _forget(own)  # left by a process of the same generation that did not finish
            _put(_MAIN, fds[:1])
            _put(f"lanes-{own}", fds[1:])
            _put(f"record-{own}", [record])
            self._state = os.memfd_create("braidfs-state", os.MFD_CLOEXEC)
            os.pwrite(self._state, words.ljust(STATE_SIZE), 0)
            _put(f"state-{own}", [self._state])
            _forget(own - 1)
        else:
            os.pwrite(self._state, words.ljust(STATE_SIZE), 0)


def leave(state: dict[str, Any], version: int) -> None:
    """Stores everything that the next start needs, for a process that leaves in order."""
    place = state_file({**state, "version": version})
    _put(f"left-{state['generation'] - 1}", [place])
    supervisor_has_read()


def claim(version: int) -> None:
    """Has this process go on with what the supervisor held, if anything, as if another process had
    handed it over. What no program of this version understands is removed from the store."""
    given = given_descriptors()
    held = {name: fd for name, fd in given if name != _MAIN}
    main = [fd for name, fd in given if name == _MAIN]
    whole = [_generation(name) for name in held if name.startswith("state-")]
    last = max((one for one in whole if f"record-{one}" in held), default=-1)
    state = _read(held[f"state-{last}"]) if last >= 0 else {}
    if not main or state.get("version") != version:
        for name in {name for name, _ in given}:
            _remove(name)
        return _close([fd for _, fd in given])
    used = {f"record-{last}", *(name for name in held if name.startswith("lanes-"))}
    lanes = [fd for name, fd in given if name.startswith("lanes-")]
    state = {**state, "record": held[f"record-{last}"], "fds": [main[0], *lanes]}
    if f"left-{last}" in held:
        _remove(f"left-{last}")  # what it says of requests is true for one start only
        left = _read(held[f"left-{last}"])
        if left.get("version") == version:
            state = {**left, "fds": state["fds"]}
            used.discard(f"record-{last}")
    _close([fd for name, fd in given if name not in used and fd not in state["fds"]])
    _hand(state, version)


def _hand(state: dict[str, Any], version: int) -> None:
    os.environ[HANDED] = f"{version}:{state_file(state)}"
    os.environ[GENERATION] = str(state["generation"])


def _read(fd: int) -> dict[str, Any]:
    """Reads a state; empty if the descriptor has none."""
    try:
        found = json.loads(os.pread(fd, os.fstat(fd).st_size, 0))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _generation(name: str) -> int:
    match = _NAME.fullmatch(name)
    return int(match[2]) if match else -1


def _put(name: str, fds: Sequence[int]) -> None:
    """Stores descriptors, not watched (FDPOLL=0): else the supervisor would wake up for each
    request of the kernel."""
    if fds:
        notify_supervisor(f"FDSTORE=1\nFDPOLL=0\nFDNAME={name}", fds)


def _remove(name: str) -> None:
    notify_supervisor(f"FDSTOREREMOVE=1\nFDNAME={name}")


def _forget(generation: int) -> None:
    for kind in ("lanes", "record", "state", "left"):
        if generation >= 0:
            _remove(f"{kind}-{generation}")


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
