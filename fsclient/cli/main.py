"""braidfs: the command for people. Each verb or group of verbs is a module of its own.

To add one: a click command or group in its own file here, and a line in `VERBS`. Help, man pages
(docs/man, ./dev man) and completion follow from it.
"""

import os
import sys

import click

from .bench import bench
from .checkpoint import checkpoint
from .client import client
from .completion import completion
from .config import config
from .find import find
from .frame import Group, run_cli
from .fsck import fsck
from .index import index
from .job import job
from .key import key
from .layout import layout
from .lock import lock
from .meta import meta
from .mounting import mount
from .net import net
from .node import node
from .prefetch import prefetch
from .quota import quota
from .scrub import scrub
from .seal import seal, unseal
from .space import df, du
from .stat import stat
from .status import status
from .support import support
from .target import target
from .tls import tls
from .top import top
from .trash import trash
from .validate import validate_

VERBS: tuple[click.Command, ...] = (
    bench,
    checkpoint,
    client,
    completion,
    config,
    df,
    du,
    find,
    fsck,
    index,
    job,
    key,
    layout,
    lock,
    meta,
    mount,
    net,
    node,
    prefetch,
    quota,
    scrub,
    seal,
    stat,
    status,
    support,
    target,
    tls,
    top,
    trash,
    unseal,
    validate_,
)


@click.group(cls=Group)
@click.version_option(package_name="braidfs-server")
def cli() -> None:
    """BraidFS, a user-space parallel file system: mount it, look at it, run it.

    Every verb has --help with examples; those that show something have --json."""


for _verb in VERBS:
    cli.add_command(_verb)


def main() -> None:
    if "_BRAIDFS_COMPLETE" in os.environ:
        cli.main(prog_name="braidfs")  # click answers the shell, and ends
    sys.exit(run_cli(cli))
