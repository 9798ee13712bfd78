"""Replicas as administrators see them: room, find --degraded and --lost, problems, layouts."""

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsclient.cli.find import Wanted
from fsclient.cli.space import _df_json
from fsclient.cli.stat import _places, layout_json
from fscommon.layout.attributes import Attributes
from fscommon.layout.layout import VACANT, Layout, Replica
from fscommon.observe.health import problems_of
from fscommon.observe.problem import Severity
from fscommon.observe.room import fitting, room_with
from fscommon.observe.status import node_json
from fscommon.wire.admin import NodeStatus, Traffic
from fscommon.wire.features import FEATURE_REPLICAS
from fscommon.wire.messages import ClusterMap, StatFsReply, StatusReply, TargetEntry


def server(number: int, **changes: Any) -> NodeStatus:
    values = {"domain": f"d{number}", "features": FEATURE_REPLICAS, **changes}
    return NodeStatus(number, f"s{number}", f"h:{number}", True, 1.0, True, Traffic(), **values)


def status(
    rooms: Iterable[tuple[int, int]],
    states: Iterable[str] = (),
    nodes: Iterable[NodeStatus] = (),
    **changes: Any,
) -> StatusReply:
    """A cluster of servers with one target each, with these bytes in all and free."""
    rooms = tuple(rooms)
    whole = tuple(states) or ("up",) * len(rooms)
    targets = tuple(
        TargetEntry(at, at, f"h:{at}", state, total, free)
        for at, ((total, free), state) in enumerate(zip(rooms, whole, strict=True), 1)
    )
    total, free = (sum(room) for room in zip(*rooms, strict=True))
    open_ = sum(row.bytes_free for row in targets if row.state != "draining")
    return StatusReply(
        cluster=bytes(16),
        map=ClusterMap(1, bytes(16), targets),
        clients=(),
        recovering=False,
        txn=1,
        durable=1,
        files=StatFsReply(total, free, open_, 10, 5),
        nodes=tuple(nodes) or tuple(server(at) for at in range(1, len(rooms) + 1)),
        health=(),
        version="1",
        uptime_s=1.0,
        chunk_size=1 << 20,
        stripe_width_max=4,
        **changes,
    )


# ---- room ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rooms", "replicas", "fits"),
    [
        ([], 1, 0),
        ([7], 1, 7),
        ([7], 2, 0),
        ([10, 1], 2, 1),
        ([10, 4, 6], 2, 10),
        ([5, 5, 5], 2, 7),
        ([10, 4, 6], 3, 4),
        ([100, 1, 1], 2, 2),
        ([9, 9], 3, 0),
    ],
)
def test_how_much_fits(rooms: list[int], replicas: int, fits: int) -> None:
    assert fitting(rooms, replicas) == fits


def greedily(rooms: list[int], replicas: int) -> int:
    """Stores byte after byte, each in the domains with most room."""
    left, stored = list(rooms), 0
    while sum(room > 0 for room in left) >= replicas:
        for at in sorted(range(len(left)), key=lambda at: -left[at])[:replicas]:
            left[at] -= 1
        stored += 1
    return stored


@given(rooms=st.lists(st.integers(0, 30), max_size=6), replicas=st.integers(1, 3))
def test_as_much_fits_as_can_be_stored(rooms: list[int], replicas: int) -> None:
    assert fitting(rooms, replicas) == greedily(rooms, replicas)


def test_room_by_number_of_replicas() -> None:
    seen = _df_json(status([(100, 90), (100, 50), (100, 20)], replicas=2, replicas_max=2))
    assert (seen["bytes_total"], seen["bytes_available"]) == (300, 160), "of the targets"
    assert seen["usable"] == {"replicas": 2, "bytes_total": 150, "bytes_available": 70}
    assert seen["fits"] == {"1": 160, "2": 70, "3": 20}


def test_servers_of_one_domain_hold_one_replica() -> None:
    nodes = [server(1, domain="rack"), server(2, domain="rack"), server(3)]
    seen = status([(100, 90), (100, 50), (100, 60)], nodes=nodes)
    assert room_with(seen, 2).bytes_available == 60
    assert room_with(seen, 3).bytes_available == 0


def test_room_that_replicas_cannot_use() -> None:
    nodes = [server(1), server(2, features=0), server(3)]
    seen = status([(100, 90), (100, 50), (100, 60)], ["up", "up", "draining"], nodes)
    assert room_with(seen, 1).bytes_available == 140
    assert (room_with(seen, 2).bytes_total, room_with(seen, 2).bytes_available) == (100, 0)


# ---- find ---------------------------------------------------------------------------------------

STATES = {1: "up", 2: "up", 3: "down", 4: "full", 5: "lost"}
GONE = 9
FILE = Attributes(ino=5, mode=0o100644, size=1)


def layout(*targets: int, replicas: int = 2, wanted: int = 0, inline: bytes = b"") -> Layout:
    width = len(targets) // replicas
    return Layout(
        7, 1 << 20, width, targets, replicas, replicas_wanted=wanted or replicas, inline=inline
    )


@pytest.mark.parametrize(
    ("file", "is_degraded", "is_lost"),
    [
        (layout(1, 2), False, False),
        (layout(1, 3), False, False),
        (layout(1, 2, 2, VACANT), True, False),
        (layout(1, GONE), True, False),
        (layout(1, 5), True, False),
        (layout(5, 3), True, True),
        (layout(3, VACANT), True, True),
        (layout(GONE, 3), True, True),
        (layout(1, 2, 3, GONE), True, True),
        (layout(4, 2, VACANT, replicas=3, wanted=2), False, False),
        (layout(4, VACANT, VACANT, replicas=3, wanted=2), True, False),
        (layout(1, 2, replicas=1), False, False),
        (layout(1, 3, replicas=1), False, True),
        (layout(1, GONE, replicas=1), True, True),
        (layout(3, VACANT, inline=b"x"), False, False),
    ],
)
def test_files_without_all_replicas_are_found(
    file: Layout, is_degraded: bool, is_lost: bool
) -> None:
    for degraded, lost in product((False, True), repeat=2):
        found = Wanted(degraded=degraded, lost=lost).takes(b"f", FILE, file.pack(), 0.0, STATES)
        assert found == ((is_degraded or not degraded) and (is_lost or not lost))


def test_what_is_no_file_lacks_nothing() -> None:
    assert not Wanted(degraded=True).takes(b"d", FILE, b"", 0.0, STATES)
    assert not Wanted(lost=True).takes(b"d", FILE, b"", 0.0, STATES)


# ---- stat and status ----------------------------------------------------------------------------


def test_each_replica_and_each_missing_one_has_a_row() -> None:
    whole = Layout(
        7, 1 << 20, 2, (1, 2, VACANT, 5, VACANT, VACANT), 3, 4, 0, 0, b"", (0, 3, 0, 2, 0, 0), 3, 2
    )
    assert list(_places(whole)) == [
        Replica(0, 1),
        Replica(0, 2, 3),
        Replica(1, 5, 2),
        Replica(1, VACANT),
    ]
    seen = layout_json(whole)
    assert (seen["replicas"], seen["places"], seen["generations"]) == (2, 3, [0, 3, 0, 2, 0, 0])
    alone = layout(4, 5, replicas=1)
    assert list(_places(alone)) == [Replica(0, 4), Replica(1, 5)]
    assert layout_json(alone)["generations"] == [0, 0]


def test_a_node_shows_its_domain() -> None:
    seen = node_json(server(1, domain="rack7", is_suspect=True))
    assert (seen["domain"], seen["knows_replicas"], seen["suspect"]) == ("rack7", True, True)
    assert not node_json(server(1, features=0))["knows_replicas"]


def test_a_suspect_server_is_a_problem() -> None:
    [problem] = problems_of(status([(100, 50)], nodes=[server(1, is_suspect=True)]))
    assert problem.severity is Severity.WARNING and "s1" in problem.what
    assert "too often" in problem.what


@pytest.mark.parametrize(
    ("nodes", "states"),
    [
        ([server(1), server(2, features=0)], ["up", "up"]),
        ([server(1), server(2, domain="d1")], ["up", "up"]),
        ([server(1), server(2)], ["up", "draining"]),
    ],
)
def test_too_few_domains_are_a_problem(nodes: list[NodeStatus], states: list[str]) -> None:
    seen = status([(100, 50), (100, 50)], states, nodes, replicas=2, replicas_max=2)
    [problem] = [one for one in problems_of(seen) if one.severity is Severity.ERROR]
    assert "2 replicas, and 1 failure domain can take them" in problem.what
    alone = status([(100, 50), (100, 50)], states, nodes)
    assert not [one for one in problems_of(alone) if one.severity is Severity.ERROR]
