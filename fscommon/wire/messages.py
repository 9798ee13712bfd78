"""Bodies of the metadata, session and server operations.

Every message is a frozen slotted dataclass that travels as a msgpack array of its fields, in order
(fscommon.wire.codec). Names of files are bytes. Times are nanoseconds since 1970. `attributes` are
packed records (fscommon.layout.attributes); layouts and capabilities are packed as well
(docs/INTERFACES.md), and pass through Python as opaque bytes. The table at the end gives each op
its request and reply.
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
    INSPECT_BODIES,
    NO_TRAFFIC,
    BytesPath,
    ClientStatus,
    Evict,
    NodeStatus,
    TargetHealth,
    TargetSet,
    Traffic,
)
from fscommon.wire.ahead import OpenAhead, OpenedAhead
from fscommon.wire.backup import BACKUP_BODIES
from fscommon.wire.births import ChangeBatch, Changed, Delegate, Delegated
from fscommon.wire.fsck import FSCK_BODIES
from fscommon.wire.group import ALONE, GROUP_BODIES, GroupStatus
from fscommon.wire.hello import Auth, AuthReply, Hello, HelloReply
from fscommon.wire.jobs import JOB_BODIES, JobRow, JobSet
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
from fscommon.wire.locks import LOCK_BODIES, HeldLock
from fscommon.wire.objects import OBJECT_BODIES
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
from fscommon.wire.replicas import DropReplicas, Synced
from fscommon.wire.servers import SERVER_BODIES
from fscommon.wire.trash import TRASH_BODIES


@dataclass(frozen=True, slots=True)
class Empty:
    """A body without fields."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The body of a reply whose status is not OK. parents: directories whose lease it grants."""

    message: Message
    parents: Blob = b""


@dataclass(frozen=True, slots=True)
class Replay:
    """The body of a request with FLAG_REPLAY: what was sent and answered before the restart."""

    txn: U64
    status: U32
    request: Blob
    reply: Blob


# ---- namespace -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller, as the kernel describes it in the FUSE header; with all supplementary groups when
    the op needs them (creating in a set-group-id directory), otherwise ()."""

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
    """The reply of every op that yields an inode.

    parents, here and below: the attribute records, after the op, of the directories in which the op
    made or removed a name (the kernel asks for them next), or whose lease the reply grants.
    """

    attributes: Record  # 128 bytes, packed
    parents: Blob = b""


@dataclass(frozen=True, slots=True)
class GetAttr:
    ino: U64


SET_MODE, SET_UID, SET_GID, SET_SIZE, SET_ATIME, SET_MTIME, SET_CTIME = 1, 2, 4, 8, 16, 32, 64
SET_KILL_SUIDGID = 128  # a write-like change by a caller that may not keep the set-id bits
SET_GROW = 256  # with SET_SIZE: at least that size, whatever the size is now
SET_FLAGS = 512
SET_TIMES_GIVEN = 2048  # with SET_ATIME or SET_MTIME: not both are the time of the call
SET_KILL_SGID = 1024  # with SET_KILL_SUIDGID: also where the group may not execute


@dataclass(frozen=True, slots=True)
class SetAttr:
    """valid: SET_* bits. written_size, written_mtime_ns: what the writer's lanes know from before
    the change and the metaserver does not (0: nothing). They are merged first, the size by maximum.
    """

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
    like: U64 = 0  # with size 0: use the targets of this file, if its layout has this shape


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
    """attributes: those of the inode that lost a link, after that (nlink 0: it was the last
    link)."""

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
    replaced: Record  # of the inode that lost its name or was exchanged; b"": none
    parents: Blob = b""


@dataclass(frozen=True, slots=True)
class Link:
    ino: U64
    new_parent: U64
    new_name: Name


@dataclass(frozen=True, slots=True)
class Create:
    """Creates a regular file and opens it, or opens it if it exists and exclusive is false."""

    parent: U64
    name: Name
    mode: U32
    exclusive: bool
    writable: bool
    caller: Caller


@dataclass(frozen=True, slots=True)
class TmpFile:
    """Creates a regular file without a name and opens it for writing. Reply: Opened. linkable: LINK
    may give it a name (O_TMPFILE without O_EXCL)."""

    parent: U64
    mode: U32
    linkable: bool
    caller: Caller


@dataclass(frozen=True, slots=True)
class Open:
    """Registers that this session has ino open; sent once per inode, not per handle.

    writable: the requested capability carries the write right. wanted: the length that a writer is
    going to give the file, when the last size_limit was smaller. moves: bytes are about to be
    written, so inline bytes must be in objects when this is answered."""

    ino: U64
    writable: bool
    wanted: U64 = 0
    moves: bool = False


@dataclass(frozen=True, slots=True)
class Opened:
    """Reply of OPEN and CREATE. capability carries the read right, and the write right if that was
    requested."""

    attributes: Record
    layout: Record
    capability: Record
    size_limit: I64 = -1  # the length to which the quotas let writers go; -1: no limit
    parents: Blob = b""


@dataclass(frozen=True, slots=True)
class Close:
    """The session no longer has these inodes open. One-way. unsynced: replicated files among them
    of which not all replicas have made the written bytes durable, as far as the client knows; a
    Synced with this serial number says so later. serial rises with each Close of a session."""

    inos: U64s
    unsynced: U64s = ()
    serial: U64 = 0


@dataclass(frozen=True, slots=True)
class ReadDir:
    ino: U64
    cookie: U64  # 0 to start; otherwise the cookie of the last entry taken
    count: U32


@dataclass(frozen=True, slots=True)
class ReadDirReply:
    """A page of names, in columns: row i of each column belongs to the same name. cookies: eight
    bytes each, little-endian. attributes: records of 128 bytes."""

    names: Names
    cookies: Blob
    attributes: Blob
    end: bool
    parents: Blob = b""


COMMIT_SIZE, COMMIT_MTIME, COMMIT_KILL_SUIDGID, COMMIT_SYNCED = 1, 2, 4, 8
COMMIT_KILL_SGID = 16  # as SET_KILL_SGID


@dataclass(frozen=True, slots=True)
class Commit:
    """What a writer has done to file_id. COMMIT_SIZE merges size by maximum. COMMIT_SYNCED says
    that the objects of stripe_bits (bit i: stripe index i) are durable at the targets: from then
    on, a missing one of these objects is an error and not a hole. durable: answer when the
    transaction is durable. targets, incarnations, of replicated files only: in which incarnation
    each target has acknowledged what was written. STALE_INCARNATION: one of them has lost it."""

    ino: U64
    file_id: U64
    flags: U32
    size: U64
    mtime_ns: I64
    stripe_bits: U64
    durable: bool
    targets: U32s = ()
    incarnations: U64s = ()


@dataclass(frozen=True, slots=True)
class WriteInline:
    """Writes bytes of file_id, which is stored inline and stays so. ESTALE: it is not inline, or
    would not stay so. flags: COMMIT_KILL_*. durable: answer when the transaction is durable."""

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
XATTR_KILL_SGID = 4  # with an access ACL: the caller may not keep the set-group-id bit


@dataclass(frozen=True, slots=True)
class SetXattr:
    ino: U64
    name: Name
    value: Annotated[bytes, Most(2 * XATTR_VALUE_LENGTH_MAX)]
    flags: U32  # 0, XATTR_CREATE 1, XATTR_REPLACE 2, or XATTR_KILL_SGID


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
    """Asks for the space as it counts at ino, where a tree with limits may leave less than the
    cluster has; 0: for the whole cluster."""

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
    """session 0 asks for a new session; otherwise the client resumes the old one after a reconnect.

    opens: inodes that it has open. answered: below this request id the client has every reply, so
    stored replies may be dropped. exclusive: files on which it held DATA_EXCLUSIVE when the
    connection ended; a restarted metaserver grants it again. is_another: another process than
    before goes on: no request waits for a lock any more, and unused slots are void. lost: files
    of which written bytes were lost with the earlier process. features: fscommon.wire.features."""

    session: U64
    node: Text
    opens: U64s
    answered: U64
    exclusive: U64s = ()
    is_another: bool = False
    lost: U64s = ()
    features: U64 = 0


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """incarnation: that of the metaserver process. When it has changed, the client replays its
    mutations with txn > durable (FLAG_REPLAY, in order), then sends REPLAY_DONE, then goes on.
    lease_s: how long leases last, in seconds; renew before that. heard, locks: for another process
    of the session: a bound of the request ids that any of its processes used, and its locks."""

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
    # By node; the metaserver keeps the first 1024.
    paths: Annotated[tuple[BytesPath, ...], Many] = ()


@dataclass(frozen=True, slots=True)
class TargetEntry:
    """One row of the cluster map. In layouts, the replicas of a stripe are lists of target ids."""

    target: U64
    node: U64
    address: Text  # of its node: "host:port"; IPv6 as "[host]:port"
    state: Text  # "up", "down", "lost"; "full", "draining", "joining": no new files
    bytes_total: U64
    bytes_free: U64


@dataclass(frozen=True, slots=True)
class ClusterMap:
    epoch: U64
    cluster: Token  # 16-byte uuid
    targets: Annotated[tuple[TargetEntry, ...], Many]

    def open_targets(self) -> set[int]:
        """The targets that get new files."""
        closed = ("down", "draining", "joining", "full", "lost")
        return {row.target for row in self.targets if row.state not in closed}


@dataclass(frozen=True, slots=True)
class SessionRenewed:
    """recalled: recalls that are not answered yet. Every other lease is renewed, counted from when
    the request was sent."""

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
    chunk_size: U64  # for new files whose directory has no layout of its own
    stripe_width_max: U32
    files_free: U64 = FILES_UNLIMITED  # inodes left on targets that take new files
    group: GroupStatus = ALONE
    replicas: U32 = 1  # of new files whose directory has no layout of its own
    replicas_max: U32 = 1  # that a directory or a file may have
    jobs: Annotated[tuple[JobRow, ...], Many] = ()
    files_lacking: U64 = 0  # that have fewer replicas than they are to have; counted now and then
    files_endangered: U64 = 0  # of these, files of which a stripe has one replica left
    objects_damaged: U64 = 0  # of which a scrub found damage that nothing has mended


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
    Op.DROP_REPLICAS: (DropReplicas, Opened),
    Op.SYNCED: (Synced, Empty),
    Op.GETXATTR: (GetXattr, XattrValue),
    Op.SETXATTR: (SetXattr, Entry),
    Op.LISTXATTR: (ListXattr, XattrNames),
    Op.REMOVEXATTR: (RemoveXattr, Entry),
    Op.STATFS: (StatFs, StatFsReply),
    Op.BARRIER: (Empty, Empty),
    Op.TMPFILE: (TmpFile, Opened),
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
    Op.STATUS: (Empty, StatusReply),
    Op.QUOTA_SET: (QuotaSet, Empty),
    Op.QUOTA_LIST: (QuotaList, QuotaReport),
    Op.QUOTA_ASSIGN: (QuotaAssign, QuotaAssigned),
    Op.QUOTA_TELL: (QuotaTell, QuotaTold),
    Op.EVICT: (Evict, Empty),
    **INSPECT_BODIES,
    **LEASE_BODIES,
    **LOCK_BODIES,
    **TRASH_BODIES,
    **BACKUP_BODIES,
    **GROUP_BODIES,
    **OBJECT_BODIES,
    **SERVER_BODIES,
    **FSCK_BODIES,
    Op.KEY_CREATE: (KeyCreate, KeyCreated),
    Op.KEY_LIST: (KeyList, KeyReport),
    Op.KEY_REVOKE: (KeyRevoke, Empty),
    Op.TARGET_SET: (TargetSet, Empty),
    **JOB_BODIES,
    Op.JOB_SET: (JobSet, Empty),
}
