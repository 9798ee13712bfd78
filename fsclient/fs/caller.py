"""The caller of a request, and all its groups where an operation needs them.

The kernel sends uid, gid and umask but not the supplementary groups. These are in /proc of the
calling process, whose true pid only native knows (the header has the upcall slot). They are read
only when a file is made in a set-group-ID directory, a mode with set-group-ID is requested, or an
access ACL is set. On a mount that may be idmapped (the option `idmap`) the kernel sends uid and gid
only with requests that make inodes, as the new file is to have them. For other requests /proc says
whether the caller is root or has the number of the file's owner. Whether the caller is in the
file's group is not known, as the group's number at the caller's mount is not.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fscommon.wire.messages import Caller

GROUPS_MAX = 65536  # NGROUPS_MAX of Linux
UNKNOWN_ID = 0xFFFF_FFFF  # FUSE_INVALID_UIDGID
_SET_GID = 0o2000
_FS_UID = 3  # index among real, effective, saved and file system uid


@dataclass(frozen=True, slots=True)
class Requester:
    """uid, gid and umask of the caller; the pid is looked up only when it is needed."""

    uid: int
    gid: int
    umask: int
    pid: Callable[[], int]

    def plain(self) -> Caller:
        return Caller(self.uid, self.gid, self.umask)

    def for_mode(self, mode: int) -> Caller:
        """The caller of an operation that creates with this mode. set-group-ID depends on whether
        the caller is in the group that the file will have."""
        groups = read_groups(self.pid()) if mode & _SET_GID and self.uid else ()
        return Caller(self.uid, self.gid, self.umask, groups)

    def is_user(self, uid: int) -> bool:
        return is_user(uid, self.uid, self.pid)

    def in_group(self, gid: int) -> bool:
        """Whether the caller may set the set-group-ID bit of files of this group."""
        if self.uid == UNKNOWN_ID:
            return self.is_user(0)
        return self.uid == 0 or self.gid == gid or gid in read_groups(self.pid())


def is_user(uid: int, told: int, pid: Callable[[], int]) -> bool:
    """Whether this user sent a request. told: the kernel's uid; pid: called if that is none."""
    return told == uid or (told == UNKNOWN_ID and _words_of(pid(), "Uid:")[_FS_UID:] == [uid])


def read_groups(pid: int) -> tuple[int, ...]:
    """The supplementary groups of a process; () if it has ended."""
    return tuple(_words_of(pid, "Groups:"))


def _words_of(pid: int, line: str) -> list[int]:
    """The numbers on a line of the process's status; [] if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    for words in map(str.split, lines.splitlines()):
        if words[:1] == [line]:
            return [int(word) for word in words[1 : GROUPS_MAX + 1]]
    return []
