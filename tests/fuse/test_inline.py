"""Tiny files stored in their inode's record are like any other for every observer, and need no
storage server (docs/decisions/0037-inline-data.md).
"""

import contextlib
import json
import mmap
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fscommon.limits import INLINE_LENGTH_MAX
from tests.cluster import mounts
from tests.cluster.cluster import BIN, Cluster
from tests.cluster.numbers import metric
from tests.cluster.plan import SHORT_SESSIONS
from tests.cluster.process import prepare_apart, wait_until
from tests.fuse.looks import lanes_counted, seen_from, wait_delegated

pytestmark = pytest.mark.mount

COUNT = 60
MUCH = bytes(INLINE_LENGTH_MAX)  # this is no longer tiny
USER = 12345


def content(number: int) -> bytes:
    return b"%d." % number * (1 + number * INLINE_LENGTH_MAX // 4 // COUNT)


def delegated(cluster: Cluster, folder: Path) -> None:
    def make(number: int) -> None:
        (folder / f"first-{number}").write_bytes(b"")

    wait_delegated(cluster, "births", make)


def make_files(folder: Path, count: int = COUNT) -> None:
    for number in range(count):
        (folder / f"{number}").write_bytes(content(number))


def inline_births(cluster: Cluster) -> int:
    return lanes_counted(cluster, "inline_births")


def inline_reads(cluster: Cluster) -> int:
    return lanes_counted(cluster, "inline_reads")


def asked(cluster: Cluster) -> int:
    """How many requests for bytes the storage servers have received."""
    return int(
        sum(
            metric(server, "braidfs_data_requests_total", op=op)
            for server in cluster.plan.storageservers
            for op in ("READ", "WRITE")
        )
    )


@pytest.fixture
def folder(cluster: Cluster, workdir: Path) -> Path:
    new = workdir / "folder"
    new.mkdir()
    delegated(cluster, new)
    return new


@pytest.fixture
def tiny(cluster: Cluster, folder: Path) -> Path:
    """Files most of which are stored in their record, and which no client has cached."""
    before = inline_births(cluster)
    make_files(folder)
    assert inline_births(cluster) - before > COUNT / 2
    cluster.remount()
    return folder


def test_no_storage_server_is_asked(cluster: Cluster, folder: Path, other: Path) -> None:
    before, births = asked(cluster), inline_births(cluster)
    make_files(folder)
    there = seen_from(other, cluster, folder)
    for number in range(COUNT):
        assert (there / f"{number}").read_bytes() == content(number)
        assert (there / f"{number}").stat().st_size == len(content(number))
    told = inline_births(cluster) - births
    assert told > COUNT / 2
    assert asked(cluster) - before <= 10 * (COUNT - told)


def test_it_is_the_same_for_users_without_rights(cluster: Cluster, folder: Path) -> None:
    """Each of their writes says that set-id bits must go: a new file is known to have none."""
    folder.chmod(0o777)
    before, births = asked(cluster), inline_births(cluster)
    code = (
        "import os, sys\n"
        f"os.setgroups([]); os.setgid({USER}); os.setuid({USER})\n"
        f"for number in range({COUNT}):\n"
        "    with open(f'{sys.argv[1]}/{number}', 'wb') as file: file.write(b'theirs')\n"
        "with open(f'{sys.argv[1]}/set-id', 'wb') as file:\n"
        "    os.chmod(file.fileno(), 0o6755); file.write(b'theirs')\n"
    )
    subprocess.run([sys.executable, "-c", code, folder], check=True, timeout=60)
    told = inline_births(cluster) - births
    assert told > COUNT / 2
    assert asked(cluster) - before <= 10 * (COUNT + 1 - told)
    assert stat.S_IMODE((folder / "set-id").stat().st_mode) == 0o755
    cluster.remount()
    assert stat.S_IMODE((folder / "set-id").stat().st_mode) == 0o755


def test_they_are_read_after_a_remount(cluster: Cluster, tiny: Path) -> None:
    before, reads = asked(cluster), inline_reads(cluster)
    for number in range(COUNT):
        with (tiny / f"{number}").open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            assert os.pread(file.fileno(), 5, 1) == content(number)[1:6]
            assert os.pread(file.fileno(), 100, len(content(number))) == b""
            assert file.read() == content(number)
        with (
            (tiny / f"{number}").open("rb") as file,
            mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped,
        ):
            assert mapped[:] == content(number)
    assert inline_reads(cluster) - reads > COUNT / 2
    assert asked(cluster) - before < COUNT


def test_what_is_too_large_goes_to_the_targets(cluster: Cluster, folder: Path) -> None:
    births = inline_births(cluster)
    for number in range(10):
        (folder / f"{number}").write_bytes(bytes(INLINE_LENGTH_MAX) + b"!")
    assert inline_births(cluster) == births
    cluster.remount()
    for number in range(10):
        assert (folder / f"{number}").read_bytes() == bytes(INLINE_LENGTH_MAX) + b"!"


def test_written_again_by_either_client(cluster: Cluster, tiny: Path, other: Path) -> None:
    there = seen_from(other, cluster, tiny)
    for number in range(0, COUNT, 4):
        expected = content(number)
        for writer, reader in ((tiny, there), (there, tiny)):
            with (writer / f"{number}").open("ab") as file:
                file.write(b"more" * 2000)
            expected += b"more" * 2000
            assert (reader / f"{number}").read_bytes() == expected
            with (writer / f"{number}").open("r+b") as file:
                file.write(b"begin")
            expected = b"begin" + expected[5:]
            assert (reader / f"{number}").read_bytes() == expected
    cluster.remount()
    assert (tiny / "0").read_bytes()[:5] == b"begin"


def test_what_stays_tiny_asks_no_storage_server(cluster: Cluster, tiny: Path, other: Path) -> None:
    """Files are overwritten, and written at and beyond their end, by two clients; a model in memory
    says what they contain."""
    there, chance = seen_from(other, cluster, tiny), random.Random(37)
    before, written = asked(cluster), lanes_counted(cluster, "inline_writes")
    count = 0
    for number in range(20):
        held = bytearray(content(number))
        for flags in (os.O_RDWR, os.O_WRONLY, os.O_WRONLY | os.O_APPEND, os.O_RDWR | os.O_DSYNC):
            offset, new = chance.randrange(100), chance.randbytes(chance.randrange(1, 100))
            if flags & os.O_APPEND:
                offset = len(held)
            fd = os.open(tiny / f"{number}", flags)
            assert os.pwrite(fd, new, 0 if flags & os.O_APPEND else offset) == len(new)
            os.close(fd)
            held[len(held) :] = bytes(max(0, offset - len(held)))
            held[offset : offset + len(new)] = new
            count += 1
            assert (tiny / f"{number}").read_bytes() == held
            assert (there / f"{number}").read_bytes() == held
            assert (there / f"{number}").stat().st_size == len(held)
    assert lanes_counted(cluster, "inline_writes") - written > count * 0.9
    assert asked(cluster) - before < count * 0.5, "but for those that were not inline"


def test_many_small_writes_get_an_object(cluster: Cluster, tiny: Path) -> None:
    """One request for each write would cost more than moving the bytes to an object."""
    written = lanes_counted(cluster, "inline_writes")
    with (tiny / "1").open("ab", buffering=0) as file:
        for number in range(200):
            file.write(b"%3d\n" % number)
    expected = content(1) + b"".join(b"%3d\n" % number for number in range(200))
    assert (tiny / "1").read_bytes() == expected
    assert lanes_counted(cluster, "inline_writes") - written <= 32
    cluster.remount()
    assert (tiny / "1").read_bytes() == expected


def test_two_clients_append_in_turns(cluster: Cluster, tiny: Path, other: Path) -> None:
    """Both use descriptors that stay open all the time, and so do the readers."""
    paths = [tiny / "3", seen_from(other, cluster, tiny) / "3"]
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(path.open("ab", buffering=0)) for path in paths]
        readers = [stack.enter_context(path.open("rb", buffering=0)) for path in paths]
        expected = content(3)
        for number in range(20):
            line = b"%d said %d\n" % (number % 2, number)
            writers[number % 2].write(line)
            expected += line
            for reader in readers:
                assert os.fstat(reader.fileno()).st_size == len(expected)
                assert os.pread(reader.fileno(), 2 * INLINE_LENGTH_MAX, 0) == expected


def test_readers_that_have_it_open_see_what_is_written(
    cluster: Cluster, tiny: Path, other: Path
) -> None:
    there = seen_from(other, cluster, tiny)
    for number in range(10):
        with (there / f"{number}").open("rb", buffering=0) as reader:
            assert reader.read() == content(number)
            with (tiny / f"{number}").open("r+b") as writer:
                writer.write(b"X")
            assert os.pread(reader.fileno(), 1, 0) == b"X"
            with (tiny / f"{number}").open("wb") as writer:
                writer.write(b"new")
            assert os.pread(reader.fileno(), 100, 0) == b"new"
        assert (there / f"{number}").read_bytes() == b"new"


def test_truncated(cluster: Cluster, tiny: Path, other: Path) -> None:
    there = seen_from(other, cluster, tiny)
    before = asked(cluster)
    for number in range(10, 30):
        path = tiny / f"{number}"
        os.truncate(path, 7)
        assert path.read_bytes() == content(number)[:7]
        assert (there / f"{number}").read_bytes() == content(number)[:7]
        os.truncate(path, 10_000)
        assert path.read_bytes() == content(number)[:7] + bytes(9993)
        assert (there / f"{number}").read_bytes() == content(number)[:7] + bytes(9993)
        os.truncate(there / f"{number}", 5)
        assert path.read_bytes() == content(number)[:5]
    assert asked(cluster) - before < 20 * 0.4 * 5
    for number in range(10, 30):
        with (tiny / f"{number}").open("r+b") as file:
            file.truncate(9)
            file.seek(20)
            file.write(b"end")
        expected = content(number)[:5] + bytes(15) + b"end"
        assert (there / f"{number}").read_bytes() == expected
        os.truncate(tiny / f"{number}", 0)
        assert (there / f"{number}").read_bytes() == b""
    cluster.remount()
    assert {(tiny / f"{number}").stat().st_size for number in range(10, 30)} == {0}


def test_copied_and_sought(cluster: Cluster, tiny: Path, workdir: Path) -> None:
    os.truncate(tiny / "5", 300_000)
    expected = content(5) + bytes(300_000 - len(content(5)))
    with (tiny / "5").open("rb") as source, (workdir / "copy").open("wb") as sink:
        length = 0
        while count := os.copy_file_range(source.fileno(), sink.fileno(), 300_000 - length):
            length += count
        assert os.lseek(source.fileno(), 0, os.SEEK_DATA) == 0
        assert os.lseek(source.fileno(), 0, os.SEEK_HOLE) in (len(content(5)), 4096)
        with pytest.raises(OSError, match="No such device or address"):
            os.lseek(source.fileno(), 8192, os.SEEK_DATA)
    assert (workdir / "copy").read_bytes() == expected
    with (tiny / "6").open("r+b") as sink:
        os.posix_fallocate(sink.fileno(), 0, 5000)
    assert (tiny / "6").read_bytes() == content(6) + bytes(5000 - len(content(6)))
    subprocess.run(["fallocate", "-p", "-o", "0", "-l", "4096", tiny / "7"], check=True, timeout=60)
    assert (tiny / "7").read_bytes() == bytes(len(content(7)))
    with (tiny / "8").open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[:2] = b"##"
    cluster.remount()
    assert (tiny / "8").read_bytes() == b"##" + content(8)[2:]


def test_names_and_attributes_change_as_ever(cluster: Cluster, tiny: Path, other: Path) -> None:
    there = seen_from(other, cluster, tiny)
    (tiny / "0").rename(tiny / "renamed")
    os.link(tiny / "1", tiny / "linked")
    (tiny / "2").chmod(0o600)
    os.utime(tiny / "3", ns=(5, 6))
    os.setxattr(tiny / "4", "user.one", b"value")
    (tiny / "5").unlink()
    cluster.remount()
    for at in (tiny, there):
        assert (at / "renamed").read_bytes() == content(0)
        assert (at / "linked").read_bytes() == content(1)
        assert (at / "2").read_bytes() == content(2)
        assert (at / "3").stat().st_mtime_ns == 6
        assert os.getxattr(at / "4", "user.one") == b"value"
        assert not (at / "5").exists()
    with (there / "6").open("rb") as file:
        (tiny / "6").unlink()
        assert file.read() == content(6)


def test_a_file_that_is_closed_by_somebody_else_too(cluster: Cluster, folder: Path) -> None:
    """Its descriptor is shared with a child: each close is a FLUSH, and none of them is the
    last."""
    for number in range(5):
        path = folder / f"{number}"
        fd = os.open(path, os.O_CREAT | os.O_WRONLY)
        os.write(fd, b"one ")
        subprocess.run(
            [sys.executable, "-c", f"import os; os.write({fd}, b'two ')"],
            pass_fds=[fd],
            check=True,
            timeout=60,
        )
        assert path.stat().st_size == 8
        os.write(fd, b"three")
        os.close(fd)
        assert path.read_bytes() == b"one two three"
    cluster.remount()
    assert (folder / "4").read_bytes() == b"one two three"


def test_what_stays_open_after_a_close(cluster: Cluster, folder: Path, other: Path) -> None:
    """The metaserver has its bytes then, and they go to the targets before they are changed."""
    for number in range(8):
        path = folder / f"{number}"
        fd = os.open(path, os.O_CREAT | os.O_RDWR)
        os.write(fd, b"content")
        os.close(os.dup(fd))
        if number % 2:
            assert seen_from(other, cluster, path).read_bytes() == b"content"
        assert os.pread(fd, 100, 2) == b"ntent"
        if number < 2:
            os.pwrite(fd, b"C", 0)
            expected = b"Content"
        elif number < 4:
            fallocate = ["fallocate", "-p", "-o", "0", "-l", "4", f"/proc/self/fd/{fd}"]
            subprocess.run(fallocate, check=True, timeout=60, pass_fds=[fd])
            expected = bytes(4) + b"ent"
        elif number < 6:
            with mmap.mmap(fd, 0) as mapped:
                mapped[:1] = b"c"
                mapped[6:] = b"T"
            expected = b"contenT"
        else:
            os.ftruncate(fd, 9)
            os.pwrite(fd, b"end", 12)
            expected = b"content" + bytes(5) + b"end"
        os.fsync(fd)
        os.close(fd)
        assert path.read_bytes() == expected
        assert seen_from(other, cluster, path).read_bytes() == expected


def test_synced_files_need_no_storage_server(cluster: Cluster, folder: Path) -> None:
    before, births = asked(cluster), inline_births(cluster)
    for number in range(20):
        with (folder / "state.tmp").open("xb") as file:
            file.write(content(number))
            file.flush()
            os.fsync(file.fileno())
        (folder / "state.tmp").rename(folder / "state")
        assert (folder / "state").read_bytes() == content(number)
    told = inline_births(cluster) - births
    assert told > 10
    assert asked(cluster) - before <= 10 * (20 - told)


def replace_often(folder: Path, who: int) -> None:
    for number in range(80):
        temporary = folder / f"new-{who}"
        temporary.write_bytes(b"%d:%d" % (who, number) * 50)
        temporary.rename(folder / f"{who}")


def is_whole(path: Path, who: int) -> bool:
    """Whether the file is one of those that were renamed to this name."""
    with contextlib.suppress(FileNotFoundError):
        found = path.read_bytes()
        part = found[: len(found) // 50]
        return bool(found) and part * 50 == found and part.startswith(b"%d:" % who)
    return True


def test_renamed_into_their_place(cluster: Cluster, folder: Path, other: Path) -> None:
    there = seen_from(other, cluster, folder)
    writers = [threading.Thread(target=replace_often, args=(folder, who)) for who in range(3)]
    for thread in writers:
        thread.start()
    while any(thread.is_alive() for thread in writers):
        for who in range(3):
            assert is_whole(there / f"{who}", who)
    for who in range(3):
        assert (folder / f"{who}").read_bytes() == b"%d:79" % who * 50


def test_stat_and_layout_say_so(cluster: Cluster, tiny: Path) -> None:
    plan = cluster.plan
    reach = ["-s", f"127.0.0.1:{plan.metaserver.port}", "-k", str(plan.key_file)]

    def said(number: int, *words: str) -> str:
        command = [str(BIN / "braidfs"), "stat", str(tiny / f"{number}"), *words, *reach]
        return subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=60
        ).stdout

    def inline(number: int) -> int:
        return int(json.loads(said(number, "--json"))["layout"]["inline"])

    number = next(number for number in range(COUNT) if inline(number))
    assert inline(number) == len(content(number))
    assert "with the metaserver" in said(number)
    with (tiny / f"{number}").open("r+b") as file:
        assert file.read() == content(number)
    assert inline(number) == len(content(number)), "it was opened for writing, and not written"
    with (tiny / f"{number}").open("ab") as appended:
        appended.write(b"!")
    assert inline(number) == len(content(number)) + 1
    with (tiny / f"{number}").open("ab") as appended:
        appended.write(bytes(INLINE_LENGTH_MAX))
    assert inline(number) == 0


def test_switched_off(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(client_options=["inline=0"])
    folder = cluster.mount_path / "folder"
    folder.mkdir()
    delegated(cluster, folder)
    make_files(folder, 10)
    assert inline_births(cluster) == 0
    cluster.remount()
    assert (folder / "9").read_bytes() == content(9)
    assert inline_reads(cluster) == 0


# ---- crashes -------------------------------------------------------------------------------------


@pytest.fixture
def own(make_cluster: Callable[..., Cluster]) -> Iterator[tuple[Cluster, Path]]:
    cluster = make_cluster(settings=SHORT_SESSIONS)
    folder = cluster.mount_path / "folder"
    folder.mkdir()
    delegated(cluster, folder)
    yield cluster, folder


def kill_metaserver(cluster: Cluster) -> None:
    cluster.metaserver.signal(signal.SIGKILL)
    assert wait_until(lambda: cluster.metaserver.pid() is None, 20)
    cluster.metaserver.start_apart()


@pytest.mark.expects_warnings
def test_nothing_is_lost_when_the_metaserver_is_killed(own: tuple[Cluster, Path]) -> None:
    """The metaserver is killed while files are created, while files are moved to objects, and
    before later writes are durable."""
    prepare_apart()
    cluster, folder = own
    expected: dict[str, bytes] = {}
    for round_ in range(4):
        for number in range(20):
            name = f"{round_}-{number}"
            (folder / name).write_bytes(content(number))
            expected[name] = content(number)
        killer = threading.Timer(0.02 * round_, kill_metaserver, [cluster])
        killer.start()
        for number, name in enumerate(sorted(expected)):
            if number % 3 == 0:
                with (folder / name).open("r+b") as file:
                    file.write(b"%d" % round_)
                expected[name] = b"%d" % round_ + expected[name][1:]
            elif number % 7 == 0:
                size = 1 + len(expected[name]) // 2
                os.truncate(folder / name, size)
                expected[name] = expected[name][:size]
        killer.join()
    for name, held in expected.items():
        assert (folder / name).read_bytes() == held
    cluster.remount()
    for name, held in expected.items():
        assert (folder / name).read_bytes() == held
    cluster.unmount()
    cluster.metaserver.stop()
    fsck = [sys.executable, "-m", "metaserver.fsck", str(cluster.plan.state / "meta")]
    subprocess.run(fsck, check=True, timeout=60)


@pytest.mark.expects_warnings
def test_what_was_synced_survives_the_clients_death(own: tuple[Cluster, Path]) -> None:
    cluster, folder = own
    for number in range(40):
        (folder / f"{number}").write_bytes(content(number))
    with (folder / "7").open("rb") as file:
        os.fsync(file.fileno())
    with (folder / "8").open("ab") as file:
        file.write(b"more")
        file.flush()
        os.fsync(file.fileno())
    pid = cluster.client_pid()
    assert pid is not None
    mounts.kill_client(pid)
    cluster.unmount(lazy=True)
    kill_metaserver(cluster)
    cluster.mount()
    for number in range(40):
        more = b"more" if number == 8 else b""
        assert (folder / f"{number}").read_bytes() == content(number) + more


@pytest.mark.expects_warnings
def test_a_spill_waits_for_its_storage_server(own: tuple[Cluster, Path]) -> None:
    cluster, folder = own
    for number in range(8):
        (folder / f"{number}").write_bytes(content(number))
    cluster.remount()
    for server in cluster.storageservers:
        server.signal(signal.SIGKILL)
    assert wait_until(lambda: not any(server.pid() for server in cluster.storageservers), 20)
    assert (folder / "1").read_bytes() == content(1), "reading needs none"
    written = threading.Thread(target=_append, args=(folder / "2",))
    written.start()
    time.sleep(0.5)
    kill_metaserver(cluster)
    for server in cluster.storageservers:
        server.start()
    written.join(60)
    assert not written.is_alive()
    assert (folder / "2").read_bytes() == content(2) + MUCH
    cluster.remount()
    assert (folder / "2").read_bytes() == content(2) + MUCH


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(MUCH)
