"""ObjectCaller: what a storage server does with whole objects, for an administrator."""

from fscommon.rpc.caller import Caller
from fscommon.wire.objects import (
    ObjectCopied,
    ObjectCopy,
    ObjectMend,
    ObjectMended,
    ObjectSum,
    ObjectSummed,
)
from fscommon.wire.ops import Op


class ObjectCaller:
    """The connection's purpose must be "admin"; what it was asked for ends with it. Each raises
    FsError and TransportError."""

    def __init__(self, caller: Caller, *, timeout_s: float) -> None:
        self._caller = caller
        self._timeout_s = timeout_s

    async def copy(self, request: ObjectCopy) -> ObjectCopied:
        copied: ObjectCopied = await self._caller.call(Op.OBJECT_COPY, request, self._timeout_s)
        return copied

    async def sum(self, request: ObjectSum) -> ObjectSummed:
        summed: ObjectSummed = await self._caller.call(Op.OBJECT_SUM, request, self._timeout_s)
        return summed

    async def mend(self, request: ObjectMend) -> ObjectMended:
        mended: ObjectMended = await self._caller.call(Op.OBJECT_MEND, request, self._timeout_s)
        return mended
