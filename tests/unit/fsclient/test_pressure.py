"""How short of memory the machine is, as the kernel tells it; what is done about it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from fsclient import plan, pressure
from fsclient.pressure import memory_is_short, own_pressure_file, pressure_of
from fscommon.config.mount_options import MountOptions
from fscommon.native import Datapath

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
class _Lanes:
    asked: list[tuple[int, bool]] = field(default_factory=list)

    def memory_rest(self, warm_bytes: int, short: bool) -> None:
        self.asked.append((warm_bytes, short))


async def test_the_client_keeps_nothing_ready_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, lanes = tmp_path / "memory", _Lanes()
    monkeypatch.setattr(pressure, "MACHINE", file)
    monkeypatch.setattr(pressure, "_OWN", tmp_path / "none")
    for percent in ("0.00", "4.99", "5.00"):
        file.write_text(FULL.format(percent))
        await plan.rest_memory(cast(Datapath, lanes), MountOptions(warm_mib=1))
    file.unlink()
    assert not memory_is_short()
    assert lanes.asked == [(1 << 20, False), (1 << 20, False), (0, True)]
