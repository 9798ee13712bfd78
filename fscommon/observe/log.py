"""Structured logs: one line per event, `key=value` pairs, written to stderr or a file.

    time=2026-01-31T12:00:00.123Z level=warning part=net event="connection refused" peer=10.0.0.7:51

Within `with request(id):` every line of the task carries `request=id`. Levels and sinks are set
once, by start_logging() in fscommon.service; before that, warnings go to stderr unformatted. ANY
THREAD.
"""

import contextvars
import logging
import logging.handlers
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TextIO

from fscommon.errors import ConfigError
from fscommon.observe.visible import visible

ROOT: Final = "braidfs"
LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
VALUE_LENGTH_MAX: Final = 2048
# Of a traceback that is too long: its beginning says what ran, its end what failed.
_TRACEBACK_BEGIN: Final = 400

_request: contextvars.ContextVar[int] = contextvars.ContextVar("request", default=0)


class Log:
    """The log of one part of a program. Fields are keyword arguments; None is left out."""

    def __init__(self, part: str) -> None:
        self._logger = logging.getLogger(f"{ROOT}.{part}")

    def debug(self, event: str, **fields: object) -> None:
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._write(logging.ERROR, event, fields)

    def exception(self, event: str, **fields: object) -> None:
        """Logs an error with the traceback of the exception being handled."""
        self._write(logging.ERROR, event, fields, traceback=True)

    def at(self, level: int, event: str, **fields: object) -> None:
        """Logs at a numeric level of native code's log (10 debug ... 40 error)."""
        self._write(max(logging.DEBUG, min(level, logging.ERROR)), event, fields)

    def _write(
        self, level: int, event: str, fields: dict[str, object], *, traceback: bool = False
    ) -> None:
        if self._logger.isEnabledFor(level):
            kept = {key: value for key, value in fields.items() if value is not None}
            extra = {"braid_fields": kept}
            self._logger.log(level, event, extra=extra, exc_info=traceback)


class RateLimit:
    """Permits one event per interval and counts those in between."""

    def __init__(self, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._next = -float("inf")
        self._suppressed = 0

    def permit(self) -> int | None:
        """How many events were suppressed since the last permitted one; None: not permitted now."""
        now = self._clock()
        if now < self._next:
            self._suppressed += 1
            return None
        self._next = now + self._interval_s
        suppressed, self._suppressed = self._suppressed, 0
        return suppressed


@contextmanager
def request(request_id: int) -> Iterator[None]:
    token = _request.set(request_id)
    try:
        yield
    finally:
        _request.reset(token)


def start_logging(level: str, *, file: str = "", stream: TextIO | None = None) -> None:
    """Sends this process's log lines to one sink, warnings of other libraries included. Raises
    ConfigError."""
    if level not in LEVELS:
        raise ConfigError(f"log level '{level}' is not one of {', '.join(LEVELS)}")
    try:
        handler: logging.Handler
        handler = RotatedFileHandler(file) if file else logging.StreamHandler(stream or sys.stderr)
    except OSError as error:
        raise ConfigError(f"cannot write the log file {file}: {error.strerror}") from error
    handler.setFormatter(LineFormatter())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger(ROOT).setLevel(LEVELS[level])


class LineFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": _timestamp(record.created),
            "level": record.levelname.lower(),
            "part": record.name.removeprefix(f"{ROOT}."),
            "event": record.getMessage(),
        }
        if request_id := _request.get():
            fields["request"] = request_id
        fields.update(getattr(record, "braid_fields", {}))
        if record.exc_info:
            fields["traceback"] = _shortened(self.formatException(record.exc_info))
        return " ".join(f"{key}={_quoted(value)}" for key, value in fields.items())


def _shortened(traceback: str) -> str:
    """A traceback that is too long loses its middle, because its end names the exception."""
    if len(traceback) <= VALUE_LENGTH_MAX:
        return traceback
    gap = "\n[...]\n"
    end = VALUE_LENGTH_MAX - _TRACEBACK_BEGIN - len(gap)
    return traceback[:_TRACEBACK_BEGIN] + gap + traceback[-end:]


class RotatedFileHandler(logging.handlers.WatchedFileHandler):
    """A log file that may be moved or removed at any time: the next line begins a new file. A full
    disk costs lines, never the program."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - of logging
        """Does nothing: nobody may read standard error, or it is full as well."""


def _timestamp(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds * 1000) % 1000:03d}Z"


def _quoted(value: object) -> str:
    """The value as one word: what a peer sent can start neither a new line nor a new key."""
    text = value.hex() if isinstance(value, bytes) else str(value)
    text = text[:VALUE_LENGTH_MAX]
    if text and text.isascii() and text.isprintable() and not any(c in ' "=\\' for c in text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{visible(escaped)}"'
