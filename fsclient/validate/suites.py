"""The suites: which phases they have, in which order, and how much each phase does. Pure.

SUITES are those of `braidfs validate`; BENCHES are the parts of `braidfs bench`, which checks
nothing.

A phase is a fio job in the folder jobs, or one of the loads of load.py (metadata, a shared file).
Sizes are set once for a run (Amounts) and reach a job as environment variables, so that each job
file also runs by hand: `FOLDER=/data/x SIZE=1g SECONDS=10 JOBS=4 fio jobs/write.fio`.
"""

from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from typing import Final

BLOCK_BYTES: Final = 47_008  # of the shared file, as IOR's hard pattern has it


class Kind(StrEnum):
    WRITE = "write"
    READ = "read"
    CHECK = "check"
    METADATA = "metadata"


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase. job: a file in the folder jobs, without .fio; or load: an action of load.py; or
    tool: a program that nodes may have (tools.py). needs: the phase that makes the files on which
    it works."""

    name: str
    title: str
    kind: Kind
    job: str = ""
    load: str = ""
    tool: str = ""
    verifies: bool = False
    needs: str = ""

    @property
    def is_timed(self) -> bool:
        """Whether it ends after Amounts.seconds, rather than when its work is done."""
        return bool(self.job) and self.kind is not Kind.CHECK and self.name != "hot-write"


@dataclass(frozen=True, slots=True)
class Amounts:
    """How much phases do. seconds: of a timed phase. file_bytes: of each job's large file.
    check_bytes: of each job's file that is checked. files: empty files of each job. blocks: of each
    job in the shared file."""

    seconds: int
    jobs: int
    file_bytes: int
    check_bytes: int
    files: int
    blocks: int

    def node_bytes(self, large_files: int) -> int:
        """The most bytes that one node stores, if each job writes this many large files."""
        small = self.check_bytes + self.blocks * BLOCK_BYTES
        return self.jobs * (large_files * self.file_bytes + small)


_WRITE: Final = Phase("write", "Write large files", Kind.WRITE, job="write")
_READ: Final = Phase("read", "Read large files", Kind.READ, job="read", needs="write")
_RANDOM: Final = Phase(
    "random-read", "Read 4 KiB, random", Kind.READ, job="random-read", needs="write"
)
_CHECKED: Final = (
    Phase("check-write", "Write what is checked", Kind.CHECK, job="check"),
    Phase(
        "check-read",
        "Check what was written",
        Kind.CHECK,
        job="check",
        verifies=True,
        needs="check-write",
    ),
)
_NAMES: Final = (
    Phase("create", "Create files", Kind.METADATA, load="create"),
    Phase("stat", "Stat files", Kind.METADATA, load="stat", needs="create"),
    Phase("remove", "Remove files", Kind.METADATA, load="remove", needs="create"),
)
_SHARED: Final = (
    Phase("shared-write", "Write one shared file", Kind.CHECK, load="shared-write"),
    Phase(
        "shared-read",
        "Check the shared file",
        Kind.CHECK,
        load="shared-read",
        verifies=True,
        needs="shared-write",
    ),
)
SUITES: Final[dict[str, tuple[Phase, ...]]] = {
    "quick": (_WRITE, _READ, _RANDOM, *_NAMES, *_CHECKED, *_SHARED),
    "full": (
        _WRITE,
        _READ,
        Phase("checkpoint", "Write checkpoints", Kind.WRITE, job="checkpoint"),
        _RANDOM,
        Phase("mmap-read", "Read through mmap", Kind.READ, job="mmap-read", needs="write"),
        Phase("overwrite", "Overwrite 4 KiB", Kind.WRITE, job="overwrite", needs="write"),
        *_NAMES,
        *_CHECKED,
        *_SHARED,
    ),
}
_HOT: Final = Phase("hot-write", "Write small files", Kind.WRITE, job="hot-write")
BENCHES: Final[dict[str, tuple[Phase, ...]]] = {
    "network": (
        _HOT,
        Phase(
            "round-trip",
            "4 KiB of a server's memory",
            Kind.READ,
            job="round-trip",
            needs="hot-write",
        ),
        Phase("transfer", "1 MiB of servers' memory", Kind.READ, job="transfer", needs="hot-write"),
    ),
    "storage": (
        _WRITE,
        _READ,
        _RANDOM,
        Phase("sync-write", "Append 4 KiB, fdatasync each", Kind.WRITE, job="sync-write"),
    ),
    "metadata": (
        *_NAMES,
        Phase("small-write", "Write files of 4 KiB", Kind.METADATA, load="small-write"),
        Phase(
            "small-read",
            "Read files of 4 KiB",
            Kind.METADATA,
            load="small-read",
            needs="small-write",
        ),
        Phase(
            "small-remove",
            "Remove files of 4 KiB",
            Kind.METADATA,
            load="small-remove",
            needs="small-write",
        ),
    ),
}
AMOUNTS: Final[dict[str, Amounts]] = {
    "bench": Amounts(10, 4, 1 << 30, 64 << 20, 2_000, 1),
    "quick": Amounts(10, 4, 1 << 30, 64 << 20, 1_000, 500),
    "full": Amounts(60, 8, 8 << 30, 512 << 20, 20_000, 5_000),
}


def job_text(phase: Phase) -> str:
    return (files(__package__) / "jobs" / f"{phase.job}.fio").read_text()
