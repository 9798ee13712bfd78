"""What the active metaserver says of its group: who follows, who is silent, who may take over."""

from dataclasses import replace

import pytest

from fscommon.errors import FsError, Status
from fscommon.observe.health import SILENT_STANDBY_S
from fscommon.observe.log import Log
from fscommon.observe.metrics import Metrics
from fscommon.wire.codec import decode, encode
from fscommon.wire.group import ALONE, MetaForget, MetaForgetting, MetaSwitch, MetaSwitching
from fscommon.wire.messages import Empty, StatusReply
from fscommon.wire.ops import Op
from metaserver.group_metrics import forget_active, show_active
from metaserver.group_status import (
    APPENDS_S,
    FORGET_S,
    NEAR_ENTRIES,
    AppendTimes,
    GroupView,
    health_of,
)
from metaserver.owners import Owner
from metaserver.standby import Standby
from metaserver.store.journal import EngineHealth, EngineMember, Head, Member, Sighting
from metaserver.store.journals.memory import MemoryJournal, MemoryLog
from metaserver.store.memory import MemoryStore
from metaserver.store.terms import ActiveLease

from .bench import Bench, Client
from .test_standby import OwnMemory, Place

LOG = b"l" * 16
OWN = Member("a", "h1:7400", LOG, 0, 0)
OTHER = Member("b", "h2:7400", LOG, 100, 1)


class World:
    """A view with a head and a clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.head = Head(LOG, 7, 100, b"n" * 16, "a")
        self.lease = ActiveLease()
        self.lease.proven(self.now_s)
        self.view = GroupView(
            OWN, engine="etcd", head=lambda: self.head, lease=self.lease, clock=lambda: self.now_s
        )

    def look(self, *members: Member, after_s: float = 2.0, index: int | None = None) -> None:
        self.now_s += after_s
        if index is not None:
            self.head = replace(self.head, index=index)
        self.view.saw_members(members, self.head)


@pytest.fixture
def world() -> World:
    return World()


def test_a_standby_that_follows(world: World) -> None:
    world.look(OWN, OTHER)
    world.look(OWN, replace(OTHER, reports=2, applied=110), index=110)
    world.now_s += 1
    status = world.view.status()
    own, other = status.metaservers
    assert (own.name, own.is_active, own.applied) == ("a", True, 110)
    assert (other.name, other.address, other.is_active) == ("b", "h2:7400", False)
    assert (other.applied, other.behind, other.behind_s) == (110, 0, 0.0)
    assert other.seconds_since_report == 1.0
    assert (status.journal.term, status.journal.index) == (7, 110)
    assert status.journal.silence_s == 5.0 and status.standbys == (other,)
    assert decode(type(status), encode(status)) == status


def test_how_far_and_how_long_one_is_behind(world: World) -> None:
    world.look(OTHER)
    world.look(replace(OTHER, reports=2), index=150)
    world.look(replace(OTHER, reports=3), index=160)
    (other,) = world.view.status().standbys
    assert (other.behind, other.behind_s) == (60, 2.0)
    world.look(replace(OTHER, reports=4, applied=155), index=170)
    (other,) = world.view.status().standbys
    assert (other.behind, other.behind_s) == (15, 2.0), "since entry 160 was there"


def test_a_standby_with_the_state_of_another_journal_has_nothing(world: World) -> None:
    world.look(replace(OTHER, log=b"x" * 16))
    (other,) = world.view.status().standbys
    assert (other.applied, other.behind) == (0, 100)


def test_one_that_is_gone_from_the_journal_is_not_shown(world: World) -> None:
    world.look(OTHER)
    world.look()
    assert world.view.status().standbys == ()


def test_who_may_take_over(world: World) -> None:
    with pytest.raises(FsError, match="no other metaserver has reported"):
        world.view.switch()
    world.look(OTHER)
    with pytest.raises(FsError, match="b has not reported yet since the last take-over") as refused:
        world.view.switch()
    assert refused.value.status is Status.EBUSY and world.view.standbys() == 0
    world.look(replace(OTHER, reports=2))
    assert world.view.standbys() == 1
    assert world.view.switch() == ("a", 7) and world.view.switching.is_set()


@pytest.mark.parametrize(
    ("changes", "index", "after_s", "why"),
    [
        ({"reports": 2}, 100 + NEAR_ENTRIES, 0.0, ""),
        ({"reports": 2}, 101 + NEAR_ENTRIES, 0.0, "b is 2,001 entries behind"),
        ({"reports": 2}, 100, SILENT_STANDBY_S, ""),
        ({"reports": 2}, 100, SILENT_STANDBY_S + 1, "b has not reported for 11 s"),
        ({"reports": 2, "log": b"x" * 16}, 100, 0.0, "b has followed another journal"),
    ],
)
def test_why_one_may_not(
    world: World, changes: dict[str, object], index: int, after_s: float, why: str
) -> None:
    world.look(OTHER)
    world.look(replace(OTHER, **changes), index=index)  # type: ignore[arg-type]
    world.now_s += after_s
    if why:
        with pytest.raises(FsError, match=why):
            world.view.switch()
    assert world.view.standbys() == (0 if why else 1)
    assert not world.view.switching.is_set()


def test_times_of_appends() -> None:
    times = AppendTimes()
    assert times.quantiles(0.0) == (0.0, 0.0)
    for number in range(100):
        times.add(1.0, number / 1000)
    assert times.quantiles(2.0) == (0.05, 0.099)
    times.add(APPENDS_S, 7.0)
    assert times.quantiles(APPENDS_S + 2) == (7.0, 7.0), "older ones do not count"
    for took_s in (0.003, 0.001, 0.002):
        times.add(APPENDS_S, took_s)
    assert times.quantiles(APPENDS_S + 2) == (0.003, 0.002), "of a few, two do not count"


def test_the_engine(world: World) -> None:
    assert health_of(MemoryJournal(MemoryLog())) is None, "it has no servers"
    well = EngineMember("h:2379", True, True, 10, 100)
    ill = EngineMember("g:2379", False, alarms=("no answer",))
    world.view.saw_engine(EngineHealth("etcd", (well, ill)))
    first, second = world.view.status().journal.servers
    assert (first.bytes_used, first.bytes_max, first.is_leader) == (10, 100, True)
    assert (second.is_reachable, second.bytes_max, second.alarms) == (False, 0, ("no answer",))
    world.view.saw_engine(None)
    assert world.view.status().journal.servers == ()


def test_metrics_of_an_active_one_end_with_its_term(world: World) -> None:
    metrics = Metrics("metaserver")
    world.view.saw_engine(EngineHealth("etcd", (EngineMember("h:2379", True, True, 10, 100),)))
    show_active(metrics, world.view)

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"braidfs_{name}", labels)

    assert value("metaserver_active") == 1 and value("metaserver_standbys") == 0
    assert value("journal_term") == 7 and value("journal_index") == 100
    assert value("journal_engine_bytes", endpoint="h:2379") == 10
    forget_active(metrics)
    assert value("metaserver_standbys") is None
    assert value("journal_engine_bytes", endpoint="h:2379") is None
    assert value("journal_term") == 7
    show_active(metrics, world.view)
    assert value("journal_engine_bytes", endpoint="h:2379") == 10


# ---- who has handed over ------------------------------------------------------------------------


@pytest.mark.trio
@pytest.mark.parametrize("holds_back_s", [0.0, 2.0])
async def test_who_has_handed_over_claims_nothing_for_a_while(holds_back_s: float) -> None:
    place = Place()
    door = place.door()
    door.claim(Sighting(Head(), 0), "one h1:7400 x")
    door.claim(door.sighting(), "")  # it has resigned
    began_s = place.now_s
    own = OwnMemory()
    standby = Standby(
        MemoryStore(),
        door,
        Owner("two", "h2:7400"),
        clock=place.clock,
        own=own,
        log=Log("standby"),
        claims_from_s=began_s + holds_back_s,
    )
    claimed = await place.claimed(standby)
    assert claimed.head.owner.startswith("two ") and own.copied == []
    assert holds_back_s <= place.now_s - began_s < holds_back_s + 1.5


# ---- the ops ------------------------------------------------------------------------------------


def test_what_is_forgotten(world: World) -> None:
    world.look(OWN, OTHER)
    with pytest.raises(FsError, match=r"EBUSY.*a is active"):
        world.view.forget("a")
    with pytest.raises(FsError, match=r"ENOENT.*no metaserver c; beside the active: b"):
        world.view.forget("c")
    world.now_s += FORGET_S - 1
    with pytest.raises(FsError, match=r"EBUSY.*b has been heard of 59 s ago"):
        world.view.forget("b")
    assert world.view.to_forget() == []
    world.now_s += 2
    for _ in range(2):
        assert world.view.forget("b") == ("h2:7400", FORGET_S + 1)
    assert world.view.to_forget() == ["b"]
    world.view.forgot("b")
    world.look(OWN)
    assert world.view.to_forget() == [] and world.view.status().standbys == ()


def test_one_that_reports_again_is_not_forgotten(world: World) -> None:
    world.look(OTHER)
    world.now_s += 2 * FORGET_S
    world.look(replace(OTHER, reports=2))
    with pytest.raises(FsError, match="EBUSY"):
        world.view.forget("b")


def test_forgetting_by_an_op(world: World) -> None:
    bench = Bench()
    admin = Client(bench, bench.connect("admin"))
    with pytest.raises(FsError, match="this metaserver is alone"):
        admin.call(Op.META_FORGET, MetaForget("b"))
    bench.engine.services.group = world.view
    world.look(OTHER)
    world.now_s += 2 * FORGET_S
    with pytest.raises(FsError, match="EPERM"):
        Client(bench, bench.connect("meta")).call(Op.META_FORGET, MetaForget("b"))
    reply = admin.call(Op.META_FORGET, MetaForget("b"))
    assert reply == MetaForgetting("h2:7400", 2 * FORGET_S)
    assert world.view.to_forget() == ["b"]


def test_ops_of_a_metaserver_that_is_alone() -> None:
    bench = Bench()
    admin = Client(bench, bench.connect("admin"))
    reply: StatusReply = admin.call(Op.STATUS, Empty())
    assert reply.group == ALONE and reply.group.is_alone and reply.group.active is None
    with pytest.raises(FsError, match="this metaserver is alone"):
        admin.call(Op.META_SWITCH, MetaSwitch())


def test_ops_of_one_of_several(world: World) -> None:
    bench = Bench()
    bench.engine.services.group = world.view
    admin = Client(bench, bench.connect("admin"))
    with pytest.raises(FsError, match="no standby could take over now"):
        admin.call(Op.META_SWITCH, MetaSwitch())
    world.look(OTHER)
    world.look(replace(OTHER, reports=2))
    with pytest.raises(FsError, match="EPERM"):
        Client(bench, bench.connect("meta")).call(Op.META_SWITCH, MetaSwitch())
    assert not world.view.switching.is_set()
    assert admin.call(Op.META_SWITCH, MetaSwitch()) == MetaSwitching("a", 7)
    assert world.view.switching.is_set()
    reply: StatusReply = admin.call(Op.STATUS, Empty())
    assert [row.name for row in reply.group.metaservers] == ["a", "b"]
