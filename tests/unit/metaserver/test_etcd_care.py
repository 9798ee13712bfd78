"""When etcd's members are defragmented, and when the alarm NOSPACE is ended."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import trio

from fscommon.observe.log import Log
from metaserver import engine_care
from metaserver.engine_care import care_for_engine
from metaserver.store.journal import FencedError, Head, UnreachableError
from metaserver.store.journals.etcd import EtcdJournal
from metaserver.store.journals.etcd_care import (
    IN_USE_ALONE_MAX,
    IN_USE_MAX,
    PAUSE_S,
    EtcdCare,
    have_room,
    next_to_defragment,
)
from metaserver.store.journals.etcd_gateway import EtcdSettings
from metaserver.store.journals.etcd_members import EtcdServer
from metaserver.store.journals.memory import MemoryJournal, MemoryLog
from tests.unit.waiting import eventually

from .etcd_stand_in import EtcdStandIn, etcd_stand_in, http_answer, json_answer, refusal

GIB = 1 << 30
LEADER = EtcdServer("h1:2379", "11", True, GIB + 9, 5, 2 * GIB, "3.4.23")
SECOND = replace(LEADER, endpoint="h2:2379", member="12", is_leader=False, size=GIB + 1)
THIRD = replace(SECOND, endpoint="h3:2379", member="13", size=GIB + 2)


def small(server: EtcdServer) -> EtcdServer:
    return replace(server, size=100)


def chosen(*servers: EtcdServer, count: int = 3, is_full: bool = False) -> str | None:
    found = next_to_defragment(servers, count, is_full=is_full)
    return found.endpoint if found else None


def test_the_leader_comes_last() -> None:
    assert chosen(LEADER, SECOND, THIRD) == "h3:2379"
    assert chosen(LEADER, SECOND, small(THIRD)) == "h2:2379"
    assert chosen(LEADER, small(SECOND), small(THIRD)) == "h1:2379"
    assert chosen(*map(small, (LEADER, SECOND, THIRD))) is None


@pytest.mark.parametrize(
    ("changes", "is_worth", "is_worth_when_full"),
    [
        ({"size": GIB - 1}, False, True),
        ({"in_use": GIB // 2 + 9}, False, True),
        ({"in_use": IN_USE_ALONE_MAX}, True, True),
        ({"in_use": IN_USE_ALONE_MAX + 1}, False, True),
        ({"size": 2 * GIB, "in_use": 9 * 2 * GIB // 10 + 9}, False, False),
        ({"quota": None}, False, False),
        ({"version": "3.5.5"}, False, False),
        ({"version": "3.5.0-rc.1"}, False, False),
        ({"version": "3.5.6"}, True, True),
        ({"version": "3.5.16"}, True, True),
    ],
)
def test_what_is_worth_it(
    changes: dict[str, Any], is_worth: bool, is_worth_when_full: bool
) -> None:
    one = replace(SECOND, **changes)
    assert (chosen(one, count=1) is not None) == is_worth
    assert (chosen(one, count=1, is_full=True) is not None) == is_worth_when_full


def test_of_several_one_may_take_longer() -> None:
    large = replace(SECOND, size=2 * GIB, in_use=IN_USE_MAX)
    assert chosen(small(LEADER), large, small(THIRD)) == "h2:2379"
    assert chosen(small(LEADER), replace(large, in_use=IN_USE_MAX + 1), small(THIRD)) is None


def test_one_that_is_absent_keeps_the_others_from_it_unless_etcd_is_full() -> None:
    assert chosen(LEADER, SECOND) is None
    assert chosen(LEADER, SECOND, is_full=True) == "h2:2379"


def test_a_full_one_that_has_compacted_may_hold_less_than_it_says() -> None:
    dense = replace(SECOND, size=2 * GIB, in_use=2 * GIB)
    assert chosen(dense, count=1, is_full=True) is None
    for is_full, size, expected in (
        (True, 2 * GIB, dense),
        (True, GIB, None),  # it has room
        (False, 2 * GIB, None),  # the next change lets it count
    ):
        servers = [replace(dense, size=size, in_use=size)]
        found = next_to_defragment(servers, 1, is_full=is_full, uncounted=["12"])
        assert found == expected


def test_when_there_is_room() -> None:
    roomy = [small(one) for one in (LEADER, SECOND, THIRD)]
    assert have_room(roomy, 3) and have_room(roomy[:2], 3)
    assert not have_room(roomy[:1], 3), "most of them do not answer"
    assert not have_room([*roomy[:2], replace(THIRD, size=3 * GIB // 2)], 3)
    assert not have_room([*roomy[:2], replace(small(THIRD), quota=None)], 3)
    assert not have_room([], 0)


# ---- with an etcd ------------------------------------------------------------------------------


class OneMember:
    """A stand-in for an etcd of one member, with a file that a defragmentation makes small."""

    def __init__(self, etcd: EtcdStandIn) -> None:
        self.etcd = etcd
        self.size, self.in_use, self.compacted = 100, 5, 0
        self.alarms = [{"memberID": "11", "alarm": "NOSPACE"}]
        self.refused: bytes | None = None
        etcd.before = self.before

    def before(self, path: str, body: dict[str, Any]) -> bytes | None:
        header = {"cluster_id": self.etcd.cluster, "member_id": "11"}
        if path == "/metrics":
            compacted = f"etcd_debugging_mvcc_db_compaction_keys_total {self.compacted}\n"
            return http_answer(b"etcd_server_quota_backend_bytes 100\n" + compacted.encode())
        if path == "/v3/maintenance/status":
            sizes = {"dbSize": str(self.size), "dbSizeInUse": str(self.in_use)}
            return json_answer({"header": header, "leader": "11", "version": "3.4.23", **sizes})
        if path == "/v3/maintenance/defragment":
            self.size = self.in_use if self.refused is None else self.size
            return self.refused or json_answer({})
        if path == "/v3/maintenance/alarm":
            if body["action"] == "DEACTIVATE":
                gone = {"memberID": body["memberID"], "alarm": body["alarm"]}
                self.alarms.remove(gone)
            return json_answer({"header": header, "alarms": self.alarms})
        return None

    def count(self, path: str) -> int:
        return sum(asked == path for asked, _ in self.etcd.requests)


@pytest.fixture
def member() -> Iterator[OneMember]:
    with etcd_stand_in() as etcd:
        yield OneMember(etcd)


@pytest.fixture
def journal(member: OneMember) -> Iterator[EtcdJournal]:
    settings = EtcdSettings((member.etcd.endpoint,), "/fs", timeout_s=20.0)
    with contextlib.closing(EtcdJournal(settings)) as opened:
        yield opened


def claimed(journal: EtcdJournal) -> Head:
    return journal.claim(journal.sighting(), "ms1/1")


def test_only_the_alarm_of_no_space_is_ended(member: OneMember, journal: EtcdJournal) -> None:
    head = claimed(journal)
    corrupt = {"memberID": "11", "alarm": "CORRUPT"}
    member.alarms.insert(0, corrupt)
    assert "is defragmented" in journal.care(head)[0]
    assert "NOSPACE is ended" in journal.care(head)[0]
    assert journal.care(head) == [] and member.alarms == [corrupt]


def test_a_former_metaserver_changes_nothing(member: OneMember, journal: EtcdJournal) -> None:
    head = claimed(journal)
    claimed(journal)
    with pytest.raises(FencedError):
        journal.care(head)
    member.size = 5
    with pytest.raises(FencedError):
        journal.care(head)
    assert member.alarms and not member.count("/v3/maintenance/defragment")


def test_a_full_one_is_defragmented_once_after_each_compaction(
    member: OneMember, journal: EtcdJournal
) -> None:
    """Nobody changes anything, so it does not count anew what is in use."""
    head = claimed(journal)
    member.in_use = member.size
    assert journal.care(head) == []
    for compacted in (9, 12):
        member.compacted = compacted
        assert "is defragmented" in journal.care(head)[0]
        assert journal.care(head) == [], "it did not help"
    member.compacted = 0  # it was started again
    member.in_use = 5
    assert "is defragmented" in journal.care(head)[0]
    assert "NOSPACE is ended" in journal.care(head)[0]


def test_minutes_are_between_two(member: OneMember, journal: EtcdJournal) -> None:
    now_s = [0.0]
    gateway, endpoint = journal._gateway, member.etcd.endpoint
    care = EtcdCare(gateway, (endpoint,), 20.0, clock=lambda: now_s[0])
    member.alarms.clear()
    assert care.care(lambda: None)
    member.size = 100
    now_s[0] += PAUSE_S - 1
    assert care.care(lambda: None) == []
    now_s[0] += 2
    assert care.care(lambda: None)


def test_one_that_is_refused_is_not_tried_again_at_once(
    member: OneMember, journal: EtcdJournal
) -> None:
    """A user without the role root may not do it; and one that ran out of time goes on."""
    head = claimed(journal)
    member.refused = refusal("etcdserver: permission denied", code=7, status="403 Forbidden")
    with pytest.raises(UnreachableError, match="is not defragmented: etcdserver: permission"):
        journal.care(head)
    assert journal.care(head) == [] and member.alarms
    assert member.count("/v3/maintenance/defragment") == 1


# ---- the task of the active metaserver -----------------------------------------------------------


class CaredFor(MemoryJournal):
    def __init__(self, care: Callable[[], list[str]]) -> None:
        super().__init__(MemoryLog())
        self._do = care
        self.is_closed = False

    def care(self, head: Head) -> list[str]:
        return self._do()

    def close(self) -> None:
        self.is_closed = True


async def test_the_task_goes_on_after_errors_and_ends_with_the_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_care, "CARE_S", 0.01)
    outcomes: list[Exception | None] = [UnreachableError("no answer"), None, FencedError("gone")]

    def care() -> list[str]:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome
        return ["something"]

    door = CaredFor(care)
    with trio.fail_after(20):
        await care_for_engine(door, Head(), Log("test"))
    assert outcomes == [] and door.is_closed


async def test_nobody_waits_for_a_call_that_lasts() -> None:
    lasts = threading.Event()

    def care() -> list[str]:
        lasts.wait(20)
        return []

    door = CaredFor(care)
    with trio.move_on_after(0.2) as scope:
        await care_for_engine(door, Head(), Log("test"))
    assert scope.cancelled_caught and not door.is_closed
    lasts.set()
    await eventually(lambda: door.is_closed)


async def test_an_engine_that_needs_none() -> None:
    with trio.fail_after(20):
        await care_for_engine(MemoryJournal(MemoryLog()), Head(), Log("test"))
