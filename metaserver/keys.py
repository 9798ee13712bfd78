"""Keys of clients: what each allows, whether it still holds, and whose sessions it has.

In memory, by id; the `K` record of a key is durable before its id is told, and says the same after
a restart. A key that was revoked or has expired stays known, so that its clients are told why they
are refused; the oldest of these make room for new ones. What a key forbids is checked with every
request of its connections: metaserver.confine. Only the event loop's thread touches any of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from fscommon.types import ROOT_INO, Ino, SessionId
from fscommon.wire.keys import KEY_MAPS_IDS, KEY_READ_ONLY, KEY_SQUASH_ALL, KEYS_MAX, NO_IDS, IdMap
from metaserver.identity import Who, who_of
from metaserver.records import KeyRecord, MappedKeyRecord

_SECOND_NS: Final = 10**9


@dataclass(slots=True, eq=False)
class ClientKey:
    id: int
    name: str
    root: Ino  # top of the quota tree that it is for; ROOT_INO: everything
    path: str  # of root when the key was made
    flags: int
    created_ns: int
    expires_ns: int = 0  # 0: never
    revoked_ns: int = 0  # 0: it was not
    ids: IdMap = NO_IDS
    who: Who | None = field(init=False)  # its client may be; None: anybody

    def __post_init__(self) -> None:
        self.who = who_of(self.flags, self.ids)

    @property
    def is_read_only(self) -> bool:
        return bool(self.flags & KEY_READ_ONLY)

    @property
    def is_confined(self) -> bool:
        """It may not do whatever a client may do."""
        return self.root != ROOT_INO or self.flags != 0

    def refusal(self, now_ns: int) -> str:
        """Why it is good for nothing any more; empty: it is good."""
        if self.revoked_ns:
            return f"the key '{self.name}' was revoked at {_utc(self.revoked_ns)}"
        if self.expires_ns and now_ns >= self.expires_ns:
            return f"the key '{self.name}' expired at {_utc(self.expires_ns)}"
        return ""

    def record(self) -> KeyRecord:
        fields = (
            self.name,
            self.root,
            self.path,
            self.flags,
            self.created_ns,
            self.expires_ns,
            self.revoked_ns,
        )
        return KeyRecord(*fields) if self.ids == NO_IDS else MappedKeyRecord(*fields, self.ids)


def key_of_record(key_id: int, record: KeyRecord) -> ClientKey:
    return ClientKey(
        key_id,
        record.name,
        Ino(record.root),
        record.path,
        record.flags,
        record.created_ns,
        record.expires_ns,
        record.revoked_ns,
        record.ids if isinstance(record, MappedKeyRecord) else NO_IDS,
    )


def flags_of(asked: int, ids: IdMap) -> int:
    """Those asked for, and those that the ids say."""
    if ids.everybody:
        return asked | KEY_SQUASH_ALL
    return asked | KEY_MAPS_IDS if ids != NO_IDS else asked


class ClientKeys:
    def __init__(self) -> None:
        self._keys: dict[int, ClientKey] = {}
        self._ending: dict[SessionId, ClientKey] = {}

    @property
    def is_full(self) -> bool:
        return len(self._keys) >= KEYS_MAX

    def get(self, key_id: int) -> ClientKey | None:
        return self._keys.get(key_id)

    def put(self, key: ClientKey) -> None:
        self._keys[key.id] = key

    def drop(self, key_id: int) -> None:
        del self._keys[key_id]

    def behind(self, after: int) -> Iterator[ClientKey]:
        """Those with greater ids, in order."""
        for key_id in sorted(self._keys):
            if key_id > after:
                yield self._keys[key_id]

    def named(self, name: str, now_ns: int) -> ClientKey | None:
        """The good one of that name."""
        return next((key for key in self._good(now_ns) if key.name == name), None)

    def of_root(self, root: int, now_ns: int) -> ClientKey | None:
        """A good one for that very tree."""
        return next((key for key in self._good(now_ns) if key.root == root), None)

    def _good(self, now_ns: int) -> Iterator[ClientKey]:
        return (key for key in self._keys.values() if not key.refusal(now_ns))

    def superfluous(self, now_ns: int) -> ClientKey | None:
        """Where there are as many as there may be: the oldest that is good for nothing."""
        if not self.is_full:
            return None
        dead = [key for key in self._keys.values() if key.refusal(now_ns)]
        return min(dead, key=lambda key: key.created_ns, default=None)

    # ---- sessions that were evicted, and may still reach a storage server -----------------------

    def evicted(self, session: SessionId, key: ClientKey) -> None:
        self._ending[session] = key

    def fenced(self, session: SessionId) -> None:
        self._ending.pop(session, None)

    def ending(self, key: ClientKey) -> int:
        return sum(1 for one in self._ending.values() if one is key)


def _utc(time_ns: int) -> str:
    time = datetime.fromtimestamp(time_ns // _SECOND_NS, UTC)
    return time.strftime("%Y-%m-%d %H:%M:%S UTC")
