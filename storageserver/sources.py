"""Connections to other storage servers, from which objects are copied or mended."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from fscommon.auth.handshake import HelloFields
from fscommon.net.address import STORAGESERVER_PORT, parse_address
from fscommon.net.transport import Transport
from fscommon.rpc.caller import Caller, open_caller
from storageserver.epochs import Epochs

PIECE: Final = 1 << 20  # bytes of one READ
CONNECT_S: Final = 5.0


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
    async def open(self, address: str) -> AsyncIterator[Caller]:
        """Raises TransportError, ProtocolError, AuthenticationError."""
        async with open_caller(
            parse_address(address, port_default=STORAGESERVER_PORT),
            key=self._own.key,
            hello=HelloFields("server", self._own.name, session=self._epochs.newest),
            timeout_s=CONNECT_S,
            transport=self._own.transport,
        ) as caller:
            caller.take_payloads(PIECE)
            yield caller
