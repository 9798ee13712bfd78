"""How long to wait before a connection is tried again, and how long one attempt may take.

Both grow with each consecutive failure, so that a peer that is back is found at once, and one that
is gone, or has a thousand others to serve first, is not flooded. Waits are random, between half and
all of their bound: clients that lost a peer together do not come back together. Pure.
"""

import random
from collections.abc import Callable
from typing import Final

DELAY_S_MIN: Final = 0.1
CONNECT_S_MIN: Final = 2.0
CONNECT_S_MAX: Final = 10.0
CONNECT_GROWTH: Final = 1.5


class Backoff:
    def __init__(
        self,
        *,
        delay_s_max: float,
        connect_s_max: float = CONNECT_S_MAX,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._delay_s_max = delay_s_max
        self._connect_s_max = connect_s_max
        self._uniform = uniform
        self.reset()

    def reset(self) -> None:
        """The connection worked: the next failure waits the shortest time."""
        self._delay_s = DELAY_S_MIN
        self.connect_s = CONNECT_S_MIN  # for the next attempt

    def failed(self) -> float:
        """Counts a failure. Returns how long to wait now, in seconds."""
        delay_s = self._delay_s
        self._delay_s = min(delay_s * 2, self._delay_s_max)
        self.connect_s = min(self.connect_s * CONNECT_GROWTH, self._connect_s_max)
        return self._uniform(delay_s / 2, delay_s)
