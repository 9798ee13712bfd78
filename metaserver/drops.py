"""Replicas that writers have asked to drop, and dropped names of which nobody gets an answer.

A dropped name is *settled* when no client gets an answer for it any more: its target has said so,
or cannot answer. A new metaserver knows of none, and settles a name again when somebody asks.
metaserver.dropping does both kinds of work; this is what it shares with the ops, in memory.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from fscommon.types import Ino, SessionId
from metaserver.records import ObjectName

SUSPECT_TARGETS: Final = 3  # of which a session drops replicas within SUSPECT_S, though they are up
SUSPECT_S: Final = 60.0
_SETTLED_MAX: Final = 1 << 16
_SUSPECTS_MAX: Final = 4096


class Drop(NamedTuple):
    """A session wants these replicas dropped from the layout with this file id and epoch."""

    session: SessionId
    ino: Ino
    file_id: int
    epoch: int
    names: tuple[ObjectName, ...]


class Drops:
    def __init__(self) -> None:
        self._wanted: list[Drop] = []
        self._settled: OrderedDict[ObjectName, None] = OrderedDict()
        self._late: set[ObjectName] = set()
        self._targets: OrderedDict[SessionId, dict[int, float]] = OrderedDict()
        self.wake: Callable[[], None] = lambda: None  # called when something is wanted

    # ---- what is wanted ------------------------------------------------------------------

    def want(self, drop: Drop) -> None:
        self._wanted.append(drop)
        self.wake()

    def take_wanted(self) -> list[Drop]:
        wanted, self._wanted = self._wanted, []
        return wanted

    # ---- dropped names -------------------------------------------------------------------

    def is_settled(self, name: ObjectName) -> bool:
        return name in self._settled

    def settled(self, names: Iterable[ObjectName]) -> None:
        for name in names:
            self._settled[name] = None
            self._settled.move_to_end(name)
        while len(self._settled) > _SETTLED_MAX:
            self._settled.popitem(last=False)

    def late(self, names: Iterable[ObjectName]) -> None:
        """These names were not settled in time: who waits for them is told so."""
        self._late.update(names)

    def take_late(self, names: Iterable[ObjectName]) -> bool:
        """Whether one of the names was not settled in time; says so once."""
        late = self._late.intersection(names)
        self._late -= late
        return bool(late)

    # ---- sessions that drop much ---------------------------------------------------------

    def suspects(self, session: SessionId, targets: Iterable[int], now_s: float) -> bool:
        """Notes that the session has dropped replicas of targets that are up. Returns True when
        these are too many lately: it may be the session that is cut off."""
        times = self._targets.setdefault(session, {})
        self._targets.move_to_end(session)
        if len(self._targets) > _SUSPECTS_MAX:
            self._targets.popitem(last=False)
        times.update(dict.fromkeys(targets, now_s))
        for target in [one for one, when_s in times.items() if when_s < now_s - SUSPECT_S]:
            del times[target]
        return len(times) > SUSPECT_TARGETS
