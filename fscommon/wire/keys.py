"""Bodies of the operations on clients' keys (docs/decisions/0020-client-keys.md).

KEY_* are for administrators. A key's secret never travels: who holds the cluster key makes it of
the key's id. SESSION_GRANT and MOUNT_ROOT are the first that a client with such a key asks.
"""

from dataclasses import dataclass
from typing import Final

KEY_NAME_LENGTH_MAX: Final = 64
KEY_PATH_LENGTH_MAX: Final = 4096
KEYS_MAX: Final = 4096  # known to a metaserver, revoked ones included
KEY_ROWS_MAX: Final = 1000

KEY_READ_ONLY: Final = 1
KEY_SQUASH_ROOT: Final = 2  # nobody of this client is root
KEY_FLAGS: Final = KEY_READ_ONLY | KEY_SQUASH_ROOT


@dataclass(frozen=True, slots=True)
class KeyCreate:
    """root: the topmost directory of the quota tree that the key is for; 1: everything. path: of
    root, for messages to people. flags: KEY_*. expires_ns: when it ends by itself, 0: never."""

    name: str
    root: int
    path: str
    flags: int
    expires_ns: int


@dataclass(frozen=True, slots=True)
class KeyCreated:
    """Durable. cluster: what the secret is made of, beside the id and the cluster key."""

    id: int
    cluster: bytes


@dataclass(frozen=True, slots=True)
class KeyList:
    """A page of the keys with ids behind `after`."""

    after: int
    count: int


@dataclass(frozen=True, slots=True)
class KeyRow:
    """path: of root when the key was made. names: its path now; () for everything and for what is
    gone. sessions: of clients that
    have the key. ending: sessions that are not fenced everywhere yet. Times are 0 where nothing
    happened yet."""

    id: int
    name: str
    root: int
    path: str
    names: tuple[bytes, ...]
    flags: int
    created_ns: int
    expires_ns: int
    revoked_ns: int
    sessions: tuple[int, ...]
    ending: int


@dataclass(frozen=True, slots=True)
class KeyReport:
    rows: tuple[KeyRow, ...]
    end: bool


@dataclass(frozen=True, slots=True)
class KeyRevoke:
    """Reply: Empty, when durable. The metaserver serves the key's sessions no more from now on;
    that storage servers do not either is told by KEY_LIST (sessions, ending)."""

    id: int


@dataclass(frozen=True, slots=True)
class SessionGrant:
    """What this session may do, by its key. data_key: what the session proves itself with at
    storage servers; b"": the cluster key."""

    name: str
    flags: int
    data_key: bytes


@dataclass(frozen=True, slots=True)
class MountRoot:
    """The directory that is reached from the root of the file system by these names; EACCES where
    the key is not for it. Reply: Entry."""

    names: tuple[bytes, ...]
