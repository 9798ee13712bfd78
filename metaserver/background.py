"""What background tasks of the metaserver use: engine, committer, storage, metrics and clock.

The tasks themselves are metaserver.reaper, metaserver.eviction and metaserver.trash_expiry.
"""

from dataclasses import dataclass

from fscommon.observe.metrics import Metrics
from metaserver.committer import Committer
from metaserver.engine import Engine
from metaserver.storage import StorageCalls
from metaserver.times import Clock


@dataclass(frozen=True, slots=True)
class Background:
    engine: Engine
    committer: Committer
    storage: StorageCalls
    metrics: Metrics
    clock: Clock
