"""What the metaserver's background tasks work with: the engine, the committer, storage, metrics,
the time.

The tasks themselves are reaper and eviction.
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
