"""Bodies of SCRUB and SCRUB_LIST: reading all bytes of the cluster, or of some files, and what of
them was found to be damaged (docs/decisions/0066-scrub.md).
"""

from dataclasses import dataclass
from typing import Annotated, Final

from fscommon.ranges import I64, U32, U64, Many, Text, U64s
from fscommon.wire.ops import Op

SCRUB_INOS_MAX: Final = 1024  # of one request
FINDINGS_MAX: Final = 256  # of one reply

# What was found of an object.
DAMAGED: Final = "damaged"  # blocks have other bytes on the device than were written, or none
RECORDS_LOST: Final = "records lost"  # nobody knows any more what some blocks have
MISSING: Final = "missing"  # the target has no such object, and once had it
DIFFERENT: Final = "different"  # from another replica, while nobody wrote
# What became of it.
MENDED: Final = "mended"  # where it lies, from another replica
DROPPED: Final = "dropped"  # from the layout: repair makes the replica again
LEFT: Final = "left"  # there is no good replica, or none that answers


@dataclass(frozen=True, slots=True)
class Scrub:
    """Has these files scrubbed now, at most SCRUB_INOS_MAX; or, without inos, all files, as fast as
    storage servers let it beside their clients: the pass that is under way ends so."""

    inos: U64s = ()


@dataclass(frozen=True, slots=True)
class Scrubbing:
    """Files are done when SCRUB_LIST of this run says that so many are; a pass when it says so many
    passes. run: another one means that the metaserver was started anew, and must be asked again."""

    run: U64
    files: U64
    passes: U64


@dataclass(frozen=True, slots=True)
class ScrubList:
    """Asks how the scrub is, and for what was found: findings behind this one, at most
    FINDINGS_MAX."""

    after_ino: U64 = 0
    after_target: U64 = 0
    after_object: U32 = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """The last one of an object. blocks: damaged ones, if that is known."""

    ino: U64
    target: U64
    object: U32
    what: Text
    outcome: Text
    blocks: U64
    found_ns: I64


@dataclass(frozen=True, slots=True)
class ScrubState:
    """is_fast: the pass that is under way was asked for. started_ns: of that pass. files, bytes:
    that it has done; files_all, bytes_all: what there is, about. passes: whole ones; ended_ns: of
    the last one, 0: there was none. files_asked, files_done: of SCRUB with inos, in this run.
    comparing: files with replicas are compared after a restore, before repair trusts them. left,
    mended, dropped: findings of each outcome that are kept; the oldest that are not left may be
    forgotten."""

    run: U64
    is_fast: bool
    is_paused: bool
    comparing: bool
    scrub_days: float
    started_ns: I64
    files: U64
    bytes: U64
    files_all: U64
    bytes_all: U64
    passes: U64
    ended_ns: I64
    files_asked: U64
    files_done: U64
    left: U64
    mended: U64
    dropped: U64


@dataclass(frozen=True, slots=True)
class ScrubListed:
    """end: these were the last findings."""

    state: ScrubState
    findings: Annotated[tuple[Finding, ...], Many]
    end: bool


SCRUB_BODIES: Final[dict[Op, tuple[type, type]]] = {
    Op.SCRUB: (Scrub, Scrubbing),
    Op.SCRUB_LIST: (ScrubList, ScrubListed),
}
