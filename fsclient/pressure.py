"""Whether this machine, or the control group that this process is in, is short of memory
(Documentation/accounting/psi.rst): then the client keeps nothing that it can do without. And
whether that group may have only so much: how much is fscommon.machine."""

from pathlib import Path
from typing import Final

from fscommon.machine import CGROUPS, OWN_GROUPS, groups_of, memory_limits, read_file

SHORT_PERCENT: Final = 5.0  # of the last ten seconds in which some task waited for memory
MACHINE: Final = Path("/proc/pressure/memory")


def pressure_of(text: str) -> float:
    """Percent of the last ten seconds; 0 for what is no such file."""
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
    """Of the process's group of cgroup v2, by /proc/self/cgroup; None: it is in the root."""
    for controllers, path in groups_of(cgroups):
        if controllers == "" and path not in ("", "/"):
            return CGROUPS / path.lstrip("/") / "memory.pressure"
    return None


def memory_is_short() -> bool:
    """False where the kernel does not tell."""
    own = own_pressure_file(read_file(OWN_GROUPS))
    files = (MACHINE,) if own is None else (MACHINE, own)
    return any(pressure_of(read_file(file)) >= SHORT_PERCENT for file in files)


def memory_is_limited() -> bool:
    """Pages that this process fills are its group's, and go when the group has too many of them."""
    return bool(memory_limits())
