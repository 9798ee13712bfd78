"""Bodies of the administration operations: what `braidfs` asks a metaserver about the cluster.

Only a connection whose purpose is "admin" may send these. Each request is bounded work: whatever
may be long (a directory, a tree) is asked for in pages, and the place to go on from is in the
request, so the metaserver keeps nothing between two of them. fscommon.wire.messages puts the
bodies into its table; who may see what a person may not is decided by who holds the cluster key.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from fscommon.ranges import I64, U32, U64, Many, Message, Name, Names, Record, Text, U64s

INSPECT_NAMES_MAX: Final = 256  # components of one path
SUM_INODES_MAX: Final = 512  # visited for one TREE_SUM
SUM_DEPTH_MAX: Final = 4096  # directories of a stack
TARGETS_SET_MAX: Final = 256  # in one TARGET_SET


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a client or storage server moved since it started."""

    read_bytes: U64 = 0
    written_bytes: U64 = 0
    reads: U64 = 0
    writes: U64 = 0


NO_TRAFFIC: Final = Traffic()


NO_PATH: Final = "none"


@dataclass(frozen=True, slots=True)
class BytesPath:
    """How a client's bytes go to one storage server, and why not better."""

    node: U64
    transport: Text  # "rdma", "local" (a socket on one host), "tcp", "tls" (by TCP); or NO_PATH
    because: Message  # the rail; of others: why not RDMA; why the server refuses this client


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A storage server. is_current: it has today's table of sessions."""

    node: U64
    name: Text
    address: Text
    is_up: bool
    seconds_since_heartbeat: float
    is_current: bool
    traffic: Traffic


FILES_UNLIMITED: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class TargetHealth:
    """What the last heartbeat said of a target, beside its row of the map. lacks_files: it is full
    because few of the inodes of its file system are left; a files_total of 0 is no limit."""

    target: U64
    incarnation: U64
    objects: U64
    errors: U64
    files_total: U64 = 0
    files_free: U64 = 0
    lacks_files: bool = False


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """A session. traffic is of seconds_since_report ago; -1: it never reported any."""

    session: U64
    node: Text
    opens: U64
    seconds_since_renewal: float
    opened_ns: I64
    requests: U64
    replaying: bool
    traffic: Traffic
    seconds_since_report: float
    paths: Annotated[tuple[BytesPath, ...], Many] = ()


@dataclass(frozen=True, slots=True)
class Inspect:
    """The inode that is reached from ino by these names."""

    ino: U64
    names: Names


@dataclass(frozen=True, slots=True)
class Opener:
    session: U64
    writable: bool


@dataclass(frozen=True, slots=True)
class Inspected:
    """layout: of a file. link: target of a symbolic link. inherited: what new files in this
    directory get (packed LayoutDefault), own: that this very directory says so."""

    attributes: Record
    layout: Record
    link: Record
    inherited: Record
    own: bool
    openers: Annotated[tuple[Opener, ...], Many]
    truncating: bool


@dataclass(frozen=True, slots=True)
class InspectList:
    """A page of a directory; as READDIR, with layouts, and for no session."""

    ino: U64
    cookie: U64
    count: U32


@dataclass(frozen=True, slots=True)
class InspectedEntry:
    name: Name
    cookie: U64
    attributes: Record
    layout: Record


@dataclass(frozen=True, slots=True)
class InspectListed:
    entries: Annotated[tuple[InspectedEntry, ...], Many]
    end: bool


@dataclass(frozen=True, slots=True)
class Place:
    """Where a walk stands in a directory: behind this cookie."""

    ino: U64
    cookie: U64


@dataclass(frozen=True, slots=True)
class TreeSum:
    """Sum up what is below the directories of the stack, innermost last; at most SUM_INODES_MAX
    inodes for one request."""

    stack: Annotated[tuple[Place, ...], Many]


@dataclass(frozen=True, slots=True)
class LinkedFile:
    """A file with several names, not in the sums: whoever asks counts each once."""

    ino: U64
    size: U64
    blocks: U64


@dataclass(frozen=True, slots=True)
class TreeSummed:
    """stack: to go on from, empty at the end."""

    files: U64
    directories: U64
    others: U64
    bytes: U64
    blocks: U64
    linked: Annotated[tuple[LinkedFile, ...], Many]
    stack: Annotated[tuple[Place, ...], Many]


@dataclass(frozen=True, slots=True)
class Evict:
    """End a session as if it had expired: fenced at the storage servers, its opens gone."""

    session: U64


@dataclass(frozen=True, slots=True)
class TargetSet:
    """Whether these targets get new files: all of them, or the request fails."""

    targets: U64s
    is_draining: bool
