"""What an op is given besides its transaction and its request, and what it asks for in return.

`Services` is the state in memory that ops share; `Context` belongs to one request. An op decides
synchronously and says in the context what its reply must wait for: the engine does the waiting.
Only the event loop's thread touches any of it.
"""

import hmac
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

from fscommon.errors import BraidError, FsError, Status
from fscommon.layout.capability import RIGHT_READ, RIGHT_WRITE, make_capability, map_epoch_of
from fscommon.types import Ino, SessionId, Txn
from metaserver.intents import Intents
from metaserver.keys import ClientKey, ClientKeys
from metaserver.leases.table import Leases
from metaserver.locks.table import LockTable
from metaserver.membership import Membership
from metaserver.numbers import InodeNumbers
from metaserver.quota.table import Charge, QuotaTable
from metaserver.sessions import Sessions
from metaserver.store.waist import StoreRoom
from metaserver.trash import TrashTable

CELLS_MAX: Final = 20_000  # uncommitted; connections pause above it
_CELLS_MIN: Final = 64
_CELL_SIZE: Final = 32 << 10  # what one may need of the store for a while: fresh pages for its path
_MUCH: Final = StoreRoom(0, 1 << 44)


class ParkedError(BraidError):
    """Raised by an op that cannot run yet; the engine runs it again when it resumes the key: an
    inode whose truncate has ended at all targets, or something else that an op waits for."""

    def __init__(self, key: Hashable) -> None:
        super().__init__(f"waits for {key}")
        self.key = key


@dataclass(slots=True)
class Progress:
    """Where the engine stands, for ops that report it."""

    incarnation: int
    txn: Txn
    durable: Txn
    recovery_txn: Txn  # durable when this incarnation's recovery began
    recovering: bool
    inodes: int = 0
    room: StoreRoom = _MUCH  # of the store

    cells_max: int = CELLS_MAX

    def has_room(self, room: StoreRoom) -> None:
        """What the store says after a commit, or since one did not fit."""
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
    started_s: float = 0.0  # monotonic
    locks: LockTable = field(default_factory=LockTable)
    quotas: QuotaTable = field(default_factory=QuotaTable)
    trash: TrashTable = field(default_factory=TrashTable)
    keys: ClientKeys = field(default_factory=ClientKeys)

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
        """It is the capability of a slot of this session, with that number and valid layout."""
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
    """What a mutation answered before the restart; running it again must end the same (rule 18)."""

    ino: Ino
    layout: bytes  # b"" when the reply had none


@dataclass(slots=True)
class Context:
    session: SessionId
    now_ns: int
    now_s: float  # monotonic
    services: Services
    key: ClientKey | None = None  # of the client that asks, where it has one of its own
    replayed: Replayed | None = None
    wait_durable: bool = False  # answer when this op and everything before it is durable
    wait_truncate: Ino | None = None  # answer when the truncate of this inode has ended
    inodes_added: int = 0  # merged into the count of inodes when the op succeeds
    charges: list[Charge] = field(default_factory=list)  # merged like inodes_added
    trash: list[tuple[int, str]] = field(default_factory=list)  # entries: trees, and how
    trees_gone: list[int] = field(default_factory=list)  # whose topmost directory was removed
    notes: dict[bytes, bytes | None] = field(default_factory=dict)  # records beside the outcome
    removed: list[Ino] = field(default_factory=list)  # inodes that are no more if it succeeds
    withheld: int = 0  # LEASE_* bits that the reply does not grant
    opened: SessionId | None = None  # for which the connection speaks from now on, if it succeeds
    ends_replay: bool = False  # the session has replayed everything: a recovery may be over

    def check_room(self) -> None:
        """Raises ENOSPC: nothing that grows fits any more, as removals must. What was answered
        before a restart is done again all the same."""
        if self.services.progress.room.is_full and self.replayed is None:
            raise FsError(Status.ENOSPC, "the metadata store is full")

    def check_serving(self) -> None:
        """Raises NOT_READY: clients of before the restart may still replay what this may upset."""
        if self.services.progress.recovering:
            raise FsError(Status.NOT_READY, "waiting for clients of before the restart")

    def check_not_truncating(self, ino: Ino) -> None:
        if ino in self.services.intents:
            raise ParkedError(ino)
