"""Who may answer, and who may take over: the two clocks of a term. Pure; time is passed in.

An active metaserver answers nobody unless a change of the journal that it has sent less than
ANSWER_S ago has succeeded. Another one claims the journal when it has seen no change for CLAIM_S,
and the claim succeeds only if there was none until then. So nobody answers any more when a claim
succeeds: the change was made after it was sent, and was seen after it was made; and CLAIM_S is
longer than ANSWER_S by more than what clocks of two machines drift apart in that time. Only
monotonic clocks count, each compared with itself alone.
"""

from math import inf
from typing import Final

from metaserver.store.journal import Sighting

ANSWER_S: Final = 3.0
CLAIM_S: Final = 4.0
BEAT_S: Final = 0.4


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
