"""Who must speak TLS, and with which files: keys of configurations and options of mounts.

off: plain connections. optional: a server accepts both, and a client tries TLS first; it is for the
time in which a cluster changes over, because an attacker can make such a connection plain.
required: TLS or nothing.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

OFF: Final = "off"
OPTIONAL: Final = "optional"
REQUIRED: Final = "required"
MODES: Final = (OFF, OPTIONAL, REQUIRED)
FOLDER: Final = Path("/etc/braidfs/tls")
AUTHORITY_FILE: Final = FOLDER / "ca.crt"
CERTIFICATE_FILE: Final = FOLDER / "server.crt"
KEY_FILE: Final = FOLDER / "server.key"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """TLS settings. `authority`: certificates signed by it are trusted. A client has no
    certificate: the cluster key, or a key of its own, says who it is."""

    mode: str = OFF
    authority: Path = AUTHORITY_FILE
    certificate: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"tls must be one of {', '.join(MODES)}, not '{self.mode}'")

    @property
    def is_on(self) -> bool:
        return self.mode != OFF

    @property
    def is_required(self) -> bool:
        return self.mode == REQUIRED


NO_TLS: Final = TlsSettings()
