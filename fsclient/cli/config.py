"""braidfs config: shows what the programs' TOML files say, and what is wrong with them.

Its keys say whose a file is: a metaserver's, a storage server's, that of the mounts of a host
(client.toml), or this command's. Files of mounts that are services are known by their names
(mount_files). A server program checks its own file (its --check); then comes what only this host
can show: key, folders, addresses. Nothing is started or changed.
"""

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.markup import escape

from fscommon.auth.key import load_key
from fscommon.config import load
from fscommon.config.describe import Key, describe
from fscommon.config.toml import read_table
from fscommon.errors import ConfigError
from fscommon.net.address import METASERVER_PORT, STORAGESERVER_PORT, parse_address
from fscommon.net.tls import transport_of

from ..config import KEYS, ClientConfig, load_config
from . import mount_files
from .frame import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_UNHEALTHY,
    AdminConfig,
    Command,
    Group,
    json_option,
    show,
)

FOLDER: Final = "/etc/braidfs"
PROGRAMS: Final = ("metaserver", "storageserver", "client", "admin", "mount")
_CHECK_SECONDS_MAX: Final = 30


@dataclass(frozen=True, slots=True)
class Loaded:
    path: str
    program: str
    keys: tuple[Key, ...]

    def get(self, name: str) -> Any:
        return next((key.value for key in self.keys if key.name == name), None)


def load_any(path: Path, program: str | None) -> Loaded:
    """Raises ConfigError."""
    kind = program or _guess(path)
    if kind == "mount":
        return Loaded(str(path), kind, mount_files.keys_of(path))
    if kind == "client":
        return Loaded(str(path), kind, tuple(describe(load_config(path))))
    if kind == "admin":
        return Loaded(str(path), kind, tuple(describe(load(AdminConfig, path))))
    words = [_program(f"braidfs-{kind}"), "--config", str(path), "--check"]
    result = subprocess.run(
        words, check=False, capture_output=True, text=True, timeout=_CHECK_SECONDS_MAX
    )
    if result.returncode != 0:
        raise ConfigError(result.stderr.strip().partition(": ")[2] or f"{words[0]} failed")
    return Loaded(str(path), kind, tuple(Key(**row) for row in json.loads(result.stdout)))


def _program(name: str) -> str:
    """The program that was installed with this command, else one in PATH."""
    beside = Path(sys.argv[0]).resolve().parent
    found = shutil.which(name, path=f"{beside}:{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}")
    if found is None:
        raise ConfigError(f"{name} is not installed on this host: it checks its own file")
    return found


def _guess(path: Path) -> str:
    if path.suffix == mount_files.SUFFIX:
        return "mount"
    table = read_table(path)
    if "targets" in table or "storage" in path.stem or {"name", "metaservers"} <= set(table):
        return "storageserver"
    if "state_directory" in table or "meta" in path.stem:
        return "metaserver"
    if "metaservers" in table or path.stem == "admin":
        return "admin"
    is_client = "client" in path.stem or (bool(table) and set(table) <= KEYS)
    return "client" if is_client else "metaserver"


@click.group(cls=Group)
def config() -> None:
    """Configuration files of the programs: show what they mean, find what is wrong."""


_paths = click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
_whose = click.option(
    "--program", type=click.Choice(list(PROGRAMS)), help="Whose file it is, if its keys do not say."
)


def _given(paths: tuple[Path, ...]) -> list[Path]:
    """These files, else all of this host; a fresh host has none."""
    mounts = Path(FOLDER, mount_files.FOLDER).glob(f"*{mount_files.SUFFIX}")
    return list(paths) or [*sorted(Path(FOLDER).glob("*.toml")), *sorted(mounts)]


@config.command(
    "show",
    cls=Command,
    examples=[
        ("braidfs config show", f"Every file in {FOLDER}, with those of mounts that are services."),
        ("braidfs config show ./storageserver.toml --json", "One file, for programs."),
    ],
)
@_paths
@_whose
@json_option
def config_show(paths: tuple[Path, ...], program: str | None, as_json: bool) -> None:
    """Show every key with the value it has, defaults included."""
    found = [load_any(path, program) for path in _given(paths)]
    if not found:
        raise ConfigError(f"there is no TOML file in {FOLDER}: name one")
    seen = [
        {
            "path": one.path,
            "program": one.program,
            "keys": {key.name: key.value for key in one.keys},
            "defaults": [key.name for key in one.keys if key.is_default],
        }
        for one in found
    ]
    show(seen, as_json, lambda console: _print_files(console, found))


def _print_files(console: Console, found: list[Loaded]) -> None:
    for one in found:
        console.print(f"# {one.path} ({one.program})", markup=False)
        for key in one.keys:
            mark = "   # default" if key.is_default else ""
            console.print(f"{key.name} = {_toml(key.value)}{mark}", markup=False)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_toml(one)}" for name, one in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


# ---- check -----------------------------------------------------------------------------------


@config.command(
    "check",
    cls=Command,
    examples=[
        ("braidfs config check", "Everything on this host."),
        (
            "braidfs config check new.toml && mv new.toml /etc/braidfs/storageserver.toml",
            "Before a file goes live.",
        ),
    ],
    exits={EXIT_UNHEALTHY: "the files can be used, with warnings"},
)
@_paths
@_whose
@json_option
def config_check(paths: tuple[Path, ...], program: str | None, as_json: bool) -> int:
    """Check files as the programs do, and then their values against this host.

    A host without files, or with a package's own that set nothing, is sound.
    """
    seen = []
    for path in _given(paths):
        errors: list[str] = []
        warnings: list[str] = []
        kind = program or ""
        try:
            loaded = load_any(path, program)
            kind = loaded.program
            errors, warnings = _on_host(loaded)
        except ConfigError as error:
            errors = [str(error)]
        seen.append({"path": str(path), "program": kind, "errors": errors, "warnings": warnings})
    show(seen, as_json, lambda console: _print_check(console, seen))
    if any(one["errors"] for one in seen):
        return EXIT_FAILED
    return EXIT_UNHEALTHY if any(one["warnings"] for one in seen) else EXIT_DONE


def _print_check(console: Console, seen: list[dict[str, Any]]) -> None:
    if not seen:
        console.print(f"there is no TOML file in {FOLDER}: nothing to check", markup=False)
    for one in seen:
        good = not one["errors"] and not one["warnings"]
        console.print(
            f"{one['path']} ({one['program'] or 'unknown'}):{' sound' if good else ''}",
            markup=False,
        )
        for text in one["errors"]:
            console.print(f"  [red]✗[/] {escape(text)}")
        for text in one["warnings"]:
            console.print(f"  [yellow]![/] {escape(text)}")


def _on_host(loaded: Loaded) -> tuple[list[str], list[str]]:
    """Errors and warnings that only this host can show."""
    if loaded.program == "mount":
        path = Path(loaded.path)
        return mount_files.errors_of(path), mount_files.warnings_of(path)
    if loaded.program == "client":
        return _client_on_host(load_config(loaded.path))
    errors: list[str] = []
    warnings: list[str] = []
    try:
        load_key(loaded.get("key_file"))
    except ConfigError as error:
        if loaded.program != "admin" or not all(key.is_default for key in loaded.keys):
            errors.append(str(error))
    if loaded.program == "admin":
        return errors, warnings
    _check_folder(Path(loaded.get("state_directory")), "state_directory", errors, warnings)
    default = METASERVER_PORT if loaded.program == "metaserver" else STORAGESERVER_PORT
    for name, port in (("listen", default), ("metrics_listen", 0)):
        if text := loaded.get(name):
            _check_listen(name, text, port, errors, warnings)
    if loaded.program == "storageserver":
        _check_targets(loaded.get("targets"), errors, warnings)
    return errors, warnings


def _client_on_host(config: ClientConfig) -> tuple[list[str], list[str]]:
    errors: list[str] = []
    warnings: list[str] = []
    try:
        transport_of(config.tls_settings())
    except ConfigError as error:
        errors.append(str(error))
    if config.metrics_listen:
        _check_listen("metrics_listen", config.metrics_listen, 0, errors, warnings)
    if certificate := config.http_certificate():
        for path in (certificate.certificate, certificate.key):
            if not os.access(path, os.R_OK):
                errors.append(f"http_tls: {path} cannot be read by uid {os.geteuid()}")
    folder = Path(config.log_file).parent
    if config.log_file and not os.access(folder, os.W_OK):
        errors.append(f"log_file {config.log_file}: {folder} is no directory that can be written")
    return errors, warnings


def _check_folder(path: Path, name: str, errors: list[str], warnings: list[str]) -> None:
    if not path.exists():
        above = next(one for one in path.absolute().parents if one.exists())
        if not above.is_dir() or not os.access(above, os.W_OK):
            warnings.append(f"{name} {path} does not exist yet: the program makes it if it may")
    elif not path.is_dir():
        errors.append(f"{name} {path} is not a directory")
    elif not os.access(path, os.W_OK):
        errors.append(f"{name} {path} cannot be written by uid {os.geteuid()}")


def _check_listen(name: str, text: str, port: int, errors: list[str], warnings: list[str]) -> None:
    try:
        address = parse_address(text, port_default=port)
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address.host, address.port))
    except ConfigError as error:
        errors.append(f"{name}: {error}")
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            warnings.append(f"{name}: {text} is in use, by this program if it runs")
        else:
            errors.append(f"{name}: {text} is no address of this host: {error.strerror}")


def _check_targets(targets: list[dict[str, Any]], errors: list[str], warnings: list[str]) -> None:
    devices: dict[int, Path] = {}
    for target in targets:
        path = Path(target["path"])
        if not path.is_dir():
            errors.append(f"target {path} is not a directory: make it, mount its device")
            continue
        device = path.stat().st_dev
        if device in devices:
            warnings.append(f"targets {devices[device]} and {path} share one file system")
        devices.setdefault(device, path)
        if device == Path("/").stat().st_dev:
            warnings.append(f"target {path} lies on the root file system: is its device mounted?")
