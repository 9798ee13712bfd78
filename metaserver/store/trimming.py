"""How much of the journal may go: pure, time is passed in.

An entry stays as long as a metaserver may still need it: one that has reported within KEPT_S and
has not applied it. A metaserver that is silent for longer takes a copy of the state when it comes
back. `reports` of a member counts up, so no clock is shared.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from metaserver.store.journal import Head, Member

KEPT_S: Final = 600.0


@dataclass(slots=True)
class _Heard:
    reports: int
    since_s: float


class Trimming:
    def __init__(self, kept_s: float = KEPT_S) -> None:
        self._kept_s = kept_s
        self._heard: dict[str, _Heard] = {}

    def below(self, members: Iterable[Member], head: Head, applied: int, now_s: float) -> int:
        """Returns the index below which no entry is needed. applied: of the active itself; members:
        as they have reported by now. A member that was never seen before counts as just heard."""
        needed = applied
        for member in members:
            heard = self._heard.get(member.name)
            if heard is None or heard.reports != member.reports:
                heard = self._heard[member.name] = _Heard(member.reports, now_s)
            if now_s - heard.since_s < self._kept_s and member.log == head.log:
                needed = min(needed, member.applied)
        return needed + 1
