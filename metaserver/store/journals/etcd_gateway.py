"""Requests to etcd 3.4 and later through its JSON gateway, by HTTP, one at a time.

A gateway asks one endpoint; when that fails it asks the next, until the call's deadline. A request
may therefore happen twice, or after its call has failed: callers only send what may (see etcd.py).
With a user, it fetches a token, and a new one when etcd does not accept it any more. Certificates
are read anew for each new connection after a failure. What etcd answers is not trusted: its size,
its form and the cluster that it comes from are checked, and nothing but the errors below leaves.
"""

import base64
import binascii
import contextlib
import http.client
import json
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import urllib3

from fscommon.net.address import parse_address
from metaserver.store.journal import JournalError

PORT: Final = 2379
ANSWER_MAX: Final = 32 << 20
_PIECE: Final = 1 << 16
_ROUND_PAUSE_S: Final = 0.05  # after all endpoints have failed once
_SHORTEST_ATTEMPT_S: Final = 0.01
_ERROR_TEXT_MAX: Final = 200
_TOKEN_REFUSALS: Final = ("invalid auth token", "auth store is old", "user name is empty")
_NO_SPACE: Final = "database space exceeded"
# gRPC codes of requests that no other member would accept either: invalid argument, permission
# denied, failed precondition, out of range, unimplemented, unauthenticated.
_FINAL_CODES: Final = frozenset({3, 7, 9, 11, 12, 16})
_PASSWORD_MAX: Final = 4096

Json = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """endpoints: HOST:PORT of the members' client addresses. prefix: of all keys, without a slash
    at its end; nobody else may use keys below it. authority: None trusts the system's. timeout_s:
    how long one call may take."""

    endpoints: tuple[str, ...]
    prefix: str
    is_tls: bool = False
    authority: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    user: str = ""
    password_file: Path | None = None
    timeout_s: float = 2.0

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if not self.endpoints or self.timeout_s <= 0:
            raise ValueError("a journal in etcd needs endpoints, and time")
        if not self.prefix.startswith("/") or self.prefix.endswith("/"):
            raise ValueError(f"'{self.prefix}' is no prefix of keys: write it like /braidfs")
        if not self.is_tls and (self.authority or self.certificate or self.key):
            raise ValueError("certificates for etcd are of no use without TLS")
        if (self.certificate is None) != (self.key is None):
            raise ValueError("a certificate for etcd needs its key, and a key its certificate")
        if bool(self.user) != (self.password_file is not None):
            raise ValueError("a user of etcd needs a file with the password")


class GatewayError(JournalError):
    """No endpoint answered in time, or etcd refused. A change may still have happened."""


class NoSpaceError(JournalError):
    """etcd says that its database is full. It says so of some changes that it has made, too: it
    looks at its size once more when it makes them. is_sure: no other attempt may still happen."""

    is_sure = True


class GarbledError(JournalError):
    """An answer is not of the form that etcd's answers have."""


class AttemptError(Exception):
    """One endpoint failed. is_final: others would answer the same."""

    def __init__(self, text: str, *, is_final: bool = False) -> None:
        super().__init__(text)
        self.is_final = is_final


class _TokenError(Exception):
    """etcd does not accept the token, so it did nothing."""


class Gateway:
    def __init__(self, settings: EtcdSettings) -> None:
        self._settings = settings
        self._pools: dict[str, urllib3.HTTPConnectionPool] = {}
        self._at = 0  # the endpoint that answered last
        self._token = ""
        self._cluster = ""  # identity of the etcd cluster that answered first
        self._closed = threading.Event()

    def close(self) -> None:
        self._closed.set()
        while self._pools:
            self._pools.popitem()[1].close()

    def deadline(self) -> float:
        return time.monotonic() + self._settings.timeout_s

    def call(self, path: str, body: Json, deadline: float) -> Json:
        """Returns the answer. Raises GatewayError, NoSpaceError."""
        endpoints = self._settings.endpoints
        failures: dict[str, str] = {}
        tried = 0
        while (left := deadline - time.monotonic()) > _SHORTEST_ATTEMPT_S:
            if self._closed.is_set():
                raise GatewayError("etcd: the journal is closed")
            endpoint = endpoints[self._at % len(endpoints)]
            try:
                return self.ask(endpoint, path, body, self._attempt_seconds(left))
            except AttemptError as error:
                failures[endpoint] = str(error)
                if error.is_final:
                    break
            except NoSpaceError as error:
                error.is_sure = not failures
                raise
            self._at += 1
            tried += 1
            if tried % len(endpoints) == 0:
                self._closed.wait(min(_ROUND_PAUSE_S, max(0.0, deadline - time.monotonic())))
        said = "; ".join(f"{endpoint}: {text}" for endpoint, text in failures.items())
        raise GatewayError(f"etcd did not do {path}: {said or 'no time was left'}")

    def _attempt_seconds(self, left: float) -> float:
        """How long one endpoint may take: a member that is stopped must not use up the call."""
        if len(self._settings.endpoints) == 1:
            return left
        return min(left, self._settings.timeout_s / 2)

    def ask(
        self, endpoint: str, path: str, body: Json, seconds: float, *, has_header: bool = True
    ) -> Json:
        """Asks one endpoint. has_header: whether etcd says in its answer which cluster it is.
        Raises AttemptError, NoSpaceError."""
        deadline = time.monotonic() + seconds
        try:
            answer = self._ask_with_token(endpoint, path, body, deadline)
        except _TokenError:
            self._token = ""
            try:
                answer = self._ask_with_token(endpoint, path, body, deadline)
            except _TokenError as error:
                raise AttemptError(str(error)) from None
        if has_header:
            self._check_cluster(answer)
        return answer

    def _ask_with_token(self, endpoint: str, path: str, body: Json, deadline: float) -> Json:
        if self._settings.user and not self._token:
            self._token = self._authenticate(endpoint, deadline)
        return self._ask_json(endpoint, path, body, deadline)

    def _authenticate(self, endpoint: str, deadline: float) -> str:
        who = {"name": self._settings.user, "password": self._password()}
        answer = self._ask_json(endpoint, "/v3/auth/authenticate", who, deadline)
        self._check_cluster(answer)
        token = answer.get("token")
        if not (isinstance(token, str) and token.isascii() and token.isprintable() and token):
            raise AttemptError("it answered without a token")
        return token

    def _password(self) -> str:
        path = self._settings.password_file
        assert path is not None, "the settings have a user"
        try:
            with path.open(encoding="utf-8") as file:
                return file.read(_PASSWORD_MAX).rstrip("\r\n")
        except (OSError, UnicodeError) as error:
            raise AttemptError(f"the password in {path}: {error}", is_final=True) from None

    def _ask_json(self, endpoint: str, path: str, body: Json, deadline: float) -> Json:
        status, raw = self._exchange(endpoint, "POST", path, json.dumps(body).encode(), deadline)
        try:
            answer = json.loads(raw)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise AttemptError(f"HTTP status {status} without a JSON object")
        if status != http.HTTPStatus.OK:
            raise _refusal(status, answer)
        return answer

    def _check_cluster(self, answer: Json) -> None:
        """Endpoints of two clusters in one list would split the log in two."""
        try:
            cluster = text_of(mapping_of(answer.get("header")).get("cluster_id"))
        except GarbledError:
            raise AttemptError("it answered without a header") from None
        if cluster != (self._cluster or cluster):
            raise AttemptError(
                f"it is of the etcd cluster {cluster[:20]}, not of {self._cluster} as before"
            )
        self._cluster = cluster

    def fetch_text(self, endpoint: str, path: str, seconds: float) -> str:
        """Raises AttemptError."""
        _, raw = self._exchange(endpoint, "GET", path, None, time.monotonic() + seconds)
        return raw.decode(errors="replace")

    def _exchange(
        self, endpoint: str, method: str, path: str, body: bytes | None, deadline: float
    ) -> tuple[int, bytes]:
        """One request and its answer. A connection that failed is not used again."""
        try:
            return self._exchange_or_fail(endpoint, method, path, body, deadline)
        except AttemptError:
            self._drop(endpoint)
            raise
        except (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError) as error:
            self._drop(endpoint)
            raise AttemptError(_words(error)) from None
        except ValueError as error:  # of headers that are none
            self._drop(endpoint)
            raise AttemptError(f"the answer is garbled: {_words(error)}") from None

    def _exchange_or_fail(
        self, endpoint: str, method: str, path: str, body: bytes | None, deadline: float
    ) -> tuple[int, bytes]:
        left = deadline - time.monotonic()
        if left <= 0:
            raise AttemptError("no time was left")
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if self._token:
            headers["Authorization"] = self._token
        response = self._pool(endpoint).urlopen(
            method,
            path,
            body=body,
            headers=headers,
            retries=False,
            redirect=False,
            timeout=urllib3.Timeout(total=left),
            preload_content=False,
            decode_content=False,
        )
        pieces: list[bytes] = []
        size = 0
        while piece := response.read1(_PIECE):
            pieces.append(piece)
            size += len(piece)
            if size > ANSWER_MAX:
                raise AttemptError("the answer is too long")
            if time.monotonic() > deadline:
                raise AttemptError("the answer took too long")
        response.release_conn()
        return response.status, b"".join(pieces)

    def _pool(self, endpoint: str) -> urllib3.HTTPConnectionPool:
        pool = self._pools.get(endpoint)
        if pool is None:
            address = parse_address(endpoint, port_default=PORT)
            if self._settings.is_tls:
                pool = urllib3.HTTPSConnectionPool(
                    address.host, address.port, ssl_context=self._tls_context()
                )
            else:
                pool = urllib3.HTTPConnectionPool(address.host, address.port)
            self._pools[endpoint] = pool
        return pool

    def _tls_context(self) -> ssl.SSLContext:
        """Raises OSError."""
        settings = self._settings
        context = ssl.create_default_context(cafile=settings.authority)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if settings.certificate is not None:
            context.load_cert_chain(settings.certificate, settings.key)
        return context

    def _drop(self, endpoint: str) -> None:
        pool = self._pools.pop(endpoint, None)
        if pool is not None:
            with contextlib.suppress(OSError):
                pool.close()


def _refusal(status: int, answer: Json) -> Exception:
    said = answer.get("error") or answer.get("message")
    text = said[:_ERROR_TEXT_MAX] if isinstance(said, str) else "no reason"
    if _NO_SPACE in text:
        return NoSpaceError(f"etcd has no room: {text}")
    if any(words in text for words in _TOKEN_REFUSALS):
        return _TokenError(text)
    code = answer.get("code")
    is_final = isinstance(code, int) and code in _FINAL_CODES
    return AttemptError(f"{text} (HTTP status {status})", is_final=is_final)


def _words(error: BaseException) -> str:
    """The text of an error, or of the error that urllib3 has wrapped in one of its own."""
    if isinstance(error, urllib3.exceptions.ProtocolError) and error.args:
        within = error.args[-1]
        error = within if isinstance(within, BaseException) else error
    return (str(error) or type(error).__name__)[:_ERROR_TEXT_MAX]


def mapping_of(value: object) -> Json:
    """Raises GarbledError if the value, which is of an answer, has another type."""
    if not isinstance(value, dict):
        raise GarbledError("etcd's answer lacks an object")
    return value


def list_of(value: object) -> list[object]:
    """The gateway leaves out empty lists."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise GarbledError("etcd's answer lacks a list")
    return value


def text_of(value: object) -> str:
    if not isinstance(value, str):
        raise GarbledError("etcd's answer lacks a text")
    return value


def bytes_of(value: object) -> bytes:
    """The gateway leaves out empty bytes."""
    try:
        return base64.b64decode(text_of("" if value is None else value), validate=True)
    except (binascii.Error, ValueError):
        raise GarbledError("etcd's answer has bytes that are not in base64") from None


def number_of(value: object) -> int:
    """The gateway writes numbers of 64 bits as texts, and leaves out zero."""
    if value is None:
        return 0
    text = text_of(value)
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise GarbledError("etcd's answer has a number that is none")
    return int(text)
