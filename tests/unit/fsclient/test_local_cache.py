"""The options cache_dir, cache_size and passthrough, and what native gets."""

from pathlib import Path
from typing import cast

import pytest
import trio

from fsclient.local_cache import SIZE_DEFAULT, check_passthrough, open_cache
from fsclient.meta.client import MetaClient
from fscommon.config.mount_options import parse_mount_options
from fscommon.errors import ConfigError
from fscommon.wire.messages import ClusterMap, Empty
from fscommon.wire.ops import Op

from .fakes import FakeMetadata
from .unasked_ports import UnaskedIo

CLUSTER = b"c" * 16


class Native(UnaskedIo):
    def __init__(self, refusal: str = "") -> None:
        self.opened: list[tuple[str, int, bytes, bool]] = []
        self._refusal = refusal

    def cache_open(
        self, directory: str, bytes_max: int, cluster: bytes, passthrough: bool = False
    ) -> None:
        if self._refusal:
            raise ValueError(self._refusal)
        self.opened.append((directory, bytes_max, cluster, passthrough))


class Meta(FakeMetadata):
    """Answers a BARRIER; the map has arrived before that answer."""

    def __init__(self) -> None:
        super().__init__()
        self.map: ClusterMap | None = None
        self.answers[Op.BARRIER] = self._barrier

    def _barrier(self, _request: Empty) -> Empty:
        self.map = ClusterMap(1, CLUSTER, ())
        return Empty()


def opened(
    words: str, native: Native, *, needed: bool = True
) -> list[tuple[str, int, bytes, bool]]:
    meta = Meta()

    async def run() -> None:
        options = parse_mount_options(words)
        known = cast(MetaClient, meta)
        await open_cache(options, native, known, lambda: meta.map, needed=needed)

    trio.run(run)
    return native.opened


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", []),
        ("cache_dir=/nvme", [("/nvme", SIZE_DEFAULT, CLUSTER, False)]),
        ("cache_dir=/nvme,cache_size=200GiB", [("/nvme", 200 << 30, CLUSTER, False)]),
        ("cache_size=64MiB,cache_dir=/nvme", [("/nvme", 64 << 20, CLUSTER, False)]),
        ("ro,passthrough,cache_dir=/nvme", [("/nvme", SIZE_DEFAULT, CLUSTER, True)]),
    ],
)
def test_native_is_told(words: str, told: list[tuple[str, int, bytes, bool]]) -> None:
    assert opened(words, Native()) == told


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        ("cache_size=1GiB", "needs cache_dir"),
        ("cache_dir=nvme", "no absolute path"),
        ("cache_dir=/nvme,cache_size=lots", "is not a size"),
        ("cache_dir=/nvme,cache_size=1MiB", "less than 64MiB"),
        ("ro,passthrough,cache_dir=/nvme,cache_size=100MiB", "less than 128MiB"),
    ],
)
def test_what_cannot_be_is_refused(words: str, refusal: str) -> None:
    native = Native()
    with pytest.raises(ConfigError, match=refusal):
        opened(words, native)
    assert not native.opened


def test_what_native_says_is_told() -> None:
    with pytest.raises(ConfigError, match="in use by another mount"):
        opened("cache_dir=/nvme", Native("it is in use by another mount"))


def test_a_mount_that_serves_goes_on_without() -> None:
    assert opened("cache_dir=/nvme", Native("it is gone"), needed=False) == []


def test_a_right_that_passthrough_needs(tmp_path: Path) -> None:
    status = tmp_path / "status"
    options = parse_mount_options("ro,passthrough,cache_dir=/nvme")
    status.write_text("Name:\tx\nCapEff:\t000001ffffdfffff\n")
    with pytest.raises(ConfigError, match="CAP_SYS_ADMIN"):
        check_passthrough(options, status)
    check_passthrough(parse_mount_options("ro,cache_dir=/nvme"), status)
    status.write_text("Name:\tx\nCapEff:\t0000000000200000\n")
    check_passthrough(options, status)
