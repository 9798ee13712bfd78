"""Workload files: what one emulated GPU reads, and how long it computes. Pure, but for reading.

Each file is TOML. `load` refuses what makes no sense, in one sentence that names the file and the
key.
"""

import math
import tomllib
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any, Final

from fscommon.errors import ConfigError

GPUS: Final = ("h100", "a100", "b200")
NAMES: Final = (
    "unet3d",
    "retinanet",
    "resnet50",
    "cosmoflow",
    "flux",
    "checkpoint-8b",
    "checkpoint-70b",
)
TEXT_BYTES_MAX: Final = 1 << 16
_BYTES_MAX: Final = 1 << 50
_SMALLEST_PART: Final = 16  # no file is smaller than the mean by more than this factor
_LARGEST_PART: Final = 4


class Format(StrEnum):
    """FILES: a reader reads whole files. RECORDS: samples that follow each other in a file.
    COLUMNS: of a few samples at a time, each column from its own place in the file."""

    FILES = "files"
    RECORDS = "records"
    COLUMNS = "columns"


@dataclass(frozen=True, slots=True)
class Workload:
    """What one GPU reads. deviation_bytes: standard deviation of the size of a sample. compute_s:
    seconds of a step, by GPU. utilisation: the least that counts as fed. columns: bytes of each
    column of a sample."""

    name: str
    title: str
    format: Format
    sample_bytes: int
    batch: int
    readers: int
    epochs: int
    utilisation: float
    compute_s: tuple[tuple[str, float], ...]
    deviation_bytes: int = 0
    samples_per_file: int = 1
    columns: tuple[int, ...] = ()

    @property
    def read_samples(self) -> int:
        """How many samples of a file a reader reads at a time."""
        if self.format is Format.FILES:
            return self.samples_per_file
        return min(self.samples_per_file, math.ceil(self.batch / self.readers))

    @property
    def reads_per_step(self) -> int:
        return max(1, round(self.batch / self.read_samples))

    @property
    def reads_per_file(self) -> int:
        return self.samples_per_file // self.read_samples

    def compute_of(self, gpu: str) -> float:
        """Seconds of a step. Raises ConfigError if no time is known for this GPU."""
        for name, seconds in self.compute_s:
            if name == gpu:
                return seconds
        known = ", ".join(name for name, _ in self.compute_s)
        raise ConfigError(f"{self.name} has no time of a step on {gpu}: it has those of {known}")

    def files_of(self, steps: int) -> int:
        """How many files one GPU reads in so many steps."""
        return math.ceil(steps * self.reads_per_step / self.reads_per_file)

    def steps_of(self, count: int) -> int:
        """How many steps one GPU does with so many files."""
        return count * self.reads_per_file // self.reads_per_step

    def file_bytes(self, index: int) -> int:
        """The size of a file of the data set: the same in each run."""
        mean = self.sample_bytes * self.samples_per_file
        if not self.deviation_bytes:
            return mean
        drawn = int(Random(index).gauss(mean, self.deviation_bytes))
        return max(mean // _SMALLEST_PART, 1, min(drawn, mean * _LARGEST_PART))

    @property
    def file_bytes_mean(self) -> int:
        return self.sample_bytes * self.samples_per_file


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What all ranks together save and load. every_s: seconds of training between two saves.
    utilisation: the least part of the time that is left for training."""

    name: str
    title: str
    bytes: int
    ranks: int
    every_s: float
    epochs: int
    utilisation: float

    def rank_bytes(self, scale: float) -> int:
        return max(1, int(self.bytes * scale / self.ranks))


Pattern = Workload | Checkpoint
_COMMON: Final[dict[str, tuple[type, float, float]]] = {
    "epochs": (int, 1, 99),
    "utilisation": (float, 0.01, 1.0),
}
_OF_DATA: Final[dict[str, tuple[type, float, float]]] = {
    **_COMMON,
    "sample_bytes": (int, 1, 1 << 36),
    "deviation_bytes": (int, 0, 1 << 36),
    "samples_per_file": (int, 1, 1 << 20),
    "batch": (int, 1, 1 << 16),
    "readers": (int, 1, 64),
}
_OF_CHECKPOINTS: Final[dict[str, tuple[type, float, float]]] = {
    **_COMMON,
    "bytes": (int, 1, _BYTES_MAX),
    "ranks": (int, 1, 4096),
    "every_s": (float, 1.0, 86_400.0),
}
_OPTIONAL: Final = frozenset({"deviation_bytes", "samples_per_file", "columns"})


def load(wanted: str) -> Pattern:
    """The workload of that name, or in that file (a path with a slash, or one that ends in .toml).
    Raises ConfigError."""
    if wanted in NAMES:
        text = (files("fsclient.validate") / "workloads" / f"{wanted}.toml").read_bytes()
        return parse(wanted, text)
    if "/" not in wanted and not wanted.endswith(".toml"):
        raise ConfigError(
            f"there is no workload {wanted}: take one of {', '.join(NAMES)}, or a file NAME.toml"
        )
    try:
        with Path(wanted).open("rb") as file:
            text = file.read(TEXT_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        told = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot read the workload {wanted}: {told}") from error
    return parse(Path(wanted).stem, text)


def parse(name: str, text: bytes) -> Pattern:
    """Raises ConfigError, which names the workload and the key."""
    if len(text) > TEXT_BYTES_MAX:
        raise ConfigError(f"the workload {name} is larger than {TEXT_BYTES_MAX} bytes")
    try:
        given = tomllib.loads(text.decode())
    except (ValueError, RecursionError) as error:
        told = str(error).splitlines()[0] if str(error) else "it cannot be read"
        raise ConfigError(f"the workload {name} is not TOML: {told}") from error
    try:
        return _of_table(name, given)
    except ValueError as error:
        raise ConfigError(f"the workload {name}: {error}") from error


def _of_table(name: str, given: dict[str, Any]) -> Pattern:
    kinds = (*(str(one) for one in Format), "checkpoint")
    kind, title = given.pop("format", None), given.pop("title", None)
    if kind not in kinds:
        raise ValueError(f"format must be one of {', '.join(kinds)}")
    if not isinstance(title, str) or not 0 < len(title) <= 200 or not title.isprintable():
        raise ValueError("title must be a line of up to 200 characters")
    if kind == "checkpoint":
        found = _numbers(given, _OF_CHECKPOINTS)
        return Checkpoint(name=name, title=title, **found)
    compute_s = _compute(given.pop("compute_s", None))
    columns = _columns(given.pop("columns", []))
    found = _numbers(given, _OF_DATA)
    made = Workload(
        name=name, title=title, format=Format(kind), compute_s=compute_s, columns=columns, **found
    )
    _check(made)
    return made


def _numbers(given: dict[str, Any], wanted: dict[str, tuple[type, float, float]]) -> dict[str, Any]:
    if unknown := sorted(set(given) - set(wanted)):
        raise ValueError(f"there is no key {unknown[0][:80]!r}")
    found: dict[str, Any] = {}
    for key, (kind, low, high) in wanted.items():
        if key not in given:
            if key in _OPTIONAL:
                continue
            raise ValueError(f"{key} is missing")
        found[key] = _number(key, given[key], kind, low, high)
    return found


def _number(key: str, value: object, kind: type, low: float, high: float) -> Any:
    fits = isinstance(value, (int, float) if kind is float else int)
    if not fits or isinstance(value, bool) or not low <= value <= high:  # type: ignore[operator]
        what = "a whole number" if kind is int else "a number"
        raise ValueError(f"{key} must be {what} from {low:g} to {high:g}")
    return kind(value)


def _compute(given: object) -> tuple[tuple[str, float], ...]:
    if not isinstance(given, dict) or not given:
        raise ValueError("the table compute_s must have the seconds of a step for a GPU")
    if unknown := sorted(set(given) - set(GPUS)):
        raise ValueError(f"compute_s has no GPU {unknown[0][:80]!r}: it has {', '.join(GPUS)}")
    return tuple(
        (gpu, _number(f"compute_s.{gpu}", seconds, float, 1e-4, 3600.0))
        for gpu, seconds in given.items()
    )


def _columns(given: object) -> tuple[int, ...]:
    if not isinstance(given, list) or len(given) > 256:
        raise ValueError("columns must be a list of up to 256 sizes in bytes")
    return tuple(_number("each of columns", one, int, 1, 1 << 36) for one in given)


def _check(made: Workload) -> None:
    """What several keys say together. Raises ValueError."""
    if made.deviation_bytes and made.format is not Format.FILES:
        raise ValueError("deviation_bytes is for the format files")
    if made.deviation_bytes > made.sample_bytes:
        raise ValueError("deviation_bytes is more than sample_bytes")
    if (made.format is Format.COLUMNS) != bool(made.columns):
        raise ValueError("columns is for the format columns, which needs it")
    if made.columns and sum(made.columns) != made.sample_bytes:
        raise ValueError(f"columns have {sum(made.columns)} bytes, not sample_bytes")
    if made.file_bytes_mean > 1 << 40:
        raise ValueError("a file would have more than 1 TiB")
    if made.format is Format.FILES and made.samples_per_file > made.batch:
        raise ValueError("a file of the format files has more samples than a batch")
