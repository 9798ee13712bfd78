"""Makes certificates for TLS with the openssl program: a cluster's authority, and servers'
certificates.

They have EC keys on P-256. An authority is valid for ten years, with its key beside it, readable by
its owner only; a server's certificate has the addresses and hosts by which it is reached. Files are
replaced by renaming, the key first: a server that reads them in between keeps the former ones.
Which certificates are trusted is in fscommon/net/tls.py, the command line in tls.py.
"""

import ipaddress
import os
import secrets
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Final

from fscommon.errors import BraidError, ConfigError

AUTHORITY_DAYS: Final = 3650
_EC: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_EXTENSIONS: Final = """basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage={uses}
subjectAltName={names}
"""
_CLIENT_USE: Final = "TLS Web Client Authentication"  # as openssl prints clientAuth


class CertificateError(BraidError):
    """openssl failed; the message is its own."""


@dataclass(frozen=True, slots=True)
class Certificate:
    subject: str
    issuer: str
    names: tuple[str, ...]
    ends: datetime
    is_for_clients: bool = False

    def days_left(self) -> float:
        return (self.ends - datetime.now(UTC)).total_seconds() / 86400


def create_authority(folder: Path) -> None:
    """Writes ca.crt and ca.key. Raises ConfigError if one exists."""
    for name in ("ca.crt", "ca.key"):
        if (folder / name).exists():
            raise ConfigError(f"{folder / name} exists: its certificates would become invalid")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as made:
        key, certificate = Path(made) / "key", Path(made) / "crt"
        _openssl(
            "req",
            "-x509",
            *_EC,
            "-keyout",
            str(key),
            "-out",
            str(certificate),
            "-days",
            str(AUTHORITY_DAYS),
            "-subj",
            f"/CN=BraidFS authority {secrets.token_hex(4)}",
            "-addext",
            "keyUsage=critical,keyCertSign,cRLSign",
        )
        _place(key, folder / "ca.key", 0o600)
        _place(certificate, folder / "ca.crt", 0o644)


def issue(
    authority: Path, names: Sequence[str], days: int, folder: Path, *, for_clients: bool = False
) -> None:
    """Writes server.crt and server.key, signed by the authority in that folder. for_clients: a
    client may prove itself by the certificate, too."""
    if not (authority / "ca.key").exists():
        raise ConfigError(f"there is no {authority / 'ca.key'}: braidfs tls authority makes one")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as made:
        key, asked, certificate = (Path(made) / name for name in ("key", "csr", "crt"))
        extensions = Path(made) / "extensions"
        uses = "serverAuth,clientAuth" if for_clients else "serverAuth"
        alternatives = ",".join(map(_alternative, names))
        extensions.write_text(_EXTENSIONS.format(uses=uses, names=alternatives))
        _openssl(
            "req",
            "-new",
            *_EC,
            "-keyout",
            str(key),
            "-out",
            str(asked),
            "-subj",
            f"/CN={names[0][:64]}",
        )
        _openssl(
            "x509",
            "-req",
            "-in",
            str(asked),
            "-out",
            str(certificate),
            "-days",
            str(days),
            "-CA",
            str(authority / "ca.crt"),
            "-CAkey",
            str(authority / "ca.key"),
            "-set_serial",
            f"0x{secrets.token_hex(16)}",
            "-extfile",
            str(extensions),
        )
        _place(key, folder / "server.key", 0o600)
        _place(certificate, folder / "server.crt", 0o644)


def is_good(
    authority: Path, names: Sequence[str], days: int, folder: Path, *, for_clients: bool = False
) -> bool:
    """Whether the folder's certificate is the authority's, has these names and this use, and lasts
    that long."""
    files = (folder / "server.crt", folder / "server.key")
    if not all(path.exists() for path in files):
        return False
    try:
        seen = look_at(files[0])
        _openssl("verify", "-CAfile", str(authority / "ca.crt"), str(files[0]))
    except CertificateError:
        return False
    is_same = (set(seen.names), seen.is_for_clients) == (set(map(_canonical, names)), for_clients)
    return is_same and seen.days_left() > days


def look_at(path: Path) -> Certificate:
    """Reads a certificate. Raises CertificateError, ConfigError."""
    if not path.exists():
        raise ConfigError(f"there is no {path}")
    said = _openssl(
        "x509",
        "-in",
        str(path),
        "-noout",
        "-subject",
        "-issuer",
        "-enddate",
        "-ext",
        "subjectAltName,extendedKeyUsage",
        "-nameopt",
        "RFC2253",
        "-dateopt",
        "iso_8601",
    )
    lines = said.splitlines()
    values = dict(line.split("=", 1) for line in lines if "=" in line and line[0] != " ")
    return Certificate(
        values["subject"],
        values["issuer"],
        tuple(map(_name, _extension(lines, "Subject Alternative Name"))),
        datetime.fromisoformat(values["notAfter"].replace("Z", "+00:00")),
        is_for_clients=_CLIENT_USE in _extension(lines, "Extended Key Usage"),
    )


def _extension(lines: Sequence[str], name: str) -> list[str]:
    """The words of an extension, which openssl prints in the line behind its name."""
    for line, after in pairwise(lines):
        if line.startswith(f"X509v3 {name}:"):
            return after.strip().split(", ")
    return []


def _name(word: str) -> str:
    kind, _, text = word.partition(":")
    return _canonical(text) if kind == "IP Address" else text


def _canonical(name: str) -> str:
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name


def _alternative(name: str) -> str:
    try:
        return f"IP:{ipaddress.ip_address(name)}"
    except ValueError:
        return f"DNS:{name}"


def _place(made: Path, path: Path, mode: int) -> None:
    made.chmod(mode)
    if path.exists():  # keeps the owner that reads it
        owner = path.stat()
        os.chown(made, owner.st_uid, owner.st_gid)
    made.replace(path)


def _openssl(*words: str) -> str:
    try:
        done = subprocess.run(
            ("openssl", *words), capture_output=True, text=True, check=False, timeout=60
        )
    except FileNotFoundError:
        raise ConfigError("the program openssl is not installed: apt-get install openssl") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or done.stdout.strip().splitlines()
        raise CertificateError(f"openssl {words[0]}: {said[-1] if said else 'failed'}")
    return done.stdout
