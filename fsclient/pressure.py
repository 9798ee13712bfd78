"""Whether this machine, or the control group that this process is in, is short of memory
(Documentation/accounting/psi.rst): then the client keeps nothing that it can do without."""

from pathlib import Path
from typing import Final

SHORT_PERCENT: Final = 5.0  # of the last ten seconds in which some task waited for memory
MACHINE: Final = Path("/proc/pressure/memory")
_CGROUPS: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/cgroup")


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
    for line in cgroups.splitlines():
        number, _, path = line.partition("::")
        if number == "0" and path not in ("", "/"):
            return _CGROUPS / path.lstrip("/") / "memory.pressure"
    return None


def memory_is_short() -> bool:
    """False where the kernel does not tell."""
    own = own_pressure_file(_read(_OWN))
    files = (MACHINE,) if own is None else (MACHINE, own)
    return any(pressure_of(_read(file)) >= SHORT_PERCENT for file in files)


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
