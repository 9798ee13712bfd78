"""Who may answer, and who may take over: the two clocks of a term. Pure; time is passed in.

An active metaserver answers nobody unless a change of the journal that it has sent less than
ANSWER_S ago has succeeded. Another one claims the journal when it has seen no change for CLAIM_S,
and the claim succeeds only if there was none until then. So nobody answers any more when a claim
succeeds: the change was made after it was sent, and was seen after it was made; and CLAIM_S is
longer than ANSWER_S by more than what clocks of two machines drift apart in that time. Only
monotonic clocks count, each compared with itself alone; and for who answers, a step of the wall
clock may be time that passed unnoticed (LeaseClock).
"""

import threading
import time
from collections.abc import Callable
from math import inf
from typing import Final

from metaserver.store.journal import Sighting

ANSWER_S: Final = 3.0
CLAIM_S: Final = 4.0
BEAT_S: Final = 0.4


def clock_s() -> float:
    """Seconds that go on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseClock:
    """Seconds for the lease of the active metaserver: as many as have passed on `boot` or on
    `wall`, whichever says more.

    boot: goes on while the machine is suspended, but not while a hypervisor has stopped it. Then
    the wall clock is set right when it runs again, and that step ends the lease: nothing is
    answered until a change that was sent after it has succeeded. A step that means nothing costs a
    beat. To wait for others to be silent it is no clock: a step would be silence. Any thread may
    call.
    """

    def __init__(self, boot: Callable[[], float], wall: Callable[[], float]) -> None:
        self._boot = boot
        self._wall = wall
        self._seen = boot(), wall()
        self._now_s = self._seen[0]
        self._lock = threading.Lock()

    def __call__(self) -> float:
        with self._lock:
            boot_s, wall_s = self._boot(), self._wall()
            self._now_s += max(0.0, boot_s - self._seen[0], wall_s - self._seen[1])
            self._seen = boot_s, wall_s
            return self._now_s


class ActiveLease:
    """The time for which the active metaserver may answer."""

    def __init__(self) -> None:
        self._until_s = -inf

    def proven(self, sent_s: float) -> None:
        """A claim, append or beat that was sent then has succeeded. Any thread may call."""
        self._until_s = max(self._until_s, sent_s + ANSWER_S)

    def holds(self, now_s: float) -> bool:
        return now_s < self._until_s

    @property
    def proven_s(self) -> float:
        """When the newest change that has succeeded was sent."""
        return self._until_s - ANSWER_S

    def end(self) -> None:
        """Nothing is answered from now on: the metaserver resigns, or is deposed."""
        self._until_s = -inf


class TakeOverWatch:
    """What a standby has seen of the journal, and whether it may claim it."""

    def __init__(self) -> None:
        self.seen: Sighting | None = None
        self._since_s = inf  # it has been like this, and asked successfully, since then

    def saw(self, sighting: Sighting, now_s: float) -> None:
        """now_s: when the answer was there."""
        if sighting != self.seen or self._since_s == inf:
            self._since_s = now_s
        self.seen = sighting

    def failed(self) -> None:
        """The journal did not answer. The active could not beat either, perhaps, so it gets its
        time again when the journal is back."""
        self._since_s = inf

    def may_claim(self, now_s: float) -> bool:
        return self.seen is not None and (
            not self.seen.head.owner or now_s - self._since_s >= CLAIM_S
        )
