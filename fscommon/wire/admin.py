"""Bodies of the administration operations: what the command `braidfs` asks a metaserver about the
cluster.

Only a connection whose purpose is "admin" may send these. The work for each request is bounded:
whatever may be long (a directory, a tree) is requested in pages, and the request says where to go
on, so the metaserver keeps nothing between two requests. fscommon.wire.messages puts the bodies
into its table. Whoever holds the cluster key may see everything.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from fscommon.ranges import I64, U32, U64, Many, Message, Name, Names, Record, Text, U64s
from fscommon.wire.ops import Op

INSPECT_NAMES_MAX: Final = 256  # components of one path
SUM_INODES_MAX: Final = 512  # inodes visited for one TREE_SUM
SUM_DEPTH_MAX: Final = 4096  # directories in a stack
TARGETS_SET_MAX: Final = 256  # targets in one TARGET_SET


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a client or storage server has moved since it started."""

    read_bytes: U64 = 0
    written_bytes: U64 = 0
    reads: U64 = 0
    writes: U64 = 0


NO_TRAFFIC: Final = Traffic()


NO_PATH: Final = "none"


@dataclass(frozen=True, slots=True)
class BytesPath:
    """Over which transport a client's bytes go to one storage server, and why not over a better
    one."""

    node: U64
    transport: Text  # "rdma", "local" (a socket on one host), "tcp", "tls" (over TCP); or NO_PATH
    # For rdma: the rail. Otherwise: why not RDMA, or why the server refuses this client.
    because: Message


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A storage server. is_current: it has the current session table. domain: its failure domain.
    features: fscommon.wire.features. is_suspect: it goes down too often to be given replicas."""

    node: U64
    name: Text
    address: Text
    is_up: bool
    seconds_since_heartbeat: float
    is_current: bool
    traffic: Traffic
    domain: Text = ""
    features: U64 = 0
    is_suspect: bool = False


FILES_UNLIMITED: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class TargetHealth:
    """What the last heartbeat said of a target, in addition to its row of the map. lacks_files: the
    target is full because few inodes of its filesystem are left. A files_total of 0 means no limit.
    """

    target: U64
    incarnation: U64
    objects: U64
    errors: U64
    files_total: U64 = 0
    files_free: U64 = 0
    lacks_files: bool = False


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """A session. traffic was reported seconds_since_report ago; -1: it was never reported."""

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
    """Asks for the inode that is reached from ino by these names."""

    ino: U64
    names: Names


@dataclass(frozen=True, slots=True)
class Opener:
    session: U64
    writable: bool


@dataclass(frozen=True, slots=True)
class Inspected:
    """layout: that of a file. link: the target of a symbolic link. inherited: what new files in
    this directory get (packed LayoutDefault); own: this very directory says so."""

    attributes: Record
    layout: Record
    link: Record
    inherited: Record
    own: bool
    openers: Annotated[tuple[Opener, ...], Many]
    truncating: bool


@dataclass(frozen=True, slots=True)
class InspectList:
    """Asks for a page of a directory: as READDIR, with layouts, and for no session."""

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
    """Asks for the sums of what is below the directories of the stack, innermost last; at most
    SUM_INODES_MAX inodes per request."""

    stack: Annotated[tuple[Place, ...], Many]


@dataclass(frozen=True, slots=True)
class LinkedFile:
    """A file with several names. It is not in the sums: the requester counts each once."""

    ino: U64
    size: U64
    blocks: U64


@dataclass(frozen=True, slots=True)
class TreeSummed:
    """The sums. stack: where to go on; empty at the end."""

    files: U64
    directories: U64
    others: U64
    bytes: U64
    blocks: U64
    linked: Annotated[tuple[LinkedFile, ...], Many]
    stack: Annotated[tuple[Place, ...], Many]


INSPECT_BODIES: Final[dict[Op, tuple[type, type]]] = {
    Op.INSPECT: (Inspect, Inspected),
    Op.INSPECT_LIST: (InspectList, InspectListed),
    Op.TREE_SUM: (TreeSum, TreeSummed),
}


@dataclass(frozen=True, slots=True)
class Evict:
    """Ends a session as if it had expired: it is fenced at the storage servers, and its opens are
    dropped."""

    session: U64


@dataclass(frozen=True, slots=True)
class TargetSet:
    """Sets whether these targets get new files: all of them, or the request fails. moves: with
    is_draining, a job moves what these targets have to others; False leaves a job that runs."""

    targets: U64s
    is_draining: bool
    moves: bool = False
