"""What happens to set-id bits and security.capability when a file is written or gets another owner.

Each way is tried on a mount, with another mount as observer, and on the local ext4, which defines
the right result: stat(2) and getxattr(2) must show the same, before the file is closed and after.
Programs show that the kernel which wrote does not use the old bits any more: a file that lost its
bits gives no user its rights.
"""

import mmap
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.conftest import STATES
from tests.fuse.posix.calls import c

pytestmark = [pytest.mark.mount, pytest.mark.timeout(120)]

OWNER, GROUP, STRANGER, OTHER_GROUP = 12345, 23456, 12346, 23457
# It grants cap_dac_override, on exec.
CAPABILITY = bytes.fromhex("0100000202000000000000000000000000000000")
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16
BLOCK = 4096
NOBODY = 0xFFFFFFFF  # this value is in ACL entries that name no user or group

Way = Callable[[str], int | None]  # it returns a descriptor that is closed later
Look = list[tuple[str, bool]]


def _open(flags: int) -> Callable[[str], int]:
    return lambda path: os.open(path, flags)


def _write(flags: int, offset: int = 0) -> Way:
    def way(path: str) -> int:
        fd = os.open(path, flags)
        buffer = mmap.mmap(-1, BLOCK)  # it is aligned, as O_DIRECT requires
        if flags & os.O_APPEND:
            os.write(fd, b"more")
        else:
            os.pwrite(fd, buffer, offset)
        return fd

    return way


def _store(path: str) -> int:
    fd = os.open(path, os.O_RDWR)
    with mmap.mmap(fd, 100) as mapped:
        mapped[0] = 7
        mapped.flush()
    return fd


def _cut(size: int) -> Way:
    return lambda path: os.truncate(path, size)


def _fcut(size: int) -> Way:
    def way(path: str) -> int:
        fd = os.open(path, os.O_RDWR)
        os.ftruncate(fd, size)
        return fd

    return way


def _allocate(mode: int) -> Way:
    def way(path: str) -> int:
        fd = os.open(path, os.O_RDWR)
        c.fallocate(fd, mode, 0, BLOCK)
        return fd

    return way


def _copy(length: int) -> Way:
    def way(path: str) -> int:
        fd = os.open(path, os.O_RDWR)
        source = os.open(Path(path).parent / "source", os.O_RDONLY)
        assert os.copy_file_range(source, fd, length, 0, 0) == length
        os.close(source)
        return fd

    return way


def _splice(path: str) -> int:
    fd = os.open(path, os.O_RDWR)
    reader, writer = os.pipe()
    os.write(writer, b"spliced")
    os.splice(reader, fd, 7, offset_dst=0)
    return fd


def _nothing_written(path: str) -> int:
    fd = os.open(path, os.O_RDWR)
    os.write(fd, b"")
    return fd


def _own(uid: int, gid: int) -> Way:
    return lambda path: os.chown(path, uid, gid)


def _fown(path: str) -> int:
    fd = os.open(path, os.O_RDONLY)
    os.fchown(fd, -1, -1)
    return fd


def _set_acl(path: str) -> None:
    entries = b"".join(
        tag.to_bytes(2, "little") + rights.to_bytes(2, "little") + ident.to_bytes(4, "little")
        for tag, rights, ident in (
            (1, 7, NOBODY),
            (2, 7, 5),
            (4, 7, NOBODY),
            (16, 7, NOBODY),
            (32, 7, NOBODY),
        )
    )
    os.setxattr(path, "system.posix_acl_access", b"\2\0\0\0" + entries)


W, RW = os.O_WRONLY, os.O_RDWR
WAYS: dict[str, Way] = {
    "write_only": _write(W),
    "write_read": _write(RW),
    "write_beyond": _write(W, 1 << 20),
    "append": _write(W | os.O_APPEND),
    "append_read": _write(RW | os.O_APPEND),
    "direct": _write(RW | os.O_DIRECT),
    "direct_only": _write(W | os.O_DIRECT),
    "write_dsync": _write(RW | os.O_DSYNC),
    "write_only_sync": _write(W | os.O_SYNC),
    "splice": _splice,
    "nothing_written": _nothing_written,
    "opened_only": _open(RW),
    "map": _store,
    "truncate_down": _cut(50),
    "truncate_same": _cut(100),
    "truncate_up": _cut(1 << 20),
    "truncate_to_nothing": _cut(0),
    "ftruncate_down": _fcut(50),
    "ftruncate_up": _fcut(1 << 20),
    "open_truncate": _open(W | os.O_TRUNC),
    "open_truncate_read": _open(RW | os.O_TRUNC),
    "create_truncate": _open(W | os.O_TRUNC | os.O_CREAT),
    "allocate": _allocate(0),
    "allocate_keep": _allocate(KEEP_SIZE),
    "punch": _allocate(PUNCH_HOLE | KEEP_SIZE),
    "zero": _allocate(ZERO_RANGE),
    "zero_keep": _allocate(ZERO_RANGE | KEEP_SIZE),
    "copy_little": _copy(100),
    "copy": _copy(1 << 18),
}
OWNING: dict[str, Way] = {
    "owner_same": _own(OWNER, -1),
    "group_same": _own(-1, GROUP),
    "group_other": _own(-1, OTHER_GROUP),
    "nothing": _own(-1, -1),
    "fchown_nothing": _fown,
    "chmod": lambda path: os.chmod(path, 0o6755),
    "acl": _set_acl,
}
ACTORS = {
    "root": (0, 0, ()),
    "owner": (OWNER, OTHER_GROUP, ()),
    "member": (OWNER, GROUP, (OTHER_GROUP,)),
    "stranger": (STRANGER, OTHER_GROUP, ()),
    "in_group": (STRANGER, OTHER_GROUP, (GROUP,)),
}


class Acting:
    """A child process that performs a way as another user, and keeps the file open until it is told
    to end."""

    def __init__(self, way: Way, path: str, actor: tuple[int, int, tuple[int, ...]]) -> None:
        self._done, done = os.pipe()
        go_on, self._go_on = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            outcome = b"a failure"
            try:
                os.close(self._go_on)
                uid, gid, groups = actor
                os.setgroups(groups)
                os.setgid(gid)
                os.setuid(uid)
                way(path)  # the files that it opened stay open until the process ends
                outcome = b"ok"
            except BaseException as error:
                outcome = repr(error).encode()
            finally:
                os.write(done, outcome)
                os.read(go_on, 1)
                os._exit(0)
        os.close(done)
        os.close(go_on)
        self.outcome = os.read(self._done, 4000).decode()

    def end(self) -> None:
        os.close(self._go_on)
        os.waitpid(self._pid, 0)
        os.close(self._done)


def _look(path: Path) -> tuple[str, bool]:
    return oct(stat.S_IMODE(path.stat().st_mode)), "security.capability" in os.listxattr(path)


def _prepare(folder: Path, name: str, size: int, mode: int, *, capable: bool) -> Path:
    path = folder / name
    path.write_bytes(b"x" * size)
    os.chown(path, OWNER, GROUP)
    path.chmod(mode)
    if capable:
        os.setxattr(path, "security.capability", CAPABILITY)
    return path


def _take(way: Way, path: Path, actor: str, views: list[Path]) -> tuple[str, list[Look]]:
    """The way's outcome, and what each place shows: before it, after it, and closed."""
    looks = [[_look(view)] for view in views]
    acting = Acting(way, str(path), ACTORS[actor])
    for seen, view in zip(looks, views, strict=True):
        seen.append(_look(view))
    acting.end()
    for seen, view in zip(looks, views, strict=True):
        seen.append(_look(view))
    return acting.outcome, looks


@pytest.fixture(scope="module")
def elsewhere(shared_cluster: Cluster) -> Iterator[Path]:
    """The root of another mount, which every user can access."""
    STATES.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="elsewhere-", dir=STATES))
    folder.chmod(0o755)
    with shared_cluster.second_client(folder / "other") as mounted:
        yield mounted
    shutil.rmtree(folder)


@pytest.fixture
def places(workdir: Path, cluster: Cluster, elsewhere: Path, localdir: Path) -> list[Path]:
    """One folder, on this mount and on the other, and one on the local disk."""
    for folder in (workdir, localdir):
        folder.chmod(0o777)
        (folder / "source").write_bytes(b"s" * (1 << 18))
        (folder / "source").chmod(0o644)
    return [workdir, elsewhere / workdir.relative_to(cluster.mount_path), localdir]


CASES = [
    (actor, name, way)
    for actor, ways in (
        *(("stranger", WAYS), ("root", WAYS)),
        *(("owner", OWNING), ("member", OWNING), ("root", OWNING)),
        *(("stranger", OWNING), ("in_group", OWNING)),
    )
    for name, way in ways.items()
]


# This differs from ext4 (docs/SEMANTICS.md): root's writes to a file that has both, and stores
# through a mapping, remove more than they should, and so does a refused chown.
@pytest.mark.parametrize(("mode", "capable"), [(0o6777, False), (0o2767, True), (0o4777, True)])
@pytest.mark.parametrize("size", [100, 200_000])
def test_as_on_ext4(places: list[Path], size: int, mode: int, capable: bool) -> None:
    here, there, local = places
    wrong = []
    both = capable and bool(mode & stat.S_ISUID)
    for actor, name, way in CASES:
        if (both and actor == "root" and name in WAYS) or (capable and name == "map"):
            continue
        if capable and actor in ("stranger", "in_group") and name.endswith("nothing"):
            continue
        file = f"{actor}-{name}"
        for folder in (here, local):
            _prepare(folder, file, size, mode, capable=capable)
        outcome, (seen, elsewhere) = _take(way, here / file, actor, [here / file, there / file])
        wanted_outcome, (wanted,) = _take(way, local / file, actor, [local / file])
        if (outcome, seen, elsewhere) != (wanted_outcome, wanted, wanted):
            wrong.append(f"{file}: {outcome} {seen} {elsewhere}, not {wanted_outcome} {wanted}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("actor", ACTORS)
def test_a_directory_keeps_what_it_has(places: list[Path], actor: str) -> None:
    here, there, local = places
    for folder in (here, local):
        path = folder / f"folder-{actor}"
        path.mkdir()
        os.chown(path, OWNER, GROUP)
        path.chmod(0o7777)
        os.setxattr(path, "security.capability", CAPABILITY)
    name = f"folder-{actor}"
    outcome, seen = _take(OWNING["nothing"], here / name, actor, [here / name, there / name])
    wanted_outcome, (wanted,) = _take(OWNING["nothing"], local / name, actor, [local / name])
    assert (outcome, seen) == (wanted_outcome, [wanted, wanted])


def _rewrite(flags: int) -> Way:
    """Writes the same bytes once more, over the program's last block."""

    def way(path: str) -> None:
        offset = (os.path.getsize(path) - 1) // BLOCK * BLOCK
        with open(path, "rb") as file:
            file.seek(offset)
            block = file.read(BLOCK)
        fd = os.open(path, flags)
        buffer = mmap.mmap(-1, BLOCK)
        buffer[: len(block)] = block
        os.lseek(fd, offset, os.SEEK_SET)
        os.write(fd, buffer if flags & os.O_DIRECT else block)
        os.close(fd)

    return way


def _truncated(path: str) -> None:
    with open(path, "rb") as file:
        content = file.read()
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC)
    os.write(fd, content)
    os.close(fd)


def _allocated(path: str) -> None:
    fd = os.open(path, os.O_RDWR)
    c.fallocate(fd, 0, 0, BLOCK)
    os.close(fd)


def _extended(path: str) -> None:
    os.truncate(path, os.path.getsize(path) + 1)


PROGRAM_WAYS: dict[str, Way] = {
    "write": _rewrite(RW),
    "write_only": _rewrite(W),
    "append": lambda path: _append(path),
    "direct": _rewrite(RW | os.O_DIRECT),
    "direct_only": _rewrite(W | os.O_DIRECT),
    "open_truncate": _truncated,
    "truncate": _extended,
    "allocate": _allocated,
}


def _append(path: str) -> None:
    fd = os.open(path, W | os.O_APPEND)
    os.write(fd, b"more")
    os.close(fd)


def _run(path: Path) -> str:
    """The user as whom a program runs that prints it, when a user who is not the owner
    starts it."""
    told = subprocess.run(
        [path, "-u"],
        check=False,
        user=STRANGER,
        group=OTHER_GROUP,
        extra_groups=(),
        capture_output=True,
        text=True,
        timeout=20,
    )
    return told.stdout.strip() or told.stderr


@pytest.mark.parametrize("name", PROGRAM_WAYS)
def test_no_kernel_gives_rights_that_are_gone(places: list[Path], name: str) -> None:
    """Each kernel has run the program with its owner's rights before."""
    here, there, _ = places
    for writer, reader in ((here, there), (there, here)):
        path = here / f"{name}-{writer is here}"
        shutil.copyfile("/usr/bin/id", path)
        path.chmod(0o4777)
        for view in (writer, reader):
            assert _run(view / path.name) == "0"
        acting = Acting(PROGRAM_WAYS[name], str(writer / path.name), ACTORS["stranger"])
        acting.end()
        assert acting.outcome == "ok"
        for view in (writer, reader):
            assert _run(view / path.name) == str(STRANGER), view
