"""The cluster key file: 64 hexadecimal digits on one line, readable by its owner alone."""

import os
import secrets
import stat
from pathlib import Path
from typing import Final

from fscommon.errors import ConfigError

KEY_SIZE: Final = 32
_FILE_SIZE_MAX: Final = 4096


def create_key(path: Path) -> None:
    """Write a new random key with mode 0600. Raises ConfigError when the file exists."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"cannot create the key file {path}: {error.strerror}") from error
    with os.fdopen(fd, "w") as file:
        file.write(secrets.token_hex(KEY_SIZE) + "\n")


def load_key(path: Path | str) -> bytes:
    """The key in the file. Raises ConfigError with a sentence that says what to do."""
    text = _read_private(Path(path))
    try:
        key = bytes.fromhex(text.decode("ascii").strip())
    except ValueError:
        raise ConfigError(f"{path} is not a key file: expected hexadecimal digits") from None
    if len(key) != KEY_SIZE:
        raise ConfigError(f"{path} holds a key of {len(key)} bytes; it must have {KEY_SIZE}")
    return key


def _read_private(path: Path) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigError(f"cannot read the key file {path}: {error.strerror}") from error
    try:
        _check_private(path, os.fstat(fd).st_mode)  # of the very file that is read
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
