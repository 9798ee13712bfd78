"""A storage server whose host boots anew: for it, what was not synced is lost."""

import dataclasses
import random
import time
from typing import Final

from tests.cluster.cluster import Cluster
from tests.cluster.process import Program

BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


def on_another_boot(cluster: Cluster, server: Program) -> Program:
    """Returns the program, which has ended, as one that finds another boot id."""
    file = cluster.plan.state / "run" / "boot_id"
    file.write_text(f"{random.Random(time.monotonic_ns()).randbytes(16).hex()}\n")
    # Its own mounts are copies: that of the client would live on with the server.
    script = f'umount -l "$1" && mount --bind "$0" {BOOT_ID} && shift && exec "$@"'
    own = (str(file), str(cluster.mount_path))
    booted = ("unshare", "--mount", "sh", "-c", script, *own)
    return dataclasses.replace(server, enter=(*server.enter, *booted))
