"""What scrubs have found, and what is to be scrubbed: in memory, shared by tasks and ops.

Findings are records of the store, too (`A`): damage that is left must not be forgotten with the
process, and after a take-over. They are bounded; the oldest of those that need nothing more go.
Pure.
"""

import secrets
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from fscommon.types import Ino
from fscommon.wire.scrub import LEFT
from fscommon.wire.servers import DamagedObject
from metaserver.records import FindingRecord, ObjectName, ScrubRecord

KEPT_MAX: Final = 4096  # findings
ASKED_MAX: Final = 1 << 16  # files that wait to be scrubbed
REPORTS_MAX: Final = 4096
_SKIPPED_MAX: Final = 1 << 16


class Place(NamedTuple):
    """An object of a file."""

    ino: Ino
    name: ObjectName


@dataclass(slots=True)
class ScrubTable:
    """record: as it is to be stored. compared: the last inode that was compared after a restore;
    None: nothing is to be compared. files_all, bytes_all: what a pass goes through, about."""

    findings: dict[Place, FindingRecord] = field(default_factory=dict)
    record: ScrubRecord = field(default_factory=ScrubRecord)
    compared: int | None = None
    run: int = field(default_factory=lambda: secrets.randbits(63) + 1)
    files_asked: int = 0
    files_done: int = 0
    files_all: int = 0
    bytes_all: int = 0
    days: float = 0.0  # within which a pass ends; 0: there is none that was not asked for
    begins_anew: bool = False  # a pass that was asked for
    # By outcome and what it was: since the metrics were shown.
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    wake: Callable[[], None] = lambda: None  # called when something is asked for
    _asked: deque[Ino] = field(default_factory=deque)
    _reports: dict[DamagedObject, None] = field(default_factory=dict)
    _changed: set[Place] = field(default_factory=set)
    _uncompared: set[Ino] = field(default_factory=set)
    _is_changed: bool = False

    # ---- what is to be scrubbed ----------------------------------------------------------

    def ask(self, inos: Collection[Ino]) -> bool:
        """False: too many wait."""
        if len(self._asked) + len(inos) > ASKED_MAX:
            return False
        self._asked.extend(inos)
        self.files_asked += len(inos)
        self.wake()
        return True

    def next_asked(self) -> Ino | None:
        return self._asked.popleft() if self._asked else None

    def report(self, damaged: Iterable[DamagedObject]) -> None:
        """A reader has met damage in these objects."""
        for one in damaged:
            if len(self._reports) < REPORTS_MAX:
                self._reports[one] = None
                self.wake()

    def take_reports(self) -> list[DamagedObject]:
        reports, self._reports = list(self._reports), {}
        return reports

    def changed(self, **fields: int | bool) -> None:
        """Changes the record."""
        self.record = replace(self.record, **fields)  # type: ignore[arg-type]
        self._is_changed = True

    def take_changed(self) -> bool:
        """Whether the record has changed since the last call."""
        is_changed, self._is_changed = self._is_changed, False
        return is_changed

    # ---- findings ------------------------------------------------------------------------

    def found(self, place: Place, record: FindingRecord) -> None:
        known = self.findings.pop(place, None)
        if known is None or known.outcome != record.outcome or known.what != record.what:
            self.counts[record.outcome, record.what] += 1
        self.findings[place] = record
        self._changed.add(place)
        while len(self.findings) > KEPT_MAX:
            done = (one for one, row in self.findings.items() if row.outcome != LEFT)
            self.forget(next(done, next(iter(self.findings))))

    def forget(self, place: Place) -> None:
        if self.findings.pop(place, None) is not None:
            self._changed.add(place)

    def left(self, name: ObjectName | None = None) -> list[Place]:
        """Damage that is left, of this object or of any."""
        return [
            place
            for place, row in self.findings.items()
            if row.outcome == LEFT and name in (None, place.name)
        ]

    def of_outcomes(self) -> Counter[str]:
        return Counter(row.outcome for row in self.findings.values())

    def take_findings(self) -> list[tuple[Place, FindingRecord | None]]:
        """Those that have changed since the last call. None: it was forgotten."""
        changed, self._changed = self._changed, set()
        return [(place, self.findings.get(place)) for place in changed]

    # ---- after a restore -----------------------------------------------------------------

    def is_trusted(self, ino: Ino) -> bool:
        """Whether a replica of the file may be taken for a good one, and copied."""
        return self.compared is None or (ino <= self.compared and ino not in self._uncompared)

    def compare_later(self, ino: Ino) -> bool:
        """It cannot be compared now. False: there are too many such files."""
        if len(self._uncompared) >= _SKIPPED_MAX:
            return False
        self._uncompared.add(ino)
        return True

    def uncompared(self) -> list[Ino]:
        return sorted(self._uncompared)

    def was_compared(self, ino: Ino) -> None:
        self._uncompared.discard(ino)
