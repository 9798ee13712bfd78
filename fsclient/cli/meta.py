"""braidfs meta: backups of the file system's names, and what is made from them.

A backup is read from a running metaserver, in parts of one snapshot. A restore writes into a state
directory, which only the metaserver's program knows how to do (metaserver.restore): it runs as a
process of its own.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn

from fscommon.archive import ArchiveReader, ArchiveWriter, Head
from fscommon.errors import BraidError, ConfigError
from fscommon.files import sync_directory
from fscommon.rpc.caller import Caller
from fscommon.rpc.snapshot import read_snapshot

from ..daemon import EXIT_INTERRUPTED
from .frame import EXIT_USAGE, Command, Group, Reach, json_option, reaching, show
from .meta_forget import meta_forget
from .meta_switch import meta_switch
from .words import number, size

_NAME: Final = "braidfs-%Y%m%dT%H%M%SZ.backup"
_PART_S_MAX: Final = 86_400.0  # a file that nobody has written to for so long is no backup in work
_NAMED: Final = re.compile(r"braidfs-\d{8}T\d{6}Z\.backup")


@click.group(cls=Group)
def meta() -> None:
    """The names of the file system: back them up, restore them, and let another metaserver serve
    them."""


meta.add_command(meta_forget)
meta.add_command(meta_switch)


# ---- backup ------------------------------------------------------------------------------------


@meta.command(
    "backup",
    cls=Command,
    examples=[
        ("braidfs meta backup names.backup", "The whole name space, while the cluster runs."),
        (
            "braidfs meta backup /var/lib/braidfs/backups --keep 14",
            "A file named after the time, in a directory that has at most 14 of them.",
        ),
    ],
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option(
    "--keep",
    type=click.IntRange(1, 1_000_000),
    metavar="COUNT",
    help="FILE is a directory: remove its oldest backups, by their names, until COUNT are left.",
)
@reaching
@json_option
def meta_backup(reach: Reach, file: Path, force: bool, keep: int | None, as_json: bool) -> None:
    """Write the whole name space to FILE, while the cluster runs.

    The backup is of one moment: it has everything that the metaserver had answered when the command
    began. It has names, attributes, layouts, extended attributes, tiny files, quotas, the trash and
    the list of clients' keys (not the keys), but not the bytes on storage servers. If FILE is a
    directory, the backup is named after the time. Only its owner may read the file.
    """
    directory = file if file.is_dir() else None
    if keep is not None and directory is None:
        raise click.BadParameter(f"--keep needs a directory, and {file} is none")
    if directory is not None:
        file = directory / datetime.now(UTC).strftime(_NAME)
    _check_free(file, force=force)
    started = time.monotonic()
    part = file.with_name(f"{file.name}.part")
    try:
        head, records = _receive(reach, part, shown=not as_json)
        length = part.stat().st_size
        part.rename(file)
        sync_directory(file.absolute().parent)
    finally:
        part.unlink(missing_ok=True)
    removed = _remove_old(directory, keep) if directory is not None and keep is not None else 0
    found = {
        "file": str(file),
        "bytes": length,
        "records": records,
        "inodes": head.inodes,
        "transaction": head.txn,
        "cluster": head.cluster.hex(),
        "seconds": round(time.monotonic() - started, 3),
    }
    show(
        found,
        as_json,
        lambda console: console.print(
            f"{file}: {number(head.inodes)} inodes, {size(length)}, transaction {head.txn}"
            + (f"; {number(removed)} older backups were removed" if removed else ""),
            markup=False,
        ),
    )


def _check_free(file: Path, *, force: bool) -> None:
    if file.exists() and not force:
        raise ConfigError(f"{file} exists: --force replaces it")
    if not file.absolute().parent.is_dir():
        raise ConfigError(f"{file}: there is no such directory")


def _remove_old(directory: Path, keep: int) -> int:
    """Removes backups beyond `keep`, and what killed commands have left. Returns how many backups
    are gone."""
    names = sorted(path for path in directory.iterdir() if _NAMED.fullmatch(path.name))
    for path in names[:-keep]:
        path.unlink()
    for path in directory.glob("*.backup.part"):
        is_old = path.stat().st_mtime < time.time() - _PART_S_MAX
        if is_old and _NAMED.fullmatch(path.name.removesuffix(".part")):
            path.unlink()
    return max(0, len(names) - keep)


def _receive(reach: Reach, part: Path, *, shown: bool) -> tuple[Head, int]:
    """Writes the backup to `part`, durably. Returns its head, and how many records it has."""

    async def work(caller: Caller) -> tuple[Head, int]:
        with _opened(part) as file, _bar(shown=shown) as progress:
            received = await _copy(caller, reach, file, progress)
            file.flush()
            os.fsync(file.fileno())
        return received

    return reach.ask(work)


def _opened(part: Path) -> BinaryIO:
    part.unlink(missing_ok=True)  # of an interrupted run, or of the metaserver asked before
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    return os.fdopen(os.open(part, flags, 0o600), "wb")


def _bar(*, shown: bool) -> Progress:
    return Progress(
        SpinnerColumn(),
        BarColumn(),
        DownloadColumn(binary_units=True),
        console=Console(stderr=True),
        transient=True,
        disable=not (shown and sys.stderr.isatty()),
    )


async def _copy(
    caller: Caller, reach: Reach, file: BinaryIO, progress: Progress
) -> tuple[Head, int]:
    task = progress.add_task("", total=None)
    writer: ArchiveWriter | None = None
    parts = read_snapshot(
        caller,
        whole=False,
        timeout_s=reach.timeout_s,
        begun=lambda length: progress.update(task, total=length or None),
    )
    async for part, _ in parts:
        if writer is None:
            head = Head(part.cluster, part.schema, part.txn, part.inodes, time.time_ns())
            writer = ArchiveWriter(file, head)
        writer.add(part.records, part.count)
        progress.advance(task, len(part.records))
    assert writer is not None, "a snapshot has one part at least"
    return head, writer.finish().records


# ---- verify ------------------------------------------------------------------------------------


@meta.command(
    "verify",
    cls=Command,
    examples=[
        ("braidfs meta verify names.backup", "Is it whole, and of what?"),
        ("braidfs meta verify names.backup --json | jq .time", "When it was made."),
    ],
)
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def meta_verify(file: Path, as_json: bool) -> None:
    """Read a whole backup, check all its sums, and show what it has."""
    with file.open("rb") as opened:
        reader = ArchiveReader(opened, str(file))
        for _ in reader.records():
            pass
    head, totals = reader.head, reader.totals
    made = datetime.fromtimestamp(head.time_ns // 10**9, UTC)
    found = {
        "file": str(file),
        "bytes": file.stat().st_size,
        "records": totals.records,
        "inodes": head.inodes,
        "transaction": head.txn,
        "cluster": head.cluster.hex(),
        "schema": head.schema,
        "time": made.isoformat(),
    }
    show(
        found,
        as_json,
        lambda console: console.print(
            f"{file} is whole: {number(head.inodes)} inodes in {number(totals.records)} records\n"
            f"cluster  {head.cluster.hex()}\ntime     {made:%Y-%m-%d %H:%M:%S UTC}, "
            f"transaction {head.txn}",
            markup=False,
        ),
    )


# ---- restore -----------------------------------------------------------------------------------


@meta.command(
    "restore",
    cls=Command,
    examples=[
        (
            "braidfs meta restore names.backup /var/lib/braidfs/metaserver",
            "On the metaserver's host, after its directory `store` was moved away.",
        )
    ],
)
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("directory", type=click.Path(path_type=Path))
@json_option
def meta_restore(file: Path, directory: Path, as_json: bool) -> None:
    """Make the metadata store of a stopped metaserver from a backup.

    DIRECTORY is the metaserver's state_directory. It must have no store, and no metaserver may run
    there. What was done after the backup is lost: new names are gone, and removed names are back. A
    file that was removed since then has no bytes any more: what was synced of it gives EIO, the
    rest reads as zeros. All clients get new sessions, and numbers of inodes go on beyond all that
    were ever used. An interrupted restore leaves nothing that a metaserver would start with.
    """
    found = {"file": str(file), "directory": str(directory), **_restored(file, directory, as_json)}
    show(
        found,
        as_json,
        lambda console: console.print(
            f"{directory}: {number(found['inodes'])} inodes in {number(found['records'])} records; "
            f"{number(found['sessions'])} sessions ended, {number(found['cut'])} files that they "
            "were writing are cut to their committed size",
            markup=False,
        ),
    )


def _restored(file: Path, directory: Path, as_json: bool) -> Any:
    # -P: nothing that lies in the working directory is imported.
    words = [sys.executable, "-P", "-m", "metaserver.restore", str(file), str(directory)]
    with Progress(
        SpinnerColumn(),
        TextColumn("reading the backup, writing the store"),
        console=Console(stderr=True),
        transient=True,
        disable=as_json or not sys.stderr.isatty(),
    ) as progress:
        progress.add_task("", total=None)
        code, out, said = _ended(words)
    if code == 0:
        return json.loads(out)
    if code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    what = said.strip() or f"the restore ended with {code}"
    raise ConfigError(what) if code == EXIT_USAGE else BraidError(what)


def _ended(words: Sequence[str]) -> tuple[int, str, str]:
    """Runs a program to its end, also if this one is interrupted: it removes what it has begun."""
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            out, said = child.communicate()
        except KeyboardInterrupt:
            child.send_signal(signal.SIGINT)
            child.communicate()
            raise
        return child.returncode, out, said
