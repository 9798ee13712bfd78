"""OBJECT_COPY: has a storage server make an object from that of another target."""

from fscommon.auth.handshake import HelloFields
from fscommon.net.transport import Transport
from fscommon.rpc.caller import open_caller
from fscommon.wire.objects import ObjectCopied, ObjectCopy
from fscommon.wire.ops import Op


async def copy_object(
    address: str,
    request: ObjectCopy,
    *,
    key: bytes,
    connect_s: float,
    timeout_s: float,
    transport: Transport | None = None,
) -> ObjectCopied:
    """Asks the storage server at this address, which has the new object's target. The copy ends
    with this call. Raises FsError, TransportError, ProtocolError, AuthenticationError."""
    hello = HelloFields("admin", "metaserver")
    async with open_caller(
        address, key=key, hello=hello, timeout_s=connect_s, transport=transport
    ) as caller:
        copied: ObjectCopied = await caller.call(Op.OBJECT_COPY, request, timeout_s)
        return copied
