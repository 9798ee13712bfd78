"""What `braidfs status` says of several metaservers and their journal."""

from dataclasses import replace

import pytest

from fscommon.observe.health import problems_of, silent_standbys
from fscommon.observe.problem import Severity, overall
from fscommon.observe.status import status_json
from fscommon.wire.group import EngineServer, GroupStatus, JournalStatus, MetaserverStatus

from .test_cli_parts import make_status

ACTIVE = MetaserverStatus("a", "h1:7400", True, 100, 0, 0.0, 0.0, "")
STANDBY = MetaserverStatus("b", "h2:7400", False, 98, 2, 1.0, 2.0, "")
SERVER = EngineServer("e1:2379", True, True, 10, 100, ())
JOURNAL = JournalStatus("etcd", 7, 100, 0.002, 0.01, 0.1, (SERVER,))


def said(*rows: MetaserverStatus, servers: tuple[EngineServer, ...] = (SERVER,)) -> list[str]:
    """Severity, what and why of each problem."""
    group = GroupStatus((ACTIVE, *rows), replace(JOURNAL, servers=servers))
    problems = problems_of(make_status(uptime_s=60.0, group=group))
    return [f"{one.severity.name} {one.what}: {one.why}" for one in problems]


def test_a_sound_group_has_no_problems() -> None:
    assert said(STANDBY) == []
    assert said(STANDBY, servers=(replace(SERVER, bytes_used=80),)) == []
    assert said(STANDBY, servers=(replace(SERVER, bytes_used=1 << 40, bytes_max=0),)) == []


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ((), "NOTE there is one metaserver: no other one has reported to the journal; if it fails"),
        (
            (replace(STANDBY, seconds_since_report=40.0),),
            "WARNING there is no standby metaserver: b has not reported for 40 s",
        ),
        (
            (STANDBY, replace(STANDBY, name="c", seconds_since_report=40.0)),
            "WARNING standby metaserver c (h2:7400) is silent: it has not reported",
        ),
        (
            (replace(STANDBY, behind=5000, behind_s=20.0),),
            "WARNING standby metaserver b (h2:7400) does not follow the journal: it lacks 5,000",
        ),
    ],
)
def test_what_is_wrong_with_standbys(rows: tuple[MetaserverStatus, ...], words: str) -> None:
    (problem,) = said(*rows)
    assert problem.startswith(words)


def test_a_damaged_store_is_told_until_it_is_removed() -> None:
    kept = "/var/lib/braidfs/metaserver/store.damaged-20261127T000000Z"
    (problem,) = said(replace(STANDBY, kept=kept))
    assert problem.startswith("WARNING the store of metaserver b (h2:7400) was damaged")
    assert problem.endswith(f"is kept as {kept}")


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (
            replace(SERVER, is_reachable=False, alarms=("refused",)),
            "WARNING e1:2379 of etcd is not reachable: 0 of 1 servers of the journal answer, and "
            "none of them leads yet, so that changes wait: refused",
        ),
        (replace(SERVER, bytes_used=81), "WARNING the store of etcd at e1:2379 is 81% full"),
        (replace(SERVER, bytes_used=96), "ERROR the store of etcd at e1:2379 is 96% full"),
        (replace(SERVER, alarms=("NOSPACE",)), "ERROR etcd has an alarm at e1:2379: NOSPACE"),
    ],
)
def test_what_is_wrong_with_the_engine(server: EngineServer, words: str) -> None:
    (problem,) = said(STANDBY, servers=(server,))
    assert problem.startswith(words)


def test_which_server_of_the_engine_leads() -> None:
    lost = replace(SERVER, is_reachable=False, is_leader=False, alarms=("refused",))
    (problem,) = said(STANDBY, servers=(lost, replace(SERVER, endpoint="e2:2379")))
    assert "1 of 2 servers of the journal answer, and e2:2379 leads: refused" in problem


def test_a_slow_engine() -> None:
    def found(p99_s: float) -> list[str]:
        group = GroupStatus((ACTIVE, STANDBY), replace(JOURNAL, append_p99_s=p99_s))
        return [one.why for one in problems_of(make_status(uptime_s=60.0, group=group))]

    assert found(0.3) == []
    (why,) = found(0.31)
    assert "one in two took 2 ms or more and one in a hundred 310 ms or more" in why


def test_why_a_standby_is_silent() -> None:
    silent = replace(STANDBY, seconds_since_report=40.0)
    for rows in ((silent,), (silent, replace(STANDBY, name="c"))):
        status = make_status(uptime_s=60.0, group=GroupStatus((ACTIVE, *rows), JOURNAL))
        assert [row.name for row in silent_standbys(status)] == ["b"]
        (problem,) = problems_of(status, silences={"b": "it hangs"})
        assert " for 40 s, and it hangs" in problem.why


def test_one_that_is_active_since_a_moment_does_not_miss_standbys() -> None:
    group = GroupStatus((ACTIVE,), JOURNAL)
    assert problems_of(make_status(uptime_s=3.0, group=group)) == []
    (problem,) = problems_of(make_status(uptime_s=11.0, group=group))
    assert problem.severity is Severity.NOTE


def test_one_with_a_journal_is_healthy_until_it_has_lost_another_one() -> None:
    for rows, health in (
        ((), "healthy"),
        ((replace(STANDBY, seconds_since_report=40.0),), "degraded"),
    ):
        group = GroupStatus((ACTIVE, *rows), JOURNAL)
        assert overall(problems_of(make_status(uptime_s=60.0, group=group))) == health


def test_json() -> None:
    found = status_json(make_status(group=GroupStatus((ACTIVE, STANDBY), JOURNAL)), [])
    assert [(row["name"], row["role"], row["term"]) for row in found["metaservers"]] == [
        ("a", "active", 7),
        ("b", "standby", None),
    ]
    assert found["journal"]["engine"] == "etcd"
    assert found["journal"]["servers"][0]["bytes_max"] == 100
    alone = status_json(make_status(), [])
    assert (alone["metaservers"], alone["journal"]) == ([], None)
