"""What is mounted, as people write it: HOST[:PORT][,HOST2[:PORT]...]:/SUBDIR. Pure."""

from dataclasses import dataclass

from fscommon.errors import ConfigError
from fscommon.net.address import parse_address


@dataclass(frozen=True, slots=True)
class Source:
    """addresses: of metaservers, tried in turn. path: components below the root."""

    addresses: tuple[str, ...]
    path: tuple[bytes, ...]


def parse_source(text: str) -> Source:
    """Raises ConfigError with a sentence that shows the right form."""
    hosts, separator, subdir = text.partition(":/")
    if not separator:
        raise ConfigError(f"'{text}' names no directory: expected HOST[:PORT][,HOST2...]:/SUBDIR")
    addresses = tuple(str(parse_address(host)) for host in hosts.split(","))
    path = tuple(part.encode(errors="surrogateescape") for part in subdir.split("/") if part)
    if b".." in path:
        raise ConfigError(f"'{text}' has '..' in its directory")
    return Source(addresses, tuple(part for part in path if part != b"."))
