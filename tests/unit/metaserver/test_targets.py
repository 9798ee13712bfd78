"""TARGET_SET: targets that get no new files; what is refused, what a restart keeps, slots."""

from collections import Counter

import msgpack  # type: ignore[import-untyped]
import pytest

from fscommon.errors import FsError, Status
from fscommon.layout.layout import unpack_layout
from fscommon.observe.health import problems_of
from fscommon.observe.status import inodes_free
from fscommon.types import FileId, TargetId
from fscommon.wire.admin import TARGETS_SET_MAX, TargetSet
from fscommon.wire.births import Delegate, Delegated
from fscommon.wire.messages import (
    SET_SIZE,
    Create,
    Empty,
    SessionRenew,
    SetAttr,
    StatFs,
    StatFsReply,
    StatusReply,
)
from fscommon.wire.ops import Op
from fscommon.wire.servers import Heartbeat, Register, TargetReport
from metaserver.membership import NODE_TIMEOUT_S
from metaserver.ops.cluster import let_join
from metaserver.records import target_key
from metaserver.sessions import SLOTS_MAX

from .bench import ROOT, USER, Bench, Client


@pytest.fixture
def bench() -> Bench:
    return Bench(targets=3)


@pytest.fixture
def client(bench: Bench) -> Client:
    return bench.client()


@pytest.fixture
def admin(bench: Bench) -> Client:
    return Client(bench, bench.connect("admin"))


def drain(admin: Client, *targets: int, is_draining: bool = True) -> None:
    admin.call(Op.TARGET_SET, TargetSet(targets, is_draining))


def states(admin: Client) -> list[str]:
    reply: StatusReply = admin.call(Op.STATUS, Empty())
    return [row.state for row in reply.map.targets]


def targets_of_new(client: Client, name: bytes) -> set[int]:
    opened = client.call(Op.CREATE, Create(ROOT, name, 0o644, True, True, USER))
    return set(unpack_layout(opened.layout).targets)


def test_new_files_avoid_a_draining_target(client: Client, admin: Client) -> None:
    assert targets_of_new(client, b"before") == {1, 2, 3}
    epoch = admin.call(Op.STATUS, Empty()).map.epoch
    drain(admin, 2)
    assert states(admin) == ["up", "draining", "up"]
    assert admin.call(Op.STATUS, Empty()).map.epoch == epoch + 1
    assert targets_of_new(client, b"while") == {1, 3}
    drain(admin, 2)  # it is draining already
    assert admin.call(Op.STATUS, Empty()).map.epoch == epoch + 1
    drain(admin, 2, is_draining=False)
    assert targets_of_new(client, b"after") == {1, 2, 3}


def test_it_is_all_or_none(admin: Client) -> None:
    with pytest.raises(FsError, match="there is no target 9"):
        drain(admin, 1, 9)
    with pytest.raises(FsError, match="1 to 256 targets"):
        drain(admin)
    with pytest.raises(FsError, match="1 to 256 targets"):
        drain(admin, *range(TARGETS_SET_MAX + 1))
    assert states(admin) == ["up", "up", "up"]


def test_somewhere_files_must_go(bench: Bench, admin: Client) -> None:
    with pytest.raises(FsError, match="nobody could make a new file"):
        drain(admin, 1, 2, 3)
    drain(admin, 1, 2)
    with pytest.raises(FsError, match="Add a target first"):
        drain(admin, 3)
    bench.register(1, free=0, node=2)  # a full target is no help
    with pytest.raises(FsError, match="has room"):
        drain(admin, 3)
    # There are no clients: the target need not wait until clients know of it.
    bench.register(1, node=3)
    drain(admin, 3)
    assert states(admin) == ["draining", "draining", "draining", "full", "up"]


def test_new_files_go_to_a_new_target_when_all_clients_know_it(
    bench: Bench, client: Client, admin: Client
) -> None:
    other = bench.client()
    services = bench.engine.services
    for one in (client, other):
        one.call(Op.SESSION_RENEW, SessionRenew(0))
    bench.register(1, node=2)
    bench.register(1, node=2)  # it registers again
    assert states(admin) == ["up", "up", "up", "joining"]
    assert let_join(services) == [] and targets_of_new(client, b"a") == {1, 2, 3}
    renewed = client.call(Op.SESSION_RENEW, SessionRenew(0))
    assert renewed.map.targets[3].state == "joining" and renewed.map.open_targets() == {1, 2, 3}
    assert let_join(services) == [] and targets_of_new(client, b"b") == {1, 2, 3}
    other.call(Op.SESSION_RENEW, SessionRenew(0))
    assert [target.id for target in let_join(services)] == [4] and let_join(services) == []
    assert states(admin) == ["up"] * 4 and targets_of_new(client, b"c") == {1, 2, 3, 4}


def test_clients_that_go_are_not_waited_for(bench: Bench, client: Client, admin: Client) -> None:
    bench.register(1, node=2)
    assert let_join(bench.engine.services) == []
    client.call(Op.SESSION_CLOSE, Empty())
    assert len(let_join(bench.engine.services)) == 1


def test_it_outlives_registrations_and_restarts(bench: Bench, admin: Client) -> None:
    drain(admin, 2)
    bench.register(3)  # the server was restarted
    assert states(admin) == ["up", "draining", "up"]
    assert bench.faults() == []
    after = Bench(bench.store, targets=0)
    again = Client(after, after.connect("admin"))
    assert states(again) == ["up", "draining", "up"]
    drain(again, 2, is_draining=False)
    after.settle()
    third = Bench(after.store, targets=0)
    assert states(Client(third, third.connect("admin"))) == ["up", "up", "up"]


def test_an_emptied_file_moves_away(client: Client, admin: Client) -> None:
    ino = client.create(ROOT, b"a").ino
    drain(admin, 1)
    emptied = client.call(Op.SETATTR, SetAttr(ino, SET_SIZE, 0, 0, 0, 0, 0, 0, 0, 9, 1))
    assert set(unpack_layout(emptied.layout).targets) == {2, 3}


def test_what_is_available_is_what_new_files_may_have(client: Client, admin: Client) -> None:
    before: StatFsReply = client.call(Op.STATFS, StatFs())
    drain(admin, 2)
    after: StatFsReply = client.call(Op.STATFS, StatFs())
    assert after.bytes_free == before.bytes_free and after.bytes_total == before.bytes_total
    assert after.bytes_available == before.bytes_available * 2 // 3


# ---- inodes --------------------------------------------------------------------------------------

FILES = 1000


def tell_files(bench: Bench, *free: int, total: int = FILES, bytes_free: int = 1 << 39) -> None:
    """Sends heartbeats that say how many inodes targets 1, 2 ... have left."""
    reports = tuple(
        TargetReport(1 + i, bytes([1, i]) * 8, 1, 1 << 40, bytes_free, 0, 0, total, left)
        for i, left in enumerate(free)
    )
    Client(bench, bench.connect("server")).call(Op.HEARTBEAT, Heartbeat(1, reports, 0))


def test_a_target_without_inodes_is_full(bench: Bench, client: Client, admin: Client) -> None:
    tell_files(bench, 10, 9, 0)  # they are below a hundredth
    assert states(admin) == ["up", "full", "full"]
    assert all(targets_of_new(client, b"f%d" % n) == {1} for n in range(20))
    reply: StatusReply = admin.call(Op.STATUS, Empty())
    assert [one.lacks_files for one in reply.health] == [False, True, True]
    assert [one.files_total for one in reply.health] == [FILES] * 3
    assert [one.files_free for one in reply.health] == [10, 9, 0]
    assert [p.what for p in problems_of(reply)] == [
        f"target {target} is full: it has no inodes left" for target in (2, 3)
    ]
    assert "9 of the 1000 inodes" in problems_of(reply)[0].why


def test_it_has_room_again_with_a_fiftieth(bench: Bench, admin: Client) -> None:
    for free, state in ((10, "up"), (9, "full"), (19, "full"), (20, "up"), (10, "up")):
        tell_files(bench, free, FILES, FILES)
        assert states(admin)[0] == state, free
    # 1/64 of its bytes is free, which is short only for a target that was full.
    tell_files(bench, 9, FILES, FILES, bytes_free=1 << 34)
    tell_files(bench, 20, FILES, FILES, bytes_free=1 << 34)
    assert states(admin)[0] == "up", "each has a threshold of its own"
    tell_files(bench, 0, 0, 0, total=0)
    assert states(admin) == ["up"] * 3, "XFS and btrfs make inodes as they need them"


def test_no_inodes_anywhere_is_no_space(bench: Bench, client: Client, admin: Client) -> None:
    tell_files(bench, 0, 0, 0)
    client.send(Op.CREATE, Create(ROOT, b"f", 0o644, True, True, USER))
    assert client.take_frame().header.status == Status.ENOSPC
    seen: StatFsReply = client.call(Op.STATFS, StatFs())
    assert seen.inodes_free == 0 and seen.inodes_total > 0
    assert admin.call(Op.STATUS, Empty()).files.inodes_free > 0, "the metadata store has room"


def test_df_counts_inodes_of_open_targets(bench: Bench, client: Client, admin: Client) -> None:
    before: StatFsReply = client.call(Op.STATFS, StatFs())
    tell_files(bench, 500, 5, 300)
    used = before.inodes_total - before.inodes_free

    def free() -> int:
        seen: StatFsReply = client.call(Op.STATFS, StatFs())
        assert seen.inodes_total - seen.inodes_free == used
        assert inodes_free(admin.call(Op.STATUS, Empty())) == seen.inodes_free
        return seen.inodes_free

    assert free() == 800, "what a full one has left is for nobody"
    drain(admin, 1)
    assert free() == 300
    tell_files(bench, 500, 5, 2**64 - 1, total=2**64 - 1)
    assert free() == before.inodes_free, "no more than the metadata store takes"


def test_slots_on_a_target_that_got_full_are_replaced(bench: Bench, client: Client) -> None:
    assert client.call(Op.SESSION_RENEW, SessionRenew(0)).map.open_targets() == {1, 2, 3}
    assert len(client.call(Op.DELEGATE, Delegate(0, SLOTS_MAX)).slots) == SLOTS_MAX
    tell_files(bench, FILES, 0, FILES)
    assert client.call(Op.SESSION_RENEW, SessionRenew(0)).map.open_targets() == {1, 3}
    slots = client.call(Op.DELEGATE, Delegate(0, SLOTS_MAX)).slots
    assert len(slots) == SLOTS_MAX
    assert all(2 not in unpack_layout(slot.layout).targets for slot in slots)


def test_slots_are_given_anew(bench: Bench, client: Client, admin: Client) -> None:
    """Each time that targets are closed or added, a client may discard its slots."""
    first: Delegated = client.call(Op.DELEGATE, Delegate(0, SLOTS_MAX))
    assert len(first.slots) == SLOTS_MAX
    assert client.call(Op.DELEGATE, Delegate(0, 1)).slots == ()
    drain(admin, 2)
    second: Delegated = client.call(Op.DELEGATE, Delegate(0, SLOTS_MAX))
    assert len(second.slots) == SLOTS_MAX
    assert all(2 not in unpack_layout(slot.layout).targets for slot in second.slots)
    assert client.call(Op.DELEGATE, Delegate(0, 1)).slots == ()
    bench.register(1, node=2)
    client.call(Op.SESSION_RENEW, SessionRenew(0))
    assert let_join(bench.engine.services)
    third: Delegated = client.call(Op.DELEGATE, Delegate(0, SLOTS_MAX))
    assert any(4 in unpack_layout(slot.layout).targets for slot in third.slots)
    renewed = client.call(Op.SESSION_RENEW, SessionRenew(0))
    assert renewed.map.open_targets() == {1, 3, 4}


@pytest.mark.parametrize(
    ("blocks", "used"), [(1, 1000), (4, 250), (64, 16), (125, 8), (250, 4), (1000, 1)]
)
@pytest.mark.parametrize("first", [2, 77, 1_000_003])
def test_new_files_are_spread_evenly(blocks: int, used: int, first: int) -> None:
    """One client or many create them, and each uses the first ids of its blocks."""
    membership = Bench(targets=64).engine.services.membership
    placed = Counter(
        membership.place(FileId(first + block * 256 + index), 4)[0]
        for block in range(blocks)
        for index in range(used)
    )
    assert max(placed.values()) <= 1.3 * blocks * used / 64


# ---- incarnations -------------------------------------------------------------------------------


def report(incarnation: int) -> TargetReport:
    return TargetReport(1, bytes([1, 0]) * 8, incarnation, 1 << 40, 1 << 39, 0, 0)


def incarnation(bench: Bench) -> int:
    reply: StatusReply = Client(bench, bench.connect("admin")).call(Op.STATUS, Empty())
    return reply.health[0].incarnation


def again(bench: Bench) -> Bench:
    """The metaserver, restarted over what is durable; it has received nothing yet."""
    return Bench(bench.store, targets=0)


def registered(server: Client, incarnation: int) -> None:
    reports = (report(incarnation),)
    server.call(Op.REGISTER, Register(1, bytes([1]) * 16, "n", "127.0.0.1:1", b"", reports))


def test_the_incarnation_of_a_target_outlives_the_metaserver(bench: Bench) -> None:
    drain(Client(bench, bench.connect("admin")), 1)
    server = Client(bench, bench.connect("server"))
    registered(server, 7)
    assert incarnation(again(bench)) == 7
    registered(server, 9)
    assert incarnation(again(bench)) == 9, "durable before the answer"
    after = again(bench)
    assert after.engine.services.membership.targets()[0].is_draining


@pytest.mark.parametrize("op", [Op.REGISTER, Op.HEARTBEAT])
def test_it_never_falls(bench: Bench, op: Op) -> None:
    server = Client(bench, bench.connect("server"))
    registered(server, 9)
    late = {
        Op.REGISTER: Register(1, bytes([1]) * 16, "n", "127.0.0.1:1", b"", (report(3),)),
        Op.HEARTBEAT: Heartbeat(1, (report(3),), 0),
    }[op]
    server.call(op, late)
    assert incarnation(bench) == incarnation(again(bench)) == 9


def test_heartbeats_that_tell_nothing_new_write_nothing(bench: Bench) -> None:
    server = Client(bench, bench.connect("server"))
    registered(server, 9)
    bench.settle()
    server.call(Op.HEARTBEAT, Heartbeat(1, (report(9),), 0))
    assert not bench.engine.dirty


@pytest.mark.parametrize("is_draining", [False, True])
def test_records_of_earlier_releases_are_read(bench: Bench, is_draining: bool) -> None:
    former = [bytes([1, 0]) * 8, 1, 1 << 40, 1 << 39, *([True] if is_draining else [])]
    bench.settle()
    bench.store.commit([(target_key(TargetId(1)), msgpack.packb(former))])
    after = again(bench)
    assert after.engine.services.membership.targets()[0].is_draining == is_draining
    assert incarnation(after) == 0
    registered(Client(after, after.connect("server")), 9)
    assert incarnation(again(after)) == 9


# ---- who must register again --------------------------------------------------------------------


def told_to_register(bench: Bench, incarnation: int = 1) -> bool:
    """Sends a heartbeat of the first node."""
    server = Client(bench, bench.connect("server"))
    try:
        server.call(Op.HEARTBEAT, Heartbeat(1, (report(incarnation),), 0))
    except FsError as error:
        assert error.status is Status.NO_TARGET
        return True
    return False


def test_a_lease_that_has_run_out_is_not_renewed(bench: Bench) -> None:
    """Names may have been dropped meanwhile, without waiting for this storage server."""
    services = bench.engine.services
    bench.now_s += NODE_TIMEOUT_S - 1
    assert services.membership.expire(bench.now_s) == [] and not told_to_register(bench)
    bench.now_s += NODE_TIMEOUT_S + 1
    assert len(services.membership.expire(bench.now_s)) == 1
    assert told_to_register(bench) and told_to_register(bench)
    bench.register(1)
    assert not told_to_register(bench)


def test_a_storage_server_registers_with_each_metaserver(bench: Bench) -> None:
    """The former one may have dropped names while the lease had run out."""
    bench.settle()
    after = again(bench)
    assert told_to_register(after)
    after.register(1)
    assert not told_to_register(after)


def test_a_target_that_has_lost_bytes_is_registered_again(bench: Bench) -> None:
    """A heartbeat alone would not tell it what was dropped for that."""
    assert told_to_register(bench, 2) and incarnation(bench) == 1
    registered(Client(bench, bench.connect("server")), 2)
    assert not told_to_register(bench, 2) and incarnation(bench) == 2
