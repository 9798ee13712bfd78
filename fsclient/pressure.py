"""Whether this machine, or the control group that this process is in, is short of memory
(Documentation/accounting/psi.rst): then the client keeps nothing that it can do without. And
whether that group may have only so much (Documentation/admin-guide/cgroup-v2.rst, memory.max and
memory.high; cgroup-v1/memory.rst)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

SHORT_PERCENT: Final = 5.0  # of the last ten seconds in which some task waited for memory
MACHINE: Final = Path("/proc/pressure/memory")
_CGROUPS: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/cgroup")
_LIMIT_MAX: Final = 1 << 60


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


def _groups(cgroups: str) -> Iterator[tuple[str, str]]:
    """Controllers and path of each (cgroups(7)); those of cgroup v2 are "": hierarchy 0."""
    for line in cgroups.splitlines():
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon and (controllers == "") == (number == "0"):
            yield controllers, path


def own_pressure_file(cgroups: str) -> Path | None:
    """Of the process's group of cgroup v2, by /proc/self/cgroup; None: it is in the root."""
    for controllers, path in _groups(cgroups):
        if controllers == "" and path not in ("", "/"):
            return _CGROUPS / path.lstrip("/") / "memory.pressure"
    return None


def memory_is_short() -> bool:
    """False where the kernel does not tell."""
    own = own_pressure_file(_read(_OWN))
    files = (MACHINE,) if own is None else (MACHINE, own)
    return any(pressure_of(_read(file)) >= SHORT_PERCENT for file in files)


def limit_files(cgroups: str, root: Path) -> list[Path]:
    """Of the groups that /proc/self/cgroup names, and of those around them, if they have any. The
    outermost one that is seen may be a container's, which has limits."""
    files = []
    for controllers, path in _groups(cgroups):
        names: tuple[str, ...]
        if controllers == "":  # cgroup v2
            at, names = root, ("memory.max", "memory.high")
        elif "memory" in controllers.split(","):
            at, names = root / "memory", ("memory.limit_in_bytes",)
        else:
            continue
        parts = [part for part in path.split("/") if part]
        for count in range(len(parts) + 1):
            files += [at.joinpath(*parts[:count], name) for name in names]
    return files


def is_limit(text: str) -> bool:
    """Less than any machine has; not "max", nor the number that v1 has for it."""
    try:
        return int(text) < _LIMIT_MAX
    except ValueError:
        return False


def memory_is_limited() -> bool:
    """Pages that this process fills are its group's, and go when the group has too many of them."""
    return any(is_limit(_read(file)) for file in limit_files(_read(_OWN), _CGROUPS))


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
