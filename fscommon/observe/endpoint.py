"""HTTP endpoints with threads of their own: metrics, and the page of the cluster.

Plain, or over TLS 1.3 with a server's certificate, whose files are checked with each connection and
read again when they have changed. Clients are not authenticated: there are at most CONNECTIONS_MAX
at a time, each with a thread, and none may take longer than CONNECTION_SECONDS_MAX for a handshake
or a request.
"""

import http.server
import socket
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fscommon.errors import ConfigError

CONNECTIONS_MAX: Final = 32
CONNECTION_SECONDS_MAX: Final = 10.0
_POLL_S: Final = 0.1  # bounds how long stop() takes
Handler = type[http.server.BaseHTTPRequestHandler]


@dataclass(frozen=True, slots=True)
class HttpCertificate:
    """The files of a certificate and of its key."""

    certificate: Path
    key: Path


class HttpEndpoint:
    """Serves from its construction until stop()."""

    def __init__(
        self,
        setting: str,
        host: str,
        port: int,
        handler: Handler,
        certificate: HttpCertificate | None = None,
    ) -> None:
        """Listens and serves. Raises ConfigError, which names the setting."""
        tls = _Tls(certificate) if certificate is not None else None
        try:
            self._server = _Server(host, port, handler, tls)
        except OSError as error:
            at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            raise ConfigError(
                f"{setting}: cannot listen at {at}: {error.strerror or error}"
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    def stop(self) -> None:
        """Blocks until the serving thread has ended."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Tls:
    """A TLS context. Raises ConfigError when it is made with files that cannot be used; later it
    keeps the files read before. Any thread."""

    def __init__(self, files: HttpCertificate) -> None:
        self._files = files
        self._lock = threading.Lock()
        try:
            self._seen = self._signature()
            self._context = self._load()
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"http_tls: {files.certificate}, {files.key}: {error.strerror or error}"
            ) from error

    def shake(self, plain: socket.socket) -> ssl.SSLSocket:
        """Does the handshake. Raises OSError."""
        shaken = self._current().wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
        shaken.settimeout(CONNECTION_SECONDS_MAX)
        shaken.do_handshake()
        return shaken

    def _current(self) -> ssl.SSLContext:
        with self._lock:
            try:
                seen = self._signature()
                if seen != self._seen:
                    self._context, self._seen = self._load(), seen
            except (OSError, ssl.SSLError):
                pass  # the transport's log reports it (fscommon.net.tls)
            return self._context

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self._files.certificate, self._files.key)
        return context

    def _signature(self) -> tuple[tuple[int, int], ...]:
        stats = [path.stat() for path in (self._files.certificate, self._files.key)]
        return tuple((seen.st_ino, seen.st_mtime_ns) for seen in stats)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 16

    def __init__(self, host: str, port: int, handler: Handler, tls: _Tls | None) -> None:
        self._slots = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self._tls = tls
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            if self._tls is not None:
                request = self._tls.shake(request)
        except OSError:  # the client speaks no TLS, or does not trust the certificate
            self.shutdown_request(request)
        else:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer went away, or was too slow: there is nothing to report."""
