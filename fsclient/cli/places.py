"""PATH arguments: a path on a mount of this machine, or `:/path` inside the file system.

A path on a mount is found in the table of mounts, and the metaserver is asked by its names, so the
mount itself need not answer. Symbolic links on the way are followed as by the shell, but not in the
last name. The metaservers of the mount are asked, unless --metaserver names others.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import click

from braidfs import mounts
from fscommon.errors import FsError
from fscommon.layout.attributes import Attributes, unpack_attributes
from fscommon.net.address import parse_address
from fscommon.rpc.caller import Caller
from fscommon.types import ROOT_INO
from fscommon.wire.admin import INSPECT_NAMES_MAX, Inspect, Inspected
from fscommon.wire.ops import Op

from ..kernel import FILE_SYSTEM_TYPE, mount_table
from ..source import parse_source
from .frame import Reach

PATH_TEXT = "PATH is on a mount of this machine, or :/path inside the file system."


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the file system. names: components below the root. shown: as the user wrote it.
    on_mount: the path on this machine, "" for `:/path`."""

    shown: str
    names: tuple[bytes, ...]
    on_mount: str
    reach: Reach


def find_place(path: str, reach: Reach) -> Place:
    """Finds a place. Metaservers that the user named are asked in place of those of the mount."""
    if path.startswith(":/"):
        return Place(path, _components(path[1:]), "", reach)
    real = _real(path)
    best = max(
        (
            row
            for row in mount_table()
            if row.kind == FILE_SYSTEM_TYPE
            and (real == row.mountpoint or real.startswith(row.mountpoint.rstrip("/") + "/"))
        ),
        key=lambda row: len(row.mountpoint),
        default=None,
    )
    if best is None:
        raise click.BadParameter(
            f"{path} is on no BraidFS mount; for a path inside the file system write :{real}"
        )
    source = parse_source(best.source)
    names = source.path + _components(real[len(best.mountpoint.rstrip("/")) :])
    if not reach.is_given:
        reach = replace(reach, metaservers=tuple(parse_address(a) for a in source.addresses))
    return Place(path, names, real, reach)


def path_on_mount(path: str, metaservers: str = "") -> str:
    """The path on this machine, for what is done through a mount; that of `:/path` is on the mount
    that shows most of it. metaservers: HOST[:PORT],..., one of which that mount must name; "": any.
    Raises BadParameter if there is no such mount, or nothing at that path."""
    if path.startswith(":/"):
        _components(path[1:])
        try:
            found = mounts.path(f"{mounts.SCHEME}://{metaservers}{path[1:]}")
        except LookupError as error:
            raise click.BadParameter(f"{path} is changed through a mount: {error}") from None
    else:
        found = path
    if not os.path.lexists(found):
        raise click.BadParameter(f"{path} does not exist")
    return found


def _real(path: str) -> str:
    """The absolute path, with links followed except in the last name."""
    whole = Path(path)
    if whole.name in ("", "..", "."):
        return os.path.realpath(path)
    return os.path.join(os.path.realpath(whole.parent), whole.name)  # noqa: PTH118 - as text


def _components(path: str) -> tuple[bytes, ...]:
    names = tuple(os.fsencode(name) for name in path.split("/") if name not in ("", "."))
    if b".." in names:
        raise click.BadParameter(f"'{path}' has '..' in it")
    return names


@dataclass(frozen=True, slots=True)
class Found:
    """The inode at a place."""

    attributes: Attributes
    inspected: Inspected


async def inspect_place(caller: Caller, place: Place) -> Found:
    """Asks for the inode at a place. Raises FsError with a message that names the path."""
    ino = int(ROOT_INO)
    names = place.names
    timeout_s = place.reach.timeout_s
    try:
        while True:
            now, names = names[:INSPECT_NAMES_MAX], names[INSPECT_NAMES_MAX:]
            reply: Inspected = await caller.call(Op.INSPECT, Inspect(ino, now), timeout_s)
            attributes = unpack_attributes(reply.attributes)
            if not names:
                return Found(attributes, reply)
            ino = attributes.ino
    except FsError as error:
        raise FsError(error.status, f"{place.shown}: {error.sentence}") from None
