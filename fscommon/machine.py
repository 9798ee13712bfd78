"""How much memory this machine has, and how much of it this process may use.

A control group may limit memory (Documentation/admin-guide/cgroup-v2.rst, memory.max and
memory.high; cgroup-v1/memory.rst).
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

CGROUPS: Final = Path("/sys/fs/cgroup")
OWN_GROUPS: Final = Path("/proc/self/cgroup")
# Above any machine's memory; cgroup v1 has a larger number for "no limit".
_LIMIT_MAX: Final = 1 << 60


def memory_bytes() -> int:
    """The memory of the machine, or the limit of this process's control groups, if that is less, in
    bytes. Budgets are parts of it."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *memory_limits()])


def memory_limits(own: Path = OWN_GROUPS, root: Path = CGROUPS) -> list[int]:
    limits = (limit_of(read_file(file)) for file in limit_files(read_file(own), root))
    return [limit for limit in limits if limit is not None]


def groups_of(cgroups: str) -> Iterator[tuple[str, str]]:
    """Controllers and path of each group (cgroups(7)); cgroup v2 (hierarchy 0) has "" as its
    controllers."""
    for line in cgroups.splitlines():
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon and (controllers == "") == (number == "0"):
            yield controllers, path


def limit_files(cgroups: str, root: Path) -> list[Path]:
    """The limit files of the groups that /proc/self/cgroup names, and of the groups around them.
    The outermost visible group may be a container's, which has limits."""
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
    """The limit in bytes. None for "max", for the number that means "no limit" in v1, and for no
    number."""
    try:
        limit = int(text)
    except ValueError:
        return None
    return limit if 0 <= limit < _LIMIT_MAX else None


def read_file(file: Path) -> str:
    """The file's text; "" when it cannot be read."""
    try:
        return file.read_text()
    except OSError:
        return ""
