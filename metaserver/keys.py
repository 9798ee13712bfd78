"""Keys of clients: what each allows, whether it is valid, and which sessions it has.

The table is in memory, by id. The `K` record of a key is durable before its id is told, and brings
the key back after a restart. A key that was revoked or has expired stays in the table, so that its
clients hear why they are refused; the oldest such keys make room for new ones. metaserver.confine
checks each request against its key. Only the event loop's thread uses the table.
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
    root: Ino  # the top of the quota tree that the key is for; ROOT_INO: everything
    path: str  # the path of root when the key was made
    flags: int
    created_ns: int
    expires_ns: int = 0  # 0: never
    revoked_ns: int = 0  # 0: not revoked
    ids: IdMap = NO_IDS
    who: Who | None = field(init=False)  # the users that its client may be; None: every user

    def __post_init__(self) -> None:
        self.who = who_of(self.flags, self.ids)

    @property
    def is_read_only(self) -> bool:
        return bool(self.flags & KEY_READ_ONLY)

    @property
    def is_confined(self) -> bool:
        """Whether the key allows less than the cluster key allows a client."""
        return self.root != ROOT_INO or self.flags != 0

    def refusal(self, now_ns: int) -> str:
        """Returns why the key is not valid any more; "" if it is valid."""
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
    """Returns the flags that were asked for, and those that follow from the ids."""
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
        """Returns the keys with greater ids, in order."""
        for key_id in sorted(self._keys):
            if key_id > after:
                yield self._keys[key_id]

    def named(self, name: str, now_ns: int) -> ClientKey | None:
        """Returns the valid key of that name."""
        return next((key for key in self._good(now_ns) if key.name == name), None)

    def of_root(self, root: int, now_ns: int) -> ClientKey | None:
        """Returns a valid key for exactly this tree."""
        return next((key for key in self._good(now_ns) if key.root == root), None)

    def _good(self, now_ns: int) -> Iterator[ClientKey]:
        return (key for key in self._keys.values() if not key.refusal(now_ns))

    def superfluous(self, now_ns: int) -> ClientKey | None:
        """Returns the oldest key that is not valid, if the table is full."""
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
