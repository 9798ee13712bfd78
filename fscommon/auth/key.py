"""Key files, readable by their owner alone, and the secrets that are derived from the cluster key.

The cluster key is 64 hexadecimal digits on one line. A client's key is `client:ID:SECRET`, with 16
and 64 digits: its id says what the metaserver allows it; its secret is derived from the cluster key
and the id, so nobody has to store it (docs/decisions/0020-client-keys.md). To storage servers, a
client with such a key proves its session, by a secret that the metaserver gives to that session.
"""

import hmac
import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fscommon.errors import ConfigError

KEY_SIZE: Final = 32
CLUSTER_KEY_ID: Final = 0
_FILE_SIZE_MAX: Final = 4096
_CLIENT: Final = "client"
_ID_DIGITS: Final = 16


@dataclass(frozen=True, slots=True)
class Credential:
    """What a mount proves itself with. id 0: the cluster key."""

    id: int
    secret: bytes = field(repr=False)


def client_secret(cluster_key: bytes, cluster_uuid: bytes, key_id: int) -> bytes:
    """The 32-byte secret of a client's key."""
    label = b"braidfs client key" + cluster_uuid + key_id.to_bytes(8, "little")
    return hmac.digest(cluster_key, label, "sha256")


def session_secret(capability_key: bytes, session: int) -> bytes:
    """The 32 bytes with which a session of a client with a key of its own proves itself to storage
    servers."""
    label = b"braidfs session key" + session.to_bytes(8, "little")
    return hmac.digest(capability_key, label, "sha256")


def create_key(path: Path) -> None:
    """Writes a new random cluster key with mode 0600. Raises ConfigError when the file exists."""
    _create(path, secrets.token_hex(KEY_SIZE))


def create_client_key(path: Path, credential: Credential) -> None:
    """Writes a client's key with mode 0600. Raises ConfigError when the file exists."""
    _create(path, f"{_CLIENT}:{credential.id:0{_ID_DIGITS}x}:{credential.secret.hex()}")


def _create(path: Path, text: str) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"cannot create the key file {path}: {error.strerror}") from error
    with os.fdopen(fd, "w") as file:
        file.write(text + "\n")


def load_key(path: Path | str) -> bytes:
    """The 32-byte cluster key in the file. Raises ConfigError with a sentence that says
    what to do."""
    credential = load_credential(path)
    if credential.id != CLUSTER_KEY_ID:
        raise ConfigError(
            f"{path} is the key of a client, good for mounting only: this needs the cluster key"
        )
    return credential.secret


def load_credential(path: Path | str) -> Credential:
    """The key in the file, the cluster's or a client's. Raises ConfigError."""
    text = _read_private(Path(path)).decode("ascii", "replace").strip()
    key_id = CLUSTER_KEY_ID
    if text.startswith(f"{_CLIENT}:"):
        digits, _, text = text.removeprefix(f"{_CLIENT}:").partition(":")
        key_id = int.from_bytes(_digits(digits, path), "big")
        if len(digits) != _ID_DIGITS or not key_id:
            raise ConfigError(f"{path} is not a key file: a client's key has an id of 16 digits")
    secret = _digits(text, path)
    if len(secret) != KEY_SIZE:
        raise ConfigError(f"{path} holds a key of {len(secret)} bytes; it must have {KEY_SIZE}")
    return Credential(key_id, secret)


def _digits(text: str, path: Path | str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ConfigError(f"{path} is not a key file: expected hexadecimal digits") from None


def _read_private(path: Path) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigError(f"cannot read the key file {path}: {error.strerror}") from error
    try:
        _check_private(path, os.fstat(fd).st_mode)  # checked on the very file that is read
        return os.read(fd, _FILE_SIZE_MAX)
    finally:
        os.close(fd)


def _check_private(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise ConfigError(f"the key file {path} is not a regular file")
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            f"the key file {path} can be used by others (mode {stat.S_IMODE(mode):04o}): "
            f"chmod 600 {path}"
        )
