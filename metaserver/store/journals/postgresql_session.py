"""One connection to a server that speaks PostgreSQL's protocol, with an end to each wait.

psycopg's own connections wait for as long as the server keeps its socket open, which a stopped
server does too. So this module drives libpq, through psycopg's binding to it, and gives up at the
deadline. It knows three outcomes of a statement: a result; an error that the server replied
(ReplyError: the statement did not happen); and a connection that ended or timed out (LostError: it
may have happened). Only this module imports psycopg. Names of hosts are resolved by libpq, whose
wait for DNS has the bounds of resolv.conf.
"""

import re
import select
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from fscommon.errors import BraidError, ConfigError

try:
    import psycopg
    from psycopg import conninfo, pq
except ImportError as error:  # a site without a journal in PostgreSQL needs no psycopg
    _missing = str(error)
else:
    _missing = ""

Value: TypeAlias = int | str | bytes
Row: TypeAlias = Sequence[bytes | None]

SERIALIZATION_FAILURE: Final = "40001"
DEADLOCK: Final = "40P01"
READ_ONLY: Final = "25006"
DISK_FULL: Final = "53100"
UNDEFINED_TABLE: Final = "42P01"
DUPLICATES: Final = ("42P07", "42701", "42710", "23505")  # table, column, type, catalogue's row
UNIQUE_VIOLATION: Final = "23505"
_COMPLETION_UNKNOWN: Final = "40003"
_CONNECTION_ENDS: Final = (b"FATAL", b"PANIC")
# OIDs of PostgreSQL's types.
_BYTEA: Final = 17
_BIGINT: Final = 20
_TEXT: Final = 25


class LostError(BraidError):
    """The connection ended, or the server did not answer in time."""


class ReplyError(BraidError):
    """The server replied with an error; what was asked did not happen."""

    def __init__(self, sqlstate: str, message: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


@dataclass(frozen=True, slots=True)
class Result:
    rows: Sequence[Row]  # each value as in PostgreSQL's binary format
    count: int  # of rows that were found or changed
    tag: str  # the command that the server has done


def parse_url(url: str) -> dict[str, str]:
    """The words of a connection URL. Raises ConfigError, also if psycopg is missing."""
    if _missing:
        raise ConfigError(
            f"PostgreSQL needs the Python package psycopg ({_missing}): install the Debian package "
            "braidfs-postgresql, or run pip install 'braidfs-server[postgresql]'"
        )
    try:
        return {name: str(value) for name, value in conninfo.conninfo_to_dict(url).items()}
    except psycopg.Error as error:
        said = re.sub(r"://[^@/]*@", "://…@", _sentence(str(error)))  # it may quote a password
        raise ConfigError(f"the URL of the journal: {said}") from None


class Session:
    """`deadline` (of time.monotonic) is set before each call."""

    def __init__(self, words: Mapping[str, str], deadline: float) -> None:
        """Connects. Raises LostError."""
        self.deadline = deadline
        self.lacks_replica = False  # a commit was acknowledged although no standby has it
        self._connection = pq.PGconn.connect_start(conninfo.make_conninfo(**words).encode())
        try:
            self._connect()
        except BaseException:
            self.close()
            raise
        self._connection.nonblocking = 1
        self._connection.notice_handler = self._notice

    def _connect(self) -> None:
        while self._connection.status != pq.ConnStatus.BAD:
            wanted = self._connection.connect_poll()
            if wanted == pq.PollingStatus.OK:
                return
            if wanted == pq.PollingStatus.FAILED:
                break
            is_reading = wanted == pq.PollingStatus.READING
            self._wait(select.POLLIN if is_reading else select.POLLOUT)
        raise LostError(self._reason())

    def execute(self, command: str, *values: Value) -> Result:
        """Runs one statement. Raises LostError, ReplyError."""
        encoded = [_encode(value) for value in values]
        try:
            self._connection.send_query_params(
                command.encode(),
                [value for _, value in encoded],
                [oid for oid, _ in encoded],
                [pq.Format.BINARY if oid == _BYTEA else pq.Format.TEXT for oid, _ in encoded],
                pq.Format.BINARY,
            )
            self._flush()
            results = self._results()
        except psycopg.Error as error:
            raise LostError(_sentence(str(error))) from error
        if not results or self._connection.status == pq.ConnStatus.BAD:
            raise LostError(self._reason())
        # A commit comes after the result of its statement, so its error is a second result.
        for result in results:
            _check(result)
        found = results[0]
        rows = [
            [found.get_value(row, column) for column in range(found.nfields)]
            for row in range(found.ntuples)
        ]
        tag = (found.command_status or b"").decode()
        return Result(rows, found.command_tuples or 0, tag)

    def _flush(self) -> None:
        while self._connection.flush():
            if self._wait(select.POLLIN | select.POLLOUT) & select.POLLIN:
                self._connection.consume_input()

    def _results(self) -> "list[pq.abc.PGresult]":
        found: list[pq.abc.PGresult] = []
        while True:
            while self._connection.is_busy():
                self._wait(select.POLLIN)
                self._connection.consume_input()
            result = self._connection.get_result()
            if result is None:
                return found
            found.append(result)

    def _wait(self, events: int) -> int:
        poll = select.poll()
        poll.register(self._connection.socket, events)
        left = max(0.0, self.deadline - time.monotonic())
        ready = poll.poll(left * 1000)
        if not ready:
            raise LostError("it did not answer in time")
        return ready[0][1]

    def _notice(self, notice: "pq.abc.PGresult") -> None:
        # Somebody has cancelled the wait for a synchronous standby: PostgreSQL then acknowledges
        # the commit all the same, with a warning whose words depend on the server's language.
        where = notice.error_field(pq.DiagnosticField.SOURCE_FUNCTION)
        self.lacks_replica = self.lacks_replica or where == b"SyncRepWaitForLSN"

    def _reason(self) -> str:
        return _sentence(self._connection.error_message.decode(errors="replace"))

    @property
    def is_idle(self) -> bool:
        """No transaction is open, and the connection is there."""
        return bool(self._connection.transaction_status == pq.TransactionStatus.IDLE)

    def close(self) -> None:
        self._connection.finish()


def _encode(value: Value) -> tuple[int, bytes]:
    if isinstance(value, bytes):
        return _BYTEA, value
    if isinstance(value, str):
        return _TEXT, value.encode()
    return _BIGINT, b"%d" % value


def _check(result: "pq.abc.PGresult") -> None:
    if result.status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
        return
    message = _sentence(result.error_message.decode(errors="replace"))
    sqlstate = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    severity = result.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED)
    if not sqlstate or severity in _CONNECTION_ENDS or sqlstate == _COMPLETION_UNKNOWN:
        raise LostError(message)
    raise ReplyError(sqlstate, message)


def _sentence(message: str) -> str:
    return " ".join(message.split()) or "the connection ended"
