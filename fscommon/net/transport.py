"""The waist between BraidFS and the network: what every transport must do.

Implementations: fscommon.net.tcp, fscommon.net.tls, and fscommon.net.memory for tests. One
conformance suite (tests/conformance/test_transport.py) runs against each. A failure of any kind is
a TransportError whose message is a sentence for people. Not here: authentication and frames
(fscommon.net.stream).
"""

from typing import Protocol, runtime_checkable

from fscommon.native_ports import NativeTls
from fscommon.net.address import Address


@runtime_checkable
class ByteStream(Protocol):
    """A connection. One task may send while another receives; no two tasks may do the same."""

    @property
    def peer_address(self) -> str: ...

    @property
    def tls(self) -> NativeTls | None:
        """The encryption of this connection; it goes where the descriptor goes. None: there is
        none."""

    async def send(self, outgoing: bytes) -> None:
        """Returns when everything was handed to the network. When cancelled, part of it may have
        been sent."""

    async def receive(self) -> bytes:
        """What has arrived, at least one byte; b"" when the peer closed."""

    def detach(self) -> int:
        """Gives up the file descriptor, which belongs to the caller from now on."""

    async def aclose(self) -> None:
        """Closes the connection; does not wait for the network. May be called again."""


@runtime_checkable
class Listener(Protocol):
    @property
    def address(self) -> Address:
        """The address that is listened at, with the port that the system chose for port 0."""

    async def accept(self) -> ByteStream: ...

    async def aclose(self) -> None: ...


@runtime_checkable
class Transport(Protocol):
    async def dial(self, address: Address) -> ByteStream:
        """Connects. The caller's cancel scope bounds how long it may take."""

    async def listen(self, address: Address) -> Listener: ...
