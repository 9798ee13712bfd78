"""What the configuration says of repairs, in its table [repair]."""

from dataclasses import dataclass
from typing import Final

_PARALLEL_MAX: Final = 256
_DAY_S: Final = 86400
MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class RepairPolicy:
    """rebuild_after_s: a target that is down for so long is taken for lost, and its replicas are
    made again. parallel: so many files are copied at the same time. rate_mib: at most so many MiB
    a second go to each target that gets copies; 0: as much as storage servers let pass beside
    their clients. scrub_days: each block is read and verified once in so many days; 0: never."""

    rebuild_after_s: float = 600.0
    parallel: int = 16
    rate_mib: float = 0.0
    scrub_days: float = 14.0

    def __post_init__(self) -> None:
        if not 1 <= self.rebuild_after_s <= 365 * _DAY_S:
            raise ValueError(f"rebuild_after_s is not in 1..{365 * _DAY_S}")
        if not 1 <= self.parallel <= _PARALLEL_MAX:
            raise ValueError(f"parallel is not in 1..{_PARALLEL_MAX}")
        if not 0 <= self.rate_mib <= 1 << 20:
            raise ValueError(f"rate_mib is not in 0..{1 << 20}")
        if not 0 <= self.scrub_days <= 3650:
            raise ValueError("scrub_days is not in 0..3650")


DEFAULT_REPAIR: Final = RepairPolicy()
