"""Whether this machine, or the control group of this process, is short of memory
(Documentation/accounting/psi.rst): then the client keeps nothing that it can do without. And
whether that group's memory is limited; how much it may have is in fscommon.machine."""

from pathlib import Path
from typing import Final

from fscommon.machine import CGROUPS, OWN_GROUPS, groups_of, memory_limits, read_file

SHORT_PERCENT: Final = 5.0  # of the last ten seconds, in which some task waited for memory
MACHINE: Final = Path("/proc/pressure/memory")


def pressure_of(text: str) -> float:
    """The percentage of the last ten seconds; 0 if the text is of another format."""
    for line in text.splitlines():
        kind, _, numbers = line.partition(" ")
        for number in numbers.split() if kind == "some" else ():
            name, _, value = number.partition("=")
            if name == "avg10":
                try:
                    return float(value)
                except ValueError:
                    return 0.0
    return 0.0


def own_pressure_file(cgroups: str) -> Path | None:
    """The pressure file of this process's group, from /proc/self/cgroup; None: it is the root."""
    for controllers, path in groups_of(cgroups):
        if controllers == "" and path not in ("", "/"):
            return CGROUPS / path.lstrip("/") / "memory.pressure"
    return None


def memory_is_short() -> bool:
    """Whether memory is short; False if the kernel does not say."""
    own = own_pressure_file(read_file(OWN_GROUPS))
    files = (MACHINE,) if own is None else (MACHINE, own)
    return any(pressure_of(read_file(file)) >= SHORT_PERCENT for file in files)


def memory_is_limited() -> bool:
    """Whether the group's memory is limited: pages that this process fills count for it, and are
    dropped when it has too many."""
    return bool(memory_limits())
