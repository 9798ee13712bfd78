"""For how many GPUs the measured rates are enough: the rule of thumb that administrators use. Pure.

A profile says how much one GPU reads and writes when all work at once: light (language models on
tokens), medium (images, multi-modal), heavy (video, large checkpoints, no local cache).
"""

from dataclasses import dataclass
from typing import Any, Final

GB: Final = 1e9


@dataclass(frozen=True, slots=True)
class Profile:
    """Bytes a second for each GPU."""

    name: str
    read: float
    write: float


PROFILES: Final = (
    Profile("light", 1 * GB, 0.75 * GB),
    Profile("medium", 2 * GB, 1.5 * GB),
    Profile("heavy", 4 * GB, 3 * GB),
)


@dataclass(frozen=True, slots=True)
class Sizing:
    """gpus: for how many the rates are enough. limit: what is too slow for more."""

    profile: Profile
    gpus: int
    limit: str

    def as_json(self) -> dict[str, Any]:
        return {
            "profile": self.profile.name,
            "read_per_gpu": self.profile.read,
            "write_per_gpu": self.profile.write,
            "gpus": self.gpus,
            "limit": self.limit,
        }


def sizings(read: float, write: float) -> list[Sizing]:
    """read, write: bytes a second of all nodes together."""
    return [_sizing(profile, read, write) for profile in PROFILES]


def _sizing(profile: Profile, read: float, write: float) -> Sizing:
    readers, writers = read / profile.read, write / profile.write
    limit = "read" if readers < writers else "write"
    return Sizing(profile, int(min(readers, writers)), limit)


@dataclass(frozen=True, slots=True)
class Need:
    """What a number of GPUs of a profile needs, against what was measured."""

    gpus: int
    profile: Profile
    read: float
    write: float

    @property
    def is_met(self) -> bool:
        return self.read >= self.gpus * self.profile.read and (
            self.write >= self.gpus * self.profile.write
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "gpus": self.gpus,
            "profile": self.profile.name,
            "is_met": self.is_met,
            "read_needed": self.gpus * self.profile.read,
            "write_needed": self.gpus * self.profile.write,
        }
