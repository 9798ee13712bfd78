"""Files of mounts that are services, /etc/braidfs/mounts/NAME.conf, as braidfs-mount@NAME.service
reads them: SOURCE= and OPTIONS=, in lines as of systemd's EnvironmentFile=. NAME is the mountpoint
as written by `systemd-escape --path`."""

import re
import shlex
from pathlib import Path
from typing import Final

from fscommon.auth.key import load_credential
from fscommon.config.describe import Key, describe
from fscommon.config.mount_options import FORMER_WORDS, MountOptions, parse_mount_options
from fscommon.config.toml import unknown_word
from fscommon.errors import ConfigError

from ..config import config_of, lines_for
from ..kernel import is_mounted
from ..source import parse_source

FOLDER: Final = "mounts"  # in the folder of the configuration
SUFFIX: Final = ".conf"
_WORDS: Final = frozenset(("SOURCE", "OPTIONS"))
_ESCAPED: Final = re.compile(r"\\x([0-9a-f]{2})")


def mountpoint_of(path: Path) -> str:
    """The mountpoint of a file: mnt-train.conf is of /mnt/train."""
    name = path.name.removesuffix(SUFFIX)
    folders = "" if name == "-" else name.replace("-", "/")
    return "/" + _ESCAPED.sub(lambda match: chr(int(match[1], 16)), folders)


def keys_of(path: Path) -> tuple[Key, ...]:
    """The keys of the file, with the options that it does not name. Raises ConfigError."""
    source, options = _read(path)
    return (
        Key("directory", mountpoint_of(path), False),
        Key("source", source, False),
        *(key for key in describe(options) if key.name != "moved_words"),
        *(Key(name, value, False) for name, value in options.moved_words),
    )


def errors_of(path: Path) -> list[str]:
    """The errors that this host can find. Raises ConfigError."""
    _, options = _read(path)
    errors = []
    for look in (lambda: load_credential(options.key_file), lambda: config_of(options)):
        try:
            look()
        except ConfigError as error:
            errors.append(str(error))
    point = mountpoint_of(path)
    if not is_mounted(point) and not Path(point).is_dir():
        errors.append(f"{point} is not a directory: make it, or rename {path.name}")
    return errors


def warnings_of(path: Path) -> list[str]:
    """What works for one release more. Raises ConfigError."""
    _, options = _read(path)
    instead = [f"{word}: {FORMER_WORDS[word]}" for word in dict.fromkeys(options.former_words)]
    moved = [f"write it into {options.config}: {line}" for line in lines_for(options)]
    return [f"an option of a former release: {text}" for text in (*instead, *moved)]


def _read(path: Path) -> tuple[str, MountOptions]:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    found = dict(
        _pair(path, line) for line in lines if line.strip() and line.strip()[0] not in "#;"
    )
    if "SOURCE" not in found:
        raise ConfigError(f"{path} has no SOURCE=HOST[:PORT][,HOST2...]:/SUBDIR")
    parse_source(found["SOURCE"])
    return found["SOURCE"], parse_mount_options(found.get("OPTIONS", ""))


def _pair(path: Path, line: str) -> tuple[str, str]:
    name, equals, value = line.strip().partition("=")
    if not equals or name not in _WORDS:
        raise ConfigError(f"{path}: {unknown_word('word', name, _WORDS)}")
    try:
        return name, "".join(shlex.split(value))
    except ValueError as error:
        raise ConfigError(f"{path}: {name}: {error}") from error
