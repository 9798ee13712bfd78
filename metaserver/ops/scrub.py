"""SCRUB, SCRUB_LIST: administrators have files scrubbed, and see what was found
(docs/decisions/0066-scrub.md)."""

from itertools import islice
from typing import Final

from fscommon.errors import FsError, Status
from fscommon.types import Ino
from fscommon.wire.ops import Op
from fscommon.wire.scrub import (
    DROPPED,
    FINDINGS_MAX,
    LEFT,
    MENDED,
    SCRUB_INOS_MAX,
    Finding,
    Scrub,
    Scrubbing,
    ScrubList,
    ScrubListed,
    ScrubState,
)
from metaserver.context import Context
from metaserver.ops.row import Access, OpRow, always
from metaserver.transaction import Transaction


def scrub(tx: Transaction, request: Scrub, context: Context) -> Scrubbing:
    """Answered at once: it is done later. Raises BUSY when too many files wait already."""
    context.check_serving()
    scrubs, job = context.services.scrubs, context.services.jobs.scrub
    if len(request.inos) > SCRUB_INOS_MAX:
        raise FsError(Status.BAD_REQUEST, f"name at most {SCRUB_INOS_MAX} files")
    if request.inos and not scrubs.ask([Ino(ino) for ino in request.inos]):
        raise FsError(Status.BUSY, "too many files wait to be scrubbed: ask again")
    if not request.inos and job.is_paused:
        raise FsError(Status.EBUSY, "the scrub is paused: resume it by `braidfs job resume 2`")
    if not request.inos and not scrubs.record.is_fast:
        scrubs.begins_anew = True
        scrubs.changed(is_fast=True)
        scrubs.wake()
    return Scrubbing(scrubs.run, scrubs.files_asked, job.record.passes + 1)


def scrub_list(tx: Transaction, request: ScrubList, context: Context) -> ScrubListed:
    after = request.after_ino, request.after_target, request.after_object
    rows = sorted(
        (place.ino, place.name.target, place.name.number, record)
        for place, record in context.services.scrubs.findings.items()
        if (place.ino, place.name.target, place.name.number) > after
    )
    findings = tuple(
        [
            Finding(
                ino, target, number, record.what, record.outcome, record.blocks, record.found_ns
            )
            for ino, target, number, record in islice(rows, FINDINGS_MAX)
        ]
    )
    return ScrubListed(_state(context), findings, len(rows) <= FINDINGS_MAX)


def _state(context: Context) -> ScrubState:
    scrubs, job = context.services.scrubs, context.services.jobs.scrub
    record, outcomes = scrubs.record, scrubs.of_outcomes()
    return ScrubState(
        run=scrubs.run,
        is_fast=record.is_fast,
        is_paused=job.is_paused,
        comparing=scrubs.compared is not None,
        scrub_days=scrubs.days,
        started_ns=job.record.started_ns,
        files=record.files,
        bytes=record.bytes,
        files_all=max(record.files, scrubs.files_all),
        bytes_all=max(record.bytes, scrubs.bytes_all),
        passes=job.record.passes,
        ended_ns=record.ended_ns,
        files_asked=scrubs.files_asked,
        files_done=scrubs.files_done,
        left=outcomes[LEFT],
        mended=outcomes[MENDED],
        dropped=outcomes[DROPPED],
    )


ROWS: Final = (
    OpRow(op=Op.SCRUB, run=scrub, access=Access.ADMIN, audited=always),
    OpRow(op=Op.SCRUB_LIST, run=scrub_list, access=Access.ADMIN),
)
