"""Connections to other storage servers, from which objects are copied or mended."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import trio

from fscommon.auth.handshake import HelloFields
from fscommon.errors import FsError, ProtocolError, Status
from fscommon.limits import GENERATION_SHIFT, STRIPE_WIDTH_MAX
from fscommon.native import make_remote_copy
from fscommon.native_ports import RemoteCopy
from fscommon.net.address import STORAGESERVER_PORT, Address, parse_address
from fscommon.net.stream import connect
from fscommon.net.transport import Transport
from fscommon.rpc.blocks import BlockCaller
from fscommon.rpc.caller import open_caller
from fscommon.rpc.idle import KEEP_S, Idle
from fscommon.wire.objects import ObjectCopy, ObjectMend
from storageserver.epochs import Epochs

PIECE: Final = 1 << 20  # bytes of one READ
CONNECT_S: Final = 5.0
REQUEST_S: Final = 30.0
_TARGET_MAX: Final = (1 << 32) - 1  # of a frame's header
_STRIPE: Final = (1 << GENERATION_SHIFT) - 1  # of an object number


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
        self._idle: Idle[RemoteCopy] = Idle(lambda one: one.is_usable())

    @asynccontextmanager
    async def of(self, request: ObjectMend) -> AsyncIterator[BlockCaller]:
        """The object from which the request's bytes come. Raises TransportError, ProtocolError,
        AuthenticationError."""
        target, number = request.source_target, request.source_object
        async with open_caller(
            _address(request.source_address),
            key=self._own.key,
            hello=self._hello(),
            timeout_s=CONNECT_S,
            transport=self._own.transport,
        ) as caller:
            caller.take_payloads(PIECE)
            yield BlockCaller(caller, target, request.file_id, number, timeout_s=REQUEST_S)

    @asynccontextmanager
    async def copy_from(self, address: str) -> AsyncIterator[RemoteCopy]:
        """By what objects of the server at this address are copied, for one copy. Raises as
        of()."""
        one = self._idle.take(address)
        if one is None:
            one = await self._connect(_address(address))
        yield one
        self._idle.keep(address, one)

    async def run(self) -> None:
        """Closes connections that nobody uses any more."""
        while True:
            await trio.sleep(KEEP_S)
            self._idle.take_old()  # they end with their last reference

    async def _connect(self, address: Address) -> RemoteCopy:
        stream = await connect(
            address,
            key=self._own.key,
            hello=self._hello(),
            timeout_s=CONNECT_S,
            transport=self._own.transport,
        )
        tls = stream.tls
        descriptor, early = stream.detach()
        one = make_remote_copy(descriptor, patience_ms=int(REQUEST_S * 1000), tls=tls)
        if early:
            raise ProtocolError(f"{address} sends what nobody has asked for")
        return one

    def _hello(self) -> HelloFields:
        return HelloFields("server", self._own.name, session=self._epochs.newest)


def check_source(request: ObjectCopy | ObjectMend) -> None:
    """Raises FsError for a source that no server can have, for objects that are not of one stripe
    of a file, and for one that would be its own source: a copy empties what it finds under the new
    name."""
    if request.source_target > _TARGET_MAX:
        raise FsError(Status.NO_TARGET, f"there is no target {request.source_target}")
    stripe, of_source = request.object & _STRIPE, request.source_object & _STRIPE
    if stripe != of_source or stripe >= STRIPE_WIDTH_MAX:
        raise FsError(Status.EINVAL, f"these are objects of stripes {stripe} and {of_source}")
    source = request.source_target, request.source_object
    if source == (request.target, request.object):
        raise FsError(Status.EINVAL, "an object cannot be its own source")


def _address(text: str) -> Address:
    return parse_address(text, port_default=STORAGESERVER_PORT)
