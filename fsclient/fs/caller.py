"""Who asked: the identity behind a request, and all its groups where an operation needs them.

The kernel sends uid, gid and umask but not the supplementary groups; those are in /proc of the
calling process, whose true pid only native knows (the header carries the upcall slot). They are
read only when a file is made in a set-group-id directory, a mode with set-group-id is asked for,
or an access ACL is set.
On a mount that may be idmapped (the option `idmap`) the kernel sends uid and gid, as the file is to
have them, with what makes inodes alone. Of others it is looked up whether they are root, or whose
number the file's owner has; whether they are in its group is not known, as its number at their
mount is not.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fscommon.wire.messages import Caller

GROUPS_MAX = 65536  # NGROUPS_MAX of Linux
UNKNOWN_ID = 0xFFFF_FFFF  # FUSE_INVALID_UIDGID
_SET_GID = 0o2000
_FS_UID = 3  # of real, effective, saved and file system's


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

    def is_user(self, uid: int) -> bool:
        return is_user(uid, self.uid, self.pid)

    def in_group(self, gid: int) -> bool:
        """Whether the caller may give files of this group the set-group-id bit."""
        if self.uid == UNKNOWN_ID:
            return self.is_user(0)
        return self.uid == 0 or self.gid == gid or gid in read_groups(self.pid())


def is_user(uid: int, told: int, pid: Callable[[], int]) -> bool:
    """Whether a request is one of this user's. told: what the kernel says; pid: asked for when
    that is nothing."""
    return told == uid or (told == UNKNOWN_ID and _words_of(pid(), "Uid:")[_FS_UID:] == [uid])


def read_groups(pid: int) -> tuple[int, ...]:
    """Supplementary groups of a process; () when it is gone."""
    return tuple(_words_of(pid, "Groups:"))


def _words_of(pid: int, line: str) -> list[int]:
    """The numbers of a line of its status; [] when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    for words in map(str.split, lines.splitlines()):
        if words[:1] == [line]:
            return [int(word) for word in words[1 : GROUPS_MAX + 1]]
    return []
