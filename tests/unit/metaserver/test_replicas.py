"""Which files get replicas: defaults, requests, every op that makes a layout; who is refused."""

from dataclasses import replace
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest

from fscommon.config import load
from fscommon.errors import ConfigError, FsError, Status
from fscommon.layout.attributes import unpack_attributes
from fscommon.layout.layout import VACANT, Layout, is_replicated, unpack_layout
from fscommon.layout.template import LAYOUT_XATTR
from fscommon.wire.admin import Inspect
from fscommon.wire.ahead import OpenAhead
from fscommon.wire.births import Birth, ChangeBatch, Changed, Delegate, Slot
from fscommon.wire.codec import decode, encode
from fscommon.wire.features import FEATURE_REPLICAS
from fscommon.wire.messages import (
    SET_MODE,
    SET_SIZE,
    Close,
    Create,
    Empty,
    GetXattr,
    MkNod,
    Open,
    Opened,
    Replay,
    SessionOpen,
    SetAttr,
    SetXattr,
    StatFs,
    StatFsReply,
    TmpFile,
    WriteInline,
)
from fscommon.wire.ops import Op
from metaserver.boot import Settings
from metaserver.config import MetaserverConfig
from metaserver.membership import NODE_TIMEOUT_S
from metaserver.placement import ReplicaPolicy
from metaserver.records import node_key
from metaserver.server import settings_of

from .bench import ROOT, SETTINGS, USER, Bench, Client
from .test_leases import Cached

NODES = 3
TWO = ReplicaPolicy(2, degraded_ok=False, replicas_max=2)
TWO_IF_ASKED = ReplicaPolicy(1, degraded_ok=False, replicas_max=2)


def settings(policy: ReplicaPolicy) -> Settings:
    return replace(SETTINGS, replicas=policy)


def cluster(policy: ReplicaPolicy, nodes: int = NODES, targets: int = 2, **of: Any) -> Bench:
    """Nodes that know replicas, each a domain of its own."""
    bench = Bench(settings=settings(policy), targets=0, **of)
    for node in range(1, nodes + 1):
        register(bench, node, targets)
    return bench


def register(bench: Bench, node: int, targets: int = 2, **of_node: Any) -> None:
    of_node = {"features": FEATURE_REPLICAS, "domain": f"rack{node}", **of_node}
    bench.register(targets, node=node, **of_node)


def node_of(target: int) -> int:
    return (target + 1) // 2


def check_replicated(layout: Layout, replicas: int = 2) -> None:
    assert (layout.replica_count, layout.replicas_wanted) == (replicas, replicas)
    assert not any(layout.generations) and layout.generation_last == 0
    for stripe in range(layout.stripe_width):
        row = [layout.target(stripe, place) for place in range(replicas)]
        assert len({node_of(target) for target in row}) == replicas


def made(client: Client, parent: int, name: bytes) -> Layout:
    opened: Opened = client.call(Op.CREATE, Create(parent, name, 0o644, True, True, USER))
    return unpack_layout(opened.layout)


def set_layout(client: Client, ino: int, text: bytes) -> None:
    client.call(Op.SETXATTR, SetXattr(ino, LAYOUT_XATTR, text, 0))


def layout_of(client: Client, ino: int) -> Layout:
    opened: Opened = client.call(Op.OPEN, Open(ino, True))
    return unpack_layout(opened.layout)


def truncate(client: Client, ino: int, like: int = 0) -> Layout:
    request = SetAttr(ino, SET_SIZE, 0, 0, 0, 0, 0, 0, 0, 0, 0, like=like)
    opened: Opened = client.call(Op.SETATTR, request)
    return unpack_layout(opened.layout)


@pytest.fixture
def bench() -> Bench:
    return cluster(TWO_IF_ASKED)


@pytest.fixture
def client(bench: Bench) -> Client:
    return bench.client(FEATURE_REPLICAS)


# ---- what a directory says ----------------------------------------------------------------------


def test_a_directory_says_how_many_and_hands_it_down(client: Client) -> None:
    folder = client.mkdir(ROOT, b"d")
    set_layout(client, folder, b"replicas=2")
    below = client.mkdir(folder, b"below")
    for parent in (folder, below):
        check_replicated(made(client, parent, b"f"))
    assert not made(client, ROOT, b"f").is_replicated
    value = client.call(Op.GETXATTR, GetXattr(below, LAYOUT_XATTR)).value
    assert value == b"chunk_size=1048576,stripe_width=4,replicas=2"
    set_layout(client, below, b"replicas=1")
    assert not made(client, below, b"g").is_replicated


def test_a_file_may_say_so_while_it_is_empty(client: Client) -> None:
    entry = client.call(Op.MKNOD, MkNod(ROOT, b"f", 0o644, 0, USER))
    ino = unpack_attributes(entry.attributes).ino
    set_layout(client, ino, b"replicas=2,stripe_width=3")
    value = client.call(Op.GETXATTR, GetXattr(ino, LAYOUT_XATTR)).value
    layout = layout_of(client, ino)
    rows = ":".join(
        "+".join(str(layout.target(stripe, place)) for place in range(2)) for stripe in range(3)
    )
    assert value == f"chunk_size=1048576,stripe_width=3,replicas=2,targets={rows}".encode()
    check_replicated(layout)


def test_more_than_the_cluster_gives_is_refused(client: Client) -> None:
    folder = client.mkdir(ROOT, b"d")
    with pytest.raises(FsError, match=r"3 replicas are more .* replicas_max .* is 2") as caught:
        set_layout(client, folder, b"replicas=3")
    assert caught.value.status is Status.ERANGE
    never = cluster(ReplicaPolicy(replicas_max=1)).client(FEATURE_REPLICAS)
    with pytest.raises(FsError, match=r"replicas_max .* is 1"):
        set_layout(never, ROOT, b"replicas=2")


def test_what_was_said_under_another_configuration_is_not_done_silently(bench: Bench) -> None:
    client = bench.client(FEATURE_REPLICAS)
    folder = client.mkdir(ROOT, b"d")
    set_layout(client, folder, b"replicas=2")
    bench.engine.services.membership.policy = ReplicaPolicy(replicas_max=1)
    with pytest.raises(FsError, match=r"2 replicas are more than .* is 1") as caught:
        made(client, folder, b"f")
    assert caught.value.status is Status.EOPNOTSUPP


# ---- every op that makes a layout ---------------------------------------------------------------


def test_the_default_of_the_cluster_is_that_of_every_op() -> None:
    bench = cluster(TWO)
    client = bench.client(FEATURE_REPLICAS)
    check_replicated(made(client, ROOT, b"created"))
    entry = client.call(Op.MKNOD, MkNod(ROOT, b"mknod", 0o644, 0, USER))
    check_replicated(layout_of(client, unpack_attributes(entry.attributes).ino))
    opened = client.call(Op.TMPFILE, TmpFile(ROOT, 0o600, False, USER))
    check_replicated(unpack_layout(opened.layout))
    for slot in client.call(Op.DELEGATE, Delegate(0, 50)).slots:
        check_replicated(unpack_layout(slot.layout))
    assert bench.faults() == []


def test_a_truncate_to_nothing_keeps_the_number(client: Client) -> None:
    folder = client.mkdir(ROOT, b"d")
    set_layout(client, folder, b"replicas=2,stripe_width=2")
    before = made(client, folder, b"f")
    ino = before.file_id
    after = truncate(client, ino)
    check_replicated(after)
    assert after.file_id != before.file_id and after.stripe_width == 2
    set_layout(client, folder, b"replicas=1")
    check_replicated(truncate(client, ino))


def test_a_copy_lies_where_its_model_does(client: Client) -> None:
    folder = client.mkdir(ROOT, b"d")
    set_layout(client, folder, b"replicas=2,stripe_width=2")
    model, copy = made(client, folder, b"model"), made(client, folder, b"copy")
    after = truncate(client, copy.file_id, like=model.file_id)
    assert after.targets == model.targets and after.file_id != model.file_id
    check_replicated(after)
    alone = made(client, ROOT, b"alone")
    assert truncate(client, alone.file_id, like=model.file_id).replica_count == 1


def birth(slot: Slot, layout: bytes, size: int = 0) -> Birth:
    changes = int(size > 0)
    return Birth(slot.ino, ROOT, b"born", 0o644, 0, 0, 5, layout, True, changes, size, 5)


def test_files_are_born_from_slots_with_replicas() -> None:
    client = cluster(TWO).client(FEATURE_REPLICAS)
    [slot] = client.call(Op.DELEGATE, Delegate(0, 1)).slots
    reply: Changed = client.call(Op.CHANGE_BATCH, ChangeBatch((birth(slot, slot.layout),), ()))
    assert reply.errors == ()
    check_replicated(layout_of(client, slot.ino))


def test_a_slot_with_a_vacant_place_may_be_used_with_inline_bytes() -> None:
    client = cluster(replace(TWO, degraded_ok=True), nodes=1).client(FEATURE_REPLICAS)
    [slot] = client.call(Op.DELEGATE, Delegate(0, 1)).slots
    layout = unpack_layout(slot.layout)
    assert VACANT in layout.targets
    inline = replace(layout, inline=b"x").pack()
    batch = ChangeBatch((birth(slot, inline, 1),), ())
    assert client.call(Op.CHANGE_BATCH, batch).errors == ()


def test_inline_bytes_get_all_replicas_when_they_leave_the_record() -> None:
    bench = cluster(replace(TWO, degraded_ok=True), nodes=1)
    client = bench.client(FEATURE_REPLICAS)
    [slot] = client.call(Op.DELEGATE, Delegate(0, 1)).slots
    inline = replace(unpack_layout(slot.layout), inline=b"x").pack()
    client.call(Op.CHANGE_BATCH, ChangeBatch((birth(slot, inline, 1),), ()))
    more = WriteInline(slot.ino, slot.ino, 1, b"y", 5, 0, durable=False)
    layout = unpack_layout(client.call(Op.WRITE_INLINE, more).layout)
    assert layout.inline == b"xy" and VACANT in layout.targets
    for node in (2, 3):
        register(bench, node)
    for target in bench.engine.services.membership.targets():
        target.joining_epoch = 0
    register(bench, 1)
    client.send(Op.OPEN, Open(slot.ino, True, moves=True))
    bench.finish_truncates()
    spilled = unpack_layout(client.take().layout)
    check_replicated(spilled)
    assert spilled.stripe_width == layout.stripe_width and not spilled.inline


def test_a_replay_ends_with_the_same_replicas() -> None:
    bench = cluster(TWO)
    client = bench.client(FEATURE_REPLICAS)
    request = Create(ROOT, b"f", 0o644, True, True, USER)
    request_id = client.send(Op.CREATE, request)
    frame = client.take_frame()  # it is not durable
    after = Bench(bench.store, targets=0, settings=settings(TWO))
    register(after, 4)
    back = Client(after, after.connect(), client.session, client.request_id)
    hello = SessionOpen(client.session, "c", (), 0, features=FEATURE_REPLICAS)
    back.call(Op.SESSION_OPEN, hello)
    replay = Replay(frame.header.offset, 0, encode(request), frame.body)
    again = back.replay(Op.CREATE, replay, request_id)
    assert decode(Opened, again.body).layout == decode(Opened, frame.body).layout


# ---- too few domains ----------------------------------------------------------------------------


def test_too_few_domains_are_enospc() -> None:
    bench = cluster(TWO, nodes=1)
    register(bench, 2, domain="rack1")
    client = bench.client(FEATURE_REPLICAS)
    with pytest.raises(FsError, match=r"2 replicas need 2 failure domains .* there is 1") as caught:
        made(client, ROOT, b"f")
    assert caught.value.status is Status.ENOSPC
    register(bench, 3, features=0)
    with pytest.raises(FsError, match="there is 1"):
        made(client, ROOT, b"f")


def test_fewer_replicas_may_be_allowed() -> None:
    client = cluster(replace(TWO, degraded_ok=True), nodes=1).client(FEATURE_REPLICAS)
    layout = made(client, ROOT, b"f")
    assert (layout.replica_count, layout.replicas_wanted) == (2, 2)
    assert [layout.target(stripe, 1) for stripe in range(layout.stripe_width)] == [VACANT] * 2
    value = client.call(Op.GETXATTR, GetXattr(layout.file_id, LAYOUT_XATTR)).value
    assert b"replicas=2,targets=" in value and b"+-" in value


def test_a_directory_that_nobody_could_write_to_is_refused() -> None:
    bench = cluster(replace(TWO_IF_ASKED, replicas_max=3), nodes=2)
    client = bench.client(FEATURE_REPLICAS)
    with pytest.raises(FsError, match="3 failure domains, and the cluster has 2") as caught:
        set_layout(client, ROOT, b"replicas=3")
    assert caught.value.status is Status.ENOSPC
    membership = bench.engine.services.membership
    membership.expire(bench.now_s + NODE_TIMEOUT_S + 1)  # who is down may come back
    assert all(membership.is_down(node.id) for node in membership.nodes())
    set_layout(client, ROOT, b"replicas=2")
    set_layout(client, ROOT, b"replicas=2,stripe_width=1")


def test_a_directory_may_ask_for_more_where_fewer_are_allowed() -> None:
    policy = ReplicaPolicy(1, degraded_ok=True, replicas_max=2)
    client = cluster(policy, nodes=1).client(FEATURE_REPLICAS)
    set_layout(client, ROOT, b"replicas=2")
    assert made(client, ROOT, b"f").replicas_wanted == 2


# ---- clients that do not know replicas ----------------------------------------------------------


def refused(client: Client, op: Op, message: Any) -> bool:
    with pytest.raises(FsError, match="release does not know") as caught:
        client.call(op, message)
    return caught.value.status is Status.EOPNOTSUPP


def test_an_old_client_is_refused_with_a_sentence(bench: Bench, client: Client) -> None:
    folder = client.mkdir(ROOT, b"d")
    set_layout(client, folder, b"replicas=2")
    ino = made(client, folder, b"f").file_id
    old = bench.client()
    assert refused(old, Op.OPEN, Open(ino, False))
    assert refused(old, Op.CREATE, Create(folder, b"f", 0o644, False, True, USER))
    assert refused(old, Op.CREATE, Create(folder, b"g", 0o644, True, True, USER))
    assert refused(old, Op.MKNOD, MkNod(folder, b"g", 0o644, 0, USER))
    assert refused(old, Op.SETATTR, SetAttr(ino, SET_MODE, 0o600, 0, 0, 0, 0, 0, 0, 0, 0))
    assert refused(old, Op.SETATTR, SetAttr(ino, SET_SIZE, 0, 0, 0, 0, 0, 0, 0, 0, 0))
    plain = old.create(ROOT, b"plain").ino
    assert old.call(Op.OPEN, Open(plain, True)).layout


def test_an_old_client_gets_no_slots_with_replicas() -> None:
    bench = cluster(TWO)
    assert bench.client().call(Op.DELEGATE, Delegate(0, 50)).slots == ()
    assert len(bench.client(FEATURE_REPLICAS).call(Op.DELEGATE, Delegate(0, 50)).slots) == 50


@pytest.mark.parametrize("features", [0, FEATURE_REPLICAS])
def test_only_clients_that_know_replicas_open_them_ahead(
    bench: Bench, client: Client, features: int
) -> None:
    folder = client.mkdir(ROOT, b"d")
    for name in (b"1", b"2"):
        set_layout(client, folder, b"replicas=" + name)
        client.call(Op.CLOSE, Close((made(client, folder, name).file_id,)))
    reader = Cached.of(bench).client
    session = bench.engine.sessions.get(reader.session)
    assert session is not None
    session.features = features
    names = reader.call(Op.OPEN_AHEAD, OpenAhead(folder, 0, 8)).names
    assert set(names) == ({b"1", b"2"} if features else {b"1"})


def test_a_client_may_be_upgraded_under_its_session(bench: Bench, client: Client) -> None:
    folder = client.mkdir(ROOT, b"d")
    set_layout(client, folder, b"replicas=2")
    ino = made(client, folder, b"f").file_id
    old = bench.client()
    assert refused(old, Op.OPEN, Open(ino, False))
    old.connection = bench.connect()
    hello = SessionOpen(old.session, "c", (), 0, features=FEATURE_REPLICAS)
    old.call(Op.SESSION_OPEN, hello)
    assert is_replicated(old.call(Op.OPEN, Open(ino, False)).layout)


# ---- nodes over a restart, room, configuration --------------------------------------------------


def test_domains_and_features_outlive_the_metaserver(bench: Bench) -> None:
    bench.settle()
    again = Bench(bench.store, targets=0, settings=settings(TWO))
    nodes = again.engine.services.membership.nodes()
    assert [node.domain for node in nodes] == ["rack1", "rack2", "rack3"]
    assert all(node.features == FEATURE_REPLICAS for node in nodes)
    targets = again.engine.services.membership.place_replicas(1, 4, 2)
    assert len({node_of(target) for target in targets[:2]}) == 2


def test_a_node_of_an_earlier_release_is_in_the_domain_of_its_host(bench: Bench) -> None:
    bench.settle()
    former = msgpack.packb([bytes([1]) * 16, "n", "stor7:7411"])
    bench.store.commit([(node_key(1), former)])
    again = Bench(bench.store, targets=0, settings=settings(TWO))
    node = again.engine.services.membership.nodes()[0]
    assert (node.address, node.domain, node.features) == ("stor7:7411", "stor7", 0)


def test_a_node_that_says_no_domain_is_in_that_of_its_host(bench: Bench) -> None:
    register(bench, 1, domain="")
    assert bench.engine.services.membership.nodes()[0].domain == "127.0.0.1"


def test_statfs_tells_what_users_can_store(bench: Bench, client: Client) -> None:
    whole: StatFsReply = client.call(Op.STATFS, StatFs(ROOT))
    assert (whole.bytes_total, whole.bytes_free) == (6 << 40, 6 << 39)
    folder = client.mkdir(ROOT, b"d")
    set_layout(client, folder, b"replicas=2")
    file = made(client, folder, b"f").file_id
    for ino in (folder, file):
        part: StatFsReply = client.call(Op.STATFS, StatFs(ino))
        assert (part.bytes_total, part.bytes_free, part.bytes_available) == (
            3 << 40,
            3 << 39,
            3 << 39,
        )
    bench.engine.services.membership.policy = TWO
    for ino in (0, ROOT):
        assert client.call(Op.STATFS, StatFs(ino)).bytes_total == 3 << 40


def test_the_room_of_the_cluster_is_told_with_its_policy(bench: Bench) -> None:
    status = Client(bench, bench.connect("admin")).call(Op.STATUS, Empty())
    assert (status.replicas, status.replicas_max) == (1, 2)
    assert status.files.bytes_total == 6 << 40, "of the targets"
    assert [node.domain for node in status.nodes] == ["rack1", "rack2", "rack3"]


def test_administrators_see_what_new_files_get(bench: Bench, client: Client) -> None:
    folder = client.mkdir(ROOT, b"d")
    set_layout(client, folder, b"replicas=2")
    admin = Client(bench, bench.connect("admin"))
    seen = admin.call(Op.INSPECT, Inspect(folder, ()))
    assert seen.inherited == bytes.fromhex("0202040000001000") and seen.own


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("", ReplicaPolicy(1, degraded_ok=False, replicas_max=3)),
        ("[layout]\nreplicas_max = 1", ReplicaPolicy(1, degraded_ok=False, replicas_max=1)),
        (
            "[layout]\nreplicas = 2\ndegraded_ok = true\nreplicas_max = 2",
            ReplicaPolicy(2, degraded_ok=True, replicas_max=2),
        ),
    ],
)
def test_the_table_of_the_configuration(tmp_path: Any, text: str, policy: ReplicaPolicy) -> None:
    file = tmp_path / "metaserver.toml"
    file.write_text(f'state_directory = "/s"\nkey_file = "/k"\n{text}\n')
    assert settings_of(load(MetaserverConfig, file), b"k" * 32).replicas == policy


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "replicas_max = 1\nreplicas = 2",
            "layout: replicas is not in 1..1, which replicas_max says",
        ),
        ("replicas_max = 4", "layout: replicas_max is not in 1..3"),
        ("replicas = 0", "layout: replicas is not in 1..3"),
        ("replica = 1", "layout: unknown key 'replica': did you mean 'replicas'"),
        ('degraded_ok = "yes"', "layout: degraded_ok: expected true or false"),
    ],
)
def test_tables_that_are_refused(tmp_path: Any, text: str, said: str) -> None:
    file = tmp_path / "metaserver.toml"
    file.write_text(f'state_directory = "/s"\nkey_file = "/k"\n[layout]\n{text}\n')
    with pytest.raises(ConfigError, match=said.replace(".", r"\.")):
        load(MetaserverConfig, file)
