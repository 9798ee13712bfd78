"""The connection for recalls: made when the session is open, and again when it ends.

It has only RECALL messages, and word that the cluster map changed, from the metaserver, so that a
recall never waits behind replies that wait for it (rule 6). Without it the metaserver grants no
lease. Touched by the client's trio thread only.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from fscommon.errors import BraidError, ProtocolError
from fscommon.wire.codec import decode
from fscommon.wire.frame import Frame
from fscommon.wire.leases import MAP_NOTICE, Recall, RecallItem
from fscommon.wire.ops import Op

RETRY_S_MIN = 0.05
RETRY_S_MAX = 2.0


class Stream(Protocol):
    async def receive_batch(self) -> list[Frame]: ...
    async def aclose(self) -> None: ...


class Session(Protocol):
    """The session of the recalls. wanted: leases are granted to it."""

    @property
    def number(self) -> int: ...
    @property
    def address(self) -> str: ...
    @property
    def wants_recalls(self) -> bool: ...
    def look_at_map(self) -> None: ...


Dial = Callable[[str, int], Awaitable[Stream]]  # address, session
Recalled = Callable[[tuple[RecallItem, ...]], None]


class RecallConnection:
    def __init__(
        self, session: Session, dial: Dial, recalled: Recalled, log: Callable[[str], None]
    ) -> None:
        self._session = session
        self._dial = dial
        self._recalled = recalled
        self._log = log
        self.connection_count = 0
        self.is_up = trio.Event()  # set at the first connection
        self._serving = trio.CancelScope()

    async def run(self) -> None:
        delay_s = RETRY_S_MIN
        while True:
            if self._session.wants_recalls:
                count = self.connection_count
                try:
                    await self._serve()
                except BraidError as error:
                    self._log(f"the connection for recalls was lost: {error}")
                delay_s = RETRY_S_MIN if count != self.connection_count else delay_s * 2
            await trio.sleep(min(delay_s, RETRY_S_MAX))

    def again(self) -> None:
        """The session's own connection was made anew: this one may be dead, too."""
        self._serving.cancel()

    async def _serve(self) -> None:
        stream = await self._dial(self._session.address, self._session.number)
        try:
            with trio.CancelScope() as self._serving:
                while frames := await stream.receive_batch():
                    for frame in frames:
                        self._received(frame)
        finally:
            with trio.CancelScope(shield=True):
                await stream.aclose()

    def _received(self, frame: Frame) -> None:
        if frame.header.op != Op.RECALL or frame.header.is_reply:
            raise ProtocolError(f"op {frame.header.op} on a connection for recalls")
        told = decode(Recall, frame.body).items
        items = tuple(item for item in told if item != MAP_NOTICE)
        if len(items) < len(told):
            self._session.look_at_map()
        if not told:
            self.connection_count += 1
            self.is_up.set()
        self._recalled(items)
