"""The results of a run: sums over jobs and nodes. Pure.

A rate of all nodes is all their bytes over the longest time that one of them took: a node that is
done early does not make the others look fast. Latencies are those of the slowest node.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .suites import Kind, Phase


@dataclass(frozen=True, slots=True)
class Measured:
    """One phase on one node, or on all together. Latencies are µs of one operation."""

    bytes: int = 0
    operations: int = 0
    seconds: float = 0.0
    p50_us: float = 0.0
    p99_us: float = 0.0

    @property
    def bytes_per_second(self) -> float:
        return self.bytes / self.seconds if self.seconds > 0 else 0.0

    @property
    def operations_per_second(self) -> float:
        return self.operations / self.seconds if self.seconds > 0 else 0.0

    def as_json(self) -> dict[str, float]:
        seen = {
            **asdict(self),
            "bytes_per_second": self.bytes_per_second,
            "operations_per_second": self.operations_per_second,
        }
        return {key: round(value, 3) for key, value in seen.items()}


def of_fio(job: dict[str, Any], kind: Kind, verifies: bool) -> Measured:
    """job: one entry of "jobs" in fio's JSON, of all jobs of a node together."""
    is_read = verifies or kind is Kind.READ
    seen = job["read" if is_read else "write"]
    percentiles = seen["clat_ns"].get("percentile", {})
    return Measured(
        bytes=seen["io_bytes"],
        operations=seen["total_ios"],
        seconds=seen["runtime"] / 1000,
        p50_us=percentiles.get("50.000000", 0) / 1000,
        p99_us=percentiles.get("99.000000", 0) / 1000,
    )


def of_loads(loads: Sequence[dict[str, Any]]) -> Measured:
    """loads: what each job's load.py printed."""
    return Measured(
        bytes=sum(one["bytes"] for one in loads),
        operations=sum(one["operations"] for one in loads),
        seconds=max(one["ended_s"] for one in loads) - min(one["began_s"] for one in loads),
        p50_us=max(one["p50_us"] for one in loads),
        p99_us=max(one["p99_us"] for one in loads),
    )


def together(parts: Sequence[Measured]) -> Measured:
    return Measured(
        bytes=sum(one.bytes for one in parts),
        operations=sum(one.operations for one in parts),
        seconds=max((one.seconds for one in parts), default=0.0),
        p50_us=max((one.p50_us for one in parts), default=0.0),
        p99_us=max((one.p99_us for one in parts), default=0.0),
    )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a phase. by_node: in the order of the nodes. damage: what was read wrong."""

    phase: Phase
    by_node: tuple[Measured, ...]
    damage: tuple[str, ...] = ()

    @property
    def whole(self) -> Measured:
        return together(self.by_node)

    def as_json(self, names: Sequence[str]) -> dict[str, Any]:
        return {
            "phase": self.phase.name,
            "title": self.phase.title,
            "kind": str(self.phase.kind),
            "is_checked": self.phase.verifies,
            "damage": list(self.damage),
            **self.whole.as_json(),
            "nodes": [
                {"node": name, **one.as_json()}
                for name, one in zip(names, self.by_node, strict=False)
            ],
        }


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node as its worker describes it."""

    name: str
    host: str
    path: str
    kernel: str
    cpus: int
    memory_bytes: int
    fio: str
    file_system: str
    source: str
    bytes_available: int
    identity: str = ""  # of the directory: inode number and time of birth, if known
    tools: tuple[str, ...] = ()  # those of ior, mdtest and mpirun that it has


@dataclass(slots=True)
class Findings:
    """The results of a run; outcomes in the order of the suite."""

    suite: str
    began_ns: int
    seconds: float = 0.0
    nodes: tuple[NodeFacts, ...] = ()
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def damage(self) -> list[str]:
        return [text for one in self.outcomes for text in one.damage]

    def rate(self, phase: str) -> float:
        """Bytes a second of all nodes in a phase; 0 when it was not run."""
        found = (one.whole.bytes_per_second for one in self.outcomes if one.phase.name == phase)
        return next(found, 0.0)
