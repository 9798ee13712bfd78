"""BlockCaller: the bytes of one object, for a copy between two storage servers.

The connection's purpose must be "server". Payloads are compared with their sums here, so a storage
server need not; and the same sums go with the bytes to where they are written. Every answer names
the target's incarnation, which must stay as it was in the first one: otherwise the target may have
lost some of the bytes.
"""

import struct
from dataclasses import dataclass
from typing import Final

from fscommon.checksum import block_sums
from fscommon.errors import FsError, ProtocolError, Status
from fscommon.rpc.caller import Caller
from fscommon.rpc.data import DataCaller, ObjectStat
from fscommon.wire.frame import Frame
from fscommon.wire.header import FLAG_MUST_EXIST, FLAG_RAW
from fscommon.wire.ops import Op

_FOUND: Final = struct.Struct("<QQ")
_NOTHING: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole blocks, or less at the object's end. sums: packed, one for each block."""

    offset: int
    payload: bytes
    sums: bytes


def piece_of(offset: int, payload: bytes) -> Piece:
    sums = block_sums(offset, payload)
    return Piece(offset, payload, struct.pack(f"<{len(sums)}Q", *sums))


class BlockCaller:
    """The operations on one object. Each raises FsError and TransportError."""

    def __init__(
        self, caller: Caller, target: int, file_id: int, number: int, *, timeout_s: float
    ) -> None:
        self._caller = caller
        self._names = {"target": target, "file_id": file_id, "stripe_index": number}
        self._timeout_s = timeout_s
        self.incarnation = 0  # 0: nothing was answered yet
        self.serves_clients = False  # the target had requests of clients when it was last read

    async def stat(self) -> ObjectStat | None:
        """None: there is no object."""
        target, file_id, number = self._names.values()
        data = DataCaller(self._caller)
        try:
            return await data.stat(target, file_id, number, timeout_s=self._timeout_s)
        except FsError as error:
            if error.status is not Status.NO_OBJECT:
                raise
            return None

    async def seek(self, offset: int, *, hole: bool, epoch: int) -> int | None:
        """The first byte at or behind the offset that is data, or in a hole. None: there is none
        any more."""
        while True:
            frame = await self._ask(Op.SEEK, offset=offset, length=int(hole), epoch=epoch)
            if len(frame.body) != _FOUND.size:
                raise ProtocolError(f"a SEEK reply of {len(frame.body)} bytes")
            at, is_found = _FOUND.unpack(frame.body)
            if at == _NOTHING:
                return None
            if is_found:
                return int(at)
            if at <= offset:
                raise ProtocolError("a SEEK that does not go on")
            offset = at

    async def read(self, offset: int, length: int) -> Piece:
        """The bytes, fewer where the object ends. Raises FsError(NO_OBJECT) without an object, and
        FsError(CORRUPT) when the storage server does not have what was written."""
        # The storage server looks at the sums, and reports damage, when it is asked again.
        for flags in (FLAG_MUST_EXIST | FLAG_RAW, FLAG_MUST_EXIST):
            frame = await self._ask(Op.READ, flags=flags, offset=offset, length=length)
            self.serves_clients = frame.header.epoch != 0
            if len(frame.payload) > length:
                raise ProtocolError("a READ reply has more bytes than were asked for")
            piece = piece_of(offset, frame.payload)
            if piece.sums == frame.body:
                return piece
        raise FsError(Status.CHECKSUM, "bytes were changed on their way")

    async def _ask(
        self, op: Op, *, body: bytes = b"", payload: bytes = b"", **fields: int
    ) -> Frame:
        frame = await self._caller.exchange(
            op, timeout_s=self._timeout_s, body=body, payload=payload, **self._names, **fields
        )
        self.incarnation = self.incarnation or frame.header.offset
        if frame.header.offset != self.incarnation:
            raise FsError(Status.STALE_INCARNATION, "a target lost power meanwhile")
        return frame
