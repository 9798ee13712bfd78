"""braidfs: the command for people (docs/man/braidfs.1)."""

import sys

import click

from .mount_helper import Request, mount_source
from .status import show_status

_KEY_FILE = "/etc/braidfs/cluster.key"


@click.group()
@click.version_option(package_name="braidfs")
def main() -> None:
    """BraidFS, a user-space parallel file system."""


@main.command("mount")
@click.argument("source")
@click.argument("directory")
@click.option("-o", "options", multiple=True, metavar="OPTIONS", help="Mount options, as mount(8).")
@click.option("-f", "--foreground", is_flag=True, help="Serve in this process; log to stderr.")
def mount_command(source: str, directory: str, options: tuple[str, ...], foreground: bool) -> None:
    """Mount SOURCE (HOST[:PORT][,HOST2...]:/SUBDIR) at DIRECTORY."""
    request = Request(source, directory, ",".join(options), is_fake=False)
    sys.exit(mount_source(request, foreground=foreground))


@main.command("status")
@click.option("-s", "--metaserver", default="127.0.0.1:7400", show_default=True)
@click.option("-k", "--key-file", default=_KEY_FILE, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def status_command(metaserver: str, key_file: str, as_json: bool) -> None:
    """Show the cluster: targets, clients, space, and how far it is durable."""
    sys.exit(show_status(metaserver, key_file, as_json=as_json))
