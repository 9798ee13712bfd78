"""Storage servers that answer with nonsense: the metaserver logs it, goes on, and does not grow.

The world is in lying_servers.
"""

from collections import Counter

import pytest
import trio
from trio.testing import MockClock

from fscommon.errors import ProtocolError
from fscommon.limits import OBJECT_BYTES_MAX
from fscommon.rpc.idle import KEEP_S, Idle
from fscommon.wire.objects import RANGES_MAX, ObjectMended, ObjectSummed
from fscommon.wire.ops import Op
from metaserver.jobs import Job
from metaserver.records import JobRecord
from metaserver.storage import check_damage

from .lying_servers import run_world

QUICK = 12  # worlds: all that ASKED names comes up in them
LONG = 1200
SHARE = 100  # worlds of one test of the long form
ASKED = (  # requests of the metaserver to a storage server
    Op.TRUNCATE,
    Op.SYNC,
    Op.DELETE_ALL,
    Op.FENCE,
    Op.RAISE_EPOCH,
    Op.DROP_NAMES,
    Op.OBJECT_COPY,
    Op.OBJECT_SUM,
    Op.OBJECT_MEND,
)

pytestmark = pytest.mark.expects_warnings


def test_the_work_goes_on_beside_lies_and_ends_without_them() -> None:
    asked: Counter[int] = Counter()
    for seed in range(QUICK):
        asked += run_world(seed).asked
    assert set(ASKED) <= set(asked), "every kind of request was answered with nonsense"


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(QUICK, LONG, SHARE))
def test_hundreds_of_worlds(first: int) -> None:
    for seed in range(first, min(LONG, first + SHARE)):
        run_world(seed)


def test_damage_that_no_object_can_have() -> None:
    sound = ObjectSummed(1 << 20, 1, b"d" * 16, 1, (4096,), (4096,), 1 << 20, 0, 1)
    check_damage(1, 1, sound)
    for blocks, offsets, lengths in (
        (1, (4096, 8192), (4096,)),
        (1, (0,) * (RANGES_MAX + 1), (1,) * (RANGES_MAX + 1)),
        (1, (OBJECT_BYTES_MAX + 1,), (4096,)),
        ((1 << 64) - 1, (4096,), (4096,)),
    ):
        with pytest.raises(ProtocolError, match="target 1 tells of"):
            check_damage(1, blocks, ObjectMended(blocks, offsets, lengths))


def test_a_job_never_counts_beyond_its_record() -> None:
    job = Job(1, JobRecord("repair", 0, 0, 0))
    for _ in range(3):
        job.has_done(1.0, files=1, moved=(1 << 64) - 1)
    assert job.record.files == 3 and job.record.bytes < 1 << 63


@pytest.mark.trio
async def test_idle_connections_are_old_when_it_was_said_they_would_be(
    autojump_clock: MockClock,
) -> None:
    """Otherwise who waits for that moment finds nothing, and waits again for no time."""
    for part in range(1, 40):
        await trio.sleep(part / 7)
        idle: Idle[int] = Idle(lambda one: True)
        idle.keep("a", 1)
        await trio.sleep(KEEP_S / 3)
        end_s = idle.next_end_s()
        assert end_s is not None
        await trio.sleep_until(end_s)
        assert idle.take_old() == [1]
