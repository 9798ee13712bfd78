"""Decides what to do about a metaserver that owes answers and is silent. Pure; time is passed in.

After PING_S a sign of life is requested on the same connection (an answer may take long, for
instance while it waits for another client's lease). After PROBE_S other connections are tried, to
each metaserver; one that succeeds replaces this one, and after SILENCE_S_MAX this one is given up.
Time in which the client itself did not run, as it was stopped or its event loop was held up, does
not count.
"""

from enum import Enum, auto
from typing import Final

PING_S: Final = 2.0
PROBE_S: Final = 3.0
SILENCE_S_MAX: Final = 10.0
TICK_S: Final = 0.5  # between steps
LATE_S: Final = 1.0  # a step that is later than this does not count beyond it


class Step(Enum):
    WAIT = auto()
    PING = auto()
    PROBE = auto()
    GIVE_UP = auto()


class Silence:
    """Call heard() with everything that arrives, and step() every TICK_S."""

    def __init__(self, now: float) -> None:
        self._stepped_at = now
        self._heard_at = now
        self._pinged = False

    def heard(self, now: float) -> None:
        self._heard_at = now
        self._pinged = False

    def step(self, now: float, owed_since: float, patience_s: float) -> Step:
        """The next step. owed_since: when the oldest unanswered request was sent, inf: there is
        none. patience_s: how long the session lasts in silence."""
        late_s = now - self._stepped_at - TICK_S
        self._stepped_at = now
        if late_s > LATE_S:
            self._heard_at = min(now, self._heard_at + late_s)
        silent_s = now - max(owed_since, self._heard_at)
        if silent_s > min(SILENCE_S_MAX, patience_s):
            return Step.GIVE_UP
        if silent_s > PING_S and not self._pinged:
            self._pinged = True
            return Step.PING
        return Step.PROBE if silent_s > PROBE_S else Step.WAIT
