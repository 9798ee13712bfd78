"""Bodies of the operations on clients' keys (docs/decisions/0020-client-keys.md).

KEY_* are for administrators. A key's secret never travels: a holder of the cluster key derives it
from the key's id. SESSION_GRANT and MOUNT_ROOT are the first requests of a client with such a key.
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
# These are never requested; the metaserver sets them for keys with id maps.
KEY_SQUASH_ALL: Final = 4  # the client's kernel checks no permissions, so the metaserver does
KEY_MAPS_IDS: Final = 8
ID_RANGES_MAX: Final = 256  # for a key's users, and for its groups


@dataclass(frozen=True, slots=True)
class IdRange:
    """`count` numbers from `client` on are, in the cluster, the numbers from `cluster` on."""

    client: U32
    cluster: U32
    count: U64

    @property
    def text(self) -> str:
        """The range as administrators write it."""
        last = f"-{self.client + self.count - 1}" if self.count > 1 else ""
        return f"{self.client}{last}:{self.cluster}"


@dataclass(frozen=True, slots=True)
class IdMap:
    """Which users and groups a client's numbers are in the cluster. A kind without ranges keeps its
    numbers. everybody: the user and the group that all numbers become, or ()."""

    uids: Annotated[tuple[IdRange, ...], Many] = ()
    gids: Annotated[tuple[IdRange, ...], Many] = ()
    everybody: U32s = ()


NO_IDS: Final = IdMap()


@dataclass(frozen=True, slots=True)
class KeyCreate:
    """root: the topmost directory of the quota tree that the key is for; 1: everything. path: that
    of root, for messages to people. flags: KEY_*. expires_ns: when the key ends by itself; 0:
    never."""

    name: Text
    root: U64
    path: Text
    flags: U32
    expires_ns: I64
    ids: IdMap = NO_IDS


@dataclass(frozen=True, slots=True)
class KeyCreated:
    """The key is durable. cluster: the cluster's uuid, from which the secret is derived together
    with the id and the cluster key."""

    id: U64
    cluster: Token


@dataclass(frozen=True, slots=True)
class KeyList:
    """Asks for a page of the keys with ids behind `after`."""

    after: U64
    count: U32


@dataclass(frozen=True, slots=True)
class KeyRow:
    """path: that of root when the key was made. names: its path now; () for everything, and when
    root is gone. sessions: those of clients with the key. ending: the number of sessions that are
    not fenced everywhere yet. A time is 0 when its event has not happened."""

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
    """Reply: Empty, when durable. From then on the metaserver does not serve the key's sessions;
    KEY_LIST (sessions, ending) tells when the storage servers do not serve them either."""

    id: U64


@dataclass(frozen=True, slots=True)
class SessionGrant:
    """What this session may do, by its key. data_key: with what the session proves itself to
    storage servers; b"": with the cluster key."""

    name: Text
    flags: U32
    data_key: Token


@dataclass(frozen=True, slots=True)
class MountRoot:
    """Asks for the directory that is reached from the root of the filesystem by these names; EACCES
    when the key is not for it. Reply: Entry."""

    names: Names
