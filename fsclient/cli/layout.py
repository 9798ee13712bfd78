"""braidfs layout: chunk size, stripe width and replicas, of a file or of new files in a directory.

It sets them through the mount, as the extended attribute braidfs.layout, so the kernel checks
permissions.
"""

import errno
import os
import stat as modes
import time
from dataclasses import asdict
from typing import Any, Final

import click
from rich.console import Console

from fscommon.errors import BraidError
from fscommon.layout.layout import unpack_layout
from fscommon.layout.template import LAYOUT_XATTR, unpack_default
from fscommon.limits import REPLICA_COUNT_MAX
from fscommon.observe.visible import visible

from .frame import Command, Group, Reach, json_option, reaching, show
from .places import PATH_TEXT, Found, find_place, inspect_place, path_on_mount
from .stat import layout_json
from .words import Size, size

_BUSY_SECONDS: Final = 2.0  # a close reaches the metaserver with the next batch
_MEANINGS: Final = {
    errno.EINVAL: "it was written already (copy it into a directory with the layout), or the "
    "chunk size is no multiple of 64 KiB up to 64 MiB",
    errno.EBUSY: "somebody has it open",
    errno.ERANGE: "these are more replicas than this cluster gives a file: replicas_max in the "
    "table [layout] of the metaserver's configuration is lower",
    errno.ENOSPC: "the cluster has fewer failure domains than replicas were asked for "
    "(braidfs node list shows them), or no room there",
    errno.EOPNOTSUPP: "it is neither a file nor a directory on a BraidFS mount",
    errno.ENODATA: "it has no layout of its own",
}


@click.group(cls=Group)
def layout() -> None:
    """Layouts: how large chunks are, over how many targets a file is spread, its replicas."""


@layout.command(
    "get",
    cls=Command,
    help=f"""Show the layout of a file, or that of new files in a directory.

    {PATH_TEXT}""",
    examples=[
        ("braidfs layout get /data/ckpt", "What new files in a directory will get."),
        ("braidfs layout get /data/ckpt/model.pt --json", "What a file has."),
        ("getfattr -n braidfs.layout /data/ckpt", "The same, as an xattr."),
    ],
)
@click.argument("path")
@reaching
@json_option
def layout_get(reach: Reach, path: str, as_json: bool) -> None:
    place = find_place(path, reach)
    found = place.reach.ask(lambda caller: inspect_place(caller, place))
    seen = _seen(found)
    if seen is None:
        raise BraidError(f"{path} is neither a file nor a directory: it has no layout")
    show({"path": path, **seen}, as_json, lambda console: _print(console, path, seen))


def _seen(found: Found) -> dict[str, Any] | None:
    inspected = found.inspected
    if inspected.layout:
        return {"of": "file", **layout_json(unpack_layout(inspected.layout))}
    if inspected.inherited:
        default = unpack_default(inspected.inherited)
        whose = "directory" if inspected.own else "cluster"
        return {"of": whose, **asdict(default)}
    return None


def _print(console: Console, path: str, seen: dict[str, Any]) -> None:
    text = f"chunks of {size(seen['chunk_size'])} over {seen['stripe_width']} targets"
    if seen["replicas"] > 1:
        text += f", {seen['replicas']} replicas"
    if seen["of"] == "file":
        console.print(f"{visible(path)}: {text} ({_targets(seen)})", markup=False)
        return
    whose = "set here or above" if seen["of"] == "directory" else "of the cluster"
    console.print(f"{visible(path)}: new files get {text} ({whose})", markup=False)


def _targets(seen: dict[str, Any]) -> str:
    """The targets of each stripe; `-` for a replica that is missing."""
    names = [str(target or "-") for target in seen["targets"]]
    count = seen["places"]
    return ", ".join("+".join(names[at : at + count]) for at in range(0, len(names), count))


@layout.command(
    "set",
    cls=Command,
    examples=[
        (
            "braidfs layout set /data/ckpt --chunk-size 4M --stripe-width 8",
            "Large files of many ranks: many targets, large chunks.",
        ),
        ("braidfs layout set /data/train --stripe-width 1", "Small files: one target each."),
        ("braidfs layout set /data/ckpt --replicas 2", "Each byte in two failure domains."),
        ("braidfs layout set /data/train --default", "The cluster's layout again."),
        (
            "setfattr -n braidfs.layout -v chunk_size=4MiB,stripe_width=8 /data/ckpt",
            "The same, as an xattr.",
        ),
    ],
)
@click.argument("paths", nargs=-1, required=True)
@click.option(
    "-s",
    "--metaserver",
    envvar="BRAIDFS_METASERVER",
    metavar="HOST[:PORT],...",
    help="Of :/path: whose it is, where several file systems are mounted. [env BRAIDFS_METASERVER]",
)
@click.option(
    "--chunk-size", type=Size(), metavar="SIZE", help="A multiple of 64 KiB, at most 64 MiB."
)
@click.option(
    "--stripe-width",
    type=click.IntRange(1, 64),
    metavar="COUNT",
    help="Targets of a file, if the cluster has that many.",
)
@click.option(
    "--replicas",
    type=click.IntRange(1, REPLICA_COUNT_MAX),
    metavar="COUNT",
    help="Of each byte, in distinct failure domains; at most the cluster's replicas_max.",
)
@click.option(
    "--default",
    "as_cluster",
    is_flag=True,
    help="Remove the directory's own layout: that of the cluster applies.",
)
@json_option
def layout_set(
    paths: tuple[str, ...],
    metaserver: str | None,
    chunk_size: tuple[str, int] | None,
    stripe_width: int | None,
    replicas: int | None,
    as_cluster: bool,
    as_json: bool,
) -> None:
    """Set the layout of new files in directories, or of files that were never written.

    PATHS are on a mount of this machine, or :/path inside the file system, which a mount of this
    machine must show. New subdirectories inherit the layout; existing files and directories keep
    theirs. Options that are not given change nothing.
    """
    if as_cluster == bool(chunk_size or stripe_width or replicas):
        raise click.UsageError(
            "say --chunk-size, --stripe-width, --replicas or several of these; or --default alone"
        )
    words = []
    if chunk_size:
        words.append(f"chunk_size={chunk_size[1]}")
    if stripe_width:
        words.append(f"stripe_width={stripe_width}")
    if replicas:
        words.append(f"replicas={replicas}")
    for path in [path_on_mount(path, metaserver or "") for path in paths]:
        _forget(path) if as_cluster else _set(path, ",".join(words).encode())
    show([{"path": path, "set": not as_cluster} for path in paths], as_json, lambda _: None)


def _set(path: str, value: bytes) -> None:
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            os.setxattr(path, LAYOUT_XATTR, value)
            return
        except OSError as error:
            if error.errno == errno.EBUSY and time.monotonic() < deadline:
                os.sched_yield()
                continue
            raise BraidError(f"{path}: {_meaning(error)}") from error


def _forget(path: str) -> None:
    if not modes.S_ISDIR(os.stat(path).st_mode):  # noqa: PTH116
        raise BraidError(f"{path}: only a directory can lose its layout")
    try:
        os.removexattr(path, LAYOUT_XATTR)
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise BraidError(f"{path}: {_meaning(error)}") from error


def _meaning(error: OSError) -> str:
    return _MEANINGS.get(error.errno or 0, error.strerror or str(error))
