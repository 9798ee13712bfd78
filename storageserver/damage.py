"""Objects of which a reader has met damage. The metaserver is told with the heartbeats, so that it
has them scrubbed at once. State of one task, bounded; what does not fit is found by the next scrub.
"""

from collections import OrderedDict
from math import inf
from typing import Final

import trio

from fscommon.wire.servers import DAMAGED_MAX, DamagedObject

AGAIN_S: Final = 60.0  # an object is not reported again for so long
_KNOWN_MAX: Final = 4096


class Damage:
    def __init__(self) -> None:
        self._news: dict[DamagedObject, None] = {}
        self._told: OrderedDict[DamagedObject, float] = OrderedDict()

    def met(self, target: int, file_id: int, number: int) -> None:
        one = DamagedObject(target, file_id, number)
        is_known = self._told.get(one, -inf) > trio.current_time() - AGAIN_S
        if not is_known and len(self._news) < _KNOWN_MAX:
            self._news[one] = None

    def news(self) -> tuple[DamagedObject, ...]:
        return tuple(list(self._news)[:DAMAGED_MAX])

    def told(self, news: tuple[DamagedObject, ...]) -> None:
        now_s = trio.current_time()
        for one in news:
            self._news.pop(one, None)
            self._told[one] = now_s
            self._told.move_to_end(one)
        while len(self._told) > _KNOWN_MAX:
            self._told.popitem(last=False)
