"""A journal in PostgreSQL, or in a distributed database that speaks its protocol.

Four tables hold it, which the first connection makes. The row of a journal in braidfs_journal is
its head: each change is an UPDATE whose WHERE compares all that the change depends on, so the count
of rows says whether it happened. An append moves the head and inserts the entry in one statement,
which is a transaction by itself; only the further parts of a large entry need more statements. No
statement uses what CockroachDB or YugabyteDB lack.

An acknowledged commit must be durable. So a server with synchronous_commit or fsync off is not
used, nor a standby: reads there are old. After an unknown outcome the head alone does not say that
a synchronous standby has the entry, because a primary that was killed shows after its restart what
it had not yet replicated. So `_confirm` writes the row once more: that commit waits for all before
it.

The URL is one of libpq: postgresql://user@host1:5432,host2:5432/database?sslmode=verify-full. It
holds no password, which is in a file (the parameter, passfile=FILE, or ~/.pgpass). Connections go
to the servers themselves or through a proxy that keeps sessions.
"""

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from fscommon.checksum import xxh3_64_bytes
from fscommon.errors import ConfigError
from metaserver.store.journal import (
    NO_NONCE,
    NONCE_SIZE,
    PAYLOAD_MAX,
    READ_BYTES_MAX,
    DamagedJournalError,
    EngineHealth,
    EngineMember,
    Entry,
    FencedError,
    Head,
    JournalFullError,
    Member,
    Sighting,
    TrimmedError,
    UnknownOutcomeError,
    UnreachableError,
    claimed,
)
from metaserver.store.journals import postgresql_session as sessions
from metaserver.store.journals.postgresql_session import LostError, ReplyError, Row, Session

ENGINE: Final = "postgresql"
SCHEMA_VERSION: Final = 1
PART_SIZE: Final = 1 << 20  # bytes of payload in one row
_READ_ENTRIES_MAX: Final = 1024
_TRIM_ENTRIES: Final = 256  # that one statement deletes
_LOG_SIZE: Final = 16
_RETRY_PAUSE_S: Final = 0.005
_STANDBY: Final = "it is a standby, or read-only"
_PLACES: Final = ("host", "hostaddr", "port")  # words of a URL that have a value for each server
_MAY_SUCCEED: Final = (sessions.SERIALIZATION_FAILURE, sessions.DEADLOCK, sessions.READ_ONLY)
_DURABLE_COMMITS: Final = ("on", "remote_apply")

_TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS braidfs_journal (name text PRIMARY KEY, log bytea NOT NULL, "
    "term bigint NOT NULL, newest bigint NOT NULL, nonce bytea NOT NULL, owner text NOT NULL, "
    "beats bigint NOT NULL, oldest bigint NOT NULL)",
    "CREATE TABLE IF NOT EXISTS braidfs_entry (journal text, number bigint, part bigint, "
    "term bigint NOT NULL, nonce bytea NOT NULL, previous bytea NOT NULL, size bigint NOT NULL, "
    "checksum bytea NOT NULL, payload bytea NOT NULL, PRIMARY KEY (journal, number, part))",
    "CREATE TABLE IF NOT EXISTS braidfs_member (journal text, name text, address text NOT NULL, "
    "log bytea NOT NULL, applied bigint NOT NULL, reports bigint NOT NULL, "
    "kept text NOT NULL DEFAULT '', PRIMARY KEY (journal, name))",
    "CREATE TABLE IF NOT EXISTS braidfs_schema (version bigint PRIMARY KEY)",
    f"INSERT INTO braidfs_schema VALUES ({SCHEMA_VERSION}) ON CONFLICT DO NOTHING",
)
_ADD_JOURNAL: Final = (
    "INSERT INTO braidfs_journal VALUES ($1, ''::bytea, 0, 0, $2, '', 0, 1) ON CONFLICT DO NOTHING"
)
# Tables of a former release lack it, and that release does not mind it.
_ADD_KEPT: Final = "ALTER TABLE braidfs_member ADD COLUMN kept text NOT NULL DEFAULT ''"
_SCHEMA: Final = (
    "SELECT max(version), (SELECT count(*) FROM braidfs_journal WHERE name = $1), "
    "(SELECT count(*) FROM information_schema.columns WHERE table_schema = current_schema() "
    "AND table_name = 'braidfs_member' AND column_name = 'kept') FROM braidfs_schema"
)
# CockroachDB has no setting fsync: `true` asks for NULL then.
_SERVER: Final = (
    "SELECT CASE WHEN pg_is_in_recovery() THEN 'on' ELSE "
    "current_setting('transaction_read_only') END, current_setting('synchronous_commit'), "
    "current_setting('fsync', true), set_config('statement_timeout', $1, false), "
    "set_config('idle_in_transaction_session_timeout', $1, false)"
)
_HEAD: Final = "SELECT log, term, newest, nonce, owner, beats FROM braidfs_journal WHERE name = $1"
_IS_HEAD: Final = (
    "WHERE name = $1 AND log = $2 AND term = $3 AND newest = $4 AND nonce = $5 AND owner = $6"
)
_IS_TERM: Final = "WHERE name = $1 AND log = $2 AND term = $3 AND owner = $4"
_CLAIM: Final = (
    f"UPDATE braidfs_journal SET log = $8, term = $10, owner = $9, beats = 0 {_IS_HEAD} "
    "AND beats = $7"
)
_CONFIRM: Final = f"UPDATE braidfs_journal SET beats = beats {_IS_HEAD}"
_BEAT: Final = f"UPDATE braidfs_journal SET beats = beats + 1 {_IS_TERM}"
_APPEND: Final = (
    f"WITH moved AS (UPDATE braidfs_journal SET newest = $4 + 1, nonce = $7 {_IS_HEAD} "
    "RETURNING name) INSERT INTO braidfs_entry SELECT name, $4 + 1, 0, $3, $7, $5, $8, $9, $10 "
    "FROM moved"
)
_APPEND_PART: Final = "INSERT INTO braidfs_entry VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)"
# One statement sees one moment: so a trim beside it is seen whole or not at all.
_EXTENT: Final = (
    "SELECT oldest, newest, number, size FROM braidfs_journal LEFT JOIN braidfs_entry "
    "ON journal = name AND part = 0 AND number > $2 AND number <= $3 WHERE name = $1 "
    "ORDER BY number"
)
_READ: Final = (
    "SELECT number, part, term, nonce, previous, size, checksum, payload FROM braidfs_entry "
    "WHERE journal = $1 AND number > $2 AND number <= $3 ORDER BY number, part"
)
_TRIM: Final = (
    f"UPDATE braidfs_journal SET oldest = GREATEST(oldest, LEAST($5, newest)) {_IS_TERM} "
    "RETURNING oldest"
)
_OLDEST_STORED: Final = "SELECT min(number) FROM braidfs_entry WHERE journal = $1"
_DELETE: Final = "DELETE FROM braidfs_entry WHERE journal = $1 AND number < $2"
_REPORT: Final = (
    "INSERT INTO braidfs_member VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (journal, name) DO "
    "UPDATE SET address = excluded.address, log = excluded.log, applied = excluded.applied, "
    "reports = excluded.reports, kept = excluded.kept"
)
_MEMBERS: Final = (
    "SELECT name, address, log, applied, reports, kept FROM braidfs_member WHERE journal = $1"
)
_FORGET: Final = "DELETE FROM braidfs_member WHERE journal = $1 AND name = $2"
_SIZE: Final = "SELECT pg_database_size(current_database())"

_Result = TypeVar("_Result")
_Words: TypeAlias = dict[str, str]  # of one connection


class PostgresqlJournal:
    def __init__(
        self,
        url: str,
        *,
        name: str = "braidfs",
        timeout_s: float = 5.0,
        password_file: Path | None = None,
    ) -> None:
        """Connects at the first call. name: of the journal, several can share a database. Raises
        ConfigError."""
        self._endpoints = _endpoints(url, password_file, timeout_s)
        self._name = name
        self._timeout_s = timeout_s
        self._session: Session | None = None
        self._next = 0  # the endpoint with which the next attempt to connect begins

    # ---- the journal ---------------------------------------------------------------------------

    def sighting(self) -> Sighting:
        return self._ask("sighting", self._sighting)

    def claim(self, seen: Sighting, owner: str, term: int = 0) -> Head:
        new = claimed(seen.head, owner, term)
        if not new.log:
            new = replace(new, log=uuid.uuid4().bytes)

        def change(session: Session) -> Head:
            old = self._words(seen.head)
            if session.execute(_CLAIM, *old, seen.beats, new.log, owner, new.term).count:
                return new
            now = self._sighting(session).head
            # An earlier attempt for a journal without a log has made another log.
            return self._confirmed(session, new if seen.head.log else replace(new, log=now.log))

        return self._change("claim", change)

    def append(self, at: Head, nonce: bytes, payload: bytes) -> Head:
        if len(payload) > PAYLOAD_MAX or len(nonce) != NONCE_SIZE:
            raise ValueError("an entry of this size does not fit into a journal")
        new = replace(at, index=at.index + 1, nonce=nonce)

        def appended(session: Session) -> Head:
            entry = Entry(new.index, at.term, nonce, at.nonce, payload)
            if self._append(session, at, entry):
                return new
            return self._confirmed(session, new)

        return self._change("append", appended)

    def beat(self, head: Head) -> None:
        def beaten(session: Session) -> None:
            if not session.execute(_BEAT, *self._term_words(head)).count:
                raise self._fenced(session, head)

        self._change("beat", beaten)

    def read(self, after: int) -> Sequence[Entry]:
        return self._ask("read", lambda session: self._read(session, after))

    def report(self, member: Member) -> None:
        words = (member.name, member.address, member.log, member.applied, member.reports)

        def reported(session: Session) -> None:
            try:
                session.execute(_REPORT, self._name, *words, member.kept)
            except ReplyError as error:
                raise _full(error) or error from error

        self._ask("report", reported)

    def members(self) -> Sequence[Member]:
        found = self._ask("members", lambda session: session.execute(_MEMBERS, self._name)).rows
        members = [
            Member(
                _text(name),
                _text(address),
                log or b"",
                _integer(applied),
                _integer(reports),
                _text(kept),
            )
            for name, address, log, applied, reports, kept in found
        ]
        return sorted(members, key=lambda member: member.name)

    def forget(self, name: str) -> None:
        self._ask("forget", lambda session: session.execute(_FORGET, self._name, name))

    def trim(self, head: Head, below: int) -> None:
        def trimmed(session: Session) -> None:
            found = session.execute(_TRIM, *self._term_words(head), below).rows
            if not found:
                raise self._fenced(session, head)
            self._delete(session, _integer(found[0][0]))

        self._ask("trim", trimmed)

    def close(self) -> None:
        self._drop()

    def health(self) -> EngineHealth:
        """Asks each server of the URL for itself, all within the time of one call."""
        deadline = time.monotonic() + self._timeout_s
        servers = self._in_turn(deadline)
        return EngineHealth(ENGINE, tuple(self._health_of(*server) for server in servers))

    # ---- statements ----------------------------------------------------------------------------

    def _words(self, head: Head) -> tuple[str, bytes, int, int, bytes, str]:
        return self._name, head.log, head.term, head.index, head.nonce, head.owner

    def _term_words(self, head: Head) -> tuple[str, bytes, int, str]:
        return self._name, head.log, head.term, head.owner

    def _sighting(self, session: Session) -> Sighting:
        found = session.execute(_HEAD, self._name).rows
        if len(found) != 1:
            raise DamagedJournalError(f"PostgreSQL has no head of the journal {self._name}")
        log, term, index, nonce, owner, beats = found[0]
        head = Head(log or b"", _integer(term), _integer(index), nonce or b"", _text(owner))
        if len(head.log) not in (0, _LOG_SIZE) or len(head.nonce) != NONCE_SIZE:
            raise DamagedJournalError(f"PostgreSQL has a damaged head: {head}")
        return Sighting(head, _integer(beats))

    def _fenced(self, session: Session, wanted: Head) -> FencedError:
        return FencedError(f"the journal is at {self._sighting(session).head}, not at {wanted}")

    def _confirmed(self, session: Session, new: Head) -> Head:
        """Returns `new` if an earlier attempt has made it the head. Raises FencedError."""
        if session.execute(_CONFIRM, *self._words(new)).count:
            return new
        raise self._fenced(session, new)

    def _append(self, session: Session, at: Head, entry: Entry) -> bool:
        """Whether the head was `at`; otherwise nothing is changed."""
        size = len(entry.payload)
        parts = [entry.payload[start : start + PART_SIZE] for start in range(0, size, PART_SIZE)]
        seal = (size, _checksum(entry))
        first = (*self._words(at), entry.nonce, *seal, parts[0] if parts else b"")
        if len(parts) < 2:
            return session.execute(_APPEND, *first).count == 1
        session.execute("BEGIN")
        names = (entry.term, entry.nonce, entry.previous)
        try:
            # The head comes last, so that its row is locked for a moment only.
            for part, payload in enumerate(parts[1:], 1):
                place = (self._name, entry.index, part)
                session.execute(_APPEND_PART, *place, *names, *seal, payload)
            is_moved = session.execute(_APPEND, *first).count == 1
        except ReplyError as error:
            session.execute("ROLLBACK")
            if error.sqlstate != sessions.UNIQUE_VIOLATION:
                raise
            return False  # the log has an entry there, so the head is not `at` any more
        if not is_moved:
            session.execute("ROLLBACK")
        elif session.execute("COMMIT").tag != "COMMIT":
            raise LostError("it did not commit")
        return is_moved

    def _read(self, session: Session, after: int) -> list[Entry]:
        last = self._last_to_read(session, after)
        if last == after:
            return []
        rows = session.execute(_READ, self._name, after, last).rows
        entries = list(_entries(rows))
        if [entry.index for entry in entries] != list(range(after + 1, last + 1)):
            self._last_to_read(session, after)  # perhaps a trim came between
            raise DamagedJournalError(f"PostgreSQL lacks entries in {after + 1}..{last}")
        return entries

    def _last_to_read(self, session: Session, after: int) -> int:
        """The index of the last entry that `read` returns, `after` if there is none."""
        extent = session.execute(_EXTENT, self._name, after, after + _READ_ENTRIES_MAX).rows
        if not extent:
            raise DamagedJournalError(f"PostgreSQL has no head of the journal {self._name}")
        oldest, newest = (_integer(value) for value in extent[0][:2])
        if after + 1 < oldest:
            raise TrimmedError(f"the journal begins with entry {oldest}")
        if after >= newest:
            return after
        last, total = after, 0
        for _, _, number, size in extent:
            if number is None or _integer(number) != last + 1:
                raise DamagedJournalError(f"PostgreSQL lacks the entry {last + 1}")
            total += _integer(size)
            if last > after and total > READ_BYTES_MAX:
                break
            last += 1
        return last

    def _delete(self, session: Session, oldest: int) -> None:
        """Deletes the entries below the oldest one, a few at once: each statement must end in
        time."""
        while True:
            stored = session.execute(_OLDEST_STORED, self._name).rows[0][0]
            if stored is None or _integer(stored) >= oldest:
                return
            below = min(oldest, _integer(stored) + _TRIM_ENTRIES)
            session.execute(_DELETE, self._name, below)

    # ---- connections ---------------------------------------------------------------------------

    def _ask(self, what: str, call: Callable[[Session], _Result]) -> _Result:
        """What may be done twice: if a connection has ended, it is tried once on a new one."""
        deadline = time.monotonic() + self._timeout_s
        had_session = self._session is not None
        try:
            try:
                return self._attempt(call, deadline)
            except LostError:
                if not had_session:
                    raise
                return self._attempt(call, deadline)
        except (LostError, ReplyError) as error:
            raise UnreachableError(f"PostgreSQL did not answer {what}: {error}") from error

    def _change(self, what: str, call: Callable[[Session], _Result]) -> _Result:
        try:
            return self._attempt(call, time.monotonic() + self._timeout_s)
        except DamagedJournalError as error:  # so the head is not as the caller has seen it
            raise FencedError(str(error)) from error
        except ReplyError as error:
            unknown = UnknownOutcomeError(f"PostgreSQL refused {what}: {error}")
            raise _full(error) or unknown from error
        except LostError as error:
            raise UnknownOutcomeError(f"PostgreSQL did not answer {what}: {error}") from error

    def _attempt(self, call: Callable[[Session], _Result], deadline: float) -> _Result:
        """Raises LostError, ReplyError. Repeats what has certainly not happened and may succeed."""
        while True:
            session = self._connected(deadline)
            session.lacks_replica = False
            try:
                found = call(session)
                if session.lacks_replica:
                    raise LostError("the wait for its standby was cancelled")
                return found
            except LostError:
                self._drop()
                raise
            except ReplyError as error:
                if not session.is_idle or error.sqlstate == sessions.READ_ONLY:
                    self._drop()
                if error.sqlstate not in _MAY_SUCCEED or time.monotonic() > deadline:
                    raise
                threading.Event().wait(_RETRY_PAUSE_S)

    def _drop(self) -> None:
        """Ends the session. The next one is tried with the next server first: this one may hang."""
        if self._session is not None:
            self._session.close()
            self._session = None
            self._next = (self._next + 1) % len(self._endpoints)

    def _connected(self, deadline: float) -> Session:
        """The session, or a new one to the first server that may be used. Raises LostError."""
        if self._session is not None:
            self._session.deadline = deadline
            return self._session
        failures = []
        first = self._next
        for offset, (words, until) in enumerate(self._in_turn(deadline, first)):
            self._next = (first + offset) % len(self._endpoints)
            try:
                self._session = self._open(words, until)
            except (LostError, ReplyError) as error:
                failures.append(f"{_endpoint(words)}: {error}")
                continue
            self._session.deadline = deadline
            return self._session
        self._next = (first + 1) % len(self._endpoints)
        raise LostError("; ".join(failures))

    def _in_turn(self, deadline: float, first: int = 0) -> Iterator[tuple[_Words, float]]:
        """The servers, and until when to try each: none of them may take the time of all."""
        for left in range(len(self._endpoints), 0, -1):
            now = time.monotonic()
            words = self._endpoints[(first - left) % len(self._endpoints)]
            yield words, now + max(0.0, deadline - now) / left

    def _open(self, words: _Words, deadline: float) -> Session:
        """Raises LostError, ReplyError."""
        session = Session(words, deadline)
        try:
            refusal = self._refusal(session)
            if refusal:
                raise LostError(refusal)
            self._find_tables(session)
        except BaseException:
            session.close()
            raise
        return session

    def _refusal(self, session: Session) -> str:
        """Prepares a new session. Returns why its server may not be used, empty if it may."""
        limit = str(int(self._timeout_s * 1000))
        read_only, commit, sync = map(_text, session.execute(_SERVER, limit).rows[0][:3])
        if read_only == "on":
            return _STANDBY
        if commit not in _DURABLE_COMMITS:
            return f"synchronous_commit is {commit} there, so it may lose what it acknowledged"
        if sync == "off":
            return "fsync is off there, so it may lose what it acknowledged"
        return ""

    def _find_tables(self, session: Session) -> None:
        try:
            version, journals, has_kept = session.execute(_SCHEMA, self._name).rows[0]
        except ReplyError as error:
            if error.sqlstate != sessions.UNDEFINED_TABLE:
                raise
            version = journals = has_kept = None
        if version is None:
            for statement in _TABLES:
                _make(session, statement)
        elif _integer(version) != SCHEMA_VERSION:
            raise LostError(f"its tables have version {_integer(version)}, not {SCHEMA_VERSION}")
        elif not _integer(has_kept):
            _make(session, _ADD_KEPT)
        if not _integer(journals):
            session.execute(_ADD_JOURNAL, self._name, NO_NONCE)

    def _health_of(self, words: _Words, deadline: float) -> EngineMember:
        endpoint = _endpoint(words)
        try:
            session = Session(words, deadline)
        except LostError as error:
            return EngineMember(endpoint, False, alarms=(str(error),))
        try:
            refusal = self._refusal(session)
            used = _size_of_database(session)
        except (LostError, ReplyError) as error:
            return EngineMember(endpoint, False, alarms=(str(error),))
        finally:
            session.close()
        is_standby = refusal == _STANDBY
        alarms = (refusal,) if refusal and not is_standby else ()
        return EngineMember(endpoint, True, not is_standby, used, alarms=alarms)


def _endpoints(url: str, password_file: Path | None, timeout_s: float) -> list[_Words]:
    """The words of one connection for each server of the URL. Raises ConfigError."""
    words = sessions.parse_url(url)
    if "password" in words:
        raise ConfigError("the URL of the journal holds a password: put it into a file of its own")
    if password_file is not None:
        try:
            words["password"] = password_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the password of the journal: {error}") from error
    defaults = {
        "application_name": "braidfs-metaserver",
        "client_encoding": "UTF8",
        "tcp_user_timeout": str(int(timeout_s * 1000)),
    }
    places = {name: words.pop(name).split(",") for name in _PLACES if name in words}
    count = max(map(len, places.values()), default=1)
    for name, values in places.items():
        if len(values) not in (1, count):
            raise ConfigError(f"the URL of the journal has {len(values)} {name}s for {count} hosts")
    found = []
    for number in range(count):
        place = {name: values[number % len(values)] for name, values in places.items()}
        found.append(defaults | words | {name: value for name, value in place.items() if value})
    return found


def _endpoint(words: _Words) -> str:
    host = words.get("host") or words.get("hostaddr") or "localhost"
    return f"{host}:{words.get('port', '5432')}"


def _size_of_database(session: Session) -> int:
    try:
        return _integer(session.execute(_SIZE).rows[0][0])
    except ReplyError:  # not every database that speaks the protocol can tell
        return 0


def _full(error: ReplyError) -> JournalFullError | None:
    is_full = error.sqlstate == sessions.DISK_FULL
    return JournalFullError(f"PostgreSQL has no room: {error}") if is_full else None


def _make(session: Session, statement: str) -> None:
    try:
        session.execute(statement)
    except ReplyError as error:
        # Another metaserver makes the tables at the same moment, and was first.
        if error.sqlstate not in sessions.DUPLICATES:
            raise


def _checksum(entry: Entry) -> bytes:
    words = b"%d %d " % (entry.index, entry.term)
    return xxh3_64_bytes(words + entry.nonce + entry.previous + entry.payload)


def _entries(rows: Sequence[Row]) -> Iterator[Entry]:
    """Joins the parts of each entry. Raises DamagedJournalError."""
    for number, parts in groupby(rows, key=lambda row: _integer(row[0])):
        kept = list(parts)
        _, _, term, nonce, previous, size, checksum, _ = kept[0]
        payload = b"".join(part[-1] or b"" for part in kept)
        entry = Entry(number, _integer(term), nonce or b"", previous or b"", payload)
        if len(payload) != _integer(size) or _checksum(entry) != checksum:
            raise DamagedJournalError(f"PostgreSQL has entry {number} damaged")
        yield entry


def _integer(value: bytes | None) -> int:
    return int.from_bytes(value or b"", "big", signed=True)


def _text(value: bytes | None) -> str:
    return (value or b"").decode(errors="replace")
