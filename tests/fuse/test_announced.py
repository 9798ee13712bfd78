"""Files that a program announced are in memory before it asks for them, with the right bytes
(docs/decisions/0038-announced-reads.md).
"""

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

from braidfs.announce import Announcer
from braidfs.announcement import IOCTL_ANNOUNCE, SIZE
from tests.cluster.cluster import Cluster
from tests.cluster.process import wait_until
from tests.fuse.looks import lanes_counted, seen_from

from ..integration.test_cli import Cli

pytestmark = pytest.mark.mount

COUNT = 24
SPREAD = 3  # the number of directories


def content(number: int, version: int = 0) -> bytes:
    return b"%d of %d\n" % (number, version) * (2000 + 97 * number)


@pytest.fixture
def files(cluster: Cluster, workdir: Path) -> list[Path]:
    """The files in their announced order, for a client that has not seen them."""
    paths = [workdir / f"{number % SPREAD}" / f"{number}" for number in range(COUNT)]
    for number, path in enumerate(paths):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content(number))
    cluster.remount()
    return paths


def number_of(path: Path) -> int:
    return int(path.name)


def ready(cluster: Cluster) -> int:
    return lanes_counted(cluster, "bytes_announced")


def wait_ready(cluster: Cluster) -> None:
    """Waits until all announced files are in memory and no more are fetched."""
    seen = [0]

    def settled() -> bool:
        seen.append(ready(cluster))
        return seen[-1] > 0 and seen[-1] == seen[-2]

    assert wait_until(settled, 20)


def test_they_are_read_from_memory(cluster: Cluster, files: list[Path]) -> None:
    order = files[::-1]
    with Announcer(files[0].parent) as announcer:
        assert announcer.announce(order) == COUNT
    wait_ready(cluster)
    before = lanes_counted(cluster, "announced_reads")
    for path in order:
        assert path.read_bytes() == content(number_of(path))
    assert lanes_counted(cluster, "announced_reads") - before >= COUNT
    assert ready(cluster) == 0


def test_reading_needs_not_wait_for_them(cluster: Cluster, files: list[Path]) -> None:
    """Several threads read at once: some files are in memory, some are being fetched, some are not
    requested yet."""
    wrong: list[Path] = []

    def read(mine: list[Path]) -> None:
        wrong.extend(path for path in mine if path.read_bytes() != content(number_of(path)))

    with Announcer(files[0].parent) as announcer:
        announcer.announce(files)
        readers = [threading.Thread(target=read, args=(files[k::4],)) for k in range(4)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(60)
    assert not wrong and not any(reader.is_alive() for reader in readers)


def test_what_was_changed_meanwhile_is_read_as_it_is(
    cluster: Cluster, files: list[Path], lasting: Path
) -> None:
    with Announcer(files[0].parent) as announcer:
        announcer.announce(files)
    wait_ready(cluster)
    there = [seen_from(lasting, cluster, path) for path in files]
    there[0].write_bytes(content(0, 1))
    files[1].write_bytes(content(1, 1))
    os.truncate(there[2], 5000)
    with there[3].open("r+b") as writer:
        os.pwrite(writer.fileno(), b"changed", 100)
    there[4].unlink()
    there[5].replace(there[6])
    assert files[0].read_bytes() == content(0, 1)
    assert files[1].read_bytes() == content(1, 1)
    assert files[2].read_bytes() == content(2)[:5000]
    assert files[3].read_bytes() == content(3)[:100] + b"changed" + content(3)[107:]
    assert not files[4].exists()
    assert files[6].read_bytes() == content(5)
    for path in files[7:]:
        assert path.read_bytes() == content(number_of(path))


def test_what_there_is_not_is_passed_over(files: list[Path], workdir: Path) -> None:
    (workdir / "link").symlink_to(files[0])
    strangers = [
        workdir / "nothing",
        workdir / "no" / "directory",
        workdir,
        workdir / "link",
        Path("/etc/passwd"),
        Path("nothing"),
    ]
    with Announcer(workdir) as announcer:
        assert announcer.announce([*strangers, *files]) == COUNT
        assert announcer.announce([]) == 0
        assert announcer.announce(str(path) for path in files) == COUNT
    with pytest.raises(OSError) as closed:
        announcer.announce(files)
    assert closed.value.errno == errno.EBADF


def test_a_later_one_takes_the_place_of_the_first(cluster: Cluster, files: list[Path]) -> None:
    with Announcer(files[0].parent) as announcer:
        announcer.announce(files[:4])
        announcer.announce(files[4:6], more=True)
        wait_ready(cluster)
        before = lanes_counted(cluster, "announced_reads")
        for path in files[:6]:
            assert path.read_bytes() == content(number_of(path))
        assert lanes_counted(cluster, "announced_reads") - before >= 6


def test_a_restart_of_the_client_goes_on_without_them(
    cluster: Cluster, files: list[Path], lasting: Path
) -> None:
    with Announcer(files[0].parent) as announcer:
        announcer.announce(files)
        Cli(cluster).json("client", "restart", cluster.mount_path, "--timeout", 60)
        for path in files[: COUNT // 2]:
            assert path.read_bytes() == content(number_of(path))
        assert announcer.announce(files[COUNT // 2 :]) == COUNT - COUNT // 2
    for path in files[COUNT // 2 :]:
        assert path.read_bytes() == content(number_of(path))
    # No handle of the old process is left: removal is quick, and the bytes leave the targets.
    for path in files:
        seen_from(lasting, cluster, path).unlink()
    assert not any(path.exists() for path in files)


def test_elsewhere_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError) as refused:
        Announcer(tmp_path)
    assert refused.value.errno == errno.ENOTTY


def test_a_wrong_announcement_is_refused(workdir: Path) -> None:
    folder = os.open(workdir, os.O_RDONLY)
    try:
        with pytest.raises(OSError) as refused:
            fcntl.ioctl(folder, IOCTL_ANNOUNCE, bytearray(b"\xff" * SIZE), True)
        assert refused.value.errno == errno.EINVAL
    finally:
        os.close(folder)


def test_a_mount_that_fetches_nothing_says_so(cluster: Cluster, tmp_path: Path) -> None:
    with (
        cluster.second_client(tmp_path / "off", options="prefetch=off") as mounted,
        pytest.raises(OSError) as refused,
    ):
        Announcer(mounted)
    assert refused.value.errno == errno.EOPNOTSUPP
