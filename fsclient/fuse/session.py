"""pyfuse3's session on the socket that the native bridge holds the other end of.

libfuse takes "/dev/fd/N" for a session that is mounted already, and neither mounts nor unmounts.
One session per process, which is pyfuse3's own limit.
"""

import pyfuse3

from .operations import Operations

TASKS_IDLE_MAX = 64  # a task that stays costs less than one that is started per request
TASKS_MAX = 4096  # handlers that may wait at a time; pyfuse3's default would stop at 99 (rule 3)


class FuseSession:
    def __init__(self, operations: Operations, fd: int) -> None:
        pyfuse3.init(operations, f"/dev/fd/{fd}", {"fsname=braidfs"})

    async def run(self) -> None:
        """Serve until stop(), or until native closes its end."""
        await pyfuse3.main(min_tasks=TASKS_IDLE_MAX, max_tasks=TASKS_MAX)

    def stop(self) -> None:
        pyfuse3.terminate()

    def close(self) -> None:
        """After run() ended."""
        pyfuse3.close(unmount=False)
