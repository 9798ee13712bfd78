"""The waist between BraidFS and the network: what every transport must do.

Implementations: fscommon.net.tcp, fscommon.net.tls, and fscommon.net.memory for tests; one
conformance suite (tests/conformance/test_transport.py) runs against each. Failures of any kind are
TransportErrors whose message is a sentence for people. Authentication and frames are above, in
fscommon.net.stream.
"""

from typing import Protocol, runtime_checkable

from fscommon.native import NativeTls
from fscommon.net.address import Address


@runtime_checkable
class ByteStream(Protocol):
    """A connection. One task may send while another receives; not two of a kind."""

    @property
    def peer_address(self) -> str: ...

    @property
    def tls(self) -> NativeTls | None:
        """What encrypts this connection: goes where the descriptor goes."""

    async def send(self, outgoing: bytes) -> None:
        """Return when all is handed to the network. When cancelled, part of it may be sent."""

    async def receive(self) -> bytes:
        """What has arrived, at least a byte; b"" when the peer closed."""

    def detach(self) -> int:
        """Give up the file descriptor, which is the caller's from now on."""

    async def aclose(self) -> None:
        """Close; does not wait for the network. May be called again."""


@runtime_checkable
class Listener(Protocol):
    @property
    def address(self) -> Address:
        """Where it listens, with the port that the system chose for port 0."""

    async def accept(self) -> ByteStream: ...

    async def aclose(self) -> None: ...


@runtime_checkable
class Transport(Protocol):
    async def dial(self, address: Address) -> ByteStream:
        """Connect; how long it may take is the caller's cancel scope."""

    async def listen(self, address: Address) -> Listener: ...
