"""The native data plane of BraidFS (docs/INTERFACES.md, section 3)."""

from collections.abc import Sequence


HEADER_SIZE: int = 80

FRAME_VERSION: int = 1

class Tls:
    """One connection; shake() and flush() before anything else."""

    def shake(self) -> int:
        """0: done; 1, 2: again when the socket can be read, written."""

    def receive(self, room: int) -> bytes | None:
        """None: nothing yet; b"": the peer's end."""

    def send(self, octets: bytes, start: int = 0) -> int:
        """How many were taken from start on."""

    def flush(self) -> bool:
        """Whether all that was taken is at the kernel."""

    def cipher(self) -> str:
        """The cipher that was agreed."""

    def peer_certificate(self) -> tuple[str, str, int]:
        """
        Subject and issuer of the peer's certificate, and the second since 1970 when it ends.
        """

class TlsContext:
    """Certificates, for any number of connections."""

    @staticmethod
    def server(certificate_file: str, key_file: str) -> TlsContext: ...

    @staticmethod
    def client(authorities_file: str) -> TlsContext: ...

    def open(self, fd: int, peer_name: str = '', records_per_key: int = 4194304) -> Tls:
        """
        TLS on a socket of the caller's. peer_name: of a client, whom it dialled. records_per_key: after so many the keys change.
        """

class TargetRow:
    """
    What a target is and has; target 0: the metaserver has not numbered it; files_total: inodes of its file system, 0 where bytes alone limit it; errors: I/O errors and corrupt blocks since it was opened.
    """

    @property
    def target(self) -> int: ...

    @property
    def uuid(self) -> bytes: ...

    @property
    def incarnation(self) -> int: ...

    @property
    def bytes_total(self) -> int: ...

    @property
    def bytes_free(self) -> int: ...

    @property
    def objects(self) -> int: ...

    @property
    def errors(self) -> int: ...

    @property
    def files_total(self) -> int: ...

    @property
    def files_free(self) -> int: ...

class ExaminedRow:
    """
    What a group of an object's blocks is on the device; status: 0, or why it is not known; ended: the object has no such group or later one; records_lost: with ended of the whole object; sums: of blocks that are not zeros, for each its number and its recorded sum, both u64; damaged: numbers of blocks.
    """

    @property
    def status(self) -> int: ...

    @property
    def length(self) -> int: ...

    @property
    def epoch(self) -> int: ...

    @property
    def group(self) -> int: ...

    @property
    def ended(self) -> bool: ...

    @property
    def records_lost(self) -> bool: ...

    @property
    def records_renewed(self) -> int: ...

    @property
    def bytes_read(self) -> int: ...

    @property
    def sums(self) -> bytes: ...

    @property
    def damaged(self) -> list[int]: ...

class CopyProgressRow:
    """
    How far a copy has come; status: 0, or why it has failed; message: the same in words, if there are any; bytes: copied so far; serves_clients: the source's target had requests of clients.
    """

    @property
    def status(self) -> int: ...

    @property
    def message(self) -> str: ...

    @property
    def is_done(self) -> bool: ...

    @property
    def bytes(self) -> int: ...

    @property
    def incarnation(self) -> int: ...

    @property
    def source_incarnation(self) -> int: ...

    @property
    def serves_clients(self) -> bool: ...

class RemoteCopy:
    """Copies objects of another storage server, over one connection."""

    def __init__(self, fd: int, *, patience_ms: int, tls: Tls | None = None) -> None: ...

    def begin(self, *, source_target: int, source_object: int, target: int, file_id: int, object: int, epoch: int, must_exist: bool) -> None:
        """
        The object that is copied next, once the former one is done or has failed.
        """

    def cut(self) -> None:
        """Ends the connection; a step that is under way fails."""

    def is_usable(self) -> bool:
        """Whether another object can be copied over it."""

class ChunkServer:
    """The data plane of one storage server."""

    def __init__(self, *, lane_count: int, io: str, busy_poll_us: int = 0, target_count: int = 1, fetched_bytes_max: int = 1073741824, buffer_bytes_max: int = 536870912) -> None: ...

    def rdma_connect(self, token: int, peer: bytes) -> None:
        """
        Connects an offered queue pair. Raises ValueError: this describes none; OSError: it cannot be connected.
        """

    def rdma_drop(self, token: int) -> None:
        """An offer came to nothing; unknown tokens are ignored."""

    def rdma_close(self, rail: int) -> None:
        """Closes a rail."""

    def rdma_check(self) -> list[int]:
        """The rails whose device has failed."""

    def target_open(self, path: str, *, cluster: bytes, uuid: bytes, capacity_bytes: int, create: bool) -> int:
        """
        Opens a target, or makes it, also while the server serves. Returns its local index. Raises OSError, ValueError.
        """

    def target_assign(self, index: int, target: int) -> None:
        """The number from the metaserver, which the superblock keeps."""

    def target_info(self, index: int) -> TargetRow:
        """
        What a target is and has. Raises ValueError if there is no such target.
        """

    def drop_names(self, target: int, file_ids: Sequence[int], objects: Sequence[int]) -> None:
        """
        From now on no client is served for these names of objects. Raises ValueError if there is no such target, or if it has too many.
        """

    def target_retire(self, target: int) -> bool:
        """
        The target is part of the cluster no more: no client is served for any of its objects. Returns False if there is no such target.
        """

    def has_clients(self, target: int) -> bool:
        """Whether clients have asked for something of the target a moment ago."""

    def examine(self, target: int, file_id: int, object: int, group: int, *, reads: bool) -> ExaminedRow:
        """
        Compares the bytes of the object's first group with data from this one on with their sums, past the page cache; or only says what the sums are. Blocks.
        """

    def mend(self, target: int, file_id: int, object: int, block: int, bytes: bytes) -> tuple[int, int, int]:
        """
        Writes these bytes to those of the blocks from this one on that are damaged and had these bytes. Returns the status, and how many blocks were mended, and how many are damaged still. Blocks.
        """

    def copy_step(self, copy: RemoteCopy, bytes: int) -> CopyProgressRow:
        """Goes on with a copy, by about this many bytes, or to its end. Blocks."""

    def io_engine(self) -> str:
        """How it reads and writes: uring or syscall."""

    def start(self) -> None:
        """Begins to serve."""

    def stop(self, deadline_ms: int) -> None:
        """Finishes, syncs everything and marks the targets clean."""

    def capability_key(self, key: bytes) -> None:
        """The key of capabilities, of 32 bytes."""

    def sessions(self, live: Sequence[int]) -> None:
        """The whole table of sessions; nothing is served before the first call."""

    def serve_until(self, deadline_ns: int) -> None:
        """A time of CLOCK_BOOTTIME; after it clients get NOT_READY (section 8)."""

    def fence(self, session: int) -> None:
        """Requests of this session are refused from now on."""

    def announce(self, session: int, connection: int, previous: int) -> None:
        """
        A client has proved itself, and from now on names this connection as replaced by its next one, whether it is adopted or not.
        """

    def adopt(self, fd: int, *, purpose: str, session: int, connection: int, previous: int, rdma: int = 0, tls: Tls | None = None) -> None:
        """An authenticated connection; native owns the descriptor."""

    def connection_count(self) -> int:
        """How many connections are open."""

    def close_idle(self, count_max: int, idle_ms: int) -> None:
        """Closes the connections that were idle for longest, at most count_max."""

    def rdma_open(self, device: str, port: int, gid_index: int, memory_mib: int) -> int:
        """
        Opens an RDMA device. Returns the number of its rail. Raises OSError with a sentence.
        """

    def rdma_offer(self, rail: int, session: int, previous: int) -> tuple[int, bytes]:
        """
        A queue pair on the lane that adopt() will choose: its token and description. Raises OSError.
        """

    def events_fd(self) -> int:
        """A descriptor that is readable while events wait."""

    def reap(self, count_max: int) -> list[tuple[int, int, int, int, int, bytes]]:
        """Events that wait: kind, token, ino, a, b, payload."""

    def counters(self) -> dict[str, int]:
        """Counters, by the names of docs/METRICS.md."""

class HandleRow:
    """An open handle; direct: opened with FOPEN_DIRECT_IO."""

    @property
    def fh(self) -> int: ...

    @property
    def ino(self) -> int: ...

    @property
    def open_flags(self) -> int: ...

    @property
    def direct(self) -> bool: ...

class ConnectionRow:
    """
    The connection to the kernel; fds: of /dev/fuse, the connection's first; agreed: what was negotiated at INIT.
    """

    @property
    def fds(self) -> list[int]: ...

    @property
    def agreed(self) -> bytes: ...

class BackingRow:
    """
    The kernel's number (id) of the file that it reads for an inode; stamp: of its bytes.
    """

    @property
    def ino(self) -> int: ...

    @property
    def id(self) -> int: ...

    @property
    def stamp(self) -> int: ...

class MountingPort:
    """The life of the mount, and its hand-over to another process."""

    def mount(self, mountpoint: str, source: str, options: str, read_only: bool) -> None:
        """Mounts by mount(2). Raises OSError."""

    def attach(self, fuse_fd: int) -> None:
        """
        Takes over a mounted /dev/fuse descriptor (of fusermount3), which native then owns. Raises OSError, ValueError.
        """

    def seal(self) -> None:
        """
        Before start(): the tree is sealed and mounted read-only (decision 0033).
        """

    def leave_permissions(self) -> None:
        """Before mount(): the kernel leaves permissions to the metaserver."""

    def allow_idmap(self) -> None:
        """Before start(): mounts may be idmapped."""

    def start(self, root_ino: int) -> int:
        """
        Answers INIT and starts the lanes. Returns the descriptor that pyfuse3 mounts as /dev/fd/N; Python owns it. Raises OSError.
        """

    def stop(self, deadline_ms: int) -> None:
        """Drains for at most deadline_ms, then ends the threads."""

    def abort(self) -> int:
        """Fails every request that waits now. Returns how many did."""

    def counters(self) -> dict[str, int]:
        """Counters of the lanes, by the names of docs/METRICS.md."""

    def pause(self, paused: bool) -> bool:
        """
        Lanes read nothing more from the kernel, or go on. False: not all of them in time.
        """

    def unanswered(self) -> int:
        """How many requests were read from the kernel and are not answered."""

    def hand_over(self) -> ConnectionRow:
        """
        The kernel's connection; its descriptors survive exec(2). Answers go nowhere afterwards. Raises OSError.
        """

    def share(self) -> ConnectionRow:
        """As hand_over(), for a keeper: this process goes on. Raises OSError."""

    def record_make(self) -> int:
        """
        Makes the record of open files that outlives this process. Returns its descriptor. Raises OSError.
        """

    def directory_opened(self, fh: int, ino: int) -> None:
        """Notes an open directory in that record."""

    def directory_closed(self, fh: int) -> None:
        """Removes a directory from that record."""

    def take_over(self, fds: Sequence[int], agreed: bytes, first_handle: int) -> None:
        """
        In place of mount(): goes on with the mount of another process. start() has the kernel send again what was left unanswered. Raises OSError, ValueError.
        """

    def backings(self) -> list[BackingRow]:
        """Files that the kernel reads by itself (decision 0041)."""

    def backings_put(self, backings: Sequence[BackingRow], handles: Sequence[HandleRow]) -> None:
        """
        Before start(): the backings of the former process, and every handle that the kernel has.
        """

    def handles(self) -> list[HandleRow]:
        """All open handles."""

class OfferRow:
    """An offered queue pair; description: what its peer has to know of it."""

    @property
    def token(self) -> int: ...

    @property
    def description(self) -> bytes: ...

class ClusterPort:
    """Nodes, targets, and the connections to them."""

    def rdma_connect(self, token: int, peer: bytes) -> None:
        """
        Connects an offered queue pair. Raises ValueError: this describes none; OSError: it cannot be connected.
        """

    def rdma_drop(self, token: int) -> None:
        """An offer came to nothing; unknown tokens are ignored."""

    def rdma_close(self, rail: int) -> None:
        """Closes a rail."""

    def rdma_check(self) -> list[int]:
        """The rails whose device has failed."""

    def node_put(self, node: int) -> None:
        """Lanes ask for connections to this node (CONNECT)."""

    def target_put(self, target: int, node: int) -> None:
        """This target is on that node."""

    def target_state(self, target: int, up: bool) -> None:
        """
        Whether a known target is up, by the cluster map. Down: lanes PING its node at once if they wait for it. Up: they connect without backoff.
        """

    def connection_put(self, lane: int, node: int, fd: int, rdma: int = 0, tls: Tls | None = None) -> None:
        """
        An authenticated socket for a lane; native owns it. rdma: the token of an agreed queue pair. Raises ValueError.
        """

    def connection_failed(self, lane: int, node: int) -> None:
        """
        No connection could be made; native asks again with backoff. Raises ValueError.
        """

    def rdma_open(self, device: str, port: int, gid_index: int, memory_mib: int) -> int:
        """
        Opens an RDMA device. Returns the number of its rail. Raises OSError with a sentence.
        """

    def rdma_offer(self, rail: int, lane: int) -> OfferRow:
        """Offers a queue pair for a lane. Raises OSError."""

    def session_put(self, session: int) -> None:
        """The session with the metaserver, which lanes name to storage servers."""

class WrittenRow:
    """What was written and is not committed; flags: COMMIT_*."""

    @property
    def size(self) -> int: ...

    @property
    def mtime_ns(self) -> int: ...

    @property
    def flags(self) -> int: ...

class LossRow:
    """What an inode has lost: written bytes, or that it is durable."""

    @property
    def ino(self) -> int: ...

    @property
    def is_written(self) -> bool: ...

class InodesPort:
    """Open files, their handles, and the leases on their bytes."""

    def put(self, attributes: bytes, layout: bytes, capability: bytes) -> None:
        """
        An inode with its layout and capability, before a handle of it. Raises ValueError.
        """

    def view_put(self, ino: int, layout: bytes, capability: bytes) -> bool:
        """
        Where the bytes of an inode are, and nothing else of it. False: it is unknown, or has a younger view.
        """

    def resize(self, attributes: bytes, layout: bytes, capability: bytes) -> None:
        """
        As put(), after a SETATTR of the size: this size counts. Raises ValueError.
        """

    def lease(self, ino: int, flags: int, recalling: int) -> bool:
        """
        LEASE_* held on the inode, and those that are recalled but not returned. True: READs or WRITEs went on under a recalled one since the last call, or DATA is gone and written bytes are still on their way: drain() them before the return.
        """

    def lost(self, ino: int) -> bool:
        """
        The session was evicted: what was not committed is dropped. True: there was some, and handles learn of it (EIO).
        """

    def all_lost(self) -> list[LossRow]:
        """As lost(), of every inode."""

    def asked(self, ino: int, error: int) -> None:
        """Answers an ASK event, after put() and lease(). error: an errno, or 0."""

    def drop(self, ino: int) -> None:
        """Forgets an inode that has no open handles and nothing dirty."""

    def keep(self, ino: int) -> bool:
        """
        Lanes answer OPEN for reading while its bytes are leased (decision 0017). False: unknown inode.
        """

    def unkeep(self, ino: int) -> int:
        """
        Lanes open it no more. Returns how many handles that they made are open; their RELEASEs are reported.
        """

    def written(self, ino: int) -> WrittenRow | None:
        """What is not committed yet; None: nothing."""

    def set_ids_put(self, ino: int, mode: int, gid: int) -> None:
        """
        The kernel may believe in these set-id bits: a direct WRITE that takes them away has it forget them.
        """

    def take(self, ino: int) -> WrittenRow | None:
        """As written(), and marks it as committed."""

    def closed_unsynced(self, ino: int) -> bool:
        """
        A file was closed. True: it is replicated, and not all that was written is known to be durable; a SYNCED event follows when it is.
        """

    def handle_put(self, fh: int, ino: int, open_flags: int, direct: bool) -> None:
        """
        A handle of a known inode. direct: opened with FOPEN_DIRECT_IO. Raises ValueError.
        """

    def size_limit_put(self, ino: int, limit: int) -> None:
        """A WRITE beyond this size asks first (ASK event); -1: no limit."""

    def locked(self, ino: int, has_locks: bool) -> None:
        """
        This client has locks on the inode, or has them no more: its FLUSHes become CALLs, its RELEASEs are reported.
        """

    def failed(self, ino: int) -> bool:
        """
        A former process took along what was written: handles learn of it (EIO).
        """

    def commits(self, ino: int) -> bool:
        """Whether a COMMIT event is not answered yet."""

class ChildrenRow:
    """Granted children of directories."""

    @property
    def count(self) -> int: ...

    @property
    def used(self) -> int: ...

    @property
    def unused(self) -> int: ...

class NamesPort:
    """Names and attributes that lanes answer, and the leases on them."""

    def attributes_put(self, attributes: bytes, valid_ms: int, leased: bool) -> None:
        """
        Lanes answer GETATTR by this record (without a lease: of directories). Raises ValueError.
        """

    def attributes_put_rows(self, attributes: bytes, wanted: bytes) -> list[int]:
        """
        Leased records, of which the wanted (a byte each) are put. Returns those that a directory's grant knows as of before: they are not put. Raises ValueError.
        """

    def attributes_drop(self, ino: int) -> None:
        """Lanes ask for its attributes again."""

    def entries_lease(self, ino: int) -> None:
        """An ENTRIES lease is held: names that are put from now on are answered."""

    def entries_complete(self, ino: int, valid_ms: int) -> None:
        """A new directory: a LOOKUP of a name that was never put is ENOENT."""

    def entries_extend(self, ino: int, valid_ms: int) -> None:
        """
        It is still complete (without a lease); nothing happens if it was forgotten.
        """

    def entries_drop(self, ino: int) -> None:
        """Lanes ask for its names again."""

    def entry_put(self, parent: int, name: bytes, ino: int) -> bool:
        """
        What a name is (0: absent). True: the kernel may be told so with a time.
        """

    def names_changes(self) -> int:
        """
        A number that grows with every change of names; names_list() takes it as `asked`.
        """

    def names_list(self, directory: int, names: Sequence[bytes], inos: bytes, cookies: bytes, behind: int, end: bool, asked: int) -> bool:
        """
        Names in the order of their cookies, behind one of them. False: they changed since `asked`. Raises ValueError.
        """

    def listing_read(self, directory: int, offset: int, size: int) -> bytes | None:
        """What a lane would answer to READDIRPLUS; None: it would ask."""

    def entry_unsure(self, parent: int, name: bytes) -> None:
        """Before a request leaves that may change the name."""

    def entry_moves(self, parent: int, name: bytes, new_parent: int, new_name: bytes) -> bool:
        """
        Before a RENAME leaves: the kernel takes along what it was told of the name. False: that is not kept in mind.
        """

    def open_ahead(self, parent: int, has_names: bool, names: Sequence[bytes], attributes: bytes, layouts: Sequence[bytes], capabilities: bytes, wanted: bytes) -> bytes:
        """
        Columns of OPENED_AHEAD: lanes answer LOOKUP (if the names are certain), GETATTR and OPEN for reading of the wanted (a byte each). Returns which were taken, a byte each. Raises ValueError.
        """

    def child_drop(self, ino: int) -> int:
        """
        A file is not held by its directory any more. Returns how many handles lanes have of it, whose RELEASEs are reported from now on; -1: it was not held so.
        """

    def child_is_older(self, ino: int, change_version: int) -> bool:
        """Whether what is known of a granted child is from before that change."""

    def children_of(self, parent: int) -> list[int]:
        """The granted children of a directory; 0: of all directories."""

    def children_open(self) -> list[int]:
        """The granted children that lanes have open."""

    def children_pause(self, paused: bool) -> None:
        """Lanes open no more granted children meanwhile."""

    def children_counts(self) -> ChildrenRow:
        """
        How many there are; how many lanes opened, each once; how many were dropped unopened.
        """

    def expire_names(self, parent: int, names: Sequence[bytes]) -> None:
        """The kernel asks for these names again. Raises OSError."""

    def lease_until(self, left_ms: int) -> None:
        """
        Leases that are held last for so long; they count from the first call on.
        """

    def lease_drop(self, token: int, inos: Sequence[int], facets: int) -> int:
        """
        Facets META 1, ENTRIES 2, DATA 4 are lost: forgotten here and in the kernel, then DONE(token). With no facet: DONE(token) when the kernel has the notifications of attributes and pages that were sent before. Returns how many names the kernel believed.
        """

    def leases_clear(self) -> None:
        """The session is lost: nothing is known under its leases any more."""

    def invalidate_inode(self, ino: int, offset: int, length: int) -> None:
        """
        The kernel drops these pages of an inode; offset -1: its attributes alone. Raises OSError.
        """

class CreationRow:
    """
    A new file that lanes made; fh: the handle that it is open by, if it is; inline_bytes: all of it, if that is to lie in its record.
    """

    @property
    def ino(self) -> int: ...

    @property
    def parent(self) -> int: ...

    @property
    def name(self) -> bytes: ...

    @property
    def mode(self) -> int: ...

    @property
    def uid(self) -> int: ...

    @property
    def gid(self) -> int: ...

    @property
    def time_ns(self) -> int: ...

    @property
    def layout(self) -> bytes: ...

    @property
    def writable(self) -> bool: ...

    @property
    def changes(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def mtime_ns(self) -> int: ...

    @property
    def is_open(self) -> bool: ...

    @property
    def fh(self) -> int: ...

    @property
    def inline_bytes(self) -> bytes: ...

class SlotRow:
    """An inode number that a new file may get."""

    @property
    def ino(self) -> int: ...

    @property
    def layout(self) -> bytes: ...

    @property
    def capability(self) -> bytes: ...

class RemovalRow:
    """
    A name that lanes took away; record: attributes of ino as they are since.
    """

    @property
    def parent(self) -> int: ...

    @property
    def name(self) -> bytes: ...

    @property
    def ino(self) -> int: ...

    @property
    def time_ns(self) -> int: ...

    @property
    def record(self) -> bytes: ...

class SettingRow:
    """
    Attributes that lanes set; record: as they are since, but for what was written.
    """

    @property
    def ino(self) -> int: ...

    @property
    def valid(self) -> int: ...

    @property
    def mode(self) -> int: ...

    @property
    def uid(self) -> int: ...

    @property
    def gid(self) -> int: ...

    @property
    def atime_ns(self) -> int: ...

    @property
    def mtime_ns(self) -> int: ...

    @property
    def ctime_ns(self) -> int: ...

    @property
    def written_ns(self) -> int: ...

    @property
    def record(self) -> bytes: ...

class MoveRow:
    """
    A name that lanes changed; record and replaced_record: attributes as they are since.
    """

    @property
    def parent(self) -> int: ...

    @property
    def name(self) -> bytes: ...

    @property
    def new_name(self) -> bytes: ...

    @property
    def ino(self) -> int: ...

    @property
    def replaced(self) -> int: ...

    @property
    def time_ns(self) -> int: ...

    @property
    def record(self) -> bytes: ...

    @property
    def replaced_record(self) -> bytes: ...

class ChangeRun:
    """Creations, behind them removals and settings, then moves."""

    @property
    def creations(self) -> list[CreationRow]: ...

    @property
    def removals(self) -> list[RemovalRow]: ...

    @property
    def settings(self) -> list[SettingRow]: ...

    @property
    def moves(self) -> list[MoveRow]: ...

class ChangesPort:
    """What lanes change in directories that are delegated to this client."""

    def entries_delegate(self, ino: int) -> bool:
        """
        Lanes may change names in a leased directory. False: it is not leased, or contended.
        """

    def entries_undelegate(self, ino: int) -> None:
        """Lanes change no more names in the directory."""

    def creations_refuse(self, uids: Sequence[int], gids: Sequence[int]) -> None:
        """Files of these users and groups are made by upcalls: they have quotas."""

    def creations_share(self, directory: int, files: int, size_limit: int) -> None:
        """
        So many files more may be made in a directory of a tree with limits, each up to a size.
        """

    def creations_unshare(self, directory: int) -> None:
        """The directory has no such share any more."""

    def slots_put(self, pool: int, slots: Sequence[SlotRow]) -> None:
        """
        Slots of a pool for new files; 0: of the cluster's default layout. Raises ValueError beyond 4096 in 16 pools.
        """

    def slots_clear(self) -> None:
        """The slots are void."""

    def slots_drop(self, pool: int, kept: int) -> list[int]:
        """
        All slots of the pool but so many become void. Returns the inodes of these.
        """

    def slots_left(self, pool: int) -> int:
        """How many slots of the pool are unused."""

    def pool_put(self, directory: int, pool: int) -> None:
        """
        New files in a directory with one extended attribute, its layout, get slots of this pool; 0: such a directory gets its files by upcalls.
        """

    def changes_left(self) -> bool:
        """Whether changes wait to be taken."""

    def changes_take(self, spare_open: bool) -> list[ChangeRun]:
        """
        Changes that were not taken yet, oldest first, in runs. spare_open: only those before the first file that was made within 200 ms and is open.
        """

    def changes_reported(self, count: int) -> None:
        """The metaserver has answered so many removals, settings and moves."""

    def creations_reported(self, inos: Sequence[int]) -> None:
        """
        The metaserver is told of these new files as they are: nothing more comes along with them.
        """

    def inline_creations(self, length_max: int) -> None:
        """
        Before start(): new files of so many bytes at most may lie in their record (decision 0037); 0: none.
        """

class EventRow:
    """An event; what token, a and b mean depends on its kind."""

    @property
    def kind(self) -> int: ...

    @property
    def token(self) -> int: ...

    @property
    def ino(self) -> int: ...

    @property
    def a(self) -> int: ...

    @property
    def b(self) -> int: ...

    @property
    def payload(self) -> bytes: ...

class UpcallRow:
    """
    A request of the kernel; bits 1: takes set-id bits, 8: SETATTR of given times.
    """

    @property
    def unique(self) -> int: ...

    @property
    def pid(self) -> int: ...

    @property
    def opcode(self) -> int: ...

    @property
    def bits(self) -> int: ...

    @property
    def nodeid(self) -> int: ...

class IoPort:
    """Events, upcalls, and work on the bytes of files."""

    def cache_open(self, directory: str, bytes_max: int, cluster: bytes, passthrough: bool = False) -> None:
        """
        Before start(): a local cache in this directory. passthrough: half of it is for copies that the kernel reads (decision 0041). Raises ValueError with a sentence.
        """

    def prefetch(self, bytes_max: int, fills_pages: bool) -> None:
        """
        How many bytes may lie in memory that were fetched before a program asked for them; 0, as in the beginning: nothing is fetched. fills_pages: small files may be put into the kernel's pages with their OPEN (decision 0059).
        """

    def announce(self, inos: bytes, replaces: bool) -> int:
        """
        These files (inode numbers of 8 bytes) are going to be read in this order. Returns how many are noted. Raises ValueError.
        """

    def drain(self, token: int, ino: int, sync: bool, commit: bool) -> None:
        """
        DONE(token) when dirty bytes are at the targets (durable if sync), and size and time are committed if commit.
        """

    def barrier(self, token: int) -> None:
        """
        DONE(token) when every lane has dealt with what it had read from the kernel.
        """

    def punch(self, token: int, ino: int, begin: int, end: int) -> None:
        """
        Makes a durable hole, then DONE(token); drain() with sync comes before. Raises ValueError.
        """

    def seek(self, token: int, ino: int, start: int, hole: bool) -> None:
        """
        DONE(token), whose b is the offset of the next data or hole, -1: there is none. Raises ValueError.
        """

    def copy(self, token: int, source: int, source_begin: int, sink: int, sink_begin: int, length: int, only_reach: bool) -> None:
        """
        Copies whole blocks between storage servers, then DONE(token), whose b has a bit for each stripe written. only_reach: nothing is copied, b is how many bytes could be. Raises ValueError.
        """

    def upcall(self, slot: int) -> UpcallRow:
        """The request behind an upcall slot. Raises ValueError."""

    def answer(self, slot: int, error: int, body: bytes) -> None:
        """Answers a CALL event. error: an errno, or 0. Raises ValueError."""

    def events_fd(self) -> int:
        """A descriptor that is readable while events wait."""

    def reap(self, count_max: int) -> list[EventRow]:
        """Events that wait, at most count_max."""

    def memory_rest(self, piece_bytes: int, read_bytes: int, short: bool) -> None:
        """
        Idle buffers go back to the system but for so many bytes that stay ready; short: all of them.
        """

    def commit_done(self, token: int, status: int, attributes: bytes) -> None:
        """Answers a COMMIT event. Raises ValueError."""

    def cut_done(self, ino: int, number: int, status: int, attributes: bytes, layout: bytes, capability: bytes) -> None:
        """Answers a CUT event."""

    def cuts_pause(self, ino: int, paused: bool) -> int:
        """
        Lanes cut the file no more, or again. Returns 0: unknown inode, 1: every cut is reported, 2: drain() reports one.
        """

class Datapath:
    """The data plane of one mounted client."""

    def __init__(self, *, lane_count: int, max_write: int, dirty_bytes_max: int, dirty_bytes_per_inode_max: int, held_bytes_max: int, timeout_ms: int, busy_poll_us: int, session: int) -> None: ...

    @property
    def mounting(self) -> MountingPort: ...

    @property
    def cluster(self) -> ClusterPort: ...

    @property
    def inodes(self) -> InodesPort: ...

    @property
    def names(self) -> NamesPort: ...

    @property
    def changes(self) -> ChangesPort: ...

    @property
    def io(self) -> IoPort: ...
