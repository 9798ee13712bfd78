"""Bodies of the metadata, session and server operations.

Every message is a frozen slotted dataclass that travels as a msgpack array of its fields, in
order (fscommon.wire.codec). Names of files are bytes. Times are nanoseconds since the epoch.
Packed attribute records (`attributes`) are fscommon.layout.attributes; layouts and capabilities
are packed too (docs/INTERFACES.md) and pass through Python as opaque bytes.
The table at the end gives each op its request and reply.
"""

from dataclasses import dataclass
from typing import Annotated

from fscommon.limits import XATTR_VALUE_LENGTH_MAX
from fscommon.ranges import (
    I64,
    U32,
    U64,
    Blob,
    Many,
    Message,
    Most,
    Name,
    Names,
    Record,
    Text,
    Token,
    U32s,
    U64s,
)
from fscommon.wire.admin import (
    FILES_UNLIMITED,
    NO_TRAFFIC,
    BytesPath,
    ClientStatus,
    Evict,
    Inspect,
    Inspected,
    InspectList,
    InspectListed,
    NodeStatus,
    TargetHealth,
    TargetSet,
    Traffic,
    TreeSum,
    TreeSummed,
)
from fscommon.wire.ahead import OpenAhead, OpenedAhead
from fscommon.wire.births import ChangeBatch, Changed, Delegate, Delegated
from fscommon.wire.hello import Auth, AuthReply, Hello, HelloReply
from fscommon.wire.keys import (
    KeyCreate,
    KeyCreated,
    KeyList,
    KeyReport,
    KeyRevoke,
    MountRoot,
    SessionGrant,
)
from fscommon.wire.leases import LEASE_BODIES, LeaseReturn, LeaseTake, Recall, RecallItem
from fscommon.wire.locks import (
    HeldLock,
    LockCancel,
    LockDone,
    LockEvents,
    LockFound,
    LockGet,
    LockGranted,
    LockQuery,
    LockReport,
    LockRestore,
    LockRestored,
    LockSet,
)
from fscommon.wire.ops import Op
from fscommon.wire.quota import (
    QuotaAssign,
    QuotaAssigned,
    QuotaList,
    QuotaReport,
    QuotaSet,
    QuotaTell,
    QuotaTold,
)
from fscommon.wire.rdma import RdmaAnswer, RdmaOffer
from fscommon.wire.servers import Heartbeat, HeartbeatReply, Register, Registered
from fscommon.wire.trash import TRASH_BODIES


@dataclass(frozen=True, slots=True)
class Empty:
    """No fields."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Body of a reply whose status is not OK. parents: directories whose lease it grants."""

    message: Message
    parents: Blob = b""


@dataclass(frozen=True, slots=True)
class Replay:
    """Body of a request with FLAG_REPLAY: what was sent and answered before the restart."""

    txn: U64
    status: U32
    request: Blob
    reply: Blob


# ---- namespace -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: what the kernel put into the FUSE header, and all supplementary groups when the
    op needs them (creating in a set-group-id directory), else ()."""

    uid: U32
    gid: U32
    umask: U32
    groups: U32s = ()


@dataclass(frozen=True, slots=True)
class Lookup:
    parent: U64
    name: Name


@dataclass(frozen=True, slots=True)
class Entry:
    """Reply of everything that yields an inode.

    parents, here and below: the attribute records, after the op, of the directories in which it
    made or removed a name (the kernel asks for them next), or whose lease it grants."""

    attributes: Record  # 128 bytes, packed
    parents: Blob = b""


@dataclass(frozen=True, slots=True)
class GetAttr:
    ino: U64


SET_MODE, SET_UID, SET_GID, SET_SIZE, SET_ATIME, SET_MTIME, SET_CTIME = 1, 2, 4, 8, 16, 32, 64
SET_KILL_SUIDGID = 128  # a write-like change by one who may not keep the set-id bits
SET_GROW = 256  # with SET_SIZE: at least that size, whatever it is now
SET_FLAGS = 512
SET_TIMES_GIVEN = 2048  # with SET_ATIME or SET_MTIME: they are not both the time of the call
SET_KILL_SGID = 1024  # with SET_KILL_SUIDGID: also that of a group which may not execute


@dataclass(frozen=True, slots=True)
class SetAttr:
    """valid: SET_* bits. written_size/written_mtime_ns: what the writer's native lanes knew before
    the change and the metaserver not yet (0 if nothing): merged first, the size by maximum."""

    ino: U64
    valid: U32
    mode: U32
    uid: U32
    gid: U32
    size: U64
    atime_ns: I64
    mtime_ns: I64
    ctime_ns: I64  # 0: the metaserver's clock
    written_size: U64
    written_mtime_ns: I64
    inode_flags: U32 = 0  # fscommon.layout.attributes.INODE_*
    like: U64 = 0  # with size 0: lie on the targets of this file, if its layout has the same shape


@dataclass(frozen=True, slots=True)
class MkNod:
    parent: U64
    name: Name
    mode: U32
    rdev: U32
    caller: Caller


@dataclass(frozen=True, slots=True)
class MkDir:
    parent: U64
    name: Name
    mode: U32
    caller: Caller


@dataclass(frozen=True, slots=True)
class Symlink:
    parent: U64
    name: Name
    target: Record
    caller: Caller


@dataclass(frozen=True, slots=True)
class ReadLink:
    ino: U64


@dataclass(frozen=True, slots=True)
class ReadLinkReply:
    target: Record


@dataclass(frozen=True, slots=True)
class Unlink:
    parent: U64
    name: Name


@dataclass(frozen=True, slots=True)
class RmDir:
    parent: U64
    name: Name


@dataclass(frozen=True, slots=True)
class Removed:
    """What lost a link: attributes after it (nlink 0 when it was the last)."""

    attributes: Record
    parents: Blob = b""


RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2


@dataclass(frozen=True, slots=True)
class Rename:
    parent: U64
    name: Name
    new_parent: U64
    new_name: Name
    flags: U32  # 0, RENAME_NOREPLACE or RENAME_EXCHANGE


@dataclass(frozen=True, slots=True)
class Renamed:
    attributes: Record  # of the moved inode
    replaced: Record  # of the inode that lost its name or was exchanged, b"" if none
    parents: Blob = b""


@dataclass(frozen=True, slots=True)
class Link:
    ino: U64
    new_parent: U64
    new_name: Name


@dataclass(frozen=True, slots=True)
class Create:
    """Make a regular file and open it, or open it if it exists and exclusive is false."""

    parent: U64
    name: Name
    mode: U32
    exclusive: bool
    writable: bool
    caller: Caller


@dataclass(frozen=True, slots=True)
class TmpFile:
    """Make a regular file without a name and open it for writing; reply: Opened. linkable: LINK
    may give it a name (O_TMPFILE without O_EXCL)."""

    parent: U64
    mode: U32
    linkable: bool
    caller: Caller


@dataclass(frozen=True, slots=True)
class Open:
    """Register this session as having ino open; done once per inode, not per handle.

    writable: the capability asked for carries the write right. wanted: how long a writer is to make
    the file, where the last size_limit was less. moves: bytes are about to be written, so what lies
    in the inode's record is to be in objects when this is answered."""

    ino: U64
    writable: bool
    wanted: U64 = 0
    moves: bool = False


@dataclass(frozen=True, slots=True)
class Opened:
    """Reply of OPEN and CREATE. capability carries read, and write if it was asked for."""

    attributes: Record
    layout: Record
    capability: Record
    size_limit: I64 = -1  # how long writers may make the file, by the quotas; -1: no limit
    parents: Blob = b""


@dataclass(frozen=True, slots=True)
class Close:
    """The session holds none of these inodes open any more. One-way."""

    inos: U64s


@dataclass(frozen=True, slots=True)
class ReadDir:
    ino: U64
    cookie: U64  # 0 to start; otherwise that of the last entry taken
    count: U32


@dataclass(frozen=True, slots=True)
class ReadDirReply:
    """A column for each thing told of a name: the rows have their places in common. cookies:
    numbers of eight bytes, little-endian. attributes: records of 128 bytes."""

    names: Names
    cookies: Blob
    attributes: Blob
    end: bool
    parents: Blob = b""


COMMIT_SIZE, COMMIT_MTIME, COMMIT_KILL_SUIDGID, COMMIT_SYNCED = 1, 2, 4, 8
COMMIT_KILL_SGID = 16  # as SET_KILL_SGID


@dataclass(frozen=True, slots=True)
class Commit:
    """What a writer did to file_id. COMMIT_SIZE merges size by maximum; COMMIT_SYNCED says that
    the objects of stripe_bits (bit i: stripe index i) are durable at the targets: from then on a
    missing object of these is an error, not a hole. durable: answer when the transaction is."""

    ino: U64
    file_id: U64
    flags: U32
    size: U64
    mtime_ns: I64
    stripe_bits: U64
    durable: bool


@dataclass(frozen=True, slots=True)
class WriteInline:
    """Bytes of file_id, which lies in its inode's record and is to go on lying there; ESTALE: it
    does not, or would not. flags: COMMIT_KILL_*. durable: answer when the transaction is."""

    ino: U64
    file_id: U64
    offset: U64
    content: Record
    mtime_ns: I64
    flags: U32
    durable: bool


@dataclass(frozen=True, slots=True)
class Committed:
    """size_limit: as in Opened."""

    attributes: Record
    size_limit: I64 = -1
    parents: Blob = b""


@dataclass(frozen=True, slots=True)
class GetXattr:
    ino: U64
    name: Name


@dataclass(frozen=True, slots=True)
class XattrValue:
    value: Blob


XATTR_ACCESS_ACL = b"system.posix_acl_access"
XATTR_KILL_SGID = 4  # with an access ACL: its caller may not keep the set-group-id bit


@dataclass(frozen=True, slots=True)
class SetXattr:
    ino: U64
    name: Name
    value: Annotated[bytes, Most(2 * XATTR_VALUE_LENGTH_MAX)]
    flags: U32  # 0, XATTR_CREATE 1 or XATTR_REPLACE 2, or XATTR_KILL_SGID


@dataclass(frozen=True, slots=True)
class ListXattr:
    ino: U64


@dataclass(frozen=True, slots=True)
class XattrNames:
    names: Names


@dataclass(frozen=True, slots=True)
class RemoveXattr:
    ino: U64
    name: Name


@dataclass(frozen=True, slots=True)
class StatFs:
    """Room as it counts at ino, where a limited tree may leave less than the cluster has; 0: of the
    cluster."""

    ino: U64 = 0


@dataclass(frozen=True, slots=True)
class StatFsReply:
    bytes_total: U64
    bytes_free: U64
    bytes_available: U64
    inodes_total: U64
    inodes_free: U64


# ---- sessions --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionOpen:
    """session 0 asks for a new one; otherwise take the old one up again after a reconnect.

    opens: inodes held open, re-asserted. answered: highest request id below which this client has
    every reply (replies stored for them may be dropped). exclusive: files on which it held
    DATA_EXCLUSIVE when the connection ended; a restarted metaserver gives it back to it.
    is_another: another process than before goes on with the session: nobody waits for a lock any
    more, and slots that were not used are void. lost: files of which it took written bytes
    along."""

    session: U64
    node: Text
    opens: U64s
    answered: U64
    exclusive: U64s = ()
    is_another: bool = False
    lost: U64s = ()


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """incarnation: of the metaserver process; when it changed, the client replays its mutations
    with txn > durable (FLAG_REPLAY, in order), then sends REPLAY_DONE, then goes on.
    lease_s: how long leases last; renew before. heard, locks: for another process of the session:
    a bound of the request ids that any process of it has used, and the locks that it holds."""

    session: U64
    incarnation: U64
    durable: U64
    timeout_s: float
    lease_s: float = 0.0
    heard: U64 = 0
    locks: Annotated[tuple[HeldLock, ...], Many] = ()


@dataclass(frozen=True, slots=True)
class SessionRenew:
    answered: U64
    traffic: Traffic = NO_TRAFFIC
    # By nodes; the metaserver keeps the first 1024.
    paths: Annotated[tuple[BytesPath, ...], Many] = ()


@dataclass(frozen=True, slots=True)
class TargetEntry:
    """One row of the cluster map. replicas of a stripe are lists of target ids in layouts."""

    target: U64
    node: U64
    address: Text  # of its node: "host:port"; IPv6 as "[host]:port"
    state: Text  # "up", "down", "full"; "draining", "joining": no new files
    bytes_total: U64
    bytes_free: U64


@dataclass(frozen=True, slots=True)
class ClusterMap:
    epoch: U64
    cluster: Token  # 16-byte uuid
    targets: Annotated[tuple[TargetEntry, ...], Many]

    def open_targets(self) -> set[int]:
        """Those that get new files, as far as they are up."""
        closed = ("draining", "joining", "full")
        return {row.target for row in self.targets if row.state not in closed}


@dataclass(frozen=True, slots=True)
class SessionRenewed:
    """recalled: recalls not answered yet; every lease but these is renewed, counted from when
    the request left."""

    map: ClusterMap
    recalled: Annotated[tuple[RecallItem, ...], Many] = ()


@dataclass(frozen=True, slots=True)
class StatusReply:
    cluster: Token
    map: ClusterMap
    clients: Annotated[tuple[ClientStatus, ...], Many]
    recovering: bool
    txn: U64
    durable: U64
    files: StatFsReply
    nodes: Annotated[tuple[NodeStatus, ...], Many]
    health: Annotated[tuple[TargetHealth, ...], Many]
    version: Text
    uptime_s: float
    chunk_size: U64  # of new files, where their directory says nothing else
    stripe_width_max: U32
    files_free: U64 = FILES_UNLIMITED  # inodes of targets that are open to new files


BODIES: dict[Op, tuple[type, type]] = {
    Op.HELLO: (Hello, HelloReply),
    Op.AUTH: (Auth, AuthReply),
    Op.PING: (Empty, Empty),
    Op.RDMA: (RdmaOffer, RdmaAnswer),
    Op.LOOKUP: (Lookup, Entry),
    Op.GETATTR: (GetAttr, Entry),
    Op.SETATTR: (SetAttr, Opened),
    Op.MKNOD: (MkNod, Entry),
    Op.MKDIR: (MkDir, Entry),
    Op.SYMLINK: (Symlink, Entry),
    Op.READLINK: (ReadLink, ReadLinkReply),
    Op.UNLINK: (Unlink, Removed),
    Op.RMDIR: (RmDir, Removed),
    Op.RENAME: (Rename, Renamed),
    Op.LINK: (Link, Entry),
    Op.CREATE: (Create, Opened),
    Op.OPEN: (Open, Opened),
    Op.CLOSE: (Close, Empty),
    Op.READDIR: (ReadDir, ReadDirReply),
    Op.COMMIT: (Commit, Committed),
    Op.WRITE_INLINE: (WriteInline, Opened),
    Op.GETXATTR: (GetXattr, XattrValue),
    Op.SETXATTR: (SetXattr, Entry),
    Op.LISTXATTR: (ListXattr, XattrNames),
    Op.REMOVEXATTR: (RemoveXattr, Entry),
    Op.STATFS: (StatFs, StatFsReply),
    Op.BARRIER: (Empty, Empty),
    Op.TMPFILE: (TmpFile, Opened),
    Op.LOCK_GET: (LockGet, LockFound),
    Op.LOCK_SET: (LockSet, LockDone),
    Op.LOCK_EVENTS: (LockEvents, LockGranted),
    Op.LOCK_CANCEL: (LockCancel, LockDone),
    Op.LOCK_RESTORE: (LockRestore, LockRestored),
    Op.LOCK_LIST: (LockQuery, LockReport),
    Op.SESSION_OPEN: (SessionOpen, SessionOpened),
    Op.SESSION_RENEW: (SessionRenew, SessionRenewed),
    Op.SESSION_CLOSE: (Empty, Empty),
    Op.REPLAY_DONE: (Empty, Empty),
    Op.SESSION_GRANT: (Empty, SessionGrant),
    Op.MOUNT_ROOT: (MountRoot, Entry),
    Op.CLUSTER_MAP: (Empty, ClusterMap),
    Op.DELEGATE: (Delegate, Delegated),
    Op.CHANGE_BATCH: (ChangeBatch, Changed),
    Op.OPEN_AHEAD: (OpenAhead, OpenedAhead),
    Op.LEASE_TAKE: (LeaseTake, Entry),
    Op.LEASE_RETURN: (LeaseReturn, Empty),
    Op.RECALL: (Recall, Empty),
    Op.REGISTER: (Register, Registered),
    Op.HEARTBEAT: (Heartbeat, HeartbeatReply),
    Op.STATUS: (Empty, StatusReply),
    Op.INSPECT: (Inspect, Inspected),
    Op.INSPECT_LIST: (InspectList, InspectListed),
    Op.TREE_SUM: (TreeSum, TreeSummed),
    Op.QUOTA_SET: (QuotaSet, Empty),
    Op.QUOTA_LIST: (QuotaList, QuotaReport),
    Op.QUOTA_ASSIGN: (QuotaAssign, QuotaAssigned),
    Op.QUOTA_TELL: (QuotaTell, QuotaTold),
    Op.EVICT: (Evict, Empty),
    **LEASE_BODIES,
    **TRASH_BODIES,
    Op.KEY_CREATE: (KeyCreate, KeyCreated),
    Op.KEY_LIST: (KeyList, KeyReport),
    Op.KEY_REVOKE: (KeyRevoke, Empty),
    Op.TARGET_SET: (TargetSet, Empty),
}
