"""Attributes: modes and rights, owners, set-id bits, times, space, supplementary groups."""

import errno
import os
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.mount

USER, GROUP = 12345, 23456


def _errno(call: Callable[..., object], *arguments: object) -> int | None:
    with pytest.raises(OSError) as caught:
        call(*arguments)
    return caught.value.errno


def run_as(
    body: Callable[[], None], *, uid: int = USER, gid: int = GROUP, groups: tuple[int, ...] = ()
) -> None:
    """Runs `body` in a child process with these ids; its exception fails this test."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups(groups)
            os.setgid(gid)
            os.setuid(uid)
            body()
            os.write(writer, b"ok")
        except BaseException as error:
            os.write(writer, repr(error).encode()[:4000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answers:
        answer = answers.read()
    os.waitpid(pid, 0)
    assert answer == b"ok", answer.decode()


def test_modes_are_kept(workdir: Path) -> None:
    path = workdir / "file"
    path.touch()
    for mode in (0o000, 0o644, 0o777, 0o4755, 0o2755, 0o6777, 0o1644):
        path.chmod(mode)
        assert stat.S_IMODE(path.stat().st_mode) == mode


def test_owner_changes(workdir: Path) -> None:
    path = workdir / "file"
    path.touch()
    os.chown(path, USER, GROUP)
    assert (path.stat().st_uid, path.stat().st_gid) == (USER, GROUP)
    os.chown(path, -1, 7)
    assert (path.stat().st_uid, path.stat().st_gid) == (USER, 7)
    (workdir / "link").symlink_to("file")
    os.lchown(workdir / "link", 5, 6)
    assert ((workdir / "link").lstat().st_uid, path.stat().st_uid) == (5, USER)


def test_permission_bits_hold_for_others(workdir: Path) -> None:
    (workdir / "secret").write_bytes(b"s")
    (workdir / "secret").chmod(0o600)
    (workdir / "public").write_bytes(b"p")
    (workdir / "public").chmod(0o644)

    def body() -> None:
        assert (workdir / "public").read_bytes() == b"p"
        assert _errno((workdir / "secret").read_bytes) == errno.EACCES
        assert _errno((workdir / "public").write_bytes, b"x") == errno.EACCES
        assert _errno((workdir / "new").touch) == errno.EACCES
        assert _errno(os.unlink, workdir / "public") == errno.EACCES
        assert _errno(os.chmod, workdir / "public", 0o777) == errno.EPERM
        assert _errno(os.chown, workdir / "public", USER, GROUP) == errno.EPERM
        assert os.access(workdir / "public", os.R_OK)
        assert not os.access(workdir / "public", os.W_OK)

    run_as(body)


def test_new_files_belong_to_the_caller(workdir: Path) -> None:
    workdir.chmod(0o777)

    def body() -> None:
        (workdir / "file").write_bytes(b"mine")
        (workdir / "folder").mkdir()
        (workdir / "link").symlink_to("x")
        os.mkfifo(workdir / "pipe")

    run_as(body)
    for name in ("file", "folder", "link", "pipe"):
        found = (workdir / name).lstat()
        assert (found.st_uid, found.st_gid) == (USER, GROUP), name


def test_supplementary_groups_count_all_of_them(workdir: Path) -> None:
    many = tuple(range(40_000, 40_060))
    (workdir / "file").write_bytes(b"g")
    os.chown(workdir / "file", 0, many[-1])
    (workdir / "file").chmod(0o660)
    workdir.chmod(0o755)

    def body() -> None:
        assert (workdir / "file").read_bytes() == b"g"
        (workdir / "file").write_bytes(b"h")

    run_as(body, groups=many)

    def refused() -> None:
        assert _errno((workdir / "file").read_bytes) == errno.EACCES

    run_as(refused, groups=many[:-1])


def test_chgrp_by_the_owner_to_a_supplementary_group(workdir: Path) -> None:
    (workdir / "file").touch()
    os.chown(workdir / "file", USER, GROUP)

    def body() -> None:
        os.chown(workdir / "file", -1, 40_001)
        assert _errno(os.chown, workdir / "file", -1, 40_002) == errno.EPERM

    run_as(body, groups=(40_001,))
    assert (workdir / "file").stat().st_gid == 40_001


def test_sticky_folder(workdir: Path) -> None:
    (workdir / "shared").mkdir()
    (workdir / "shared").chmod(0o1777)
    (workdir / "shared" / "roots").touch()

    def body() -> None:
        assert _errno(os.unlink, workdir / "shared" / "roots") in (errno.EPERM, errno.EACCES)
        (workdir / "shared" / "mine").touch()
        (workdir / "shared" / "mine").unlink()

    run_as(body)


def test_set_group_id_of_a_folder_is_inherited(workdir: Path) -> None:
    folder = workdir / "team"
    folder.mkdir()
    os.chown(folder, 0, GROUP)
    folder.chmod(0o2777)
    (folder / "file").touch()
    (folder / "below").mkdir()
    assert (folder / "file").stat().st_gid == GROUP
    assert (folder / "below").stat().st_gid == GROUP
    assert (folder / "below").stat().st_mode & stat.S_ISGID


def test_write_by_a_user_drops_set_id_bits(workdir: Path) -> None:
    path = workdir / "program"
    path.write_bytes(b"x" * 100)
    os.chown(path, USER, GROUP)
    path.chmod(0o6777)

    def body() -> None:
        with path.open("r+b") as file:
            file.write(b"y")

    run_as(body, uid=USER + 1)
    assert path.stat().st_mode & 0o6000 == 0


def test_truncate_by_a_user_drops_set_id_bits(workdir: Path) -> None:
    path = workdir / "program"
    path.write_bytes(b"x" * 100)
    os.chown(path, USER, GROUP)
    path.chmod(0o6777)
    run_as(lambda: os.truncate(path, 5), uid=USER + 1)
    assert path.stat().st_mode & 0o6000 == 0


def test_chown_drops_set_id_bits(workdir: Path) -> None:
    path = workdir / "program"
    path.touch()
    path.chmod(0o6755)
    os.chown(path, USER, GROUP)
    assert path.stat().st_mode & 0o6000 == 0


def test_times_are_set_to_the_nanosecond(workdir: Path) -> None:
    path = workdir / "file"
    path.touch()
    for atime, mtime in ((1, 2), (1_600_000_000_123_456_789, 1_700_000_000_987_654_321)):
        os.utime(path, ns=(atime, mtime))
        assert (path.stat().st_atime_ns, path.stat().st_mtime_ns) == (atime, mtime)
    os.utime(path, ns=(-5_000_000_000, 1))
    assert path.stat().st_atime_ns == -5_000_000_000
    (workdir / "link").symlink_to("file")
    os.utime(workdir / "link", ns=(11, 22), follow_symlinks=False)
    assert (workdir / "link").lstat().st_mtime_ns == 22
    assert path.stat().st_mtime_ns == 1


def test_utime_now_and_omit(workdir: Path) -> None:
    path = workdir / "file"
    path.touch()
    os.utime(path, ns=(1_000_000_000, 2_000_000_000))
    subprocess.run(["touch", "-a", str(path)], check=True)  # this uses UTIME_NOW and UTIME_OMIT
    assert path.stat().st_mtime_ns == 2_000_000_000
    assert abs(path.stat().st_atime - time.time()) < 60
    os.chown(path, USER, GROUP)
    path.chmod(0o666)

    def other() -> None:
        os.utime(path)  # a user who may write can set both times to now
        assert _errno(lambda: os.utime(path, ns=(1, 1))) == errno.EPERM

    run_as(other, uid=USER + 1)


def _ctime_rises(path: Path, act: Callable[[], object]) -> bool:
    before = path.lstat().st_ctime_ns
    time.sleep(0.02)  # ext4 takes times from the kernel's tick
    act()
    return path.lstat().st_ctime_ns > before


def test_ctime_rules(workdir: Path) -> None:
    path = workdir / "file"
    path.write_bytes(b"x")
    assert _ctime_rises(path, lambda: path.chmod(0o600))
    assert _ctime_rises(path, lambda: os.chown(path, USER, GROUP))
    assert _ctime_rises(path, lambda: os.utime(path, ns=(1, 1)))
    assert _ctime_rises(path, lambda: os.link(path, workdir / "other"))
    assert _ctime_rises(path, lambda: (workdir / "other").unlink())
    assert _ctime_rises(path, lambda: path.write_bytes(b"yy"))
    assert _ctime_rises(path, lambda: os.truncate(path, 1))
    assert _ctime_rises(path, lambda: os.setxattr(path, "user.x", b"1"))


def test_mtime_rules(workdir: Path) -> None:
    path = workdir / "file"
    path.write_bytes(b"x")
    folder_before = workdir.stat().st_mtime_ns
    before = path.stat().st_mtime_ns
    path.chmod(0o600)
    assert path.stat().st_mtime_ns == before
    time.sleep(0.02)
    with path.open("ab") as file:
        file.write(b"y")
    assert path.stat().st_mtime_ns > before
    assert workdir.stat().st_mtime_ns == folder_before
    (workdir / "new").touch()
    assert workdir.stat().st_mtime_ns > folder_before
    folder_before = workdir.stat().st_mtime_ns
    time.sleep(0.02)
    (workdir / "new").unlink()
    assert workdir.stat().st_mtime_ns > folder_before


def test_mtime_set_after_writing_stays(workdir: Path) -> None:
    """cp -p and tar do this: write, set the time, close."""
    path = workdir / "file"
    with path.open("wb") as file:
        file.write(b"x" * 100_000)
        file.flush()
        os.utime(path, ns=(5_000_000_000, 6_000_000_000))
    assert path.stat().st_mtime_ns == 6_000_000_000
    assert path.stat().st_size == 100_000


def test_size_and_mtime_are_seen_while_writing(workdir: Path) -> None:
    path = workdir / "file"
    with path.open("wb", buffering=0) as file:
        for count in range(1, 6):
            file.write(b"x" * 70_000)
            assert path.stat().st_size == count * 70_000
            assert abs(path.stat().st_mtime - time.time()) < 60


def test_attributes_of_the_root_and_dots(workdir: Path) -> None:
    assert (workdir / ".").stat().st_ino == workdir.stat().st_ino
    (workdir / "a").mkdir()
    assert (workdir / "a" / "..").stat().st_ino == workdir.stat().st_ino
    assert stat.S_ISDIR(workdir.stat().st_mode)


def test_statfs_tells_a_plausible_truth(workdir: Path) -> None:
    found = os.statvfs(workdir)
    assert found.f_namemax == 255
    assert found.f_blocks > 0
    assert found.f_bavail <= found.f_bfree <= found.f_blocks
    disk = os.statvfs(Path(__file__))
    total = disk.f_frsize * disk.f_blocks
    # Four targets on one disk count it up to four times.
    assert found.f_frsize * found.f_bfree <= 8 * total
    assert found.f_files > 0


def test_statvfs_by_df(workdir: Path) -> None:
    assert subprocess.run(["df", str(workdir)], check=False, capture_output=True).returncode == 0


def test_faccessat_for_root_and_execute(workdir: Path) -> None:
    path = workdir / "script"
    path.write_text("#!/bin/sh\nexit 3\n")
    assert not os.access(path, os.X_OK)
    assert _errno(lambda: subprocess.run([path], check=False)) == errno.EACCES
    path.chmod(0o755)
    assert subprocess.run([path], check=False).returncode == 3


def test_setuid_program_runs_as_its_owner(workdir: Path) -> None:
    """The mount has no nosuid: the bit works, as on any disk."""
    (workdir / "id").write_bytes(Path("/usr/bin/id").read_bytes())
    os.chown(workdir / "id", USER, GROUP)
    (workdir / "id").chmod(0o4755)
    result = subprocess.run(
        [workdir / "id", "-u"], check=False, capture_output=True, text=True, user=USER + 1
    )
    assert result.stdout.strip() == str(USER), result.stderr


def test_stat_and_fstat_agree(workdir: Path) -> None:
    with (workdir / "file").open("wb") as file:
        file.write(b"x" * 12_345)
        file.flush()
        assert os.fstat(file.fileno()) == (workdir / "file").stat()


def test_times_of_all_parts_are_of_one_clock(workdir: Path) -> None:
    """Files are created by the metaserver or a lane, touched by the kernel, written by a lane:
    times never go back."""
    for number in range(100):
        path = workdir / f"{number % 50}"
        os.close(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY))
        made = path.stat().st_mtime_ns
        os.utime(path)
        touched = path.stat().st_mtime_ns
        path.write_bytes(b"x")
        assert made <= touched <= path.stat().st_mtime_ns
