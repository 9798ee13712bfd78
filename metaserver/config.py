"""The metaserver's TOML file (fscommon.config loads it)."""

from dataclasses import dataclass
from pathlib import Path

from fscommon.config.tls import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE, OFF, TlsSettings
from fscommon.config.toml import ByteSize
from fscommon.errors import ConfigError
from fscommon.limits import (
    CHUNK_SIZE_DEFAULT,
    CHUNK_SIZE_MAX,
    CHUNK_SIZE_MIN,
    LEASES_PER_SESSION_MAX,
    STRIPE_WIDTH_DEFAULT_MAX,
    STRIPE_WIDTH_MAX,
)
from fscommon.net.address import parse_address
from fscommon.observe.endpoint import HttpCertificate

_CHUNK_SIZE = ByteSize(CHUNK_SIZE_DEFAULT)
_STORE_SIZE = ByteSize(0)


@dataclass(frozen=True, slots=True)
class MetaserverConfig:
    state_directory: Path
    key_file: Path
    listen: str = "127.0.0.1:7400"
    metrics_listen: str = ""
    page_listen: str = ""  # address of the cluster's page for browsers; empty: off
    log_level: str = "info"
    log_file: str = ""
    session_timeout_s: float = 30.0
    lease_duration_s: float = 30.0  # at most session_timeout_s
    leases_per_session_max: int = 100_000
    commit_interval_ms: float = 5.0
    chunk_size: ByteSize = _CHUNK_SIZE
    stripe_width_max: int = STRIPE_WIDTH_DEFAULT_MAX
    store_size_max: ByteSize = _STORE_SIZE  # bytes of all records; 0: as many as the disk holds
    tls: str = OFF  # or optional, required
    tls_certificate: Path = CERTIFICATE_FILE
    tls_key: Path = KEY_FILE
    tls_ca: Path = AUTHORITY_FILE  # the authority whose certificates are accepted
    http_tls: bool = False  # metrics and the page by https, with tls_certificate

    def __post_init__(self) -> None:
        self.tls_settings()
        if self.page_listen:
            self._check_page()
        if not CHUNK_SIZE_MIN <= self.chunk_size <= CHUNK_SIZE_MAX:
            raise ValueError(f"chunk_size is not in {CHUNK_SIZE_MIN}..{CHUNK_SIZE_MAX}")
        if self.chunk_size % CHUNK_SIZE_MIN:
            raise ValueError(f"chunk_size is not a multiple of {CHUNK_SIZE_MIN}")
        if not 1 <= self.stripe_width_max <= STRIPE_WIDTH_MAX:
            raise ValueError(f"stripe_width_max is not in 1..{STRIPE_WIDTH_MAX}")
        if not 0 < self.session_timeout_s <= 3600:
            raise ValueError("session_timeout_s is not in 0..3600")
        if not 0 < self.lease_duration_s <= 3600:
            raise ValueError("lease_duration_s is not in 0..3600")
        if not 1 <= self.leases_per_session_max <= LEASES_PER_SESSION_MAX:
            raise ValueError(f"leases_per_session_max is not in 1..{LEASES_PER_SESSION_MAX}")
        if not 0 <= self.commit_interval_ms <= 1000:
            raise ValueError("commit_interval_ms is not in 0..1000")

    def tls_settings(self) -> TlsSettings:
        """Raises ValueError."""
        return TlsSettings(self.tls, self.tls_ca, self.tls_certificate, self.tls_key)

    def http_certificate(self) -> HttpCertificate | None:
        return HttpCertificate(self.tls_certificate, self.tls_key) if self.http_tls else None

    def _check_page(self) -> None:
        try:
            parse_address(self.page_listen)
        except ConfigError as error:
            raise ValueError(f"page_listen: {error}") from error
