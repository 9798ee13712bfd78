"""The keys of /etc/braidfs/client.toml: what is the same for all mounts of a host.

They are the keys of the same names of a storage server's file. The file is read when a mount
begins, and again by each next process of the mount.
"""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from fscommon.config.mount_options import CONFIG_FILE, MountOptions
from fscommon.config.tls import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE, OFF, TlsSettings
from fscommon.config.toml import MissingFileError, from_table, read_table
from fscommon.errors import ConfigError
from fscommon.net.address import parse_address
from fscommon.net.rails import RdmaSettings
from fscommon.net.rdma import Wishes
from fscommon.observe.endpoint import HttpCertificate
from fscommon.observe.log import LEVELS

GID_INDEX_MAX: Final = 255
_PATHS: Final = ("tls_ca", "tls_certificate", "tls_key", "log_file")


@dataclass(frozen=True, slots=True)
class ClientConfig:
    tls: str = OFF  # or optional, required; file bytes go by TCP then
    tls_ca: Path = AUTHORITY_FILE  # certificates signed by it are trusted
    transport: str = "auto"  # rdma: do not mount without it; or tcp
    rdma_devices: tuple[str, ...] = ()  # patterns such as "mlx5_0:1" or "mlx5_bond_*"; none: all
    rdma_subnets: tuple[str, ...] = ()
    rdma_gid_index: int = -1  # the best one
    rdma_memory_mib: int = 256  # registered for payloads, on each port
    metrics_listen: str = ""  # empty: off
    http_tls: bool = False  # metrics over https, with tls_certificate
    tls_certificate: Path = CERTIFICATE_FILE
    tls_key: Path = KEY_FILE
    log_file: str = ""  # empty: syslog, or stderr in the foreground
    log_level: str = "info"

    def __post_init__(self) -> None:
        if not -1 <= self.rdma_gid_index <= GID_INDEX_MAX:
            raise ValueError(f"rdma_gid_index must be from -1 to {GID_INDEX_MAX}")
        if self.log_level not in LEVELS:
            raise ValueError(f"log_level must be one of {', '.join(LEVELS)}")
        if self.http_tls and not self.metrics_listen:
            raise ValueError("http_tls is of metrics: say metrics_listen, too")
        for name in _PATHS:
            if "\0" in str(getattr(self, name)):
                raise ValueError(f"{name} must not have a NUL character")
        self.tls_settings()
        self.rdma()
        if self.metrics_listen:
            self._check_address()

    def rdma(self) -> RdmaSettings:
        """The RDMA settings. Raises ValueError when they contradict each other."""
        if self.transport == "rdma" and self.tls != OFF:
            raise ValueError("transport=rdma has no encryption: leave it out, or tls")
        wishes = Wishes(self.rdma_devices, self.rdma_subnets, self.rdma_gid_index)
        transport = "tcp" if self.tls != OFF else self.transport
        return RdmaSettings(transport, wishes, self.rdma_memory_mib)

    def tls_settings(self) -> TlsSettings:
        """The TLS settings. Raises ValueError."""
        return TlsSettings(self.tls, self.tls_ca)

    def http_certificate(self) -> HttpCertificate | None:
        return HttpCertificate(self.tls_certificate, self.tls_key) if self.http_tls else None

    def _check_address(self) -> None:
        try:
            parse_address(self.metrics_listen)
        except ConfigError as error:
            raise ValueError(f"metrics_listen: {error}") from error


KEYS: Final = frozenset(field.name for field in fields(ClientConfig))


def load_config(path: Path | str) -> ClientConfig:
    """The file. Raises ConfigError."""
    config = from_table(ClientConfig, read_table(path), str(path))
    for name in _PATHS:  # the process has another directory than the command that mounts
        if (value := getattr(config, name)) and not Path(value).is_absolute():
            raise ConfigError(f"{path}: {name} must be an absolute path, not '{value}'")
    return config


def config_of(options: MountOptions) -> ClientConfig:
    """What holds for one mount: the file, and options of former releases, which override it. A host
    needs no file. Raises ConfigError."""
    try:
        config = load_config(options.config)
    except MissingFileError:
        if options.config != CONFIG_FILE:
            raise
        config = ClientConfig()
    if not options.moved_words:
        return config
    table = {name: _plain(getattr(config, name)) for name in KEYS}
    return from_table(ClientConfig, {**table, **dict(options.moved_words)}, "mount options")


def lines_for(options: MountOptions) -> list[str]:
    """What to write into the file in place of options of former releases."""
    return [f"{name} = {json.dumps(value)}" for name, value in options.moved_words]


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value
