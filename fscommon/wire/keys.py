"""Bodies of the operations on clients' keys (docs/decisions/0020-client-keys.md).

KEY_* are for administrators. A key's secret never travels: who holds the cluster key makes it of
the key's id. SESSION_GRANT and MOUNT_ROOT are the first that a client with such a key asks.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from fscommon.ranges import I64, U32, U64, Many, Names, Text, Token, U32s, U64s

KEY_NAME_LENGTH_MAX: Final = 64
KEY_PATH_LENGTH_MAX: Final = 4096
KEYS_MAX: Final = 4096  # known to a metaserver, revoked ones included
KEY_ROWS_MAX: Final = 1000

KEY_READ_ONLY: Final = 1
KEY_SQUASH_ROOT: Final = 2  # nobody of this client is root
KEY_FLAGS: Final = KEY_READ_ONLY | KEY_SQUASH_ROOT
# Never asked for; of keys whose ids say so.
KEY_SQUASH_ALL: Final = 4  # the client's kernel checks no permissions: the metaserver does
KEY_MAPS_IDS: Final = 8
ID_RANGES_MAX: Final = 256  # of a key's users, and of its groups


@dataclass(frozen=True, slots=True)
class IdRange:
    """`count` numbers from `client` on are, in the cluster, those from `cluster` on."""

    client: U32
    cluster: U32
    count: U64

    @property
    def text(self) -> str:
        """As administrators write it."""
        last = f"-{self.client + self.count - 1}" if self.count > 1 else ""
        return f"{self.client}{last}:{self.cluster}"


@dataclass(frozen=True, slots=True)
class IdMap:
    """Whom a client's users and groups are in the cluster. Without ranges of a kind its numbers are
    the same. everybody: the user and the group that all are, or ()."""

    uids: Annotated[tuple[IdRange, ...], Many] = ()
    gids: Annotated[tuple[IdRange, ...], Many] = ()
    everybody: U32s = ()


NO_IDS: Final = IdMap()


@dataclass(frozen=True, slots=True)
class KeyCreate:
    """root: the topmost directory of the quota tree that the key is for; 1: everything. path: of
    root, for messages to people. flags: KEY_*. expires_ns: when it ends by itself, 0: never."""

    name: Text
    root: U64
    path: Text
    flags: U32
    expires_ns: I64
    ids: IdMap = NO_IDS


@dataclass(frozen=True, slots=True)
class KeyCreated:
    """Durable. cluster: what the secret is made of, beside the id and the cluster key."""

    id: U64
    cluster: Token


@dataclass(frozen=True, slots=True)
class KeyList:
    """A page of the keys with ids behind `after`."""

    after: U64
    count: U32


@dataclass(frozen=True, slots=True)
class KeyRow:
    """path: of root when the key was made. names: its path now; () for everything and for what is
    gone. sessions: of clients that
    have the key. ending: sessions that are not fenced everywhere yet. Times are 0 where nothing
    happened yet."""

    id: U64
    name: Text
    root: U64
    path: Text
    names: Names
    flags: U32
    created_ns: I64
    expires_ns: I64
    revoked_ns: I64
    sessions: U64s
    ending: U64
    ids: IdMap = NO_IDS


@dataclass(frozen=True, slots=True)
class KeyReport:
    rows: Annotated[tuple[KeyRow, ...], Many]
    end: bool


@dataclass(frozen=True, slots=True)
class KeyRevoke:
    """Reply: Empty, when durable. The metaserver serves the key's sessions no more from now on;
    that storage servers do not either is told by KEY_LIST (sessions, ending)."""

    id: U64


@dataclass(frozen=True, slots=True)
class SessionGrant:
    """What this session may do, by its key. data_key: what the session proves itself with at
    storage servers; b"": the cluster key."""

    name: Text
    flags: U32
    data_key: Token


@dataclass(frozen=True, slots=True)
class MountRoot:
    """The directory that is reached from the root of the file system by these names; EACCES where
    the key is not for it. Reply: Entry."""

    names: Names
