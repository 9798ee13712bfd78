"""Connections to other storage servers, from which objects are copied or mended."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from fscommon.auth.handshake import HelloFields
from fscommon.net.address import STORAGESERVER_PORT, parse_address
from fscommon.net.transport import Transport
from fscommon.rpc.blocks import BlockCaller
from fscommon.rpc.caller import open_caller
from fscommon.wire.objects import ObjectCopy, ObjectMend
from storageserver.epochs import Epochs

PIECE: Final = 1 << 20  # bytes of one READ
CONNECT_S: Final = 5.0
REQUEST_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Credentials:
    """How this server shows itself to others."""

    name: str
    key: bytes
    transport: Transport | None = None  # None: TCP


class Sources:
    def __init__(self, own: Credentials, epochs: Epochs) -> None:
        self._own = own
        self._epochs = epochs

    @asynccontextmanager
    async def of(self, request: ObjectCopy | ObjectMend) -> AsyncIterator[BlockCaller]:
        """The object from which the request's bytes come. Raises TransportError, ProtocolError,
        AuthenticationError."""
        target, number = request.source_target, request.source_object
        async with open_caller(
            parse_address(request.source_address, port_default=STORAGESERVER_PORT),
            key=self._own.key,
            hello=HelloFields("server", self._own.name, session=self._epochs.newest),
            timeout_s=CONNECT_S,
            transport=self._own.transport,
        ) as caller:
            caller.take_payloads(PIECE)
            yield BlockCaller(caller, target, request.file_id, number, timeout_s=REQUEST_S)
