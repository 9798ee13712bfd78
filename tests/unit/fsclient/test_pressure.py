"""How short of memory the machine is, as the kernel says, and what is done about it."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fsclient import plan, pressure
from fsclient.pressure import memory_is_limited, memory_is_short, own_pressure_file, pressure_of
from fscommon import machine
from fscommon.config.mount_options import MountOptions
from fscommon.machine import limit_files, limit_of, memory_bytes, memory_limits

from .unasked_ports import UnaskedIo

FULL = (
    "some avg10={} avg60=0.00 avg300=0.00 total=1\n"
    "full avg10=99.00 avg60=0.00 avg300=0.00 total=1\n"
)


def test_it_is_read_as_the_kernel_writes_it() -> None:
    assert pressure_of(FULL.format("12.34")) == pytest.approx(12.34)
    assert pressure_of(FULL.format("0.00")) == 0


@pytest.mark.parametrize(
    "text", ["", "\n", "some", "some avg10", "some avg10=x", "full avg10=50.00"]
)
def test_what_does_not_tell_is_none(text: str) -> None:
    assert pressure_of(text) == 0


def test_the_group_of_the_process() -> None:
    service = "0::/system.slice/braidfs-mount@data.service\n"
    assert own_pressure_file(service) == Path(
        "/sys/fs/cgroup/system.slice/braidfs-mount@data.service/memory.pressure"
    )
    assert own_pressure_file("4:memory:/a\n0::/\n") is None
    assert own_pressure_file("") is None


@dataclass
class _Io(UnaskedIo):
    asked: list[tuple[int, int, bool]] = field(default_factory=list)

    def memory_rest(self, piece_bytes: int, read_bytes: int, short: bool) -> None:
        self.asked.append((piece_bytes, read_bytes, short))


async def test_the_client_keeps_nothing_ready_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, io = tmp_path / "memory", _Io()
    monkeypatch.setattr(pressure, "MACHINE", file)
    monkeypatch.setattr(pressure, "OWN_GROUPS", tmp_path / "none")
    for percent in ("0.00", "4.99", "5.00"):
        file.write_text(FULL.format(percent))
        await plan.rest_memory(io, MountOptions(dirty_mib=4))
    file.unlink()
    assert not memory_is_short()
    some = (4 << 20, 1 << 20, False)
    assert io.asked == [some, some, (0, 0, True)]


def test_limits_are_those_of_all_groups_around() -> None:
    root = Path("/r")
    assert limit_files("0::/pods/one\n", root) == [
        root / "memory.max",
        root / "memory.high",
        root / "pods/memory.max",
        root / "pods/memory.high",
        root / "pods/one/memory.max",
        root / "pods/one/memory.high",
    ]
    v1 = "9:cpu,memory:/docker/x\n3:pids:/y\n"
    assert limit_files(v1, root) == [
        root / "memory/memory.limit_in_bytes",
        root / "memory/docker/memory.limit_in_bytes",
        root / "memory/docker/x/memory.limit_in_bytes",
    ]
    container = "0::/\nnonsense\n\n"
    assert limit_files(container, root) == [root / "memory.max", root / "memory.high"]


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("max\n", None),
        ("", None),
        ("2147483648\n", 1 << 31),
        ("9223372036854771712\n", None),
        ("-1\n", None),
    ],
)
def test_what_a_limit_is(text: str, limit: int | None) -> None:
    assert limit_of(text) == limit


def test_opens_fetch_nothing_where_memory_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not plan.may_fill_pages(MountOptions(prefetch="off"))
    for limited in (True, False):
        monkeypatch.setattr(plan, "memory_is_limited", lambda limited=limited: limited)
        assert plan.may_fill_pages(MountOptions()) == (not limited)


def test_a_group_is_limited_by_any_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "cgroup"
    own.write_text("0::/a/b\n")
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "memory.max").write_text("max\n")
    assert memory_limits(own, tmp_path) == []
    (tmp_path / "a" / "memory.high").write_text("1000000\n")
    (tmp_path / "a" / "b" / "memory.max").write_text("3000000\n")
    assert memory_limits(own, tmp_path) == [1_000_000, 3_000_000]
    monkeypatch.setattr(pressure, "memory_limits", lambda: [1])
    assert memory_is_limited()


def test_budgets_are_parts_of_what_the_group_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory_limits", list)
    whole = memory_bytes()
    monkeypatch.setattr(machine, "memory_limits", lambda: [1 << 60, 64 << 20])
    assert memory_bytes() == 64 << 20 < whole
    assert plan.written_bytes_max(256) == 8 << 20 and plan.written_bytes_max(4) == 4 << 20
    assert plan.prefetched_bytes_max(MountOptions()) == 2 << 20
    monkeypatch.setattr(machine, "memory_limits", lambda: [1000])
    assert plan.written_bytes_max(256) == 1 << 20, "less would stop every writer"
