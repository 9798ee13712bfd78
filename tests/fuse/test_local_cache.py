"""Mounts with cache_dir: files that were read are read again from this node's own disk, also after
a remount, and no other difference is visible (docs/decisions/0035-local-cache.md).
"""

import mmap
import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster import mounts
from tests.cluster.cluster import Cluster
from tests.cluster.numbers import native_counters
from tests.cluster.ports import free_port
from tests.cluster.process import wait_until

pytestmark = pytest.mark.mount

SIZE = "64MiB"
SIZES = (1, 100, 4096, 5000, 300_000, 1 << 20, (3 << 20) + 17)


class CachedMount:
    """A mount of the cluster's folder `folder`, with a cache in `directory`."""

    def __init__(self, root: Path, port: int) -> None:
        self.root = root
        self._port = port

    def count(self, counter: str) -> int:
        return native_counters(self._port)[f"cache_{counter}"]

    def read(self, name: str) -> bytes:
        """Reads the file without the kernel's page cache."""
        with (self.root / name).open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            return file.read()

    def read_until_kept(self, name: str) -> bytes:
        """Reads the file until the cache has all of it."""
        content = b""

        def is_kept() -> bool:
            nonlocal content
            misses = self.count("misses")
            content = self.read(name)
            return self.count("misses") == misses

        assert wait_until(is_kept, 20), f"{name} is not kept"
        return content


@pytest.fixture
def directory(localdir: Path) -> Path:
    return localdir / "cache"


@contextmanager
def mounted(
    cluster: Cluster, localdir: Path, folder: Path, directory: Path
) -> Iterator[CachedMount]:
    port = free_port()
    options = f"cache_dir={directory},cache_size={SIZE}"
    listen = {"metrics_listen": f"127.0.0.1:{port}"}
    shown = f"/{folder.relative_to(cluster.mount_path)}"
    with cluster.second_client(
        localdir / "with", folder=shown, options=options, settings=listen
    ) as root:
        yield CachedMount(root, port)


def write_files(folder: Path, sizes: tuple[int, ...] = SIZES) -> dict[str, bytes]:
    files = {f"of-{size}": random.Random(size).randbytes(size) for size in sizes}
    for name, content in files.items():
        # A file that is created with its bytes may be stored by the metaserver.
        (folder / name).touch()
        (folder / name).write_bytes(content)
    return files


def test_what_was_read_is_there_after_a_remount(
    cluster: Cluster, workdir: Path, localdir: Path, directory: Path
) -> None:
    files = write_files(workdir)
    with mounted(cluster, localdir, workdir, directory) as mount:
        for name, content in files.items():
            assert mount.read_until_kept(name) == content
    for path in directory.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600, path
    assert directory.stat().st_mode & 0o777 == 0o700
    with mounted(cluster, localdir, workdir, directory) as mount:
        assert mount.count("records") == len(files) + 3  # the largest file has four slices
        for name, content in files.items():
            assert (mount.root / name).read_bytes() == content
        assert mount.count("misses") == 0
        assert mount.count("hits") >= len(files)
        assert mount.count("hit_bytes") == sum(map(len, files.values()))
        assert mount.count("stores") == 0


def test_parts_of_what_is_kept_are_read(
    cluster: Cluster, workdir: Path, localdir: Path, directory: Path
) -> None:
    content = write_files(workdir, (SIZES[-1],)).popitem()[1]
    name = f"of-{SIZES[-1]}"
    with mounted(cluster, localdir, workdir, directory) as mount:
        mount.read_until_kept(name)
        misses = mount.count("misses")
        fd = os.open(mount.root / name, os.O_RDONLY | os.O_DIRECT)
        try:
            for offset in (0, 4096, (1 << 20) - 4096, 1 << 20, (2 << 20) - 8192, 3 << 20):
                with mmap.mmap(-1, 16384) as pages:
                    count = os.preadv(fd, [pages], offset)
                    assert pages[:count] == content[offset : offset + 16384]
        finally:
            os.close(fd)
        assert mount.count("misses") == misses


def test_what_another_client_changed_is_seen(
    cluster: Cluster, workdir: Path, localdir: Path, directory: Path
) -> None:
    sizes = (100, 5000, 5001, 5002, 300_000)
    files = write_files(workdir, sizes)

    def change_all() -> dict[str, bytes]:
        """Changes files in several ways: in place with the time set back, truncated, replaced, made
        longer, in the middle."""
        first, cut, replaced, longer, middle = (workdir / name for name in files)
        times = first.stat()
        with first.open("r+b") as file:
            file.write(b"new")
        os.utime(first, ns=(times.st_atime_ns, times.st_mtime_ns))
        os.truncate(cut, 17)
        (workdir / "new").write_bytes(b"other" * 1000)
        os.rename(workdir / "new", replaced)
        with longer.open("ab") as file:
            file.write(b"end")
        with middle.open("r+b") as file:
            file.seek(200_000)
            file.write(b"here")
        return {name: (workdir / name).read_bytes() for name in files}

    with mounted(cluster, localdir, workdir, directory) as mount:
        for name, content in files.items():
            assert mount.read_until_kept(name) == content
        for name, content in change_all().items():  # the cached mount is active now
            assert mount.read(name) == content
            assert mount.read_until_kept(name) == content
    changed = change_all()  # now it is not
    with mounted(cluster, localdir, workdir, directory) as mount:
        for name, content in changed.items():
            assert mount.read(name) == content


def test_own_changes_are_seen(
    cluster: Cluster, workdir: Path, localdir: Path, directory: Path
) -> None:
    write_files(workdir, (300_000,))
    with mounted(cluster, localdir, workdir, directory) as mount:
        path = mount.root / "of-300000"
        content = bytearray(mount.read_until_kept(path.name))
        for number in range(20):
            at = number * 13_000
            with path.open("r+b") as file:
                file.seek(at)
                file.write(b"%03d" % number)
                content[at : at + 3] = b"%03d" % number
                if number % 2:
                    file.flush()
                    assert mount.read(path.name) == content
            assert mount.read(path.name) == content
        copy = mount.root / "copy"
        subprocess.run(["cp", path, copy], check=True)
        assert mount.read_until_kept(copy.name) == content
        os.truncate(copy, 150_000)
        os.truncate(copy, 300_000)
        assert mount.read(copy.name) == content[:150_000] + bytes(150_000)
    with mounted(cluster, localdir, workdir, directory) as mount:
        assert mount.read("of-300000") == content
        assert mount.read("copy") == content[:150_000] + bytes(150_000)


def test_broken_files_of_the_cache_cost_only_the_hit(
    cluster: Cluster, workdir: Path, localdir: Path, directory: Path
) -> None:
    files = write_files(workdir)
    with mounted(cluster, localdir, workdir, directory) as mount:
        for name in files:
            mount.read_until_kept(name)
    chance = random.Random(1)
    for segment in directory.glob("*.seg"):
        with segment.open("r+b") as file:
            for at in range(0, 6 << 20, 64 << 10):
                file.seek(at + chance.randrange(4096))
                file.write(b"x")
    with mounted(cluster, localdir, workdir, directory) as mount:
        for name, content in files.items():
            assert (mount.root / name).read_bytes() == content
        assert mount.count("corrupt") > 0
        for name, content in files.items():
            assert mount.read_until_kept(name) == content


def test_a_full_disk_costs_only_the_hit(cluster: Cluster, workdir: Path, localdir: Path) -> None:
    disk = localdir / "disk"
    disk.mkdir()
    files = write_files(workdir, (6 << 20, 7 << 20, 8 << 20, 9 << 20))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m,mode=755", "none", disk], check=True)
    try:
        with mounted(cluster, localdir, workdir, disk) as mount:
            for _ in range(2):
                for name, content in files.items():
                    assert mount.read(name) == content
            assert wait_until(lambda: mount.count("faults") > 0, 20)
        (disk / "00000001.idx").write_bytes(b"")
        with mounted(cluster, localdir, workdir, disk) as mount:
            for name, content in files.items():
                assert mount.read(name) == content
    finally:
        # The kernel releases a ring's files a moment after its process has ended.
        assert wait_until(lambda: subprocess.run(["umount", disk], check=False).returncode == 0, 20)


def test_a_directory_has_one_mount(
    cluster: Cluster, workdir: Path, localdir: Path, directory: Path
) -> None:
    with mounted(cluster, localdir, workdir, directory):
        options = f"{cluster.plan.options()},cache_dir={directory}"
        with pytest.raises(mounts.MountError, match="in use by another mount"):
            mounts.mount(cluster.plan.source(), localdir / "second", options)
    with mounted(cluster, localdir, workdir, directory):
        pass


@pytest.mark.full
@pytest.mark.expects_log("the process before was killed")
def test_a_killed_client_goes_on_with_its_cache(
    cluster: Cluster, workdir: Path, localdir: Path, directory: Path
) -> None:
    files = write_files(workdir)
    with mounted(cluster, localdir, workdir, directory) as mount:
        for name in files:
            mount.read_until_kept(name)
        pid = mounts.client_pid(mount.root)
        assert pid is not None
        os.kill(pid, 9)
        for name, content in files.items():
            assert mount.read(name) == content
        assert mount.count("records") == len(files) + 3
        assert mount.count("misses") == 0
