"""OBJECT_COPY, OBJECT_SUM and OBJECT_MEND: what a storage server does with whole objects."""

from typing import Any

from fscommon.auth.handshake import HelloFields
from fscommon.net.transport import Transport
from fscommon.rpc.caller import open_caller
from fscommon.wire.objects import (
    ObjectCopied,
    ObjectCopy,
    ObjectMend,
    ObjectMended,
    ObjectSum,
    ObjectSummed,
)
from fscommon.wire.ops import Op


async def copy_object(address: str, request: ObjectCopy, **options: Any) -> ObjectCopied:
    """Asks the storage server at this address, which has the new object's target. The copy ends
    with this call. Raises as _ask(), and takes its options."""
    copied: ObjectCopied = await _ask(address, Op.OBJECT_COPY, request, **options)
    return copied


async def sum_object(address: str, request: ObjectSum, **options: Any) -> ObjectSummed:
    """As copy_object(): what an object is, and what of it is damaged."""
    summed: ObjectSummed = await _ask(address, Op.OBJECT_SUM, request, **options)
    return summed


async def mend_object(address: str, request: ObjectMend, **options: Any) -> ObjectMended:
    """As copy_object(): writes damaged blocks again."""
    mended: ObjectMended = await _ask(address, Op.OBJECT_MEND, request, **options)
    return mended


async def _ask(
    address: str,
    op: Op,
    request: ObjectCopy | ObjectSum | ObjectMend,
    *,
    key: bytes,
    connect_s: float,
    timeout_s: float,
    transport: Transport | None = None,
) -> Any:
    """Raises FsError, TransportError, ProtocolError, AuthenticationError."""
    hello = HelloFields("admin", "metaserver")
    async with open_caller(
        address, key=key, hello=hello, timeout_s=connect_s, transport=transport
    ) as caller:
        return await caller.call(op, request, timeout_s)
