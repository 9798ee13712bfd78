"""What this machine has, and what this process may have of it: its control group may have only so
much memory (Documentation/admin-guide/cgroup-v2.rst, memory.max and memory.high;
cgroup-v1/memory.rst)."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

CGROUPS: Final = Path("/sys/fs/cgroup")
OWN_GROUPS: Final = Path("/proc/self/cgroup")
_LIMIT_MAX: Final = 1 << 60  # less than any machine has; v1 has a larger number for none


def memory_bytes() -> int:
    """Of the machine, or what the groups of this process may have, if that is less: budgets are
    parts of it."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *memory_limits()])


def memory_limits(own: Path = OWN_GROUPS, root: Path = CGROUPS) -> list[int]:
    limits = (limit_of(read_file(file)) for file in limit_files(read_file(own), root))
    return [limit for limit in limits if limit is not None]


def groups_of(cgroups: str) -> Iterator[tuple[str, str]]:
    """Controllers and path of each (cgroups(7)); those of cgroup v2 are "": hierarchy 0."""
    for line in cgroups.splitlines():
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon and (controllers == "") == (number == "0"):
            yield controllers, path


def limit_files(cgroups: str, root: Path) -> list[Path]:
    """Of the groups that /proc/self/cgroup names, and of those around them, if they have any. The
    outermost one that is seen may be a container's, which has limits."""
    files = []
    for controllers, path in groups_of(cgroups):
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


def limit_of(text: str) -> int | None:
    """None: "max", the number that v1 has for it, or no number."""
    try:
        limit = int(text)
    except ValueError:
        return None
    return limit if 0 <= limit < _LIMIT_MAX else None


def read_file(file: Path) -> str:
    """Nothing of what cannot be read."""
    try:
        return file.read_text()
    except OSError:
        return ""
