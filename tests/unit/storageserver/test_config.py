"""The TOML of a storage server."""

import os
from pathlib import Path

import pytest

from fscommon.config import load
from fscommon.errors import ConfigError
from storageserver.config import TARGETS_MAX, StorageServerConfig, buffer_bytes_max

GOOD = """
name = "ss-1"
key_file = "/k"
state_directory = "/s"
[[targets]]
path = "/t1"
[[targets]]
path = "/t2"
capacity_bytes = "10 GiB"
"""


def load_text(tmp_path: Path, text: str) -> StorageServerConfig:
    path = tmp_path / "storageserver.toml"
    path.write_text(text)
    return load(StorageServerConfig, path)


def test_defaults(tmp_path: Path) -> None:
    config = load_text(tmp_path, GOOD)
    assert str(config.listen_address()) == "127.0.0.1:7411"
    assert [str(address) for address in config.metaserver_addresses()] == ["127.0.0.1:7400"]
    assert [target.capacity_bytes for target in config.targets] == [0, 10 << 30]


def test_what_is_fetched_ahead_is_a_part_of_the_memory_or_what_is_said(tmp_path: Path) -> None:
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert load_text(tmp_path, GOOD).fetched_bytes_max() == memory_bytes // 8
    for mib in (0, 300):
        said = load_text(tmp_path, f"fetch_ahead_mib = {mib}\n" + GOOD)
        assert said.fetched_bytes_max() == mib << 20


def test_payloads_take_a_part_of_what_a_control_group_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for memory, wanted in ((1 << 30, 128 << 20), (64 << 30, 512 << 20)):
        monkeypatch.setattr("storageserver.config.memory_bytes", lambda memory=memory: memory)
        assert buffer_bytes_max() == wanted


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('io_engine = "fast"', "io_engine must be one of auto, uring, syscall"),
        ("lanes = 65", "lanes must be from 0 to 64"),
        ("busy_poll_us = 1001", "busy_poll_us must be from 0 to 1000"),
        ("fetch_ahead_mib = -2", "fetch_ahead_mib must be from -1 to 16777216"),
        ("metaservers = []", "name at least one"),
        ('metaservers = ["a:b"]', "'a:b' has no valid port"),
        ('listen = "::1"', "write IPv6 as"),
        ('advertise = "/"', "is not an address"),
        (f'domain = "{"d" * 256}"', "domain must have at most 255 characters"),
        ('metaserver = "x"', "unknown key 'metaserver': did you mean 'metaservers'"),
    ],
)
def test_refusals(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_text(tmp_path, line + GOOD)


def test_no_more_targets_than_native_has_room_for(tmp_path: Path) -> None:
    header = Path(__file__).parents[3] / "native" / "src" / "server" / "target_table.h"
    assert f"kTargetsMax = {TARGETS_MAX};" in header.read_text()
    many = [f'[[targets]]\npath = "/t{number}"\n' for number in range(TARGETS_MAX + 1)]
    first = GOOD[: GOOD.index("[[")]
    assert len(load_text(tmp_path, first + "".join(many[1:])).targets) == TARGETS_MAX
    with pytest.raises(ConfigError, match=f"1 to {TARGETS_MAX}"):
        load_text(tmp_path, first + "".join(many))


def test_targets_are_needed_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="listed twice"):
        load_text(tmp_path, GOOD.replace("/t2", "/t1"))
    with pytest.raises(ConfigError, match="1 to 64"):
        load_text(tmp_path, GOOD[: GOOD.index("[[")].strip() + "\ntargets = []")
    with pytest.raises(ConfigError, match="1 to 255"):
        load_text(tmp_path, GOOD.replace("ss-1", ""))
