"""An authority and a server's certificate for 127.0.0.1, created once for a whole run of tests."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fsclient.cli.certificates import create_authority, issue
from fscommon.config.tls import REQUIRED, TlsSettings

NAMES = ("127.0.0.1", "localhost")


@dataclass(frozen=True, slots=True)
class Certificates:
    folder: Path

    @property
    def authority(self) -> Path:
        return self.folder / "ca.crt"

    def settings(self, mode: str = REQUIRED) -> TlsSettings:
        """The TLS settings of a server."""
        return TlsSettings(
            mode, self.authority, self.folder / "server.crt", self.folder / "server.key"
        )

    def toml(self, mode: str = REQUIRED) -> dict[str, object]:
        """The keys of a server's configuration."""
        return {
            "tls": mode,
            "tls_ca": str(self.authority),
            "tls_certificate": str(self.folder / "server.crt"),
            "tls_key": str(self.folder / "server.key"),
        }

    def client_toml(self, mode: str = REQUIRED) -> dict[str, object]:
        """The keys of a client's configuration."""
        return {"tls": mode, "tls_ca": str(self.authority)}

    def issue(
        self, names: Sequence[str] = NAMES, *, days: int = 90, by: Path | None = None
    ) -> None:
        """A new certificate; one of -1 days has expired."""
        issue(by or self.folder, names, days, self.folder)


def make_certificates(folder: Path) -> Certificates:
    create_authority(folder)
    made = Certificates(folder)
    made.issue()
    return made
