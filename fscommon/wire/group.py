"""Several metaservers over one journal: what STATUS says, bodies of META_SWITCH and META_FORGET.

A metaserver that is alone has no group: no rows, and a journal without an engine. Times are seconds
on the clock of the active metaserver alone, which all of this comes from.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from fscommon.ranges import U64, Many, Message, Text
from fscommon.wire.ops import Op

STANDS_BY: Final = "this metaserver is a standby"  # how its refusal of a connection begins
# What a standby of a former release says to whoever asks it, before the reason.
CANNOT_FOLLOW: Final = "it cannot follow the journal"


@dataclass(frozen=True, slots=True)
class MetaserverStatus:
    """One metaserver. applied: index of the newest entry of the journal that its store has; behind:
    entries that it lacked when it reported; behind_s: for how long there has been an entry that it
    lacks. seconds_since_report: 0 of the active one, which says all this. kept: where it keeps a
    damaged store of before; empty: it has none."""

    name: Text
    address: Text
    is_active: bool
    applied: U64
    behind: U64
    behind_s: float
    seconds_since_report: float
    kept: Text


@dataclass(frozen=True, slots=True)
class EngineServer:
    """One server of the journal's engine. bytes_max: 0 if the engine has no bound of its own.
    alarms: sentences, also why the server is not reachable."""

    endpoint: Text
    is_reachable: bool
    is_leader: bool
    bytes_used: U64
    bytes_max: U64
    alarms: Annotated[tuple[Message, ...], Many]


@dataclass(frozen=True, slots=True)
class JournalStatus:
    """term, index: of the journal now. append_p50_s, append_p99_s: of the appends of the last
    minute, until their outcome was known; 0 if there were none. silence_s: since the last success
    of the active metaserver's calls."""

    engine: Text
    term: U64
    index: U64
    append_p50_s: float
    append_p99_s: float
    silence_s: float
    servers: Annotated[tuple[EngineServer, ...], Many]


@dataclass(frozen=True, slots=True)
class GroupStatus:
    metaservers: Annotated[tuple[MetaserverStatus, ...], Many]
    journal: JournalStatus

    @property
    def is_alone(self) -> bool:
        return not self.journal.engine

    @property
    def standbys(self) -> tuple[MetaserverStatus, ...]:
        return tuple(row for row in self.metaservers if not row.is_active)

    @property
    def active(self) -> MetaserverStatus | None:
        return next((row for row in self.metaservers if row.is_active), None)


ALONE: Final = GroupStatus((), JournalStatus("", 0, 0, 0.0, 0.0, 0.0, ()))


@dataclass(frozen=True, slots=True)
class MetaSwitch:
    """Asks the active metaserver to let a standby take over. Which one is not for it to choose: the
    first that claims the journal becomes active."""


@dataclass(frozen=True, slots=True)
class MetaSwitching:
    """Reply to META_SWITCH, which leaves before the active metaserver stops serving. term: that of
    the journal until then."""

    name: Text
    term: U64


@dataclass(frozen=True, slots=True)
class MetaForget:
    """Asks the active metaserver to take one that is gone for good out of the group."""

    name: Text


@dataclass(frozen=True, slots=True)
class MetaForgetting:
    """Reply to META_FORGET: what was known of that metaserver. It is no member when STATUS does not
    show it any more."""

    address: Text
    seconds_since_report: float


GROUP_BODIES: Final[dict[Op, tuple[type, type]]] = {
    Op.META_SWITCH: (MetaSwitch, MetaSwitching),
    Op.META_FORGET: (MetaForget, MetaForgetting),
}
