"""Where a metaserver's journal is, as its configuration says it: one text. Pure.

etcd://HOST[:PORT][,HOST[:PORT]...]/PREFIX     etcd, plain
etcds://HOST[:PORT][,HOST[:PORT]...]/PREFIX    etcd with TLS
postgresql://[USER@]HOST[:PORT][,...]/DATABASE[?OPTION=VALUE&...]  as libpq reads it

The scheme decides about TLS with etcd, as in https: whoever reads the address knows whether names
of files cross the network in the clear, and a setting that is missing (an authority, a certificate)
can only make a connection fail, never make it plain. With postgresql, libpq's option sslmode does.
No password is in the text: configurations are shown, copied and logged.
"""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl

from fscommon.errors import ConfigError
from fscommon.net.address import parse_address

ETCD: Final = "etcd"
ETCDS: Final = "etcds"
POSTGRESQL: Final = "postgresql"
_PORTS: Final = {ETCD: 2379, ETCDS: 2379, POSTGRESQL: 5432}
_FORMS: Final = "etcd://HOST,HOST,HOST/PREFIX, etcds://HOST,HOST,HOST/PREFIX or postgresql://…"
_PREFIX: Final = re.compile(r"(?:/[A-Za-z0-9._-]+)+")
_DATABASE: Final = re.compile(r"/[^/?#\s]+")
_TEXT_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class JournalAddress:
    """endpoints: HOST:PORT each. path: of etcd the prefix of all keys, which begins with a slash;
    of postgresql the name of the database. text: the whole as it was written."""

    scheme: str
    endpoints: tuple[str, ...]
    path: str
    text: str

    @property
    def is_etcd(self) -> bool:
        return self.scheme in (ETCD, ETCDS)

    @property
    def engine(self) -> str:
        """What the engine is called, with TLS or without."""
        return ETCD if self.is_etcd else self.scheme

    @property
    def is_tls(self) -> bool:
        """Whether the scheme demands TLS; see above for postgresql."""
        return self.scheme == ETCDS


def parse_journal(text: str) -> JournalAddress:
    """Raises ConfigError, which says what is wrong; it repeats no password."""
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in _PORTS:
        raise ConfigError(f"'{scheme[:40]}' is not the address of a journal: expected {_FORMS}")
    if len(text) > _TEXT_MAX or any(c.isspace() or not c.isprintable() for c in text):
        raise ConfigError("the address of the journal is too long, or has spaces in it")
    rest, _, options = rest.partition("?")
    hosts, slash, path = rest.partition("/")
    user, at, hosts_alone = hosts.rpartition("@")
    if scheme == POSTGRESQL:
        _check_postgresql(user, slash + path, options)
    else:
        _check_etcd(at, slash + path, has_options="?" in text)
    return JournalAddress(
        scheme,
        _endpoints(hosts_alone, _PORTS[scheme]),
        path if scheme == POSTGRESQL else slash + path,
        text,
    )


def _check_etcd(at: str, path: str, *, has_options: bool) -> None:
    if at:
        raise ConfigError(
            "the address of a journal in etcd has no user: it has settings of its own"
        )
    if has_options:
        raise ConfigError("the address of a journal in etcd has no options after a '?'")
    if not _PREFIX.fullmatch(path):
        raise ConfigError(
            f"the address of a journal in etcd ends with a prefix of its keys, such as /braidfs, "
            f"that no other file system uses; '{path}' is none"
        )


def _check_postgresql(user: str, path: str, options: str) -> None:
    names = [name.lower() for name, _ in parse_qsl(options, keep_blank_values=True)]
    if ":" in user or "password" in names:
        raise ConfigError(
            "the address of the journal has a password in it, where many can read it: "
            "put it into a file that the option passfile names"
        )
    if not _DATABASE.fullmatch(path):
        raise ConfigError(
            f"the address of a journal in postgresql ends with the name of a database, such as "
            f"/braidfs; '{path}' is none"
        )


def _endpoints(hosts: str, port_default: int) -> tuple[str, ...]:
    found: list[str] = []
    for host in hosts.split(","):
        try:
            address = parse_address(host, port_default=port_default)
        except ConfigError as error:
            raise ConfigError(f"the address of the journal: {error}") from None
        if not address.port:
            raise ConfigError(f"the address of the journal: '{host}' has no valid port")
        if str(address) in found:
            raise ConfigError(f"the address of the journal names {address} twice")
        found.append(str(address))
    return tuple(found)
