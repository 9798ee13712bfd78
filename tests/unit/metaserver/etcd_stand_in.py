"""What stands in for an etcd in tests: an HTTP server that does transactions in memory.

A test can make it answer anything: `before` is asked when a request has come, `after` when it has
been done; either returns the whole HTTP answer as bytes, or None for what etcd would say.
"""

import base64
import contextlib
import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from typing import Any

Json = dict[str, Any]
CLUSTER = "1234567890123456789"


def http_answer(body: bytes, status: str = "200 OK") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


def json_answer(answer: object, status: str = "200 OK") -> bytes:
    return http_answer(json.dumps(answer).encode(), status)


def refusal(text: str, code: int = 8, status: str = "429 Too Many Requests") -> bytes:
    return json_answer({"error": text, "message": text, "code": code}, status)


class EtcdStandIn:
    def __init__(self) -> None:
        self.records: dict[bytes, tuple[bytes, int]] = {}  # value and version
        self.revision = 1
        self.cluster = CLUSTER
        self.before: Callable[[str, Json], bytes | None] = lambda path, body: None
        self.after: Callable[[str, Json], bytes | None] = lambda path, answer: None
        self.requests: list[tuple[str, Json]] = []
        self.tokens: list[str] = []
        self._lock = threading.Lock()
        self.endpoint = ""

    def answer(self, path: str, body: Json, token: str) -> bytes:
        with self._lock:
            self.requests.append((path, body))
            self.tokens.append(token)
            early = self.before(path, body)
            if early is not None:
                return early
            answer = self._do(path, body)
            answer["header"] = {"cluster_id": self.cluster, "revision": str(self.revision)}
            return self.after(path, answer) or json_answer(answer)

    def _do(self, path: str, body: Json) -> Json:
        if path == "/v3/auth/authenticate":
            return {"token": f"token-{len(self.requests)}"}
        if path != "/v3/kv/txn":
            return {}
        held = all(map(self._compare, body["compare"]))
        operations = body["success"] if held else body["failure"]
        self.revision += 1
        responses = [self._operate(operation) for operation in operations]
        return {"succeeded": True, "responses": responses} if held else {"responses": responses}

    def _compare(self, condition: Json) -> bool:
        value, version = self.records.get(base64.b64decode(condition["key"]), (None, 0))
        if condition["target"] == "VERSION":
            return bool(version == int(condition["version"]))
        return value == base64.b64decode(condition["value"])

    def _operate(self, operation: Json) -> Json:
        ((kind, fields),) = operation.items()
        key = base64.b64decode(fields["key"])
        if kind == "request_put":
            version = self.records[key][1] + 1 if key in self.records else 1
            self.records[key] = (base64.b64decode(fields.get("value", "")), version)
            return {"response_put": {}}
        end = base64.b64decode(fields.get("range_end", "")) or key + b"\0"
        keys = sorted(one for one in self.records if key <= one < end)
        if kind == "request_delete_range":
            for one in keys:
                del self.records[one]
            return {"response_delete_range": {"deleted": str(len(keys))}}
        keys = keys[: int(fields.get("limit", 0)) or None]
        found = [self._shown(one, keys_only=bool(fields.get("keys_only"))) for one in keys]
        return {"response_range": {"kvs": found} if found else {}}

    def _shown(self, key: bytes, *, keys_only: bool) -> Json:
        value, version = self.records[key]
        shown = {"key": base64.b64encode(key).decode(), "version": str(version)}
        if value and not keys_only:
            shown["value"] = base64.b64encode(value).decode()
        return shown


class _Handler(socketserver.StreamRequestHandler):
    server: "_Server"
    disable_nagle_algorithm = True

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            while line := self.rfile.readline():
                path = line.split()[1].decode()
                headers: dict[str, str] = {}
                while header := self.rfile.readline().strip():
                    name, _, value = header.decode().partition(":")
                    headers[name.lower()] = value.strip()
                raw = self.rfile.read(int(headers.get("content-length", 0)))
                body = json.loads(raw) if raw else {}
                token = headers.get("authorization", "")
                self.wfile.write(self.server.stand_in.answer(path, body, token))


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    stand_in: EtcdStandIn


@contextlib.contextmanager
def etcd_stand_in() -> Iterator[EtcdStandIn]:
    made = EtcdStandIn()
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.stand_in = made
        made.endpoint = f"127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()
