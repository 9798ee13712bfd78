"""Clients with a session: when each was last heard, and which inodes each has open.

The table is in memory. An `S` record keeps a session over a restart; the client then reports again
what it has open. Ids are random, so an old client is never mistaken for a new one. `version`
changes with every change of the set of sessions; storage servers compare it with theirs (rule 15).

Request ids never repeat within a session, even if client and metaserver are both killed: each
process of the client that goes on with the session is another life of the session, with its own
range of ids. The record counts the life before the process gets a reply.
metaserver.eviction evicts expired sessions; metaserver.engine has the stored replies.
"""

import secrets
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from fscommon.limits import SOLE_LEASE_S
from fscommon.types import Ino, RequestId, SessionId
from fscommon.wire.admin import NO_TRAFFIC, BytesPath, Traffic
from metaserver.keys import ClientKey

SYSTEM_SESSION: Final = SessionId(0)  # the metaserver's own transactions
SCRUB_SESSION: Final = SessionId(2**64 - 1)  # holds leases on files that a scrub compares
_OPENS_MAX: Final = 1 << 20  # per session
_EPOCH_END: Final = 1 << 63
SLOTS_MAX: Final = 4096  # unused ones of one session
SLOTS_OUTDATED_MAX: Final = 4 * SLOTS_MAX
# Directories that a session has made and holds exclusively, as long as they are empty: so many, of
# those that it made in the last EMPTY_S.
EMPTY_MAX: Final = 256
EMPTY_S: Final = 60.0
IDS_OF_A_LIFE: Final = 1 << 44  # request ids of one process: 50,000 a second for ten years
LIVES_MAX: Final = 1 << 18  # so that ids stay below 2^62


@dataclass(slots=True)
class Session:
    id: SessionId
    node: str
    opened_ns: int
    renewed_s: float  # monotonic
    key: ClientKey | None = None  # the client's own key; None: it has the cluster key
    opens: dict[Ino, bool] = field(default_factory=dict)  # True: for writing
    heard: int = 0  # the newest request id received
    lives: int = 0  # request ids of the present process begin at lives * IDS_OF_A_LIFE
    newest: int = 0  # the newest request id of a mutation that has run
    # The ids of stored replies, in order.
    stored: OrderedDict[RequestId, None] = field(default_factory=OrderedDict)
    created: dict[RequestId, Ino] = field(default_factory=dict)  # by stored replies of CREATE
    unsure: set[Ino] = field(default_factory=set)  # created, perhaps open: see Sessions.reassert
    slots: dict[Ino, bytes] = field(default_factory=dict)  # inodes that it may make, with layouts
    former_slots_end: int = 0  # its clients may have slots below this that are not among these
    slots_outdated: int = 0  # slots that must not be used any more: others replace them
    # Directories that it has made, holds exclusively and has left empty, with the time of each.
    empty: OrderedDict[Ino, float] = field(default_factory=OrderedDict)
    replaying: bool = False  # from before a restart, and REPLAY_DONE has not come yet
    condemned: bool = False  # it is to be evicted
    requests: int = 0  # since this metaserver started
    traffic: Traffic = NO_TRAFFIC  # reported by the client
    paths: tuple[BytesPath, ...] = ()  # reported by the client
    reported_s: float | None = None  # when it reported these
    map_epoch: int = 0  # of the newest cluster map that was sent to it
    features: int = 0  # fscommon.wire.features, as the client has stated them


class Sessions:
    def __init__(self, version: int) -> None:
        self._sessions: dict[SessionId, Session] = {}
        self._openers: dict[Ino, set[SessionId]] = {}
        self._unsure: dict[Ino, set[SessionId]] = {}
        self.version = version
        self._sole_until_s = 0.0
        self._no_sole_until_s = 0.0
        self.orphans: set[Ino] = set()  # inodes without a name
        self.reapable: set[Ino] = set()  # orphans that nobody has open; the reaper takes them
        self._lingering: dict[Ino, float] = {}  # orphans that may be opened until this time

    def __contains__(self, session: SessionId) -> bool:
        return session in self._sessions

    def sole(self, now_s: float) -> bool:
        """Whether there is only one session. Its replies may say so: no other session is opened for
        the next SOLE_LEASE_S."""
        if len(self._sessions) != 1 or now_s < self._no_sole_until_s:
            return False
        self._sole_until_s = now_s + SOLE_LEASE_S
        return True

    def end_sole(self, now_s: float) -> bool:
        """Tells no session any more that it is alone, as a second one wants to open. Returns True
        when the session that was told so does not believe it any more."""
        self._no_sole_until_s = now_s + 10 * SOLE_LEASE_S
        return now_s > self._sole_until_s

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session: SessionId) -> Session | None:
        return self._sessions.get(session)

    def all(self) -> list[Session]:
        return list(self._sessions.values())

    def ids(self) -> tuple[SessionId, ...]:
        return tuple(self._sessions)

    def new_id(self) -> SessionId:
        while (session := SessionId(secrets.randbits(63) + 1)) in self._sessions:
            pass
        return session

    def add(self, session: Session) -> None:
        self._sessions[session.id] = session
        self.version += 1

    def remove(self, session: SessionId) -> Session | None:
        """Forgets the session and what it had open. Returns it."""
        removed = self._sessions.pop(session, None)
        if removed is not None:
            self.version += 1
            for ino in removed.opens:
                self._forget_opener(ino, session)
            self._resolve(removed, set(removed.unsure))
        return removed

    def has_feature(self, session: SessionId, feature: int) -> bool:
        """Whether the client of this session has the feature. The metaserver itself has all."""
        known = self._sessions.get(session)
        return known is None or bool(known.features & feature)

    def has_room(self, session: SessionId) -> bool:
        known = self._sessions.get(session)
        return known is not None and len(known.opens) < _OPENS_MAX

    def is_writer(self, session: SessionId, ino: Ino) -> bool:
        """Whether this session has the inode open for writing."""
        known = self._sessions.get(session)
        return known is not None and known.opens.get(ino, False)

    def open(self, session: SessionId, ino: Ino, *, writable: bool) -> None:
        opens = self._sessions[session].opens
        opens[ino] = writable or opens.get(ino, False)
        self._openers.setdefault(ino, set()).add(session)
        self.reapable.discard(ino)

    def slots(self, session: SessionId) -> dict[Ino, bytes]:
        """Returns the files that the session may make by itself, with their layouts."""
        return self._sessions[session].slots

    def hand_over(self, session: SessionId, directory: Ino, now_s: float) -> bool:
        """Whether the session gets the directory that it has just made exclusively. It does if it
        makes files by itself, and has left only a bounded number of directories empty: a client
        that looks into these has to recall them one by one."""
        known = self._sessions[session]
        while known.empty and next(iter(known.empty.values())) < now_s - EMPTY_S:
            known.empty.popitem(last=False)
        if not known.slots or len(known.empty) >= EMPTY_MAX:
            return False
        known.empty[directory] = now_s
        return True

    def filled(self, session: SessionId, directory: Ino) -> None:
        """The session has made something in that directory by itself."""
        self._sessions[session].empty.pop(directory, None)

    def map_epoch_min(self) -> int:
        """Returns the newest epoch that every client's cluster map has reached."""
        return min((one.map_epoch for one in self._sessions.values()), default=_EPOCH_END)

    def slots_wanted(self, session: SessionId, count: int) -> int:
        """Returns how many of the wanted slots the session may get."""
        known = self._sessions[session]
        return max(0, min(count, SLOTS_MAX + known.slots_outdated - len(known.slots)))

    def return_slots(self, session: SessionId, inos: Iterable[int]) -> None:
        """The session uses these slots no more. Those that it used are not among its slots."""
        slots = self._sessions[session].slots
        for ino in inos:
            slots.pop(Ino(ino), None)

    def outdate_slots(self) -> None:
        """Clients will ask for other slots. Files made from those that they have are accepted."""
        for session in self._sessions.values():
            session.slots_outdated = min(len(session.slots), SLOTS_OUTDATED_MAX)

    def close(self, session: SessionId, inos: Iterable[Ino]) -> None:
        opens = self._sessions[session].opens
        for ino in inos:
            if opens.pop(ino, None) is not None:
                self._forget_opener(ino, session)

    def reassert(self, session: SessionId, inos: Iterable[Ino]) -> None:
        """Takes what the client reports to have open. As it does not report rights, the files count
        as open for writing.

        A file that the client has created without having the reply yet is not among these. It will
        be open when the stored reply has come, so it counts as open until that reply is pruned."""
        known = self._sessions[session]
        asserted = set(inos)
        self.close(session, set(known.opens) - asserted)
        for ino in asserted:
            self.open(session, ino, writable=known.opens.get(ino, True))
        self._resolve(known, set(known.unsure))
        for ino in set(known.created.values()) - asserted:
            known.unsure.add(ino)
            self._unsure.setdefault(ino, set()).add(session)
            self.reapable.discard(ino)

    def pruned(self, session: Session, request_id: RequestId) -> None:
        """The client has this reply, and has reported whether the file is open."""
        del session.stored[request_id]
        ino = session.created.pop(request_id, None)
        if ino is not None and ino in session.unsure:
            self._resolve(session, {ino})

    def _resolve(self, session: Session, inos: set[Ino]) -> None:
        session.unsure -= inos
        for ino in inos:
            waiting = self._unsure[ino]
            waiting.discard(session.id)
            if not waiting:
                del self._unsure[ino]
                if ino in self.orphans and not self.is_open(ino):
                    self.reapable.add(ino)

    def is_open(self, ino: Ino) -> bool:
        return ino in self._openers or ino in self._unsure

    def is_open_elsewhere(self, session: SessionId, ino: Ino) -> bool:
        """Whether another session than this one has the inode open, or may have."""
        openers = self._openers.get(ino)
        if openers and (len(openers) > 1 or session not in openers):
            return True
        return bool(self._unsure) and not self._unsure.get(ino, set()) <= {session}

    def orphaned(self, ino: Ino, until_s: float = 0.0) -> None:
        """Makes the inode an orphan. It may be opened until until_s (monotonic)."""
        self.orphans.add(ino)
        if until_s:
            self._lingering[ino] = until_s
        if not self.is_open(ino):
            self.reapable.add(ino)

    def lingers(self, ino: Ino, now_s: float) -> bool:
        """Whether a client that has looked its name up may be about to open it."""
        return self._lingering.get(ino, 0.0) > now_s

    def reaped(self, ino: Ino) -> None:
        self._lingering.pop(ino, None)
        self.orphans.discard(ino)
        self.reapable.discard(ino)

    def written_by(self, ino: Ino) -> list[SessionId]:
        """Returns the sessions that have the inode open for writing."""
        openers = self._openers.get(ino, ())
        return [session for session in openers if self._sessions[session].opens[ino]]

    def openers(self, ino: Ino) -> list[tuple[SessionId, bool]]:
        """Returns the sessions that have the inode open, and whether for writing."""
        openers = sorted(self._openers.get(ino, ()))
        return [(session, self._sessions[session].opens[ino]) for session in openers]

    def condemn(self, session: SessionId) -> bool:
        """Makes the session count as expired. Returns False if there is no such session."""
        known = self._sessions.get(session)
        if known is not None:
            known.condemned = True
        return known is not None

    def with_key(self, key: ClientKey) -> list[Session]:
        return [session for session in self._sessions.values() if session.key is key]

    def condemn_refused(self, now_ns: int) -> None:
        """Makes sessions count as expired whose key is not valid any more."""
        for session in self._sessions.values():
            if session.key is not None and session.key.refusal(now_ns):
                session.condemned = True

    def expired(self, now_s: float, timeout_s: float) -> list[Session]:
        return [
            s for s in self._sessions.values() if s.condemned or now_s - s.renewed_s > timeout_s
        ]

    def replaying(self) -> list[Session]:
        return [s for s in self._sessions.values() if s.replaying]

    def _forget_opener(self, ino: Ino, session: SessionId) -> None:
        openers = self._openers.get(ino)
        if openers is None:
            return
        openers.discard(session)
        if not openers:
            del self._openers[ino]
            if ino in self.orphans and not self.is_open(ino):
                self.reapable.add(ino)
