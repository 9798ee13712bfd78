"""Delays and timeouts that grow with each failure."""

from hypothesis import given
from hypothesis import strategies as st

from fscommon.net.backoff import CONNECT_S_MAX, CONNECT_S_MIN, DELAY_S_MIN, Backoff


def test_both_grow_to_a_bound_and_begin_anew() -> None:
    backoff = Backoff(delay_s_max=1.0, uniform=lambda low, high: high)
    assert backoff.connect_s == CONNECT_S_MIN
    delays, patience = [], []
    for _ in range(12):
        delays.append(backoff.failed())
        patience.append(backoff.connect_s)
    assert delays[:3] == [DELAY_S_MIN, 2 * DELAY_S_MIN, 4 * DELAY_S_MIN]
    assert delays == sorted(delays) and delays[-1] == 1.0
    assert patience == sorted(patience) and patience[-1] == CONNECT_S_MAX
    backoff.reset()
    assert (backoff.failed(), backoff.connect_s) == (DELAY_S_MIN, CONNECT_S_MIN * 1.5)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_waits_are_at_random_below_their_bound(chances: list[float]) -> None:
    left = iter(chances)
    backoff = Backoff(delay_s_max=0.8, uniform=lambda low, high: low + (high - low) * next(left))
    bound = DELAY_S_MIN
    for _ in chances:
        assert bound / 2 <= backoff.failed() <= bound
        bound = min(2 * bound, 0.8)
