"""Mounts with passthrough: the kernel itself reads large files of a sealed tree that are completely
in the local cache (docs/decisions/0041-passthrough.md).
"""

import errno
import mmap
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from fsclient.cli.restart import client_pid
from tests.cluster import mounts
from tests.cluster.cluster import BIN, Cluster
from tests.cluster.numbers import native_counters
from tests.cluster.ports import free_port
from tests.cluster.process import wait_until

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]

SIZES = {"big": (16 << 20) + 1234, "large": 5 << 20, "small": 300_000}


class PassingMount:
    """A mount of `tree` with a cache in `directory`, and passthrough."""

    def __init__(self, cluster: Cluster, tree: Path, localdir: Path) -> None:
        self.directory = localdir / "cache"
        self.root = localdir / "passing"
        self._cluster = cluster
        self._folder = f"/{tree.relative_to(cluster.mount_path)}"
        self._port = free_port()

    @contextmanager
    def mounted(self, more: str = "passthrough") -> Iterator[None]:
        words = ("ro", more, f"cache_dir={self.directory}", "cache_size=256MiB")
        listen = {"metrics_listen": f"127.0.0.1:{self._port}"}
        with self._cluster.second_client(
            self.root, folder=self._folder, options=",".join(words), settings=listen
        ):
            yield

    def count(self, counter: str) -> int:
        return native_counters(self._port)[counter]

    def opens(self) -> int:
        return self.count("passthrough_opens")

    def read(self, name: str) -> bytes:
        with (self.root / name).open("rb", buffering=0) as file:
            return file.readall()

    def passes(self, name: str, content: bytes) -> bool:
        """Whether the kernel alone read the file; its bytes are checked."""
        opens, reads = self.opens(), self.count("reads")
        assert self.read(name) == content
        return self.opens() == opens + 1 and self.count("reads") == reads

    def wait(self, name: str, content: bytes) -> None:
        assert wait_until(lambda: self.passes(name, content), 30), name


@pytest.fixture
def tree(workdir: Path) -> Iterator[Path]:
    top = workdir / "set"
    top.mkdir()
    for name in SIZES:
        (top / name).write_bytes(content_of(name))
    braidfs("seal", top)
    yield top
    braidfs("unseal", top)


@pytest.fixture
def mount(cluster: Cluster, tree: Path, localdir: Path) -> PassingMount:
    return PassingMount(cluster, tree, localdir)


def content_of(name: str) -> bytes:
    return Random(name).randbytes(SIZES[name])


def braidfs(*words: object) -> None:
    subprocess.run([BIN / "braidfs", *map(str, words)], check=True, capture_output=True, timeout=60)


def error_of(call: Callable[[], object]) -> int | None:
    try:
        call()
    except OSError as error:
        return error.errno
    return None


def check_all_ways(mount: PassingMount, name: str) -> None:
    """Programs use the file in all ways, without any request from the kernel."""
    content = content_of(name)
    opens, reads = mount.opens(), mount.count("reads")
    random = Random(3)
    with (
        (mount.root / name).open("rb", buffering=0) as file,
        (mount.root / name).open("rb", buffering=0) as other,
    ):
        for _ in range(50):
            offset, size = random.randrange(len(content)), random.randrange(1, 300_000)
            assert os.pread(file.fileno(), size, offset) == content[offset : offset + size]
        assert os.pread(file.fileno(), 10, len(content)) == b""
        with mmap.mmap(other.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            assert mapped[:] == content
        assert os.fstat(file.fileno()).st_size == len(content)
        assert mount.count("passthrough_handles") == 2
        direct = os.open(mount.root / name, os.O_RDONLY | os.O_DIRECT)
        try:
            with mmap.mmap(-1, 1 << 20) as pages:  # this may be answered by requests
                assert os.preadv(direct, [pages], 1 << 20) == 1 << 20
                assert pages[:] == content[1 << 20 : 2 << 20]
                assert mount.count("passthrough_handles") == 3
        finally:
            os.close(direct)
    assert mount.opens() == opens + 3
    assert mount.count("reads") <= reads + 8  # these are requests of the direct read
    assert wait_until(lambda: mount.count("passthrough_handles") == 0, 10)


def test_large_files_pass_through(mount: PassingMount) -> None:
    with mount.mounted():
        assert mount.read("big") == content_of("big")
        assert mount.opens() == 0
        for name in ("big", "large"):
            mount.wait(name, content_of(name))
            check_all_ways(mount, name)
        for _ in range(5):
            assert not mount.passes("small", content_of("small"))
        assert mount.count("cache_copies") == 2
    for path in (mount.directory / "whole").iterdir():
        assert path.stat().st_mode & 0o777 == 0o600, path


def test_copies_are_checked_after_a_remount(mount: PassingMount) -> None:
    content = content_of("big")
    with mount.mounted():
        mount.wait("big", content)
        mount.wait("large", content_of("large"))
    with mount.mounted():
        assert wait_until(lambda: mount.count("cache_copies_checked") == 2, 20)
        assert mount.passes("big", content)  # this holds already for the first time
        assert mount.count("cache_copies_made") == 0
    copies = (mount.directory / "whole").iterdir()
    (copy,) = (one for one in copies if one.stat().st_size == len(content))
    with copy.open("r+b") as file:
        file.seek(11 << 20)
        octet = file.read(1)
        file.seek(11 << 20)
        file.write(bytes([octet[0] ^ 1]))
    with mount.mounted():
        for _ in range(3):
            assert mount.read("big") == content
        assert wait_until(lambda: mount.count("cache_copies_corrupt") == 1, 20)
        mount.wait("big", content)
    # Without passthrough the copies are removed: they would exceed the size of the cache.
    with mount.mounted("nosuid"):
        assert mount.read("big") == content
    assert not (mount.directory / "whole").exists()


def test_changed_bytes_wait_for_the_last_close(mount: PassingMount, tree: Path) -> None:
    old, new = content_of("big"), Random(9).randbytes(SIZES["big"])
    with mount.mounted():
        mount.wait("big", old)
        with (mount.root / "big").open("rb", buffering=0) as file:
            braidfs("unseal", tree)
            assert error_of(lambda: mount.read("big")) == errno.ESTALE
            with (tree / "big").open("r+b") as changed:
                changed.write(new)
            braidfs("seal", tree)
            assert error_of(lambda: mount.read("big")) == errno.ESTALE
            assert os.pread(file.fileno(), 100, 0) == old[:100]
            assert mount.read("large") == content_of("large")
        assert wait_until(lambda: error_of(lambda: mount.read("big")) is None, 10)
        assert mount.read("big") == new
        mount.wait("big", new)
        assert mount.count("passthrough_stale") >= 2


def test_what_is_not_sealed_is_read_by_requests(mount: PassingMount, tree: Path) -> None:
    content = content_of("large")
    braidfs("unseal", tree)
    with mount.mounted():
        for _ in range(5):
            assert not mount.passes("large", content)
        with (tree / "large").open("r+b") as changed:
            changed.write(b"other")
        assert mount.read("large") == b"other" + content[5:]
        assert mount.count("cache_copies") == 0


def test_modes_do_not_mix(mount: PassingMount) -> None:
    """A handle from before keeps the file in request mode, whoever opens the file then."""
    content = content_of("large")
    with mount.mounted():
        with (mount.root / "large").open("rb", buffering=0) as first:
            assert first.readall() == content
            for _ in range(3):
                assert not mount.passes("large", content)
            with mmap.mmap(first.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                assert mapped[:] == content
        mount.wait("large", content)


@pytest.mark.expects_warnings  # connections end here
@pytest.mark.parametrize("is_killed", [True, False])
def test_another_process_goes_on(mount: PassingMount, tree: Path, is_killed: bool) -> None:
    """Existing passthrough handles stay, and new handles pass through to the same file."""
    content = content_of("big")
    with mount.mounted():
        mount.wait("big", content)
        mount.wait("large", content_of("large"))
        with (
            (mount.root / "big").open("rb", buffering=0) as file,
            (mount.root / "small").open("rb", buffering=0) as other,
        ):
            before = client_pid(str(mount.root))
            assert before is not None
            if is_killed:
                os.kill(before, signal.SIGKILL)
                assert wait_until(lambda: client_pid(str(mount.root)) not in (None, before), 30)
            else:
                braidfs("client", "restart", mount.root)
            assert file.readall() == content
            assert mount.read("big") == content
            assert other.readall() == content_of("small")
            assert wait_until(lambda: mount.count("passthrough_handles") == 1, 20)
            assert mount.passes("big", content)
            with (mount.root / "big").open("rb", buffering=0) as second:
                assert second.readall() == content
                file.close()
                assert mount.passes("big", content)
            braidfs("unseal", tree)
            with (mount.root / "big").open("rb", buffering=0) as third:
                assert third.readall() == content
            braidfs("seal", tree)
        mount.wait("big", content)
        assert wait_until(lambda: mount.count("passthrough_handles") == 0, 10)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("passthrough,cache_dir=/nowhere/cache", "needs 'ro'"),
        ("ro,passthrough", "needs 'cache_dir"),
        ("ro,sealed,passthrough,cache_dir=/nowhere/cache", "exclude each other"),
    ],
)
def test_mounts_that_are_refused(cluster: Cluster, localdir: Path, options: str, why: str) -> None:
    with pytest.raises(mounts.MountError, match=why):
        mounts.mount(cluster.plan.source(), localdir / "no", f"{cluster.plan.options()},{options}")
