"""What an op gets besides its transaction and its request, and what it asks the engine to do.

`Services` is the state in memory that all ops share; a `Context` belongs to one request. An op
decides synchronously and notes in the context what its reply must wait for; the engine does the
waiting. Only the event loop's thread uses either.
"""

import hmac
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

from fscommon.errors import BraidError, FsError, Status
from fscommon.layout.capability import RIGHT_READ, RIGHT_WRITE, make_capability, map_epoch_of
from fscommon.types import Ino, SessionId, Txn
from metaserver.backups import Backups
from metaserver.connection import Connection
from metaserver.drops import Drops
from metaserver.group_status import GroupView
from metaserver.intents import Intents
from metaserver.jobs import JobTable
from metaserver.keys import ClientKey, ClientKeys
from metaserver.leases.table import Leases
from metaserver.locks.table import LockTable
from metaserver.membership import Membership
from metaserver.numbers import InodeNumbers
from metaserver.quota.table import Charge, QuotaTable
from metaserver.scrubs import ScrubTable
from metaserver.sessions import Sessions
from metaserver.store.journal import PAYLOAD_MAX
from metaserver.store.waist import StoreRoom
from metaserver.trash import TrashTable

CELLS_MAX: Final = 20_000  # uncommitted cells; connections pause above this
# Uncommitted bytes of keys and values; an entry of a journal has PAYLOAD_MAX at most. Above it,
# connections pause; requests that have waited for leases run until it is twice.
BYTES_MAX: Final = PAYLOAD_MAX // 4
_CELLS_MIN: Final = 64
_CELL_SIZE: Final = 32 << 10  # a cell may need so much of the store: fresh pages on its path
_MUCH: Final = StoreRoom(0, 1 << 44)


class ParkedError(BraidError):
    """An op that cannot run yet raises this. The engine runs it again when it resumes the key: for
    example an inode whose truncate has ended at all targets."""

    def __init__(self, key: Hashable) -> None:
        super().__init__(f"waits for {key}")
        self.key = key


@dataclass(slots=True)
class Progress:
    """How far the engine has come, for ops that report it."""

    incarnation: int
    txn: Txn
    durable: Txn
    recovery_txn: Txn  # durable when this incarnation's recovery began
    recovering: bool
    inodes: int = 0
    room: StoreRoom = _MUCH  # of the store

    cells_max: int = CELLS_MAX

    def has_room(self, room: StoreRoom) -> None:
        """The store reports its room after each commit, and when a batch did not fit."""
        self.room = room
        self.cells_max = max(_CELLS_MIN, min(CELLS_MAX, room.free // _CELL_SIZE))


@dataclass(slots=True)
class Services:
    cluster: bytes  # uuid
    capability_key: bytes
    session_timeout_s: float
    progress: Progress
    numbers: InodeNumbers
    membership: Membership
    sessions: Sessions
    intents: Intents
    leases: Leases
    backups: Backups
    started_s: float = 0.0  # monotonic
    locks: LockTable = field(default_factory=LockTable)
    quotas: QuotaTable = field(default_factory=QuotaTable)
    trash: TrashTable = field(default_factory=TrashTable)
    keys: ClientKeys = field(default_factory=ClientKeys)
    drops: Drops = field(default_factory=Drops)
    jobs: JobTable = field(default_factory=JobTable)
    scrubs: ScrubTable = field(default_factory=ScrubTable)
    group: GroupView | None = None  # None: this metaserver is alone

    def capability(self, context: "Context", layout: bytes, ino: Ino, *, writable: bool) -> bytes:
        return make_capability(
            self.capability_key,
            layout=layout,
            session=context.session,
            rights=RIGHT_READ | RIGHT_WRITE if writable else RIGHT_READ,
            map_epoch=self.membership.epoch,
            ino=ino,
        )

    def has_made(self, context: "Context", capability: bytes, layout: bytes, ino: Ino) -> bool:
        """Whether this metaserver made the capability: for a slot of this session with that inode
        number and layout."""
        mine = make_capability(
            self.capability_key,
            layout=layout,
            session=context.session,
            rights=RIGHT_READ | RIGHT_WRITE,
            map_epoch=map_epoch_of(capability),
            ino=ino,
        )
        return hmac.compare_digest(mine, capability)


@dataclass(frozen=True, slots=True)
class Replayed:
    """The former outcome of a mutation that is replayed: it must end the same again (rule 18)."""

    ino: Ino
    layout: bytes  # b"" when the reply had none


@dataclass(slots=True)
class Context:
    session: SessionId
    now_ns: int
    now_s: float  # monotonic
    services: Services
    key: ClientKey | None = None  # the client's own key, if it has one
    replayed: Replayed | None = None
    peer: Connection | None = None  # the connection of the request
    # What follows is for the engine. It takes effect only if the op succeeds.
    wait_durable: bool = False  # the reply waits until this op and everything before is durable
    wait_truncate: Ino | None = None  # the reply waits until the truncate of this inode has ended
    inodes_added: int = 0  # added to the count of inodes
    charges: list[Charge] = field(default_factory=list)  # added to the accounts of quotas
    trash: list[tuple[int, str]] = field(default_factory=list)  # see TrashTable.merge
    trees_gone: list[int] = field(default_factory=list)  # trees whose top directory was removed
    notes: dict[bytes, bytes | None] = field(default_factory=dict)  # records that need no replay
    removed: list[Ino] = field(default_factory=list)  # inodes that do not exist any more
    withheld: int = 0  # LEASE_* bits that the reply does not grant
    opened: SessionId | None = None  # the session of this connection from now on
    ends_replay: bool = False  # the session has replayed everything: the recovery may be over

    def check_room(self) -> None:
        """Raises ENOSPC if only removals may still be written. A replay is always allowed."""
        if self.services.progress.room.is_full and self.replayed is None:
            raise FsError(Status.ENOSPC, "the metadata store is full")

    def check_serving(self) -> None:
        """Raises NOT_READY while clients may still replay: this op could change their outcomes."""
        if self.services.progress.recovering:
            raise FsError(Status.NOT_READY, "waiting for clients of before the restart")

    def check_not_truncating(self, ino: Ino) -> None:
        if ino in self.services.intents:
            raise ParkedError(ino)
