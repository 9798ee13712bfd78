"""What background tasks of the metaserver use: engine, committer, storage, metrics and clock.

The tasks themselves are metaserver.reaper, metaserver.eviction and metaserver.trash_expiry.
"""

from collections.abc import Callable
from dataclasses import dataclass

from fscommon.observe.metrics import Metrics
from metaserver.committer import Committer
from metaserver.context import Context
from metaserver.engine import Engine
from metaserver.storage import StorageCalls
from metaserver.times import Clock
from metaserver.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Background:
    engine: Engine
    committer: Committer
    storage: StorageCalls
    metrics: Metrics
    clock: Clock

    def change(self, operation: Callable[[Transaction, Context], object]) -> None:
        """Runs an op of the metaserver itself, which may read only; its result is not used."""

        def run(tx: Transaction, context: Context) -> None:
            operation(tx, context)

        self.engine.system(run, self.clock())
