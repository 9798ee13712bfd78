"""braidfs mount: does without mount(8) what mount(8) does through mount.fuse.braidfs."""

import click

from .frame import Command
from .mount_helper import Request, mount_source

_EXITS = {
    1: "wrong source or options",
    2: "a system error, or wrong usage",
    32: "the mount failed: the reason is one line on the standard error stream",
}


@click.command(
    "mount",
    cls=Command,
    examples=[
        ("braidfs mount meta1,meta2:/ /data", "The whole file system."),
        ("braidfs mount meta1:/train /data -o ro,key_file=train.key", "A part of it, read-only."),
        ("braidfs mount meta1:/ /data --foreground", "In this terminal, logging to it."),
    ],
    exits=_EXITS,
)
@click.argument("source")
@click.argument("directory")
@click.option(
    "-o",
    "options",
    multiple=True,
    metavar="OPTIONS",
    help="Mount options, as in mount.fuse.braidfs(8).",
)
@click.option(
    "-f/-F",
    "--foreground/--fork",
    default=False,
    help="Serve in this process, log to stderr; or return when it serves.",
)
def mount(source: str, directory: str, options: tuple[str, ...], foreground: bool) -> int:
    """Mount SOURCE (HOST[:PORT][,HOST2...]:/SUBDIR) at DIRECTORY.

    umount(8) unmounts. Options and exit codes are those of mount.fuse.braidfs(8). As a service of
    systemd: braidfs-mount@data mounts /data, as /etc/braidfs/mounts/data.conf says (SOURCE=,
    OPTIONS=)."""
    request = Request(source, directory, ",".join(options), is_fake=False)
    return mount_source(request, foreground=foreground)
