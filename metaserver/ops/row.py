"""One row for each op: all that the metaserver knows of it.

Each file of an op ends with its row, or the rows of its ops, in `ROWS`; metaserver.ops.table has
them all. The engine, the gate of leases, the keys of clients and the audit log know no op by its
name: they read fields of its row. A function in a row is plain: it never awaits, and it has no
state.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from fscommon.types import Ino, SessionId
from fscommon.wire.messages import BODIES
from fscommon.wire.ops import OPENING, SPECS, Op
from metaserver.context import Context
from metaserver.keys import ClientKey
from metaserver.leases.grants import Grant
from metaserver.leases.holders import Need
from metaserver.squash import Squash
from metaserver.transaction import Transaction

Run = Callable[[Transaction, Any, Context], Any]
Footprint = Callable[[Transaction, Any], list[Need]]
Rewrite = Callable[[Transaction, Any, ClientKey], Any]


class Access(Enum):
    """From which connections an op is taken, and whether these need a session."""

    SESSION = "session"  # a client with a session; waits for the end of a recovery
    CONTROL = "control"  # a client with a session; served during a recovery
    CLIENT = "client"  # a client, with or without a session
    SERVER = "server"  # storage servers
    ADMIN = "admin"  # the command line
    ANY = "any"


PURPOSES: Final = {Access.SERVER: "server", Access.CLIENT: "meta", Access.ADMIN: "admin"}


def never(request: Any) -> bool:
    return False


def always(request: Any) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRow:
    op: Op
    # The op itself: `run(tx, request, context)` returns the reply. It raises FsError to fail, which
    # drops its writes. It is atomic, as it never awaits.
    run: Run
    access: Access = Access.SESSION

    # ---- leases (metaserver.lease_gate) ------------------------------------------------------

    # What the op reads and changes, inode by inode: other sessions return leases that conflict with
    # this before the op runs. None: the op meets no leases, and its reply grants none.
    footprint: Footprint | None = None
    # Changes that the op does not wait for: holders of leases that these void hear of it later.
    changes_afterwards: Callable[[Any], list[Need]] | None = None
    # Sessions that must say what they know of the inode of the request before the op runs. If there
    # are any, the op waits for these instead of for its footprint.
    reporters: Callable[[Any, Context], Collection[SessionId]] | None = None
    # The attribute records of a reply, in the order in which they lie in it, each with the leases
    # to grant on its inodes.
    grants: Callable[[Any, Any], Iterator[Grant]] | None = None
    # Leases that the session holds already, on files that it made by itself.
    already_held: Callable[[Any, Any], Iterator[tuple[Ino, int]]] | None = None
    # The directory that the op looks into: its record goes with the reply if its names are granted.
    looks_into: Callable[[Any], int] | None = None
    # The op opens and changes nothing: leases that it is granted push out no others.
    is_look: bool = False
    # That a name is absent (ENOENT) is worth a lease on the names of the directory, too.
    grants_absence: bool = False
    # The session holds the files of the reply by their directory, not one by one.
    grants_by_directory: bool = False

    # ---- keys of clients (metaserver.confine) ------------------------------------------------

    # The inodes that the request names, which must be in the tree of the client's key. None: a
    # client with a key of its own may not send this op.
    names: Callable[[Any], Iterable[int]] | None = None
    # Whether a client with a read-only key may not ask for this. A mutation is never for such.
    changes: Callable[[Any], bool] = never
    # The request as it may run for a client that cannot be every user (metaserver.squash). It
    # raises EACCES, EPERM or EINVAL. None: there is nothing to check.
    squash: Squash | None = None
    # What a confined client asks for in place of the request. None: the same.
    rewrite: Rewrite | None = None

    # ---- replies (metaserver.engine) ---------------------------------------------------------

    # The reply leaves after all replies of its session that wait for a commit.
    keeps_order: bool = True
    # The next commit begins at once if another request waits for a lease on the inode of this one.
    hurries_recall: bool = False
    # The reply to a repeat waits for the truncate of the inode, as the first one did.
    repeat_waits_for_truncate: bool = False
    # Whether a request that succeeded gets a line in the audit log. Refused ones always do. None:
    # neither does.
    audited: Callable[[Any], bool] | None = None

    # ---- from the wire's tables --------------------------------------------------------------

    request: type = field(init=False)
    mutation: bool = field(init=False)  # its reply is stored and answers repeats
    opens: bool = field(init=False)  # the inode that it makes is open

    def __post_init__(self) -> None:
        object.__setattr__(self, "request", BODIES[self.op][0])
        object.__setattr__(self, "mutation", SPECS[self.op].mutation)
        object.__setattr__(self, "opens", self.op in OPENING)
