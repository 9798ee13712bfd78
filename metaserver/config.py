"""The metaserver's TOML file (fscommon.config loads it)."""

import re
import socket
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
from metaserver.placement import DEFAULT_REPLICAS, ReplicaPolicy
from metaserver.repair_policy import DEFAULT_REPAIR, RepairPolicy
from metaserver.store.journals.address import parse_journal
from metaserver.store.journals.settings import JournalSettings, check_journal

_CHUNK_SIZE = ByteSize(CHUNK_SIZE_DEFAULT)
_STORE_SIZE = ByteSize(0)
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_NAME_LENGTH_MAX = 64
# With a journal, an absent client is given up sooner: nobody is served before all have returned.
_TIMEOUT_S = 30.0
_TIMEOUT_WITH_JOURNAL_S = 12.0


@dataclass(frozen=True, slots=True)
class MetaserverConfig:
    state_directory: Path
    key_file: Path
    listen: str = "127.0.0.1:7400"
    metrics_listen: str = ""
    page_listen: str = ""  # address of the cluster's page for browsers; empty: off
    log_level: str = "info"
    log_file: str = ""
    session_timeout_s: float = 0.0  # 0: 30 seconds, or 12 with a journal
    lease_duration_s: float = 0.0  # at most session_timeout_s; 0: as long as that
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
    journal: str = (
        ""  # of several metaservers: etcd://H1,H2,H3/PREFIX, or postgresql://...; or none
    )
    name: str = ""  # of this metaserver in the journal, unlike all others'; empty: the host's name
    address: str = ""  # at which others reach this metaserver; empty: what `listen` says
    journal_user: str = ""  # of etcd; PostgreSQL's is in `journal`
    journal_password_file: str = ""
    journal_ca: str = ""  # for etcd with TLS; empty: the system's authorities
    journal_certificate: str = ""
    journal_key: str = ""
    layout: ReplicaPolicy = DEFAULT_REPLICAS  # the table [layout]
    repair: RepairPolicy = DEFAULT_REPAIR  # the table [repair]

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
        if not 0 <= self.session_timeout_s <= 3600:
            raise ValueError("session_timeout_s is not in 0..3600")
        if not 0 <= self.lease_duration_s <= 3600:
            raise ValueError("lease_duration_s is not in 0..3600")
        if not 1 <= self.leases_per_session_max <= LEASES_PER_SESSION_MAX:
            raise ValueError(f"leases_per_session_max is not in 1..{LEASES_PER_SESSION_MAX}")
        if not 0 <= self.commit_interval_ms <= 1000:
            raise ValueError("commit_interval_ms is not in 0..1000")

        if self.journal:
            self._check_journal()

    def journal_settings(self) -> JournalSettings | None:
        """None: this metaserver is alone, and its store is all there is. Raises ConfigError."""
        if not self.journal:
            return None
        return JournalSettings(
            parse_journal(self.journal),
            user=self.journal_user,
            password_file=_path(self.journal_password_file),
            authority=_path(self.journal_ca),
            certificate=_path(self.journal_certificate),
            key=_path(self.journal_key),
        )

    @property
    def timeout_s(self) -> float:
        """The seconds after which a silent client is given up."""
        default_s = _TIMEOUT_WITH_JOURNAL_S if self.journal else _TIMEOUT_S
        return self.session_timeout_s or default_s

    def _check_journal(self) -> None:
        if len(self.own_name) > _NAME_LENGTH_MAX or not _NAME.fullmatch(self.own_name):
            raise ValueError(f"name: '{self.own_name}' has other characters than A-Z a-z 0-9 . _ -")
        try:
            settings = self.journal_settings()
            assert settings is not None, "the configuration has a journal"
            check_journal(settings)
        except (ConfigError, ValueError) as error:
            raise ValueError(f"journal: {error}") from error
        try:
            parse_address(self.own_address)
        except ConfigError as error:
            raise ValueError(f"{'address' if self.address else 'listen'}: {error}") from error

    @property
    def own_name(self) -> str:
        return self.name or socket.gethostname()

    @property
    def own_address(self) -> str:
        """Where clients and other metaservers find this one."""
        return self.address or self.listen

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


def _path(text: str) -> Path | None:
    return Path(text) if text else None
