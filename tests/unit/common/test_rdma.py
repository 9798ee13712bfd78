"""The choice of RDMA ports and GIDs, and what people are told about those that are not used."""

import errno
import ipaddress
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from fscommon.errors import ProtocolError
from fscommon.net import rdma
from fscommon.net.rails import Rails, RdmaSettings, gid_of
from fscommon.net.rdma import Gid, GidKind, Port, Wishes, choose, why_none
from fscommon.observe.log import Log


def gid(index: int, address: str, kind: GidKind = GidKind.ROCE_V2_IPV4) -> Gid:
    text = f"::ffff:{address}" if "." in address else address
    return Gid(index, ipaddress.IPv6Address(text), kind)


LINK_LOCAL = gid(0, "fe80::1", GidKind.ROCE_V2_LINK_LOCAL)


def port(
    device: str, *gids: Gid, number: int = 1, active: bool = True, gigabits: float = 100.0
) -> Port:
    found = gids or (LINK_LOCAL, gid(3, "10.0.0.1"))
    return Port(device, number, active, True, gigabits, -1, found)


def test_the_fastest_active_port_with_an_ipv4_gid_comes_first() -> None:
    slow, fast = port("mlx5_0", gigabits=25.0), port("mlx5_1", gigabits=400.0)
    first, second = choose([slow, fast], Wishes())
    assert (first.port, second.port) == (fast, slow)
    assert first.gid is not None and first.gid.index == 3


def test_an_infiniband_gid_needs_no_address() -> None:
    wanted = gid(0, "fe80::5", GidKind.INFINIBAND)
    assert choose([port("ib0", wanted)], Wishes())[0].gid == wanted


def test_ipv6_serves_where_there_is_no_ipv4() -> None:
    wanted = gid(2, "fd00::1", GidKind.ROCE_V2_IPV6)
    assert choose([port("a", LINK_LOCAL, wanted)], Wishes())[0].gid == wanted


@pytest.mark.parametrize(
    ("wishes", "found", "reason"),
    [
        (Wishes(devices=("mlx5_9",)), port("mlx5_0"), "rdma_devices"),
        (Wishes(devices=("mlx5_0:2",)), port("mlx5_0"), "rdma_devices"),
        (Wishes(), port("mlx5_0", active=False), "port is down"),
        (Wishes(), replace(port("mlx5_0"), fault="it cannot be opened"), "cannot be opened"),
        (Wishes(), port("mlx5_0", LINK_LOCAL), "no RoCE v2 GID"),
        (Wishes(), port("mlx5_0", gid(1, "10.0.0.1", GidKind.ROCE_V1)), "no RoCE v2 GID"),
        (Wishes(subnets=("192.168.0.0/16",)), port("mlx5_0"), "rdma_subnets"),
        (Wishes(gid_index=7), port("mlx5_0"), "rdma_gid_index"),
    ],
)
def test_a_port_that_is_not_used_has_its_reason(wishes: Wishes, found: Port, reason: str) -> None:
    choices = choose([found], wishes)
    assert choices[0].gid is None
    assert reason in why_none(choices) and found.name in why_none(choices)


@pytest.mark.parametrize("pattern", ["mlx5_0", "mlx5_*", "mlx5_0:1", "mlx5_?:1"])
def test_patterns_name_devices_and_ports(pattern: str) -> None:
    assert choose([port("mlx5_0")], Wishes(devices=(pattern,)))[0].gid is not None


def test_subnets_and_index_choose_among_gids() -> None:
    many = port("a", gid(1, "10.0.0.1"), gid(2, "10.1.0.1"))
    in_subnet = choose([many], Wishes(subnets=("10.1.0.0/16",)))[0].gid
    by_index = choose([many], Wishes(gid_index=2))[0].gid
    assert in_subnet == by_index == gid(2, "10.1.0.1")


class FakeContext:
    """A device as pyverbs shows it; `more`: the attributes of a port that version 59 has
    beyond 44."""

    more: ClassVar[dict[str, int]] = {}

    def __init__(self, name: str) -> None:
        self.name = name

    def query_device(self) -> SimpleNamespace:
        return SimpleNamespace(phys_port_cnt=1)

    def query_gid_table(self, _most: int) -> list[SimpleNamespace]:
        address = "::ffff:10.0.0.1"
        return [SimpleNamespace(port_num=1, gid_index=3, gid_type=2, gid_str=lambda: address)]

    def query_port(self, _number: int) -> SimpleNamespace:
        return SimpleNamespace(
            link_layer=2, state=4, active_speed=128, active_width=2, **FakeContext.more
        )

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("more", "gigabits"),
    [({}, 400.0), ({"active_speed_ex": 0}, 400.0), ({"active_speed_ex": 256}, 800.0)],
)
def test_ports_are_read_through_either_pyverbs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, more: dict[str, int], gigabits: float
) -> None:
    (tmp_path / "mlx5_0").mkdir()
    monkeypatch.setattr(rdma, "SYSFS", tmp_path)
    monkeypatch.setattr(rdma, "_load", lambda _: SimpleNamespace(Context=FakeContext))
    monkeypatch.setattr(FakeContext, "more", more)
    [found] = rdma.find_ports()
    assert found == port("mlx5_0", gid(3, "10.0.0.1"), gigabits=gigabits)


@pytest.mark.parametrize("is_emptied", [False, True])
def test_without_pyverbs_people_are_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_emptied: bool
) -> None:
    (tmp_path / "mlx5_0").mkdir()
    if is_emptied:
        (tmp_path / "pyverbs").mkdir()
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyverbs"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(rdma, "SYSFS", tmp_path)
    monkeypatch.setattr(rdma, "DEBIAN_PACKAGES", tmp_path)
    monkeypatch.setattr(sys, "path", [])  # an environment has a path of its own
    with pytest.raises(rdma.NoRdmaError, match=r"pyverbs cannot be loaded .* python3-pyverbs"):
        rdma.find_ports()


class FakeNative:
    def __init__(self, error: OSError | None = None, broken: str = "") -> None:
        """`error`: raised for the device named `broken`, or for all devices when that is empty."""
        self.error = error
        self.broken = broken
        self.opened: list[tuple[str, int, int]] = []
        self.closed: list[int] = []
        self.beyond_use: list[int] = []

    def rdma_open(self, device: str, port: int, gid_index: int, memory_mib: int) -> int:
        if self.error and self.broken in ("", device):
            raise self.error
        self.opened.append((device, port, gid_index))
        return len(self.opened) - 1

    def rdma_connect(self, token: int, peer: bytes) -> None: ...
    def rdma_drop(self, token: int) -> None: ...

    def rdma_close(self, rail: int) -> None:
        self.closed.append(rail)

    def rdma_check(self) -> list[int]:
        return self.beyond_use


def rails_over(
    monkeypatch: pytest.MonkeyPatch, native: FakeNative, ports: list[Port], transport: str = "auto"
) -> Rails:
    monkeypatch.setattr("fscommon.net.rails.find_ports", lambda: ports)
    rails = Rails(native, RdmaSettings(transport), Log("test"))
    rails.refresh()
    return rails


def test_a_rail_is_opened_once_and_again_after_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    native = FakeNative()
    rails = rails_over(monkeypatch, native, [port("a"), port("b", gid(1, "10.1.0.1"))])
    rails.refresh()
    assert native.opened == [("a", 1, 3), ("b", 1, 1)]
    rails.failed(rails.rails[0], OSError(errno.EMFILE, "too many"))
    assert len(rails.rails) == 2
    rails.failed(rails.rails[0], OSError(errno.ENODEV, "gone"))
    rails.refresh()
    assert native.opened[2:] == [("a", 1, 3)] and native.closed == [0]


def test_a_rail_is_closed_when_its_device_or_address_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    native = FakeNative()
    ports = [port("a"), port("b", gid(1, "10.1.0.1"))]
    rails = rails_over(monkeypatch, native, ports)
    ports[0] = replace(ports[0], is_active=False)  # it is down for a while, and is kept
    rails.refresh()
    assert native.closed == [] and [one.number for one in rails.rails] == [1]
    ports[1] = port("b", gid(1, "10.2.0.2"))  # it has the same index and another address
    rails.refresh()
    assert native.closed == [1] and native.opened[2:] == [("b", 1, 1)]
    ports.clear()
    rails.refresh()
    assert native.closed == [1, 0, 2] and not rails.rails and rails.reason


def test_a_rail_whose_device_failed_is_opened_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    native = FakeNative()
    rails = rails_over(monkeypatch, native, [port("a")])
    native.beyond_use = [0]
    rails.refresh()
    assert native.closed == [0] and [one.number for one in rails.rails] == [1]


def test_lanes_use_all_rails_and_servers_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = [port("a", gid(1, "10.0.0.1")), port("b", gid(1, "10.1.0.1"))]
    rails = rails_over(monkeypatch, FakeNative(), ports)
    used = [rails.of_lane(lane) for lane in range(4)]
    assert used[0] == used[2] != used[1] == used[3]
    near = rails.nearest(gid(0, "10.1.0.77").address.packed)
    assert near is not None and near.choice.port.device == "b"


def test_what_native_refuses_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = OSError(12, "raise the memlock limit")
    rails = rails_over(monkeypatch, FakeNative(refusal), [port("a")])
    assert rails.of_lane(0) is None and "memlock" in rails.reason


def test_a_rail_that_cannot_be_opened_does_not_cost_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    native = FakeNative(OSError(12, "raise the memlock limit"), broken="a")
    rails = rails_over(monkeypatch, native, [port("a"), port("b")])
    assert [rail.choice.port.device for rail in rails.rails] == ["b"]
    assert "a:1" in rails.reason and "memlock" in rails.reason


def test_tcp_looks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    native = FakeNative()
    assert rails_over(monkeypatch, native, [port("a")], "tcp").rails == [] and not native.opened


@pytest.mark.parametrize(
    ("said", "memory", "wanted"),
    [(256, 64 << 30, 256), (256, 1 << 30, 128), (4096, 8 << 30, 1024), (64, 1 << 20, 32)],
)
def test_what_is_pinned_is_a_part_of_what_the_process_may_have(
    monkeypatch: pytest.MonkeyPatch, said: int, memory: int, wanted: int
) -> None:
    monkeypatch.setattr("fscommon.net.rails.memory_bytes", lambda: memory)
    assert RdmaSettings(memory_mib=said).port_memory_mib() == wanted


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="auto, rdma, tcp"):
        RdmaSettings("fast")
    with pytest.raises(ValueError, match="rdma_memory_mib"):
        RdmaSettings(memory_mib=1)
    with pytest.raises(ValueError, match="nonsense"):
        RdmaSettings(wishes=Wishes(subnets=("nonsense",)))


def test_a_description_of_another_size_is_no_queue_pair() -> None:
    with pytest.raises(ProtocolError):
        gid_of(b"short")
