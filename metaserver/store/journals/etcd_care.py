"""Keeps the files of etcd's members small, and lets etcd go on after it was full.

Compaction frees room within a member's file, and never makes the file smaller; but etcd compares
the size of the file with its quota. So a member whose file is large and mostly empty writes it anew
(it is *defragmented*). That member answers nobody meanwhile: only one does so at a time, the leader
after all others, and with minutes between two of them. A member that is asked for something at that
time is a member that is slow: whoever asks goes on to the next one within a second.

When a member reaches its quota it raises the alarm NOSPACE, with which etcd takes no changes until
somebody ends the alarm. Then nobody else is to be disturbed: members are defragmented one after
another as far as that helps, and the alarm is ended when all that answer have room again.

Without changes, a member does not count anew how much of its file is in use. So a full one that has
compacted is defragmented once, whatever it says of that.
"""

import re
import time
from collections.abc import Callable, Collection, Sequence
from math import inf
from typing import Final

from fscommon.observe.words import duration, size
from metaserver.store.journals.etcd_gateway import (
    AttemptError,
    GarbledError,
    Gateway,
    GatewayError,
    NoSpaceError,
)
from metaserver.store.journals.etcd_members import (
    EtcdServer,
    defragment,
    disarm,
    full_members,
    look_at,
)

LARGE: Final = 0.5  # of its quota: a smaller file is left as it is
EMPTY: Final = 0.5  # of its file: one that holds more is left as it is
WORTH: Final = 0.1  # of its quota: when etcd is full, so much must come free
ROOM: Final = 0.7  # of its quota: the alarm ends when no member's file is larger
# A member copies what is in use, and answers nobody meanwhile: 250 MiB took 1.7 to 5.5 s on a busy
# machine. Of several members, the others answer within a second. One that is alone must be done
# within what a metaserver's lease can bear. When etcd is full nobody is served anyway.
IN_USE_MAX: Final = 512 << 20
IN_USE_ALONE_MAX: Final = 64 << 20
PAUSE_S: Final = 180.0
DEFRAGMENT_S: Final = 60.0
# A crash while it is defragmented lets these do changes of before again (etcd's issue 14685).
_FRAGILE: Final = re.compile(r"3\.5\.[0-5](?![0-9])")


def next_to_defragment(
    servers: Sequence[EtcdServer], count: int, *, is_full: bool, uncounted: Collection[str] = ()
) -> EtcdServer | None:
    """servers: those that answer, of `count` in all. is_full: etcd takes no changes. uncounted:
    members that may hold less than they say."""
    if len(servers) < count and not is_full:
        return None
    in_use_max = inf if is_full else IN_USE_MAX if count > 1 else IN_USE_ALONE_MAX
    worth = [
        one
        for one in servers
        if one.in_use <= in_use_max
        and _gains(one, is_full=is_full, is_counted=one.member not in uncounted)
    ]
    return min(worth, key=lambda one: (one.is_leader, -one.size), default=None)


def _gains(server: EtcdServer, *, is_full: bool, is_counted: bool) -> bool:
    if server.quota is None or _FRAGILE.match(server.version):
        return False
    free = server.size - server.in_use
    if is_full and not is_counted and not _is_roomy(server):
        return True
    if is_full:
        return free >= WORTH * server.quota
    return server.size >= LARGE * server.quota and free >= EMPTY * server.size


def have_room(servers: Sequence[EtcdServer], count: int) -> bool:
    """Whether etcd may take changes again: most members answer, and those have room. One that does
    not answer raises its alarm again if it has none."""
    return all(map(_is_roomy, servers)) and len(servers) > count // 2


def _is_roomy(server: EtcdServer) -> bool:
    return server.quota is not None and server.size <= ROOM * server.quota


class EtcdCare:
    """clock: a monotonic one."""

    def __init__(
        self,
        gateway: Gateway,
        endpoints: Sequence[str],
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gateway = gateway
        self._endpoints = endpoints
        self._seconds = timeout_s / len(endpoints) / 2
        self._clock = clock
        self._rests_until_s = -inf
        self._compacted: dict[str, int] = {}  # by members: as of when they were defragmented

    def care(self, may_go_on: Callable[[], None]) -> Sequence[str]:
        """Does one thing at most, and returns what it was in words. may_go_on: called before
        anything is changed; what it raises ends the call. Raises GatewayError, NoSpaceError,
        GarbledError."""
        servers, count = self._servers(), len(self._endpoints)
        if not servers:
            return []
        try:
            return self._do(servers, count, may_go_on)
        except AttemptError as error:
            raise GatewayError(f"etcd: {error}") from None

    def _do(
        self, servers: Sequence[EtcdServer], count: int, may_go_on: Callable[[], None]
    ) -> Sequence[str]:
        asked = servers[0].endpoint
        full = full_members(self._gateway, asked, self._seconds)
        if full and have_room(servers, count):
            may_go_on()
            for member in full:
                disarm(self._gateway, asked, member, self._seconds)
            return ["etcd has room again: its alarm NOSPACE is ended, and changes go on"]
        uncounted = [
            one.member for one in servers if one.compacted != self._compacted.get(one.member, 0)
        ]
        chosen = next_to_defragment(servers, count, is_full=bool(full), uncounted=uncounted)
        if chosen is None or self._clock() < self._rests_until_s:
            return []
        may_go_on()
        return [self._defragment(chosen, is_full=bool(full))]

    def _servers(self) -> list[EtcdServer]:
        """Those that answer, each once, whatever number of endpoints it has."""
        found: dict[str, EtcdServer] = {}
        for endpoint in self._endpoints:
            try:
                server = look_at(self._gateway, endpoint, self._seconds)
            except (AttemptError, NoSpaceError, GarbledError):
                continue  # `health` says so
            found.setdefault(server.member, server)
        return list(found.values())

    def _defragment(self, server: EtcdServer, *, is_full: bool) -> str:
        began_s = self._clock()
        self._rests_until_s = began_s + DEFRAGMENT_S + PAUSE_S  # it may go on after an error
        try:
            defragment(self._gateway, server.endpoint, DEFRAGMENT_S)
        except AttemptError as error:
            raise AttemptError(f"{server.endpoint} is not defragmented: {error}") from None
        took_s = self._clock() - began_s
        self._compacted[server.member] = server.compacted
        self._rests_until_s = -inf if is_full else self._clock() + PAUSE_S
        now = look_at(self._gateway, server.endpoint, self._seconds)
        return (
            f"etcd at {server.endpoint} is defragmented, within {duration(took_s)}: "
            f"its file had {size(server.size)} and has {size(now.size)}"
        )
