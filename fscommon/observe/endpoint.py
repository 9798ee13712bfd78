"""An HTTP endpoint that serves from a thread of its own: metrics, the page of the cluster."""

import threading
from collections.abc import Callable
from http.server import HTTPServer

from fscommon.errors import ConfigError

Start = Callable[[], tuple[HTTPServer, threading.Thread]]


class HttpEndpoint:
    """From the start until stop()."""

    def __init__(self, setting: str, at: str, start: Start) -> None:
        """start() listens there and serves. Raises ConfigError, which names the setting."""
        try:
            self._server, self._thread = start()
        except OSError as error:
            raise ConfigError(
                f"{setting}: cannot listen at {at}: {error.strerror or error}"
            ) from error

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    def stop(self) -> None:
        """Blocks until the serving thread has ended."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
