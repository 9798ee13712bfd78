"""The keys of a storage server's TOML file, with their checks."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fscommon.config import ByteSize
from fscommon.config.tls import (
    AUTHORITY_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    OFF,
    REQUIRED,
    TlsSettings,
)
from fscommon.errors import ConfigError
from fscommon.limits import BUSY_POLL_US_MAX
from fscommon.machine import memory_bytes
from fscommon.net.address import METASERVER_PORT, STORAGESERVER_PORT, Address, parse_address
from fscommon.net.rails import RdmaSettings
from fscommon.net.rdma import Wishes
from fscommon.observe.endpoint import HttpCertificate

IO_ENGINES: Final = ("auto", "uring", "syscall")
LANES_MAX: Final = 64
TARGETS_MAX: Final = 64  # as in native: server/target_table.h
NAME_LENGTH_MAX: Final = 255
BUFFER_BYTES_MAX: Final = 512 << 20  # for payloads in transit
BUFFER_PART: Final = 8  # payloads in transit take at most this part of the memory
FETCH_AHEAD_PART: Final = 8  # files that clients are going to read take this part of the memory
FETCH_AHEAD_MIB_MAX: Final = 1 << 24
WHOLE_DEVICE: Final = ByteSize(0)


def buffer_bytes_max() -> int:
    """Bytes of payloads in transit that all lanes may hold: a part of the memory this process may
    have."""
    return min(BUFFER_BYTES_MAX, memory_bytes() // BUFFER_PART)


@dataclass(frozen=True, slots=True)
class TargetConfig:
    path: Path
    capacity_bytes: ByteSize = WHOLE_DEVICE


@dataclass(frozen=True, slots=True)
class StorageServerConfig:
    name: str
    key_file: Path
    state_directory: Path
    targets: tuple[TargetConfig, ...]
    listen: str = f"127.0.0.1:{STORAGESERVER_PORT}"
    advertise: str = ""  # where clients find this server; empty: the listen address
    metaservers: tuple[str, ...] = (f"127.0.0.1:{METASERVER_PORT}",)
    domain: str = ""  # what fails together with this server; empty: its host
    metrics_listen: str = ""  # empty: off
    log_level: str = "info"
    log_file: str = ""  # empty: stderr
    io_engine: str = "auto"
    lanes: int = 0  # 0: one per core, at most 8
    busy_poll_us: int = 0  # longest time that a lane polls for requests before it sleeps
    fetch_ahead_mib: int = -1  # for files that clients are going to read; -1: 1/8 of the memory
    transport: str = "auto"  # rdma: do not start without it; or tcp
    rdma_devices: tuple[str, ...] = ()  # patterns such as "mlx5_0:1" or "mlx5_bond_*"; none: all
    rdma_subnets: tuple[str, ...] = ()
    rdma_gid_index: int = -1
    rdma_memory_mib: int = 256  # registered for payloads, on each port
    tls: str = OFF  # off, optional or required
    tls_certificate: Path = CERTIFICATE_FILE
    tls_key: Path = KEY_FILE
    tls_ca: Path = AUTHORITY_FILE  # certificates signed by it are trusted
    http_tls: bool = False  # metrics over https, with tls_certificate

    def __post_init__(self) -> None:
        if not 0 < len(self.name) <= NAME_LENGTH_MAX:
            raise ValueError(f"name must have 1 to {NAME_LENGTH_MAX} characters")
        if len(self.domain) > NAME_LENGTH_MAX:
            raise ValueError(f"domain must have at most {NAME_LENGTH_MAX} characters")
        if self.io_engine not in IO_ENGINES:
            raise ValueError(f"io_engine must be one of {', '.join(IO_ENGINES)}")
        if not 0 <= self.lanes <= LANES_MAX:
            raise ValueError(f"lanes must be from 0 to {LANES_MAX}")
        if not 0 <= self.busy_poll_us <= BUSY_POLL_US_MAX:
            raise ValueError(f"busy_poll_us must be from 0 to {BUSY_POLL_US_MAX}")
        if not -1 <= self.fetch_ahead_mib <= FETCH_AHEAD_MIB_MAX:
            raise ValueError(f"fetch_ahead_mib must be from -1 to {FETCH_AHEAD_MIB_MAX}")
        self.tls_settings()
        self.rdma()
        self._check_targets()
        self._check_addresses()

    def rdma(self) -> RdmaSettings:
        """The RDMA settings. Raises ValueError when they contradict each other."""
        if self.transport == "rdma" and self.tls == REQUIRED:
            raise ValueError("transport is rdma, which has no encryption, but tls is required")
        wishes = Wishes(self.rdma_devices, self.rdma_subnets, self.rdma_gid_index)
        transport = "tcp" if self.tls == REQUIRED else self.transport
        return RdmaSettings(transport, wishes, self.rdma_memory_mib)

    def tls_settings(self) -> TlsSettings:
        """The TLS settings. Raises ValueError."""
        return TlsSettings(self.tls, self.tls_ca, self.tls_certificate, self.tls_key)

    def http_certificate(self) -> HttpCertificate | None:
        return HttpCertificate(self.tls_certificate, self.tls_key) if self.http_tls else None

    def fetched_bytes_max(self) -> int:
        """Bytes that may be in the page cache because clients are going to read them, and are
        unread."""
        if self.fetch_ahead_mib >= 0:
            return self.fetch_ahead_mib << 20
        return memory_bytes() // FETCH_AHEAD_PART

    def metaserver_addresses(self) -> tuple[Address, ...]:
        return tuple(parse_address(text) for text in self.metaservers)

    def listen_address(self) -> Address:
        return parse_address(self.listen, port_default=STORAGESERVER_PORT)

    def _check_targets(self) -> None:
        if not 0 < len(self.targets) <= TARGETS_MAX:
            raise ValueError(f"there must be 1 to {TARGETS_MAX} [[targets]]")
        paths = [target.path for target in self.targets]
        if len(set(paths)) != len(paths):
            raise ValueError("one path is listed twice in [[targets]]")

    def _check_addresses(self) -> None:
        if not self.metaservers:
            raise ValueError("metaservers is empty: name at least one")
        try:
            self.metaserver_addresses()
            self.listen_address()
            if self.advertise:
                parse_address(self.advertise, port_default=STORAGESERVER_PORT)
        except ConfigError as error:
            raise ValueError(str(error)) from error
