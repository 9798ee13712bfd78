"""The interfaces that the file system semantics need, as protocols.

Metadata is fsclient.meta.client.MetaClient; Lanes is the native Datapath (fscommon.native), whose
ports are generated from its stub (fscommon.native_ports). Tests put fakes behind both.
"""

from typing import NamedTuple, Protocol, TypeVar

from fscommon.native_ports import ChangesPort, InodesPort, IoPort, NamesPort, WrittenRow
from fscommon.wire.ops import Op

from ..leases.table import Limit
from ..meta.pending import Deliver

T = TypeVar("T")


class Written(NamedTuple):
    """What was written and is not committed; flags: COMMIT_*, WRITTEN_CUT."""

    size: int
    mtime_ns: int
    flags: int


def written_of(row: WrittenRow | None) -> Written | None:
    return None if row is None else Written(row.size, row.mtime_ns, row.flags)


WRITTEN_CUT = 1 << 31  # a flag: the size is exact, not a minimum


class Metadata(Protocol):
    async def call(self, op: Op, message: object, reply: type[T], *, urgent: bool = False) -> T: ...
    def post(self, op: Op, message: object, deliver: Deliver, *, urgent: bool = False) -> None: ...
    def post_patiently(
        self, op: Op, message: object, deliver: Deliver, *, urgent: bool = False
    ) -> None: ...
    def tell(self, op: Op, message: object, *, urgent: bool = False) -> Limit: ...

    async def answered(self, request_id: int) -> None: ...

    @property
    def is_ready(self) -> bool: ...
    @property
    def sole_until(self) -> float: ...  # no other session exists until then (trio's clock)


class Lanes(Protocol):
    """The ports of native that file system semantics need."""

    @property
    def inodes(self) -> InodesPort: ...
    @property
    def names(self) -> NamesPort: ...
    @property
    def changes(self) -> ChangesPort: ...
    @property
    def io(self) -> IoPort: ...
