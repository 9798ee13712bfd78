"""Who asked: the identity behind a request, and all its groups where an operation needs them.

The kernel sends uid, gid and umask but not the supplementary groups; those are in /proc of the
calling process, whose true pid only native knows (the header carries the upcall slot). They are
read only when a file is made in a set-group-id directory, a mode with set-group-id is asked for,
or an access ACL is set.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fscommon.wire.messages import Caller

GROUPS_MAX = 65536  # NGROUPS_MAX of Linux
_SET_GID = 0o2000


@dataclass(frozen=True, slots=True)
class Requester:
    """uid, gid, umask of the caller; pid is asked for only when needed."""

    uid: int
    gid: int
    umask: int
    pid: Callable[[], int]

    def plain(self) -> Caller:
        return Caller(self.uid, self.gid, self.umask)

    def for_mode(self, mode: int) -> Caller:
        """The caller of an operation that creates with this mode: set-group-id depends on whether
        the caller is in the group that the file will have."""
        groups = read_groups(self.pid()) if mode & _SET_GID and self.uid else ()
        return Caller(self.uid, self.gid, self.umask, groups)

    def in_group(self, gid: int) -> bool:
        """Whether the caller may give files of this group the set-group-id bit."""
        return self.uid == 0 or self.gid == gid or gid in read_groups(self.pid())


def read_groups(pid: int) -> tuple[int, ...]:
    """Supplementary groups of a process; () when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ()
    for line in lines.splitlines():
        if line.startswith("Groups:"):
            return tuple(int(word) for word in line.split()[1 : GROUPS_MAX + 1])
    return ()
