"""The page by HTTP: GET of four paths (fscommon.observe.endpoint); everything else is refused.

Requests are not authenticated. So the page is off unless `page_listen` is set, it cannot change
anything, and it loads only its own files (Content-Security-Policy). Its JSON is made in the event
loop's thread; threads of the endpoint wait for it.
"""

import http.server
from collections.abc import Callable
from importlib.resources import files
from typing import Any, Final

import trio

from fscommon.net.address import Address
from fscommon.observe.endpoint import CONNECTION_SECONDS_MAX, HttpCertificate, HttpEndpoint

STATUS_PATH: Final = "/status.json"
_FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class PageEndpoint(HttpEndpoint):
    """Serves the page. source runs in the event loop that made this object; stop() in a thread."""

    def __init__(
        self,
        listen: Address,
        source: Callable[[], bytes],
        certificate: HttpCertificate | None = None,
    ) -> None:
        token = trio.lowlevel.current_trio_token()
        pages = {path: (_read(name), kind) for path, (name, kind) in _FILES.items()}

        def find(path: str) -> tuple[bytes, str] | None:
            """Returns the answer. Raises RunFinishedError or Cancelled if the program ends."""
            if path == STATUS_PATH:
                return trio.from_thread.run_sync(source, trio_token=token), "application/json"
            return pages.get(path)

        handler = type("PageHandler", (_Handler,), {"find": staticmethod(find)})

        super().__init__("page_listen", listen.host, listen.port, handler, certificate)


def _read(name: str) -> bytes:
    return (files(__package__) / name).read_bytes()


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = CONNECTION_SECONDS_MAX
    find: Callable[[str], tuple[bytes, str] | None]

    def do_GET(self) -> None:
        try:
            found = self.find(self.path.partition("?")[0])
        except (trio.RunFinishedError, trio.Cancelled):
            self._answer(503, b"the metaserver stops\n", "text/plain")
            return
        if found is None:
            self._answer(404, b"there is no such page\n", "text/plain")
        else:
            self._answer(200, *found)

    def _answer(self, code: int, body: bytes, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "BraidFS"

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: requests of browsers are no events."""
