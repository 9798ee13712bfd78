"""Names that the kernel cached from the former process, in directories that are still leased.

A client that takes over a mount (docs/decisions/0032, 0034) knows the leases, or learns of them by
a recall, but does not know which names the kernel caches under them. So as long as these may be
cached, the first recall of a directory's names has the kernel look up again each name that exists;
an absent name is cached for ABSENT_S at most, which is waited for. Nothing that is mounted below,
or in use, is affected (docs/decisions/0055-names-expire.md). Touched by the client's trio thread
only.
"""

from collections.abc import Callable
from typing import Final, Protocol

import trio

from fscommon.errors import FsError
from fscommon.native_ports import NamesPort
from fscommon.wire.messages import ReadDir, ReadDirReply
from fscommon.wire.ops import Op

ABSENT_S: Final = 1.0  # as kAbsentLife in native/src/names/dentry_table.h
_PAGE_COUNT: Final = 1024
_COOKIE_SIZE: Final = 8


class FormerMetaserver(Protocol):
    async def call(
        self, op: Op, message: object, reply: type[ReadDirReply], *, urgent: bool = False
    ) -> ReadDirReply: ...


class FormerNames:
    def __init__(
        self, names: NamesPort, meta: FormerMetaserver, log: Callable[[str], None]
    ) -> None:
        self._names = names
        self._meta = meta
        self._log = log
        self._since = self._until = -1.0
        self._expired: set[int] = set()

    def follow(self, lease_s: float) -> None:
        """Another process answered the kernel until now, with times of at most lease_s."""
        self._since = trio.current_time()
        self._until = self._since + lease_s

    @property
    def are_believed(self) -> bool:
        return trio.current_time() < self._until

    async def expire(self, directory: int) -> None:
        """Expires the names before their lease is given up. Does nothing when there are none."""
        if not self.are_believed or directory in self._expired:
            return
        await trio.sleep_until(self._since + ABSENT_S)
        try:
            await self._expire(directory)
        except FsError as error:
            self._log(f"names of directory {directory} may be believed for a lease: {error}")
        self._expired.add(directory)

    async def _expire(self, directory: int) -> None:
        cookie, is_end = 0, False
        while not is_end:
            request = ReadDir(directory, cookie, _PAGE_COUNT)
            page = await self._meta.call(Op.READDIR, request, ReadDirReply, urgent=True)
            self._names.expire_names(directory, page.names)
            is_end = page.end or not page.names
            cookie = int.from_bytes(page.cookies[-_COOKIE_SIZE:], "little")
