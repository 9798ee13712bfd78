"""DataCaller: the data operations that the metaserver itself sends to storage servers.

Their fields travel in the frame header (docs/INTERFACES.md, section 2); the connection's purpose
must be "server". File bytes do not pass here, except those of tiny files (decision 0037); other
READ, WRITE and SYNC requests are native code's, and those of a copy (fscommon.rpc.blocks).
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fscommon.checksum import xxh3_64
from fscommon.errors import FsError, ProtocolError, Status
from fscommon.limits import BLOCK_SIZE, DELETE_ALL_MAX, DROP_NAMES_MAX
from fscommon.rpc.caller import EXCHANGES_MAX, Caller
from fscommon.wire.frame import Frame
from fscommon.wire.header import FLAG_MUST_EXIST, FLAG_SUMS
from fscommon.wire.ops import Op

_STAT: Final = struct.Struct("<QQII")
_SUM: Final = struct.Struct("<Q")
_NAME: Final = struct.Struct("<QI4x")


@dataclass(frozen=True, slots=True)
class ObjectStat:
    length: int
    allocated: int
    truncate_epoch: int


class DataCaller:
    """The operations. Each is safe to repeat, and returns only when its effect is durable. Each
    raises FsError and TransportError."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def truncate(
        self,
        target: int,
        file_id: int,
        stripe_index: int,
        *,
        length: int,
        epoch: int,
        must_exist: bool,
        timeout_s: float,
    ) -> bool:
        """Sets the object's length to `length` bytes; after that, writes of an older truncate epoch
        are refused. A missing object is created, so that they are refused, unless it must exist:
        then nothing is done and the result is False."""
        try:
            await self._ask(
                Op.TRUNCATE,
                (target, file_id, stripe_index),
                timeout_s,
                offset=length,
                epoch=epoch,
                flags=FLAG_MUST_EXIST if must_exist else 0,
            )
        except FsError as error:
            if not must_exist or error.status is not Status.NO_OBJECT:
                raise
            return False
        return True

    async def write_durably(
        self,
        target: int,
        file_id: int,
        stripe_index: int,
        content: bytes,
        *,
        epoch: int,
        timeout_s: float,
    ) -> None:
        """Writes these bytes, at most one block, to the beginning of the object. Raises FsError
        STALE_INCARNATION when the target lost them again."""
        assert 0 < len(content) <= BLOCK_SIZE
        written = await self._caller.exchange(
            Op.WRITE,
            timeout_s=timeout_s,
            body=_SUM.pack(xxh3_64(content)),
            payload=content,
            flags=FLAG_SUMS,
            target=target,
            file_id=file_id,
            stripe_index=stripe_index,
            length=len(content),
            epoch=epoch,
        )
        await self._ask(
            Op.SYNC,
            (target, file_id, stripe_index),
            timeout_s,
            offset=written.header.offset,
            epoch=epoch,
        )

    async def raise_epoch(
        self,
        target: int,
        file_id: int,
        object_number: int,
        *,
        epoch: int,
        must_exist: bool = False,
        timeout_s: float,
    ) -> int:
        """From now on the object refuses requests under a lower epoch; a missing one is created,
        unless it must exist: then it was lost, and the result is FsError(NO_OBJECT). Returns the
        target's incarnation. Raises FsError(DROPPED) when its name was dropped."""
        frame = await self._ask(
            Op.RAISE_EPOCH,
            (target, file_id, object_number),
            timeout_s,
            epoch=epoch,
            flags=FLAG_MUST_EXIST if must_exist else 0,
        )
        return frame.header.offset

    async def drop_names(
        self, target: int, names: Sequence[tuple[int, int]], *, timeout_s: float
    ) -> None:
        """From now on no client is served for these names (file id, object number)."""
        for start in range(0, len(names), DROP_NAMES_MAX):
            some = names[start : start + DROP_NAMES_MAX]
            await self._caller.exchange(
                Op.DROP_NAMES,
                timeout_s=timeout_s,
                body=b"".join(_NAME.pack(*name) for name in some),
                target=target,
                length=len(some),
            )

    async def delete(
        self, target: int, file_id: int, stripe_index: int, *, timeout_s: float
    ) -> None:
        """Removes the object. A missing object is not an error."""
        await self._ask(Op.DELETE, (target, file_id, stripe_index), timeout_s)

    async def delete_all(
        self, objects: Sequence[tuple[int, int, int]], *, timeout_s: float
    ) -> list[bool]:
        """Removes these objects (target, file id, stripe index). Returns for each whether it is
        gone. Raises FsError BAD_REQUEST, and the connection ends, when the storage server does not
        know that operation yet: use delete_singly()."""
        by_target: dict[int, list[int]] = {}
        for index, (target, _, _) in enumerate(objects):
            by_target.setdefault(target, []).append(index)
        gone = [False] * len(objects)
        for target, indices in by_target.items():
            for start in range(0, len(indices), DELETE_ALL_MAX):
                some = indices[start : start + DELETE_ALL_MAX]
                names = b"".join(_NAME.pack(*objects[index][1:]) for index in some)
                for index, status in zip(
                    some, await self._delete_named(target, names, timeout_s), strict=True
                ):
                    gone[index] = status == Status.OK
        return gone

    async def _delete_named(self, target: int, names: bytes, timeout_s: float) -> Sequence[int]:
        count = len(names) // _NAME.size
        frame = await self._caller.exchange(
            Op.DELETE_ALL, timeout_s=timeout_s, body=names, target=target, length=count
        )
        if len(frame.body) != 2 * count:
            raise ProtocolError(f"a DELETE_ALL reply of {len(frame.body)} bytes for {count}")
        return struct.unpack(f"<{count}H", frame.body)

    async def delete_singly(
        self, objects: Sequence[tuple[int, int, int]], *, timeout_s: float
    ) -> list[bool]:
        """delete_all() with one request for each object."""
        gone: list[bool] = []
        for start in range(0, len(objects), EXCHANGES_MAX):
            frames = [
                {"target": target, "file_id": file_id, "stripe_index": stripe_index}
                for target, file_id, stripe_index in objects[start : start + EXCHANGES_MAX]
            ]
            answers = await self._caller.exchange_all(Op.DELETE, frames, timeout_s=timeout_s)
            gone += [status == Status.OK for status in answers]
        return gone

    async def stat(
        self, target: int, file_id: int, stripe_index: int, *, timeout_s: float
    ) -> ObjectStat:
        """Figures of the object. Raises FsError(NO_OBJECT) when there is none."""
        return _stat_of(await self._ask(Op.STAT, (target, file_id, stripe_index), timeout_s))

    async def stat_all(
        self, objects: Sequence[tuple[int, int, int]], *, timeout_s: float
    ) -> list[ObjectStat | int | None]:
        """Figures of these objects (target, file id, object number), at most EXCHANGES_MAX. The
        status of a refusal stands in place of figures, None where no answer came in time."""
        frames = [
            {"target": target, "file_id": file_id, "stripe_index": number}
            for target, file_id, number in objects
        ]
        answers = await self._caller.answers_of(Op.STAT, frames, timeout_s=timeout_s)
        return [None if one is None else one.header.status or _stat_of(one) for one in answers]

    async def sync(
        self, target: int, file_id: int, object_number: int, *, epoch: int, timeout_s: float
    ) -> int:
        """Makes the object durable. Returns the target's incarnation."""
        frame = await self._ask(Op.SYNC, (target, file_id, object_number), timeout_s, epoch=epoch)
        return frame.header.offset

    async def sync_all(
        self, objects: Sequence[tuple[tuple[int, int, int], int]], *, timeout_s: float
    ) -> list[tuple[int | None, int]]:
        """Makes objects durable, at most EXCHANGES_MAX: each is target, file id and object number,
        and its truncate epoch. Returns of each the status of the answer, None where none came in
        time, and the target's incarnation."""
        frames = [
            {"target": target, "file_id": file_id, "stripe_index": number, "epoch": epoch}
            for (target, file_id, number), epoch in objects
        ]
        answers = await self._caller.answers_of(Op.SYNC, frames, timeout_s=timeout_s)
        return [(one.header.status, one.header.offset) if one else (None, 0) for one in answers]

    async def fence(self, session: int, *, timeout_s: float) -> None:
        """Ends the session's requests and connections at the server, which refuses the session from
        now on."""
        await self._caller.exchange(Op.FENCE, timeout_s=timeout_s, offset=session)

    async def _ask(
        self, op: Op, name: tuple[int, int, int], timeout_s: float, **fields: int
    ) -> Frame:
        """One request without bytes about an object: target, file id, object number."""
        target, file_id, object_number = name
        return await self._caller.exchange(
            op,
            timeout_s=timeout_s,
            target=target,
            file_id=file_id,
            stripe_index=object_number,
            body=b"",
            payload=b"",
            **fields,
        )


def _stat_of(frame: Frame) -> ObjectStat:
    if len(frame.body) != _STAT.size:
        raise ProtocolError(f"a STAT reply has {_STAT.size} bytes, not {len(frame.body)}")
    length, allocated, epoch, _ = _STAT.unpack(frame.body)
    return ObjectStat(length, allocated, epoch)
