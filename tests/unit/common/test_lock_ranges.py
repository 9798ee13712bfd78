"""Lock ranges of one owner: split, merged, changed; compared with a list of bytes."""

from hypothesis import given
from hypothesis import strategies as st

from fscommon.layout.lock_ranges import LOCK_END, LockedRange, LockedRanges, LockType

SIZE = 12
STEPS = st.lists(
    st.tuples(st.integers(0, SIZE - 1), st.integers(1, SIZE), st.sampled_from(LockType))
)


@given(STEPS)
def test_they_are_what_a_list_of_bytes_is(steps: list[tuple[int, int, LockType]]) -> None:
    ranges = LockedRanges()
    octets = [LockType.NONE] * SIZE
    for start, length, kind in steps:
        end = min(SIZE, start + length)
        ranges.set(start, end, kind, 1)
        octets[start:end] = [kind] * (end - start)
    shown = [LockType.NONE] * SIZE
    previous: LockedRange | None = None
    for one in ranges:
        assert one.start < one.end
        if previous is not None:
            assert previous.end < one.start or (
                previous.end == one.start and previous.type is not one.type
            )
        shown[one.start : one.end] = [one.type] * (one.end - one.start)
        previous = one
    assert shown == octets
    for at, kind in enumerate(octets):
        writing = ranges.conflict(at, at + 1, LockType.WRITE)
        assert (writing is not None) == (kind is not LockType.NONE)
        assert (ranges.conflict(at, at + 1, LockType.READ) is not None) == (kind is LockType.WRITE)


def test_ranges_of_two_processes_stay_apart() -> None:
    ranges = LockedRanges()
    ranges.set(0, 10, LockType.WRITE, 1)
    ranges.set(10, LOCK_END, LockType.WRITE, 2)
    assert [(one.start, one.pid) for one in ranges] == [(0, 1), (10, 2)]
