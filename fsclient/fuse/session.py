"""pyfuse3's session, on the socket of which the native bridge has the other end.

libfuse takes "/dev/fd/N" for a session that is already mounted, and neither mounts nor unmounts. A
process can have one session, which is a limit of pyfuse3. Touched by the trio thread only.
"""

import pyfuse3

from .operations import Operations

TASKS_IDLE_MAX = 64  # keeping a task costs less than starting one per request
TASKS_MAX = 4096  # handlers that may wait at a time; pyfuse3's default is 99 (rule 3)


class FuseSession:
    def __init__(self, operations: Operations, fd: int) -> None:
        pyfuse3.init(operations, f"/dev/fd/{fd}", {"fsname=braidfs"})

    async def run(self) -> None:
        """Serves until stop(), or until native closes its end."""
        await pyfuse3.main(min_tasks=TASKS_IDLE_MAX, max_tasks=TASKS_MAX)

    def stop(self) -> None:
        pyfuse3.terminate()

    def close(self) -> None:
        """Called after run() has ended."""
        pyfuse3.close(unmount=False)
