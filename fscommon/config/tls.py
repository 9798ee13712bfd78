"""Who must speak TLS, and with which files: keys of configurations and options of mounts.

off: plain connections. optional: a server takes both, and who connects tries TLS first: for the
time in which a cluster changes over, as an attacker can make it plain. required: TLS or nothing.
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
    """authority: whose certificates are believed. A client has no certificate of its own: the key
    of the cluster, or its own one, says who it is."""

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
