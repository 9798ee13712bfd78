"""Addresses as people write them: "host", "host:port", "[v6]" and "[v6]:port". Pure."""

from dataclasses import dataclass
from typing import Final

from fscommon.errors import ConfigError

METASERVER_PORT: Final = 7400
STORAGESERVER_PORT: Final = 7411
_PORT_MAX: Final = 65535
_DIGITS_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, *, port_default: int = METASERVER_PORT) -> Address:
    """The address that the text means. Raises ConfigError, which names the text."""
    text = text.strip()
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")) or ":" not in host:
            raise ConfigError(f"'{text}' is not an address: write IPv6 as [ADDRESS]:PORT")
        port_text = rest[1:] if rest else None
    else:
        host, colon, after = text.partition(":")
        if ":" in after:
            raise ConfigError(f"'{text}' is not an address: write IPv6 as [ADDRESS]:PORT")
        port_text = after if colon else None
    if not host or any(c.isspace() or not c.isprintable() or c == "/" for c in host):
        raise ConfigError(f"'{text}' is not an address: expected HOST or HOST:PORT")
    return Address(host, port_default if port_text is None else _parse_port(port_text, text))


def _parse_port(port_text: str, text: str) -> int:
    is_number = port_text.isascii() and port_text.isdigit()
    if not is_number or len(port_text) > _DIGITS_MAX or int(port_text) > _PORT_MAX:
        raise ConfigError(f"'{text}' has no valid port: expected 0 to {_PORT_MAX}")
    return int(port_text)
