"""When a client uses RDMA, pauses it, and uses it again."""

from fsclient.rdma import REST_S_MAX, REST_S_MIN, SHORT_LIFE_S, TransportPolicy

NODE, LANE = 7, 0


def test_a_failure_rests_the_node_and_longer_each_time() -> None:
    policy = TransportPolicy(required=False)
    now = 0.0
    rests = []
    for _ in range(12):
        assert policy.use_rdma(NODE, LANE, now)
        policy.failed(NODE, LANE, now)
        rest = REST_S_MIN
        while not policy.may_return(NODE, now + rest):
            rest *= 2
        rests.append(rest)
        now += rest
    assert rests[:3] == [REST_S_MIN, 2 * REST_S_MIN, 4 * REST_S_MIN]
    assert max(rests) <= 2 * REST_S_MAX


def test_other_nodes_are_not_concerned() -> None:
    policy = TransportPolicy(required=False)
    policy.failed(NODE, LANE, 0.0)
    assert not policy.use_rdma(NODE, LANE, 1.0)
    assert policy.use_rdma(NODE + 1, LANE, 1.0)
    assert policy.turn(NODE + 1, LANE) == 0


def test_a_lane_that_failed_tries_its_next_rail_and_stays_where_it_works() -> None:
    policy = TransportPolicy(required=False)
    assert policy.turn(NODE, LANE) == 0
    policy.failed(NODE, LANE, 0.0)
    policy.failed(NODE, LANE + 1, 0.1)  # this is one failure of the node, seen by two lanes
    assert [policy.turn(NODE, lane) for lane in (LANE, LANE + 1, LANE + 2)] == [1, 1, 0]
    assert policy.use_rdma(NODE, LANE, REST_S_MIN)
    policy.made(NODE, LANE, REST_S_MIN)
    assert policy.use_rdma(NODE, LANE, REST_S_MIN + SHORT_LIFE_S + 1)
    assert policy.turn(NODE, LANE) == 1


def test_a_connection_that_broke_at_once_counts_as_a_failure() -> None:
    policy = TransportPolicy(required=False)
    policy.made(NODE, LANE, 0.0)
    assert not policy.use_rdma(NODE, LANE, SHORT_LIFE_S / 2)


def test_one_that_lived_is_made_again_by_rdma() -> None:
    policy = TransportPolicy(required=False)
    policy.made(NODE, LANE, 0.0)
    assert policy.use_rdma(NODE, LANE, SHORT_LIFE_S + 1)


def test_a_mount_that_demands_rdma_never_uses_tcp() -> None:
    policy = TransportPolicy(required=True)
    policy.failed(NODE, LANE, 0.0)
    assert policy.use_rdma(NODE, LANE, 0.1)


def test_each_change_is_told_once() -> None:
    policy = TransportPolicy(required=False)
    told = [policy.is_news(NODE, word) for word in ("RDMA", "RDMA", "TCP", "TCP", "RDMA")]
    assert told == [True, False, True, False, True]
