"""client.toml, what is the same for all mounts of a host: what it may say, and what is refused."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from fsclient import config as client_config
from fsclient.config import KEYS, ClientConfig, config_of, lines_for, load_config
from fscommon.config.mount_options import MOVED_WORDS, MountOptions, parse_mount_options
from fscommon.config.tls import TlsSettings
from fscommon.config.toml import FILE_BYTES_MAX
from fscommon.errors import ConfigError

EVERYTHING = """
tls = "optional"
tls_ca = "/tls/ca.crt"
transport = "tcp"
rdma_devices = ["mlx5_0:1", "mlx5_bond_*"]
rdma_subnets = ["10.1.0.0/16"]
rdma_gid_index = 3
rdma_memory_mib = 64
metrics_listen = "127.0.0.1:9420"
http_tls = true
tls_certificate = "/tls/own.crt"
tls_key = "/tls/own.key"
log_file = "/var/log/braidfs/client.log"
log_level = "debug"
"""
WORDS = (
    "tls=optional,tls_ca=/tls/ca.crt,transport=tcp,rdma_devices=mlx5_0:1+mlx5_bond_*,"
    "rdma_subnets=10.1.0.0/16,rdma_gid_index=3,rdma_memory_mib=64,metrics_listen=127.0.0.1:9420,"
    "http_tls,tls_certificate=/tls/own.crt,tls_key=/tls/own.key,"
    "log_file=/var/log/braidfs/client.log,log_level=debug"
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "client.toml"


def options_of(file: Path, words: str = "") -> MountOptions:
    return parse_mount_options(f"config={file},{words}")


def test_every_key(file: Path) -> None:
    file.write_text(EVERYTHING)
    config = load_config(file)
    defaults = ClientConfig()
    assert [name for name in KEYS if getattr(config, name) == getattr(defaults, name)] == []
    assert config.rdma().wishes.devices == ("mlx5_0:1", "mlx5_bond_*")
    assert config.rdma().wishes.subnets == ("10.1.0.0/16",)
    assert config.rdma().wishes.gid_index == 3
    assert config.rdma().memory_mib == 64
    assert config.rdma().transport == "tcp"
    assert config.tls_settings() == TlsSettings("optional", Path("/tls/ca.crt"))
    certificate = config.http_certificate()
    assert certificate is not None
    assert (certificate.certificate, certificate.key) == (
        Path("/tls/own.crt"),
        Path("/tls/own.key"),
    )


@pytest.mark.parametrize("text", ["", "# nothing\n", "\n\n"])
def test_an_empty_file_says_nothing(file: Path, text: str) -> None:
    file.write_text(text)
    assert config_of(options_of(file)) == ClientConfig()
    assert ClientConfig().http_certificate() is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('tsl = "off"', "unknown key 'tsl': did you mean 'tls'"),
        ("qqqqqqq = 1", r"unknown key 'qqqqqqq'$"),
        ("timeout = 5", "unknown key 'timeout'"),
        ('[tls]\nmode = "off"', "tls: expected text, not a table"),
        ("tls = true", "tls: expected text, not true or false"),
        ('tls = "on"', "tls must be one of off, optional, required, not 'on'"),
        ("tls_ca = 1", "tls_ca: expected text, not an integer"),
        ('tls_ca = "ca.crt"', "tls_ca must be an absolute path, not 'ca.crt'"),
        ('tls_certificate = "c"', "tls_certificate must be an absolute path"),
        ('tls_key = "k"', "tls_key must be an absolute path"),
        ('transport = "udp"', "transport is one of auto, rdma, tcp, not 'udp'"),
        ('transport = "rdma"\ntls = "optional"', "transport=rdma has no encryption"),
        ('rdma_devices = "mlx5_0"', "rdma_devices: expected a list, not text"),
        ("rdma_devices = [1]", r"rdma_devices\[0\]: expected text, not an integer"),
        ('rdma_subnets = ["10.1"]', "rdma_subnets: '10.1' does not appear to be"),
        ("rdma_gid_index = 256", "rdma_gid_index must be from -1 to 255"),
        ("rdma_gid_index = -2", "rdma_gid_index must be from -1 to 255"),
        ("rdma_gid_index = 1.5", "rdma_gid_index: expected an integer, not a number"),
        ("rdma_memory_mib = 31", "rdma_memory_mib is from 32 to 65536"),
        ("rdma_memory_mib = 65537", "rdma_memory_mib is from 32 to 65536"),
        ('rdma_memory_mib = "64 MiB"', "rdma_memory_mib: expected an integer, not text"),
        ('metrics_listen = "a b:1"', "metrics_listen: 'a b:1' is not an address"),
        ('metrics_listen = "h:65536"', "metrics_listen: 'h:65536' has no valid port"),
        ("metrics_listen = 9420", "metrics_listen: expected text, not an integer"),
        ("http_tls = true", "http_tls is of metrics: say metrics_listen, too"),
        ("http_tls = 1", "http_tls: expected true or false, not an integer"),
        ('log_file = "client.log"', "log_file must be an absolute path, not 'client.log'"),
        ('log_file = "/a\\u0000b"', "log_file must not have a NUL character"),
        ('log_level = "loud"', "log_level must be one of debug, info, warning, error"),
        ("log_level = 1979-05-27", "log_level: expected text, not date"),
    ],
)
def test_refusals_name_file_and_key(file: Path, text: str, words: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match=words) as refused:
        config_of(options_of(file))
    assert str(refused.value).startswith(f"{file}: ")


@pytest.mark.parametrize(
    ("octets", "words"),
    [
        (b"\xff\xfe", "is not TOML: 'utf-8' codec"),
        (b'tls = "off"\n\x00', "is not TOML"),
        (b'tls = "off"\ntls = "off"', "is not TOML: Cannot overwrite a value"),
        (b"tls = off", "is not TOML: Invalid value"),
        (b"a = " + b"[" * 100_000, "is not TOML: its values are nested too deeply"),
        (b"rdma_gid_index = " + b"9" * 5000, "is not TOML: Exceeds the limit"),
        (b"#" * (FILE_BYTES_MAX + 1), f"is too large: at most {FILE_BYTES_MAX} bytes"),
    ],
)
def test_files_that_are_no_toml(file: Path, octets: bytes, words: str) -> None:
    file.write_bytes(octets)
    with pytest.raises(ConfigError, match=words) as refused:
        config_of(options_of(file))
    assert str(file) in str(refused.value)


def test_a_large_file_is_read_to_its_end(file: Path) -> None:
    file.write_text("#" * (FILE_BYTES_MAX - 20) + '\ntls="optional"')
    assert load_config(file).tls == "optional"


def test_files_that_cannot_be_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.mkdir()
    with pytest.raises(ConfigError, match=rf"cannot read {file}: Is a directory"):
        config_of(options_of(file))
    with pytest.raises(ConfigError, match=rf"cannot read {file}/x: No such file"):
        config_of(options_of(file / "x"))
    with pytest.raises(ConfigError, match="cannot read /dev/null/x: Not a directory"):
        config_of(options_of(Path("/dev/null/x")))
    with pytest.raises(ConfigError, match="is too large"):
        config_of(options_of(Path("/dev/zero")))
    with pytest.raises(ConfigError, match="embedded null byte"):
        config_of(MountOptions(config="/etc/\0"))

    def refuse(*_words: object) -> None:
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr(Path, "open", refuse)  # root may read everything
    with pytest.raises(ConfigError, match=rf"cannot read {file}: Permission denied"):
        config_of(options_of(file))
    with pytest.raises(ConfigError, match=r"client\.toml: Permission denied"):
        config_of(MountOptions())


def test_a_host_needs_no_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_config, "CONFIG_FILE", str(file))
    options = MountOptions(config=str(file))
    assert config_of(options) == ClientConfig()
    file.write_text('log_level = "debug"')
    assert config_of(options).log_level == "debug"
    file.write_text("wrong")
    with pytest.raises(ConfigError, match="is not TOML"):
        config_of(options)
    file.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        config_of(replace(options, config=f"{file}2"))


# ---- options of former releases -----------------------------------------------------------------


def test_they_are_the_keys_of_the_file() -> None:
    assert set(MOVED_WORDS) == KEYS
    assert not KEYS & set(MountOptions.__slots__)


def test_they_mean_what_the_file_means(file: Path) -> None:
    file.write_text(EVERYTHING)
    wanted = load_config(file)
    file.write_text("")
    options = options_of(file, WORDS)
    assert config_of(options) == wanted
    file.write_text("\n".join(lines_for(options)))  # what the log says to write
    assert load_config(file) == wanted
    assert len(lines_for(options)) == len(MOVED_WORDS)


@pytest.mark.parametrize(
    ("text", "words", "key", "value"),
    [
        ('tls = "required"', "tls=off", "tls", "off"),
        ('log_level = "debug"', "log_level=warning", "log_level", "warning"),
        ('rdma_devices = ["a", "b"]', "rdma_devices=c", "rdma_devices", ("c",)),
        ('rdma_subnets = ["10.0.0.0/8"]', "tls=off", "rdma_subnets", ("10.0.0.0/8",)),
        ('metrics_listen = "h:1"', "http_tls", "http_tls", True),
        ('tls_ca = "/a"', "log_file=/b", "tls_ca", Path("/a")),
        ("", "log_level=debug,log_level=error", "log_level", "error"),
    ],
)
def test_they_override_the_file(file: Path, text: str, words: str, key: str, value: object) -> None:
    file.write_text(text)
    assert getattr(config_of(options_of(file, words)), key) == value


@pytest.mark.parametrize(
    ("text", "words", "why"),
    [
        ('tls = "required"', "transport=rdma", "transport=rdma has no encryption"),
        ("", "tls=on", "tls must be one of off, optional, required"),
        ("", "rdma_memory_mib=8", "rdma_memory_mib is from 32"),
        ("", "rdma_gid_index=300", "rdma_gid_index must be from -1 to 255"),
        ("", "http_tls", "http_tls is of metrics: say metrics_listen, too"),
    ],
)
def test_they_are_checked_with_the_file(file: Path, text: str, words: str, why: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match=f"^mount options: {why}"):
        config_of(options_of(file, words))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("tls", "the mount option 'tls' needs a value"),
        ("log_file=", "the mount option 'log_file' needs a value"),
        ("http_tls=1", "the mount option 'http_tls' takes no value"),
        ("rdma_gid_index=x", "the mount option 'rdma_gid_index=x' is not a number"),
        ("config", "the mount option 'config' needs a value"),
    ],
)
def test_they_are_parsed_as_before(words: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_mount_options(words)
