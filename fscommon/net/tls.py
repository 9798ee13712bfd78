"""The TLS transport: TCP with native TLS 1.3 over it, for metadata and, handed on, for file bytes.

Native code encrypts (native/src/net/tls.h), so a connection whose handshake was done here can go on
in a lane. Both ends begin the handshake with the first bytes of the connection, within the deadline
of whoever waits. A server looks at the first byte: a TLS record begins with 22, a frame does not. A
server that requires TLS answers a plain peer with an alert, and no frame begins like an alert.

Certificate files are checked with each new connection and read again when they have changed, so
renewing them needs no restart; while new files cannot be used, the earlier certificates stay in
force. A server also checks its own every CERTIFICATE_WATCH_S, and shows as a metric when it ends.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import trio

from fscommon.config.tls import NO_TLS, TlsSettings
from fscommon.errors import ConfigError, TransportError
from fscommon.native import tls_client, tls_server
from fscommon.native_ports import NativeTls, NativeTlsContext
from fscommon.net.address import Address
from fscommon.net.certificate import end_of_certificates
from fscommon.net.tcp import RECEIVE_SIZE, TcpListener, TcpStream, TcpTransport
from fscommon.net.transport import Transport
from fscommon.observe.log import Log, RateLimit
from fscommon.observe.metrics import Metrics

HANDSHAKE: Final = 0x16  # the first byte of a TLS connection
ALERT: Final = b"\x15\x03\x03\x00\x02\x02\x47"  # fatal: insufficient_security
CERTIFICATE_WATCH_S: Final = 10.0
CERTIFICATE_METRIC: Final = "braidfs_certificate_expiry_timestamp_seconds"
_READABLE: Final = 1

T = TypeVar("T")
Signature = tuple[tuple[int, int, int], ...]


class _PlainPeerError(TransportError):
    """The peer closed the connection where TLS was to begin."""


@dataclass(slots=True)
class _Kept:
    """A TLS context, and the state of its files when it was loaded."""

    files: tuple[Path, ...]
    load: Callable[[], NativeTlsContext]
    context: NativeTlsContext | None = None
    seen: Signature = ()
    limit: RateLimit = field(default_factory=lambda: RateLimit(60.0))

    def current(self, log: Log) -> NativeTlsContext:
        """The context, loaded again when its files have changed. Raises ConfigError when there is
        none yet."""
        try:
            seen = tuple(_signature(path) for path in self.files)
        except OSError as error:
            return self._or_older(f"cannot read {error.filename}: {error.strerror}", log)
        if self.context is not None and seen == self.seen:
            return self.context
        try:
            made = self.load()
        except ValueError as error:
            return self._or_older(str(error), log)
        if self.context is not None:
            log.info("certificates were read again", files=", ".join(map(str, self.files)))
        self.context, self.seen = made, seen
        return made

    def _or_older(self, fault: str, log: Log) -> NativeTlsContext:
        if self.context is None:
            raise ConfigError(f"TLS: {fault}")
        if self.limit.permit() is not None:
            log.error("the certificates that were read before stay in use", error=fault)
        return self.context


class TlsTransport:
    """TLS over TCP. Raises ConfigError when it is made with files that cannot be used."""

    def __init__(self, settings: TlsSettings, log: Log | None = None) -> None:
        self._settings = settings
        self._log = log or Log("tls")
        self._tcp = TcpTransport(is_local=False)  # where TLS is wanted, it is used everywhere
        self._fallbacks = RateLimit(60.0)
        self._theirs = _Kept((settings.authority,), lambda: tls_client(str(settings.authority)))
        self._theirs.current(self._log)
        self._ours: _Kept | None = None
        self._ends_s: int | None = None
        if settings.certificate is not None and settings.key is not None:
            files = (settings.certificate, settings.key)
            self._ours = _Kept(files, lambda: self._load_ours(*files))
            self._ours.current(self._log)

    async def dial(self, address: Address) -> "TlsStream":
        stream = await self._tcp.dial(address)
        try:
            tls = self._theirs.current(self._log).open(stream.fileno(), _name(address))
        except ValueError as error:
            await stream.aclose()
            raise TransportError(f"{address}: {error}") from error
        return TlsStream(stream, _Dialing(self, address, tls))

    async def listen(self, address: Address) -> "TlsListener":
        assert self._ours is not None, "a server has a certificate"
        return TlsListener(await self._tcp.listen(address), self._accept_context, self._settings)

    async def plainly(self, address: Address) -> TcpStream:
        """A connection without TLS, where that is allowed. Raises TransportError."""
        if self._settings.is_required:
            raise TransportError(
                f"{address} hung up where TLS was to begin: its tls is off, or it is no BraidFS "
                "server"
            )
        stream = await self._tcp.dial(address)
        if self._fallbacks.permit() is not None:
            self._log.warning("a server has no TLS: its connection is plain", address=address)
        return stream

    def certificate_ends_s(self) -> int | None:
        """The Unix time when the server's certificate in force ends; its files are checked as for a
        new connection. None: there is no certificate, or its end is not known."""
        if self._ours is not None:
            self._ours.current(self._log)
        return self._ends_s

    def _accept_context(self) -> NativeTlsContext:
        assert self._ours is not None
        return self._ours.current(self._log)

    def _load_ours(self, certificate: Path, key: Path) -> NativeTlsContext:
        made = tls_server(str(certificate), str(key))
        try:
            self._ends_s = end_of_certificates(certificate.read_bytes())
        except (OSError, ValueError) as error:
            self._ends_s = None
            self._log.warning("no end of the certificate", file=certificate, error=error)
        return made


class TlsListener:
    def __init__(
        self, listener: TcpListener, context: Callable[[], NativeTlsContext], settings: TlsSettings
    ) -> None:
        self._listener = listener
        self._context = context
        self._settings = settings

    @property
    def address(self) -> Address:
        return self._listener.address

    async def accept(self) -> "TlsStream":
        accepting = _Accepting(self._context, is_required=self._settings.is_required)
        return TlsStream(await self._listener.accept(), accepting)

    async def aclose(self) -> None:
        await self._listener.aclose()


@dataclass(frozen=True, slots=True)
class _Dialing:
    """How the connecting end begins."""

    transport: TlsTransport
    address: Address
    tls: NativeTls

    async def begin(self, stream: TcpStream) -> tuple[TcpStream, NativeTls | None]:
        try:
            await _shake(self.tls, stream)
        except _PlainPeerError:
            await stream.aclose()
            return await self.transport.plainly(self.address), None
        return stream, self.tls


@dataclass(frozen=True, slots=True)
class _Accepting:
    """How the accepting end begins."""

    context: Callable[[], NativeTlsContext]
    is_required: bool

    async def begin(self, stream: TcpStream) -> tuple[TcpStream, NativeTls | None]:
        first = await stream.peek()
        if first == HANDSHAKE:
            tls = self.context().open(stream.fileno(), "")
            await _shake(tls, stream)
            return stream, tls
        if first is not None and self.is_required:
            await stream.send(ALERT)
            raise TransportError("it came without TLS, which is required here")
        return stream, None


class TlsStream:
    """ByteStream over a TcpStream, which it owns; plain when both ends agreed on that."""

    def __init__(self, stream: TcpStream, way: _Dialing | _Accepting) -> None:
        self._stream = stream
        self._way: _Dialing | _Accepting | None = way
        self._beginning = trio.Lock()
        self._tls: NativeTls | None = None

    @property
    def peer_address(self) -> str:
        return self._stream.peer_address

    @property
    def tls(self) -> NativeTls | None:
        return self._tls

    async def send(self, outgoing: bytes) -> None:
        await self.begin()
        if self._tls is None:
            await self._stream.send(outgoing)
            return
        tls, taken = self._tls, 0
        while True:
            taken += self._try(lambda: tls.send(outgoing, taken))  # noqa: B023 - called at once
            if taken == len(outgoing) and self._try(tls.flush):
                return
            await self._stream.writable()

    async def receive(self) -> bytes:
        await self.begin()
        if self._tls is None:
            return await self._stream.receive()
        tls = self._tls
        await trio.lowlevel.checkpoint()
        while (received := self._try(lambda: tls.receive(RECEIVE_SIZE))) is None:
            await self._stream.readable()
        return received

    def detach(self) -> int:
        """Gives up the descriptor. `tls` goes with it, so read `tls` before."""
        self._tls = self._way = None
        return self._stream.detach()

    async def aclose(self) -> None:
        # it knows the descriptor's number, which may soon be another file's
        self._tls = self._way = None
        await self._stream.aclose()

    async def begin(self) -> None:
        """Does the handshake, unless it is done already. Raises TransportError."""
        if self._way is None:
            return
        async with self._beginning:
            if self._way is not None:
                self._stream, self._tls = await self._way.begin(self._stream)
                self._way = None

    def _try(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except OSError as error:
            raise TransportError(
                f"connection to {self.peer_address} ended: {error.strerror}"
            ) from error


async def _shake(tls: NativeTls, stream: TcpStream) -> None:
    try:
        while wants := tls.shake():
            await (stream.readable() if wants == _READABLE else stream.writable())
    except ConnectionError as error:
        raise _PlainPeerError(f"{stream.peer_address} hung up during the handshake of TLS") from (
            error
        )
    except OSError as error:
        raise TransportError(
            f"{stream.peer_address}: no TLS with this server: {error.strerror}"
        ) from error


def transport_of(
    settings: TlsSettings = NO_TLS, log: Log | None = None, *, is_local: bool = True
) -> Transport:
    """The transport that connections use. is_local: without TLS, peers on this host are reached
    over local sockets. Raises ConfigError."""
    return TlsTransport(settings, log) if settings.is_on else TcpTransport(is_local=is_local)


def certificate_ends_s(transport: Transport | None) -> int | None:
    """TlsTransport.certificate_ends_s(); None for a transport without TLS."""
    return transport.certificate_ends_s() if isinstance(transport, TlsTransport) else None


async def watch_certificate(transport: Transport | None, metrics: Metrics) -> None:
    """Shows as a metric when the server's certificate ends, until cancelled. A renewed certificate
    is noticed within CERTIFICATE_WATCH_S, even when nobody connects meanwhile. Returns at once
    without TLS."""
    while isinstance(transport, TlsTransport):
        ends_s = transport.certificate_ends_s()
        metrics.gauge(CERTIFICATE_METRIC).set(float("nan") if ends_s is None else ends_s)
        await trio.sleep(CERTIFICATE_WATCH_S)


async def tls_of(address: Address, settings: TlsSettings) -> tuple[str, tuple[str, str, int]]:
    """Cipher and certificate (subject, issuer, end in Unix seconds) of a server. Raises
    TransportError."""
    stream = await TlsTransport(settings).dial(address)
    try:
        await stream.begin()
        assert stream.tls is not None
        return stream.tls.cipher(), stream.tls.peer_certificate()
    finally:
        await stream.aclose()


def _name(address: Address) -> str:
    return address.host.partition("%")[0]  # a certificate names no interface


def _signature(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns
