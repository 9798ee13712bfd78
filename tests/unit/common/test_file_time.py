"""Times as records store them."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from fscommon.file_time import TIME_MAX_S, TIME_MIN_S, kept_time, true_time

SECOND = 10**9


@given(st.integers(TIME_MIN_S * SECOND, TIME_MAX_S * SECOND))
def test_what_ext4_can_keep_is_kept(time_ns: int) -> None:
    kept = kept_time(time_ns)
    struct.pack("<q", kept)
    wanted = time_ns if time_ns >= (TIME_MIN_S + 1) * SECOND else TIME_MIN_S * SECOND
    assert true_time(kept) == wanted


@given(st.integers(-(2**80), 2**80))
def test_beyond_it_is_the_nearest(time_ns: int) -> None:
    struct.pack("<q", kept_time(time_ns))
    true = true_time(kept_time(time_ns))
    assert TIME_MIN_S * SECOND <= true <= TIME_MAX_S * SECOND
    if not TIME_MIN_S * SECOND <= time_ns <= TIME_MAX_S * SECOND:
        assert true == (TIME_MIN_S if time_ns < 0 else TIME_MAX_S) * SECOND


@given(st.integers(TIME_MIN_S * SECOND, 2**63 - 1))
def test_records_of_before_say_the_same(kept_ns: int) -> None:
    assert true_time(kept_ns) == kept_ns
