"""The RDMA devices of this machine: the one door to pyverbs, and the choice of what is used.

find_ports() looks for devices, ports, GIDs, states, speeds and NUMA nodes. choose() is pure: it
decides, and says of every unused port why it is not used and what to do about it. pyverbs is loaded
when it is first needed: its import sets up logging, and machines without RDMA do not have it.
Debian's package (44) is found from a virtual environment of the same Python, too; version 59 works
as well.

Not here: queue pairs (native code, fscommon.native), who gets one (fscommon.net.rails).
"""

import fnmatch
import importlib
import importlib.util
import ipaddress
import logging
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from fscommon.errors import BraidError

SYSFS: Final = Path("/sys/class/infiniband")
DEBIAN_PACKAGES: Final = Path("/usr/lib/python3/dist-packages")
GIDS_MAX: Final = 256
# Gb/s of a physical lane, by the number that verbs gives its speed; and the number of lanes, by
# that of a width.
_SPEEDS: Final = {
    1: 2.5,
    2: 5.0,
    4: 10.0,
    8: 10.0,
    16: 14.0,
    32: 25.0,
    64: 50.0,
    128: 100.0,
    256: 200.0,
}
_WIDTHS: Final = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
_ACTIVE: Final = 4
_ETHERNET: Final = 2
_ROCE_V2: Final = 2


class NoRdmaError(BraidError):
    """RDMA cannot be used; the message says why and what to do."""


class GidKind(Enum):
    INFINIBAND = "InfiniBand"
    ROCE_V1 = "RoCE v1"
    ROCE_V2_IPV4 = "RoCE v2 IPv4"
    ROCE_V2_IPV6 = "RoCE v2 IPv6"
    ROCE_V2_LINK_LOCAL = "RoCE v2 link-local"


@dataclass(frozen=True, slots=True)
class Gid:
    index: int
    address: ipaddress.IPv6Address
    kind: GidKind

    def __str__(self) -> str:
        return f"{self.address.ipv4_mapped or self.address} ({self.kind.value}, index {self.index})"


@dataclass(frozen=True, slots=True)
class Port:
    device: str
    number: int
    is_active: bool
    is_ethernet: bool
    gigabits: float
    numa_node: int  # -1: none, or not known
    gids: tuple[Gid, ...]
    fault: str = ""  # why no more is known about it

    @property
    def name(self) -> str:
        return f"{self.device}:{self.number}"


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the configuration allows. devices: patterns of names, each with or without ":PORT";
    subnets: of the addresses that may be used; gid_index -1: the best one."""

    devices: tuple[str, ...] = ()
    subnets: tuple[str, ...] = ()
    gid_index: int = -1


@dataclass(frozen=True, slots=True)
class Choice:
    """One port: with the GID that is used, or with the reason why it is not used."""

    port: Port
    gid: Gid | None
    reason: str = ""


def find_ports() -> list[Port]:
    """Every port of every device; a device that cannot be opened is one port with a `fault`. Raises
    NoRdmaError where no device is visible."""
    if not SYSFS.is_dir():
        raise NoRdmaError(
            "the kernel has no RDMA: load the driver of your card (modprobe mlx5_ib; rdma_rxe "
            "for Soft-RoCE) and ib_uverbs"
        )
    names = sorted(path.name for path in SYSFS.iterdir())
    if not names:
        raise NoRdmaError("there is no RDMA device: check lspci, the driver, and `rdma link`")
    return [port for name in names for port in _ports_of(name)]


def choose(ports: Sequence[Port], wishes: Wishes) -> list[Choice]:
    """One choice for each port: usable ports first, faster before slower."""
    choices = [_choice(port, wishes) for port in ports]
    return sorted(choices, key=lambda one: (one.gid is None, -one.port.gigabits, one.port.name))


def why_none(choices: Sequence[Choice]) -> str:
    """One sentence for people when nothing can be used."""
    return "; ".join(f"{one.port.name}: {one.reason}" for one in choices)


def _choice(port: Port, wishes: Wishes) -> Choice:
    if wishes.devices and not any(_matches(port, pattern) for pattern in wishes.devices):
        return Choice(port, None, "not one of the configured devices (rdma_devices)")
    if port.fault:
        return Choice(port, None, port.fault)
    if not port.is_active:
        return Choice(port, None, "the port is down: check the cable, the switch, `ip link`")
    gid, reason = _best_gid(port, wishes)
    return Choice(port, gid, reason)


def _matches(port: Port, pattern: str) -> bool:
    device, colon, number = pattern.rpartition(":")
    if colon:
        return number == str(port.number) and fnmatch.fnmatchcase(port.device, device)
    return fnmatch.fnmatchcase(port.device, pattern)


_PREFERENCE: Final = (GidKind.INFINIBAND, GidKind.ROCE_V2_IPV4, GidKind.ROCE_V2_IPV6)


def _best_gid(port: Port, wishes: Wishes) -> tuple[Gid | None, str]:
    gids = [gid for gid in port.gids if gid.kind in _PREFERENCE]
    if wishes.gid_index >= 0:
        gids = [gid for gid in port.gids if gid.index == wishes.gid_index]
        if not gids:
            return None, f"it has no GID with index {wishes.gid_index} (rdma_gid_index)"
    if not gids:
        return None, "no RoCE v2 GID of an IPv4 or global IPv6 address: give its interface one"
    nets = [ipaddress.ip_network(subnet) for subnet in wishes.subnets]
    if nets:
        gids = [gid for gid in gids if any(_plain(gid) in net for net in nets)]
        if not gids:
            return None, "no address in the configured subnets (rdma_subnets)"
    known = [gid for gid in gids if gid.kind in _PREFERENCE] or gids
    return min(known, key=_rank), ""


def _plain(gid: Gid) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return gid.address.ipv4_mapped or gid.address


def _rank(gid: Gid) -> tuple[int, int]:
    at = _PREFERENCE.index(gid.kind) if gid.kind in _PREFERENCE else len(_PREFERENCE)
    return at, gid.index


# ---- pyverbs ----------------------------------------------------------------------------------


def _ports_of(device: str) -> list[Port]:
    verbs = _load("pyverbs.device")
    try:
        context = verbs.Context(name=device)
    except Exception as error:  # pyverbs has no base class that all of its exceptions share
        return [
            _broken(
                device,
                f"it cannot be opened ({_first_line(error)}): load ib_uverbs, and "
                "check the rights on /dev/infiniband/uverbs*",
            )
        ]
    try:
        count = int(context.query_device().phys_port_cnt)
        table = list(context.query_gid_table(GIDS_MAX))
        return [_port(context, device, number, table) for number in range(1, count + 1)]
    except Exception as error:  # as above; the device went away between two calls
        return [_broken(device, f"it cannot be asked ({_first_line(error)})")]
    finally:
        context.close()


def _broken(device: str, fault: str) -> Port:
    return Port(
        device,
        1,
        is_active=False,
        is_ethernet=True,
        gigabits=0.0,
        numa_node=-1,
        gids=(),
        fault=fault,
    )


def _port(context: Any, device: str, number: int, table: list[Any]) -> Port:
    found = context.query_port(number)
    is_ethernet = found.link_layer == _ETHERNET
    gids = tuple(_gid(entry, is_ethernet) for entry in table if entry.port_num == number)
    # The newer field has the speeds that do not fit into eight bits; it is 0 where it is not filled
    # in.
    lane_speed = int(getattr(found, "active_speed_ex", 0) or found.active_speed)
    speed = _SPEEDS.get(lane_speed, 0.0) * _WIDTHS.get(int(found.active_width), 1)
    return Port(
        device,
        number,
        is_active=found.state == _ACTIVE,
        is_ethernet=is_ethernet,
        gigabits=speed,
        numa_node=_numa_node(device),
        gids=gids,
    )


def _gid(entry: Any, is_ethernet: bool) -> Gid:
    address = ipaddress.IPv6Address(str(entry.gid_str()))
    return Gid(int(entry.gid_index), address, _kind(address, int(entry.gid_type), is_ethernet))


def _kind(address: ipaddress.IPv6Address, gid_type: int, is_ethernet: bool) -> GidKind:
    if not is_ethernet:
        return GidKind.INFINIBAND
    if gid_type != _ROCE_V2:
        return GidKind.ROCE_V1
    if address.ipv4_mapped is not None:
        return GidKind.ROCE_V2_IPV4
    return GidKind.ROCE_V2_LINK_LOCAL if address.is_link_local else GidKind.ROCE_V2_IPV6


def _numa_node(device: str) -> int:
    try:
        return int((SYSFS / device / "device" / "numa_node").read_text())
    except (OSError, ValueError):
        return -1


def _load(name: str) -> ModuleType:
    """A module of pyverbs, from this environment or from Debian's packages. Raises NoRdmaError."""
    handlers = list(logging.root.handlers)
    try:
        if "pyverbs" not in sys.modules and importlib.util.find_spec("pyverbs") is None:
            _adopt_debian_package()
        return importlib.import_module(name)
    except ImportError as error:
        raise NoRdmaError(
            f"pyverbs cannot be loaded ({_first_line(error)}): install python3-pyverbs of the "
            "rdma-core that is installed"
        ) from error
    finally:
        for handler in [one for one in logging.root.handlers if one not in handlers]:
            logging.root.removeHandler(handler)  # importing pyverbs calls logging.basicConfig


def _adopt_debian_package() -> None:
    """Adds only this one package, so that no other package of the system becomes visible."""
    first = DEBIAN_PACKAGES / "pyverbs" / "__init__.py"
    spec = importlib.util.spec_from_file_location(
        "pyverbs", first, submodule_search_locations=[str(first.parent)]
    )
    if spec is None or spec.loader is None or not first.is_file():
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["pyverbs"] = module
    spec.loader.exec_module(module)


def _first_line(error: Exception) -> str:
    return re.sub(r"\s+", " ", str(error)).strip().rstrip(".")
