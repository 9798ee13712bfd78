"""Something that is wrong with a cluster, why, and what to do. Pure."""

from dataclasses import dataclass
from enum import IntEnum


class Severity(IntEnum):
    NOTE = 0
    WARNING = 1
    ERROR = 2


@dataclass(frozen=True, slots=True)
class Problem:
    severity: Severity
    what: str
    why: str
    remedy: str

    def as_json(self) -> dict[str, str]:
        return {
            "severity": self.severity.name.lower(),
            "what": self.what,
            "why": self.why,
            "do": self.remedy,
        }


def overall(problems: list[Problem]) -> str:
    worst = max((problem.severity for problem in problems), default=Severity.NOTE)
    return {Severity.NOTE: "healthy", Severity.WARNING: "degraded"}.get(worst, "failing")
