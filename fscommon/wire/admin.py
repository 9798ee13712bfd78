"""Bodies of the administration operations: what `braidfs` asks a metaserver about the cluster.

Only a connection whose purpose is "admin" may send these. Each request is bounded work: whatever
may be long (a directory, a tree) is asked for in pages, and the place to go on from is in the
request, so the metaserver keeps nothing between two of them. fscommon.wire.messages puts the
bodies into its table; who may see what a person may not is decided by who holds the cluster key.
"""

from dataclasses import dataclass
from typing import Final

INSPECT_NAMES_MAX: Final = 256  # components of one path
SUM_INODES_MAX: Final = 512  # visited for one TREE_SUM
SUM_DEPTH_MAX: Final = 4096  # directories of a stack
TARGETS_SET_MAX: Final = 256  # in one TARGET_SET


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a client or storage server moved since it started."""

    read_bytes: int = 0
    written_bytes: int = 0
    reads: int = 0
    writes: int = 0


NO_TRAFFIC: Final = Traffic()


@dataclass(frozen=True, slots=True)
class BytesPath:
    """How a client's bytes go to one storage server, and why not better."""

    node: int
    transport: str  # "rdma", "local" (a socket on one host), "tcp", or "tls", which is by TCP
    because: str  # the rail; of others: why not RDMA


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A storage server. is_current: it has today's table of sessions."""

    node: int
    name: str
    address: str
    is_up: bool
    seconds_since_heartbeat: float
    is_current: bool
    traffic: Traffic


@dataclass(frozen=True, slots=True)
class TargetHealth:
    """What the last heartbeat said of a target, beside its row of the map."""

    target: int
    incarnation: int
    objects: int
    errors: int


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """A session. traffic is of seconds_since_report ago; -1: it never reported any."""

    session: int
    node: str
    opens: int
    seconds_since_renewal: float
    opened_ns: int
    requests: int
    replaying: bool
    traffic: Traffic
    seconds_since_report: float
    paths: tuple[BytesPath, ...] = ()


@dataclass(frozen=True, slots=True)
class Inspect:
    """The inode that is reached from ino by these names."""

    ino: int
    names: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Opener:
    session: int
    writable: bool


@dataclass(frozen=True, slots=True)
class Inspected:
    """layout: of a file. link: target of a symbolic link. inherited: what new files in this
    directory get (packed LayoutDefault), own: that this very directory says so."""

    attributes: bytes
    layout: bytes
    link: bytes
    inherited: bytes
    own: bool
    openers: tuple[Opener, ...]
    truncating: bool


@dataclass(frozen=True, slots=True)
class InspectList:
    """A page of a directory; as READDIR, with layouts, and for no session."""

    ino: int
    cookie: int
    count: int


@dataclass(frozen=True, slots=True)
class InspectedEntry:
    name: bytes
    cookie: int
    attributes: bytes
    layout: bytes


@dataclass(frozen=True, slots=True)
class InspectListed:
    entries: tuple[InspectedEntry, ...]
    end: bool


@dataclass(frozen=True, slots=True)
class Place:
    """Where a walk stands in a directory: behind this cookie."""

    ino: int
    cookie: int


@dataclass(frozen=True, slots=True)
class TreeSum:
    """Sum up what is below the directories of the stack, innermost last; at most SUM_INODES_MAX
    inodes for one request."""

    stack: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class LinkedFile:
    """A file with several names, not in the sums: whoever asks counts each once."""

    ino: int
    size: int
    blocks: int


@dataclass(frozen=True, slots=True)
class TreeSummed:
    """stack: to go on from, empty at the end."""

    files: int
    directories: int
    others: int
    bytes: int
    blocks: int
    linked: tuple[LinkedFile, ...]
    stack: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Evict:
    """End a session as if it had expired: fenced at the storage servers, its opens gone."""

    session: int


@dataclass(frozen=True, slots=True)
class TargetSet:
    """Whether these targets get new files: all of them, or the request fails."""

    targets: tuple[int, ...]
    is_draining: bool
