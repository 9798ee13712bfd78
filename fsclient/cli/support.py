"""braidfs support bundle: one archive for people who must find out what is wrong.

It has what the verbs show, metrics, logs, configuration and a few facts of the host. It never has
the key: key files are left out by content and by name, and lines that name secrets are removed.
"""

import io
import json
import os
import platform
import re
import ssl
import subprocess
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click

from fscommon.errors import BraidError
from fscommon.net.address import parse_address
from fscommon.observe.health import problems_of
from fscommon.observe.status import status_json

from .cluster import reasons_of_silence
from .config import FOLDER, load_any
from .expiry import ask_with_certificates, seen
from .frame import Command, Group, Reach, json_option, reaching, sentence, show
from .words import size

FILE_BYTES_MAX: Final = 4 << 20  # of one file: the end of a log is what matters
FETCH_SECONDS_MAX: Final = 5
_LOGS: Final = ("/var/log/braidfs",)
_KEY_TEXT: Final = re.compile(rb"\b[0-9a-fA-F]{64}\b")
_PRIVATE: Final = re.compile(rb"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(-----END|\Z)", re.S)
_COMMANDS: Final = {
    "host/mounts": ("cat", "/proc/self/mountinfo"),
    "host/meminfo": ("cat", "/proc/meminfo"),
    "host/df": ("df", "-PT"),
    "host/limits": ("sh", "-c", "ulimit -a"),
    "host/journal": ("journalctl", "--no-pager", "-n", "5000", "-u", "braidfs-*"),
    "host/journal-of-mounts": ("journalctl", "--no-pager", "-n", "5000", "-t", "braidfs"),
}


@click.group(cls=Group)
def support() -> None:
    """Help for people who must find out what is wrong."""


@support.command(
    "bundle",
    cls=Command,
    examples=[
        ("braidfs support bundle", "braidfs-support-HOST-TIME.tar.gz here."),
        ("braidfs support bundle -o /tmp/b.tar.gz --log /var/log/other", "With more logs."),
    ],
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The archive to write; it must not exist.",
)
@click.option(
    "--log",
    "logs",
    multiple=True,
    metavar="PATH",
    type=click.Path(exists=True, path_type=Path),
    help="More logs: a file or a folder; may be given several times.",
)
@reaching
@json_option
def bundle(reach: Reach, output: Path | None, logs: tuple[Path, ...], as_json: bool) -> None:
    """Gather status, metrics, configuration, logs and facts of this host into one archive.

    Keys are left out; look into the archive before you send it to others."""
    stamp = time.strftime("%Y%m%dT%H%M%S")
    path = output or Path(f"braidfs-support-{platform.node()}-{stamp}.tar.gz")
    parts: dict[str, int] = {}
    with path.open("xb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, text in _parts(reach, logs):
            held = _KEY_TEXT.sub(b"(64 hex digits left out)", text)
            held = _PRIVATE.sub(rb"\1 (left out) \2", held)[-FILE_BYTES_MAX:]
            entry = tarfile.TarInfo(f"braidfs-support/{name}")
            entry.size, entry.mtime, entry.mode = len(held), int(time.time()), 0o600
            archive.addfile(entry, io.BytesIO(held))
            parts[name] = len(held)
    path.chmod(0o600)
    made = {"path": str(path), "bytes": path.stat().st_size, "parts": parts}
    show(
        made,
        as_json,
        lambda console: console.print(
            f"{path}: {len(parts)} parts, {size(path.stat().st_size)}", markup=False
        ),
    )


def _parts(reach: Reach, logs: tuple[Path, ...]) -> Iterator[tuple[str, bytes]]:
    yield "status.json", _caught(lambda: _status(reach))
    yield from _configuration()
    for folder in (*map(Path, _LOGS), *logs):
        yield from _logs(folder)
    for name, words in _COMMANDS.items():
        yield name, _caught(lambda words=words: _output(words))  # type: ignore[misc]
    facts = {
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "time": time.time(),
    }
    yield "host/facts.json", json.dumps(facts, indent=2).encode()


def _caught(work: Callable[[], bytes]) -> bytes:
    """Gathers a part; if that fails the part says why, and the others are still gathered."""
    try:
        return work()
    except (BraidError, OSError, subprocess.SubprocessError) as error:
        return f"not available: {sentence(error)}\n".encode()


def _status(reach: Reach) -> bytes:
    reply, certificates = ask_with_certificates(reach)
    silences = reasons_of_silence(reach, reply)
    found = status_json(reply, problems_of(reply, seen(certificates), silences))
    found["certificates"] = [one.as_json() for one in certificates]
    return json.dumps(found, indent=2).encode()


def _configuration() -> Iterator[tuple[str, bytes]]:
    for path in sorted(Path(FOLDER, "mounts").glob("*.conf")):
        yield f"config/mounts/{path.name}", _caught(path.read_bytes)
    for path in sorted(Path(FOLDER).glob("*.toml")):
        yield f"config/{path.name}", _caught(path.read_bytes)
        try:
            loaded = load_any(path, None)
        except (BraidError, OSError):
            continue
        if listen := loaded.get("metrics_listen"):
            has_tls = bool(loaded.get("http_tls"))
            yield f"metrics/{path.stem}", _caught(lambda at=listen, tls=has_tls: _fetch(at, tls))  # type: ignore[misc]


def _fetch(listen: str, has_tls: bool) -> bytes:
    """Gets metrics of a program on this host, so it need not prove itself by a certificate."""
    url = f"{'https' if has_tls else 'http'}://{parse_address(listen)}/metrics"
    trusting = ssl._create_unverified_context()
    with urllib.request.urlopen(url, timeout=FETCH_SECONDS_MAX, context=trusting) as reply:
        answer: Any = reply.read(FILE_BYTES_MAX)
        return bytes(answer)


def _logs(place: Path) -> Iterator[tuple[str, bytes]]:
    files = sorted(place.rglob("*.log")) if place.is_dir() else [place]
    for file in files:
        if file.is_file():
            yield f"logs/{file.name}", _caught(lambda file=file: _tail(file))  # type: ignore[misc]


def _tail(file: Path) -> bytes:
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - FILE_BYTES_MAX))
        return opened.read()


def _output(words: tuple[str, ...]) -> bytes:
    result = subprocess.run(words, check=False, capture_output=True, timeout=FETCH_SECONDS_MAX * 4)
    return result.stdout + result.stderr
