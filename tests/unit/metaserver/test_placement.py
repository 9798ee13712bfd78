"""Placement of replicas: distinct failure domains, even spread, weights, stability."""

from collections import Counter
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fscommon.errors import FsError, Status
from fscommon.layout.layout import VACANT, Layout
from fscommon.types import FileId, NodeId, TargetId
from fscommon.wire.features import FEATURE_REPLICAS
from fscommon.wire.servers import TargetReport
from metaserver.flaps import FLAPS_MAX, FLAPS_S
from metaserver.membership import NODE_TIMEOUT_S, Membership, Node, Target
from metaserver.placement import Placement, ReplicaPolicy, Spot, domain_of, weight_of

GIB = 1 << 30
THREE = ReplicaPolicy(1, degraded_ok=False, replicas_max=3)


def spots_of(domains: list[list[int]]) -> list[Spot]:
    """Targets with these weights, domain by domain."""
    numbers = count(1)
    return [
        Spot(next(numbers), f"d{domain}", weight)
        for domain, weights in enumerate(domains)
        for weight in weights
    ]


def rows_of(targets: tuple[int, ...], replicas: int) -> list[tuple[int, ...]]:
    return [targets[at : at + replicas] for at in range(0, len(targets), replicas)]


WEIGHTS = st.lists(st.integers(1, 1 << 50), min_size=1, max_size=6)


@given(
    domains=st.lists(WEIGHTS, min_size=1, max_size=6),
    replicas=st.integers(1, 3),
    width=st.integers(1, 64),
    file_ids=st.lists(st.integers(1, 1 << 62), min_size=1, max_size=20),
)
def test_replicas_are_in_distinct_domains(
    domains: list[list[int]], replicas: int, width: int, file_ids: list[int]
) -> None:
    spots = spots_of(domains)
    domain_by_target = {spot.target: spot.domain for spot in spots}
    placement = Placement(spots)
    for file_id in file_ids:
        rows = rows_of(placement.place(file_id, width, replicas), replicas)
        assert len(rows) == min(width, len(spots))
        for row in rows:
            there = [target for target in row if target != VACANT]
            assert len(there) == min(replicas, len(domains))
            assert row[: len(there)] == tuple(there), "vacant places are the last ones"
            assert len({domain_by_target[target] for target in there}) == len(there)
        assert len({row[0] for row in rows}) == len(rows), "first replicas: as today"


@given(domains=st.lists(WEIGHTS, min_size=2, max_size=6), file_id=st.integers(1, 1 << 62))
def test_it_depends_on_the_spots_and_the_file_alone(domains: list[list[int]], file_id: int) -> None:
    spots = spots_of(domains)
    used = Placement(spots)
    for other in range(200):
        used.place(other, 4, 3)
    assert used.place(file_id, 4, 3) == Placement(spots).place(file_id, 4, 3)
    assert used.place(file_id, 4, 2) == Placement(spots).place(file_id, 4, 2)


@given(
    nodes=st.integers(3, 20),
    per_node=st.integers(1, 4),
    replicas=st.integers(2, 3),
    first=st.integers(1, 1 << 50),
)
@settings(max_examples=40)
def test_a_run_of_files_is_spread_evenly(
    nodes: int, per_node: int, replicas: int, first: int
) -> None:
    """Equal targets get the same share of second and of third replicas, within a third."""
    placement = Placement(spots_of([[1 << 38] * per_node] * nodes))
    files = 100 * nodes * per_node
    placed = [Counter[int]() for _ in range(replicas)]
    for file_id in range(first, first + files):
        for place, target in enumerate(placement.place(file_id, 1, replicas)):
            placed[place][target] += 1
    for by_target in placed:
        assert len(by_target) == nodes * per_node
        assert max(by_target.values()) <= 133
        assert min(by_target.values()) >= 67


@given(first=st.integers(1, 1 << 50), nodes=st.integers(2, 8))
@settings(max_examples=40)
def test_the_stripes_of_a_file_have_their_second_replicas_apart(first: int, nodes: int) -> None:
    """Else one target would get all bytes of a wide file."""
    placement = Placement(spots_of([[1 << 38] * 8] * nodes))
    most = Counter[int]()
    for file_id in range(first, first + 100):
        seconds = Counter(row[1] for row in rows_of(placement.place(file_id, 8, 2), 2))
        most[max(seconds.values())] += 1
    assert most[1] + most[2] + most[3] == 100
    assert most[3] <= 10


@given(weights=st.lists(st.integers(1, 20), min_size=3, max_size=12), first=st.integers(1, 1 << 50))
@settings(max_examples=40)
def test_others_lie_where_the_room_is(weights: list[int], first: int) -> None:
    """One target in each domain. A target gets the second replicas of the files that begin on
    another one in proportion to its weight there."""
    total, number = sum(weights), len(weights)
    placement = Placement(spots_of([[weight << 36] for weight in weights]))
    files = 2000
    placed = Counter(placement.place(file_id, 1, 2)[1] for file_id in range(first, first + files))
    for target, weight in enumerate(weights, 1):
        others = [one for at, one in enumerate(weights, 1) if at != target]
        wanted = files / number * sum(weight / (total - one) for one in others)
        assert abs(placed[target] - wanted) <= 0.1 * wanted + 0.02 * files


def test_a_weight_seldom_changes() -> None:
    assert weight_of(0) == 1
    weights = [weight_of(free * GIB) for free in range(1, 1025)]
    assert weights == sorted(weights)
    assert len(set(weights)) <= 4 * 11
    assert all(0.75 * free * GIB < weight for free, weight in enumerate(weights, 1))


def test_the_domain_of_a_node_is_its_host_unless_it_says_another_one() -> None:
    assert domain_of("stor1:7411", "name") == "stor1"
    assert domain_of("[fd00::1]:7411", "name") == "fd00::1"
    assert domain_of("", "name") == "name"


# ---- which targets the membership offers --------------------------------------------------------


def membership(nodes: int, policy: ReplicaPolicy = THREE) -> Membership:
    """So many nodes with two targets each."""
    made = Membership(cluster=b"c" * 16, epoch=1, chunk_size=1 << 20, width_max=4, policy=policy)
    for number in range(1, nodes + 1):
        put_node(made, number)
        for target in (2 * number - 1, 2 * number):
            made.put_target(target_of(number, target))
    return made


def put_node(made: Membership, number: int, features: int = FEATURE_REPLICAS) -> None:
    uuid, address = bytes([number]) * 16, f"h{number}:1"
    node = Node(NodeId(number), uuid, "n", address, 0.0, domain=f"h{number}", features=features)
    made.put_node(node)


def target_of(node: int, target: int) -> Target:
    uuid = bytes([target]) * 16
    return Target(TargetId(target), uuid, NodeId(node), 100 * GIB, 50 * GIB)


def report(target: int, free: int) -> TargetReport:
    return TargetReport(target, bytes([target]) * 16, 1, 100 * GIB, free, 0, 0)


def used(made: Membership, replicas: int = 2) -> set[int]:
    """All targets on which new replicas lie."""
    return {
        target for file_id in range(1, 500) for target in made.place_replicas(file_id, 4, replicas)
    }


def test_no_replica_goes_to_a_target_that_takes_no_files() -> None:
    made = membership(6)
    assert used(made) == set(range(1, 13))
    made.set_draining([1], wanted=True)
    assert used(made) == set(range(2, 13))
    made.heard(NodeId(1), [report(1, 50 * GIB), report(2, 0)], 0.0)  # full
    assert used(made) == set(range(3, 13))
    joining = target_of(1, 13)
    joining.joining_epoch = 2
    made.put_target(joining)
    assert used(made) == set(range(3, 13))
    put_node(made, 2, features=0)
    assert used(made) == set(range(5, 13))
    for node in (1, 2, 4, 5, 6):
        made.heard(NodeId(node), (), 20.0)
    made.expire(20.0 + NODE_TIMEOUT_S)
    assert used(made) == set(range(7, 13))
    made.joined(2)
    assert used(made) == set(range(7, 14))


def test_one_replica_goes_where_it_always_went() -> None:
    """Nodes that do not know replicas, and those that are suspect, get files with one."""
    made = membership(2)
    before = [made.place(FileId(file_id), 4) for file_id in range(1, 100)]
    put_node(made, 2, features=0)
    assert [made.place(FileId(file_id), 4) for file_id in range(1, 100)] == before


def test_first_replicas_lie_as_files_of_one_replica_do() -> None:
    made = membership(4)
    for file_id in range(1, 500):
        firsts = [row[0] for row in rows_of(made.place_replicas(file_id, 3, 2), 2)]
        assert tuple(firsts) == made.place(FileId(file_id), 3)


def test_free_room_counts_as_heartbeats_tell_it() -> None:
    made = membership(3)

    def on_third_node() -> int:
        return sum(made.place_replicas(file_id, 1, 2)[1] > 4 for file_id in range(1, 1001))

    before = on_third_node()
    made.heard(NodeId(3), [report(5, 5 * GIB), report(6, 5 * GIB)], 0.0)
    assert on_third_node() < before / 3


def test_too_few_domains() -> None:
    made = membership(1)
    with pytest.raises(
        FsError, match=r"2 replicas need 2 failure domains .* there is 1$"
    ) as caught:
        made.place_replicas(1, 4, 2)
    assert caught.value.status is Status.ENOSPC
    with pytest.raises(FsError, match=r"3 failure domains .* there are 2$"):
        membership(2).place_replicas(1, 4, 3)
    with pytest.raises(FsError, match=r"there are 0$"):
        membership(0).place_replicas(1, 4, 2)


def test_fewer_replicas_where_that_is_allowed() -> None:
    policy = ReplicaPolicy(1, degraded_ok=True, replicas_max=3)
    made = membership(1, policy)
    assert sorted(rows_of(made.place_replicas(1, 4, 2), 2)) == [(1, VACANT), (2, VACANT)]
    rows = rows_of(membership(2, policy).place_replicas(1, 4, 3), 3)
    assert all(row[2] == VACANT != row[1] for row in rows)
    with pytest.raises(FsError, match=r"there are 0$"):
        membership(0, policy).place_replicas(1, 4, 2)


def go_down(made: Membership, node: int, now_s: float) -> None:
    for one in made.nodes():
        made.heard(one.id, (), now_s - (NODE_TIMEOUT_S + 1 if one.id == node else 0))
    assert [one.id for one in made.expire(now_s)] == [node]
    made.heard(NodeId(node), (), now_s)


def test_a_node_that_goes_down_too_often_is_suspect_for_a_while() -> None:
    made = membership(3)
    for time in range(FLAPS_MAX):
        go_down(made, 1, 100.0 * (time + 1))
    assert used(made) == {1, 2, 3, 4, 5, 6}
    go_down(made, 1, 500.0)
    assert made.is_suspect(NodeId(1)) and not made.is_suspect(NodeId(2))
    assert used(made) == {3, 4, 5, 6}
    assert 1 in {target for id_ in range(100) for target in made.place(FileId(id_), 4)}
    for node in (1, 2, 3):
        made.heard(NodeId(node), (), 100.0 + FLAPS_S)
    made.expire(100.0 + FLAPS_S)
    assert used(made) == {1, 2, 3, 4, 5, 6}


def test_rare_outages_are_not_suspicious() -> None:
    made = membership(3)
    for time in range(10):
        go_down(made, 1, (time + 1) * (FLAPS_S / FLAPS_MAX + 1))
        assert not made.is_suspect(NodeId(1))


# ---- layouts without bytes yet ------------------------------------------------------------------


def layout(*targets: int, replicas: int = 2) -> Layout:
    return Layout(7, 1 << 20, len(targets) // replicas, targets, replicas, replicas_wanted=replicas)


def test_targets_that_are_gone_are_replaced_before_anything_is_there() -> None:
    made = membership(3)
    assert made.known(layout(1, 3, 2, 5)) == (1, 3, 2, 5)
    for whole in (layout(1, 3, 99, 5), layout(1, 3, 2, VACANT), layout(1, 3, 98, 99)):
        targets = made.known(whole)
        assert targets[:2] == (1, 3) and len(targets) == 4
        assert {(target + 1) // 2 for target in targets[2:]} < {1, 2, 3}
        assert len({(target + 1) // 2 for target in targets[2:]}) == 2
    degraded = membership(1, ReplicaPolicy(1, degraded_ok=True, replicas_max=3))
    assert degraded.known(layout(1, VACANT)) == (1, VACANT), "nothing better is there"
    assert membership(0).known(layout(8, 9)) == (8, 9)


def test_a_copy_may_lie_on_the_same_targets_if_these_take_replicas() -> None:
    made = membership(3)
    assert made.may_share(layout(1, 3, 2, 5))
    assert made.may_share(layout(1, 2, replicas=1))
    assert not made.may_share(layout(1, 3, 2, VACANT))
    assert not made.may_share(layout(1, 2)), "one domain"
    made.set_draining([5], wanted=True)
    assert not made.may_share(layout(1, 3, 2, 5))
    put_node(made, 1, features=0)
    assert not made.may_share(layout(1, 3))
    assert made.may_share(layout(1, 2, replicas=1))
