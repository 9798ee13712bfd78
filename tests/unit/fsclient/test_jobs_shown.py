"""Jobs, drained and lost targets as administrators see them: sentences, JSON, problems, find."""

from dataclasses import replace
from typing import Any

import pytest

from fsclient.cli.target_leave import _is_drained, _is_rebuilt, _Seen
from fscommon.errors import BraidError
from fscommon.observe.health import problems_of
from fscommon.observe.jobs import is_at_work, job_json, job_of, job_sentence, share_done
from fscommon.observe.problem import Severity
from fscommon.observe.status import status_json, target_json
from fscommon.wire.admin import TargetHealth
from fscommon.wire.jobs import ARE_LOST, UNKNOWN_S, JobRow
from tests.unit.fsclient.test_replicas_shown import server, status

GIB = 1 << 30


def job(kind: str = "drain", target: int = 3, **changes: Any) -> JobRow:
    values: dict[str, Any] = {
        "job": 5,
        "kind": kind,
        "target": target,
        "state": "running",
        "because": "",
        "files": 40,
        "bytes": GIB,
        "files_left": 1234,
        "bytes_left": 3 * GIB,
        "is_estimated": False,
        "files_failed": 0,
        "last_failure": "",
        "rate": 100.0 * (1 << 20),
        "seconds_left": 300.0,
        "started_ns": 7,
        "ended_ns": 0,
    }
    return JobRow(**{**values, **changes})


IDLE = job("repair", 0, job=1, state="done", files_left=0, bytes_left=0, seconds_left=0.0)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            job(),
            "What target 3 has is moved to others: 25% is done, 1,234 files and 3.0 GiB are left, "
            "100.0 MiB/s, 5 min to go",
        ),
        (
            job("rebuild", is_estimated=True, rate=0.0, seconds_left=UNKNOWN_S),
            "What target 3 had is made again from other replicas: 25% is done, about 1,234 files "
            "and 3.0 GiB are left",
        ),
        (
            job("repair", 0, files_left=1, rate=0.0, seconds_left=UNKNOWN_S),
            "Replicas that files lack are made: 1 file and 3.0 GiB are left",
        ),
        (
            job(state="paused"),
            "What target 3 has is moved to others: it is paused, 25% is done, 1,234 files and "
            "3.0 GiB are left",
        ),
        (
            job("repair", 0, state="waiting", because="no target has room"),
            "Replicas that files lack are made: it waits (no target has room), 1,234 files and "
            "3.0 GiB are left",
        ),
        (
            job(state="done", ended_ns=9),
            "What target 3 has is moved to others: done, 40 files and 1.0 GiB",
        ),
        (IDLE, "Replicas that files lack are made: there is nothing to do"),
    ],
)
def test_a_job_in_one_sentence(row: JobRow, said: str) -> None:
    assert job_sentence(row) == said == job_json(row)["sentence"]


def test_a_job_for_programs() -> None:
    seen = job_json(job(seconds_left=UNKNOWN_S))
    assert (seen["job"], seen["kind"], seen["target"], seen["share_done"]) == (5, "drain", 3, 0.25)
    assert seen["seconds_left"] is seen["ended_ns"] is seen["because"] is None
    assert job_json(IDLE)["target"] is None and not job_json(IDLE)["at_work"]
    assert share_done(job(bytes=0, bytes_left=0, files=1, files_left=3)) == 0.25
    assert share_done(job(bytes=0, bytes_left=0, files=0, files_left=0)) is None
    assert job_of([job(job=5), job(job=8), job("rebuild", job=9)], "drain", 3) == job(job=8)
    assert is_at_work(job(files_left=0, bytes_left=0)), "one of a target is, until it is done"
    assert is_at_work(job(state="paused")) and not is_at_work(IDLE)


def problem(*rows: JobRow, states: tuple[str, ...] = ("up", "up", "up"), **changes: Any) -> Any:
    reply = status([(100, 50)] * len(states), states, jobs=(IDLE, *rows))
    (found,) = problems_of(replace(reply, **changes))
    assert found.why and found.remedy
    return found


def test_a_target_that_is_drained() -> None:
    states = ("up", "up", "draining")
    health = (TargetHealth(3, 1, 17, 0),)
    found = problem(states=states, health=health)
    assert found.severity is Severity.NOTE and "17 objects" in found.why
    assert "braidfs target drain 3" in found.remedy
    assert "25% is done" in problem(job(), states=states).why
    assert "braidfs target remove 3" in problem(job(state="done", ended_ns=9), states=states).remedy
    reply = status([(100, 50)] * 3, states, jobs=(job(),))
    seen = target_json(reply, reply.map.targets[2])
    assert (seen["job"], seen["share_done"]) == (5, 0.25)
    assert target_json(reply, reply.map.targets[0])["job"] is None


def test_a_target_that_is_lost() -> None:
    states = ("up", "up", "lost")
    found = problem(job("rebuild"), states=states)
    assert found.severity is Severity.WARNING and "25% is done" in found.why
    lost = job("rebuild", state="waiting", because=f"2 files have no other replica: {ARE_LOST}")
    found = problem(lost, states=states)
    assert found.severity is Severity.ERROR and "braidfs find :/ --lost" in found.remedy


def test_files_that_lack_replicas() -> None:
    found = problem(files_lacking=12, files_endangered=3)
    assert found.severity is Severity.WARNING and found.what == "3 files have one replica left"
    assert "9 more" in found.why and "braidfs find :/ --degraded" in found.remedy
    assert problem(files_lacking=12).what == "12 files lack replicas"
    assert problem(files_lacking=1).what == "1 file lacks replicas"
    assert problem(files_lacking=1, files_endangered=1).what == "1 file has one replica left"
    seen = status_json(status([(1, 1)], files_lacking=12, files_endangered=3, jobs=(job(),)), [])
    assert seen["files"] == {"lack_replicas": 12, "one_replica_left": 3}
    assert seen["damaged_objects"] == 0
    assert seen["jobs"][0]["job"] == 5


@pytest.mark.parametrize(
    ("row", "severity", "words"),
    [
        (job("repair", 0, state="paused"), Severity.NOTE, "braidfs job resume 5"),
        (
            job("repair", 0, state="waiting", because="there is no room"),
            Severity.WARNING,
            "no room",
        ),
        (job("repair", 0, files_failed=2, last_failure="a loss"), Severity.NOTE, "a loss"),
        (job(files_failed=2, last_failure="a loss", rate=0.0), Severity.WARNING, "because a loss"),
    ],
)
def test_a_job_that_does_not_go_on(row: JobRow, severity: Severity, words: str) -> None:
    found = problem(row)
    assert found.severity is severity and words in f"{found.why} {found.remedy}"


def test_a_server_whose_targets_are_gone_is_no_problem_by_itself() -> None:
    gone = [server(1), server(2), replace(server(3), is_up=False)]
    assert problems_of(status([(9, 9)] * 2, nodes=gone)) == []


def test_when_waiting_ends() -> None:
    def seen(state: str | None, row: JobRow | None, ended_for_s: float = 0.0) -> _Seen:
        return _Seen(3, state, row, ended_for_s)

    assert not _is_drained(seen("draining", job())) and not _is_drained(seen("down", job()))
    assert _is_drained(seen("draining", job(state="done"))) and _is_drained(seen(None, job()))
    with pytest.raises(BraidError, match="drain was ended"):
        _is_drained(seen("up", job(state="done")))
    assert not _is_rebuilt(seen("lost", job("rebuild")))
    assert not _is_rebuilt(seen("lost", job("rebuild", state="done", ended_ns=9), 1.0)), (
        "it leaves soon"
    )
    assert _is_rebuilt(seen("lost", job("rebuild", state="done", ended_ns=9), 60.0)), (
        "files are lost"
    )
    assert _is_rebuilt(seen(None, None))
    assert not _is_rebuilt(seen("lost", job("rebuild", state="waiting", because="no room")))
    assert _is_rebuilt(seen("lost", job("rebuild", state="waiting", because=ARE_LOST)))
