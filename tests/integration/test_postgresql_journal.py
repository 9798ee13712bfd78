"""The journal in PostgreSQL while its servers stop, are killed, hang, fill up, or are not safe."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from fscommon.errors import ConfigError
from metaserver.store.journal import (
    NONCE_SIZE,
    DamagedJournalError,
    EngineMember,
    Entry,
    FencedError,
    Head,
    Journal,
    JournalFullError,
    Member,
    UnknownOutcomeError,
    UnreachableError,
)
from metaserver.store.journals.postgresql import PostgresqlJournal
from tests.cluster.certificates import make_certificates
from tests.cluster.postgresql import USER, PostgresqlServer, new_server, started_server
from tests.cluster.process import PATIENCE, wait_until

MIB = 1 << 20


@pytest.fixture
def server() -> Iterator[PostgresqlServer]:
    with started_server() as started:
        yield started


def nonce() -> bytes:
    return os.urandom(NONCE_SIZE)


def claim(journal: Journal, owner: str = "ms1/1") -> Head:
    return journal.claim(journal.sighting(), owner)


def read_all(journal: Journal) -> list[Entry]:
    found: list[Entry] = []
    while page := journal.read(found[-1].index if found else 0):
        found += page
    return found


def url_of(*servers: PostgresqlServer) -> str:
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    return f"postgresql://{USER}@{hosts}/{USER}"


def journal_of(*servers: PostgresqlServer, timeout_s: float = 10.0) -> PostgresqlJournal:
    password = servers[0].password_file
    return PostgresqlJournal(url_of(*servers), timeout_s=timeout_s, password_file=password)


# ---- ends of the server ----------------------------------------------------------------------


@dataclass
class Appending:
    """Appends in a thread of its own, each entry until its outcome is known."""

    journal: Journal
    size_of: Callable[[int], int] = lambda _: 5000
    acknowledged: list[Entry] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        try:
            self._run()
        finally:
            self.ended.set()

    def _run(self) -> None:
        head = claim(self.journal)
        while not self.stopping.is_set():
            one, payload = nonce(), os.urandom(self.size_of(head.index))
            new = self._append(head, one, payload)
            self.acknowledged.append(Entry(new.index, new.term, one, head.nonce, payload))
            head = new

    def _append(self, head: Head, one: bytes, payload: bytes) -> Head:
        while True:
            try:
                return self.journal.append(head, one, payload)
            except UnknownOutcomeError as error:
                self.unknown.append(str(error))
                if self.stopping.is_set():
                    raise
                time.sleep(0.02)

    def wait_for_more(self, count: int = 10) -> None:
        wanted = len(self.acknowledged) + count

        def are_there() -> bool:
            return self.ended.is_set() or len(self.acknowledged) >= wanted

        assert wait_until(are_there, 30 * PATIENCE), self.unknown[-3:]


@contextlib.contextmanager
def appending(journal: Journal, size_of: Callable[[int], int] | None = None) -> Iterator[Appending]:
    work = Appending(journal, size_of) if size_of else Appending(journal)
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(work.run)
        try:
            yield work
        finally:
            work.stopping.set()
            ended.result(30 * PATIENCE)


@pytest.mark.timeout(200)
def test_no_acknowledged_entry_is_lost(server: PostgresqlServer) -> None:
    """The server stops or is killed amid appends, small ones and those of several statements."""
    ends = [server.kill, server.stop, server.kill, server.kill]
    with appending(server.journal(), lambda index: 3 * MIB if index % 3 else 500) as work:
        for end in ends:
            work.wait_for_more()
            end()
            server.start()
        work.wait_for_more()
    assert read_all(server.journal()) == work.acknowledged
    assert [entry.index for entry in work.acknowledged] == [
        number + 1 for number in range(len(work.acknowledged))
    ]
    assert len(work.unknown) >= len(ends)


def test_a_server_that_hangs(server: PostgresqlServer) -> None:
    journal = server.journal(timeout_s=1.0)
    head, one = claim(journal), nonce()
    server.signal_all(signal.SIGSTOP)
    began = time.monotonic()
    try:
        with pytest.raises(UnknownOutcomeError, match="in time"):
            journal.append(head, one, b"a")
        with pytest.raises(UnreachableError, match="in time"):
            journal.sighting()
        assert time.monotonic() - began < 2.5 * PATIENCE
    finally:
        server.signal_all(signal.SIGCONT)
    new = server.journal().append(head, one, b"a")
    assert journal.sighting().head == new
    assert [entry.nonce for entry in read_all(journal)] == [one]


def test_a_question_survives_a_restart(server: PostgresqlServer) -> None:
    journal = server.journal()
    head = claim(journal)
    server.stop()
    with pytest.raises(UnreachableError, match=f"127.0.0.1:{server.port}: .*refused"):
        journal.sighting()
    server.start()
    assert journal.sighting().head == head
    server.stop()
    server.start()
    assert journal.sighting().head == head, "its connection had ended"


# ---- standbys ----------------------------------------------------------------------------------


@pytest.fixture
def standby(server: PostgresqlServer) -> Iterator[PostgresqlServer]:
    """A synchronous standby of `server`."""
    with new_server(password=server.password) as second:
        second.follow(server)
        second.start()
        server.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
        server.sql("SELECT pg_reload_conf()")
        asked = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
        assert wait_until(lambda: server.sql(asked) == "1", 30 * PATIENCE)
        yield second


@pytest.mark.timeout(120)
def test_a_standby_takes_over(server: PostgresqlServer, standby: PostgresqlServer) -> None:
    with appending(journal_of(standby, server)) as work:
        work.wait_for_more()
        server.kill()
        with pytest.raises(UnreachableError, match="standby"):
            journal_of(standby).sighting()
        standby.promote()
        work.wait_for_more()
    assert read_all(journal_of(server, standby)) == work.acknowledged


def test_what_no_standby_has_is_not_acknowledged(
    server: PostgresqlServer, standby: PostgresqlServer
) -> None:
    """PostgreSQL acknowledges a commit whose wait for the standby was cancelled; its later reads
    show it."""
    journal = server.journal(timeout_s=2.0)
    head, one = claim(journal), nonce()
    standby.stop()
    waiting = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'"

    def cancel() -> None:
        assert wait_until(lambda: server.sql(f"SELECT count(*) {waiting}") == "1", 20)
        server.sql(f"SELECT pg_cancel_backend(pid) {waiting}")

    for _ in range(2):
        with ThreadPoolExecutor(1) as pool:
            cancelled = pool.submit(cancel)
            with pytest.raises(UnknownOutcomeError, match="standby was cancelled"):
                journal.append(head, one, b"a")
            cancelled.result()
    assert server.journal().sighting().head.index == 1
    with pytest.raises(UnknownOutcomeError, match="in time"):
        journal.append(head, one, b"a")
    standby.start()
    assert journal_of(server).append(head, one, b"a").index == 1


# ---- many at once ------------------------------------------------------------------------------


def test_many_make_the_tables_at_once(server: PostgresqlServer) -> None:
    journals = [server.journal() for _ in range(8)]
    with ThreadPoolExecutor(len(journals)) as pool:
        found = list(pool.map(lambda journal: journal.sighting().head, journals))
    assert found == [Head()] * len(journals)
    assert claim(journals[0]) == journals[-1].sighting().head


def test_serialization_failures_are_repeated(server: PostgresqlServer) -> None:
    """Of several beats at once all but one fail in a database that is serializable."""
    server.sql(f"ALTER DATABASE {USER} SET default_transaction_isolation = serializable")
    head = claim(server.journal())
    threads, each = 4, 25

    def beat(_: int) -> None:
        with contextlib.closing(server.journal(timeout_s=30.0)) as journal:
            for _ in range(each):
                journal.beat(head)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(beat, range(threads)))
    assert server.journal().sighting().beats == threads * each
    log = (server.folder / "log" / "postgresql.log").read_text()
    assert "could not serialize access" in log


# ---- servers that are not taken ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"synchronous_commit": "off"}, "synchronous_commit is off there"),
        ({"synchronous_commit": "local"}, "synchronous_commit is local there"),
        ({"fsync": "off"}, "fsync is off there"),
        ({"default_transaction_read_only": "on"}, "it is a standby, or read-only"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_server_that_is_not_safe(
    server: PostgresqlServer, settings: dict[str, str], reason: str
) -> None:
    with started_server(settings, server.password) as other:
        with pytest.raises(UnreachableError, match=reason):
            journal_of(other).sighting()
        with pytest.raises(UnknownOutcomeError, match=reason):
            journal_of(other).append(Head(), nonce(), b"")
        both = journal_of(other, server)
        assert claim(both) == server.journal().sighting().head


def test_a_server_that_becomes_read_only_is_left(server: PostgresqlServer) -> None:
    journal = server.journal()
    head = claim(journal)
    server.sql("ALTER SYSTEM SET default_transaction_read_only = on")
    server.sql("SELECT pg_reload_conf()")
    with pytest.raises(UnknownOutcomeError, match="read-only"):
        journal.append(head, nonce(), b"a")


def test_a_wrong_password(server: PostgresqlServer, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("wrong-word\n")
    journal = PostgresqlJournal(url_of(server), password_file=password)
    with pytest.raises(UnreachableError, match="password authentication failed") as told:
        journal.sighting()
    assert "wrong-word" not in str(told.value)


def test_a_password_file_of_libpq(server: PostgresqlServer, tmp_path: Path) -> None:
    passwords = tmp_path / "passwords"
    passwords.write_text(f"127.0.0.1:{server.port}:*:{USER}:{server.password}\n")
    passwords.chmod(0o600)
    journal = PostgresqlJournal(f"{url_of(server)}?passfile={passwords}")
    assert journal.sighting().head == Head()


def test_tls(server: PostgresqlServer, tmp_path: Path) -> None:
    ours = make_certificates(tmp_path / "ours")
    others = make_certificates(tmp_path / "others")
    server.use_tls(ours)
    server.stop()
    server.start()

    def journal(authority: Path) -> PostgresqlJournal:
        url = server.url(sslmode="verify-full", sslrootcert=str(authority))
        return PostgresqlJournal(url, password_file=server.password_file)

    claim(journal(ours.authority))
    assert server.sql("SELECT count(*) FROM pg_stat_ssl WHERE ssl") >= "1"
    with pytest.raises(UnreachableError, match="certificate verify failed"):
        journal(others.authority).sighting()
    ours.issue(["other.example"])
    server.use_tls(ours)
    server.stop()
    server.start()
    with pytest.raises(UnreachableError, match="does not match host name"):
        journal(ours.authority).sighting()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://u:secret@h/d", "holds a password"),
        ("postgresql://u:secret@[::1/d", "the URL of the journal"),
        ("postgresql://u@h/d?colour=red", "colour"),
        ("postgresql://u@h1,h2,h3/d?port=1,2", "2 ports for 3 hosts"),
    ],
)
def test_a_url_that_is_wrong(url: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as told:
        PostgresqlJournal(url)
    assert "secret" not in str(told.value)


def test_a_password_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        PostgresqlJournal("postgresql://u@h/d", password_file=tmp_path / "none")


# ---- what is stored ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE braidfs_entry SET payload = 'x' WHERE number = 2",
        "UPDATE braidfs_entry SET term = 9 WHERE number = 2",
        "DELETE FROM braidfs_entry WHERE number = 2",
        "DELETE FROM braidfs_entry WHERE number = 3 AND part = 1",
        "DELETE FROM braidfs_entry",
        "DELETE FROM braidfs_journal",
    ],
)
def test_damage_is_told(server: PostgresqlServer, damage: str) -> None:
    journal = server.journal()
    head = claim(journal)
    for payload in (b"a", b"b", bytes(2 * MIB)):
        head = journal.append(head, nonce(), payload)
    assert len(journal.read(0)) == 3
    server.sql(damage)
    with pytest.raises(DamagedJournalError):
        journal.read(0)


@pytest.mark.parametrize(
    "damage", ["UPDATE braidfs_journal SET nonce = 'x'", "DELETE FROM braidfs_journal"]
)
def test_nothing_is_appended_to_a_damaged_head(server: PostgresqlServer, damage: str) -> None:
    journal = server.journal()
    seen = journal.sighting()
    head = journal.claim(seen, "ms1/1")
    server.sql(damage)
    changes: list[Callable[[], object]] = [
        lambda: journal.append(head, nonce(), b"a"),
        lambda: journal.claim(seen, "ms1/1"),
    ]
    for change in changes:
        with pytest.raises(FencedError):
            change()
    with pytest.raises(DamagedJournalError):
        journal.sighting()


def test_tables_of_a_later_program(server: PostgresqlServer) -> None:
    claim(server.journal())
    server.sql("UPDATE braidfs_schema SET version = 2")
    with pytest.raises(UnreachableError, match="version 2, not 1"):
        server.journal().sighting()


def test_tables_of_a_former_program(server: PostgresqlServer) -> None:
    """They get the column that they lack, also from two programs at once, and keep their rows."""
    one = Member("ms1", "host:7000", b"l" * 16, 7, 1)
    server.journal().report(one)
    server.sql("ALTER TABLE braidfs_member DROP COLUMN kept")
    doors = [server.journal() for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda door: [*door.members()], doors)) == [[one]] * 2
    # So does the former program, which names no column.
    server.sql("INSERT INTO braidfs_member VALUES ('braidfs', 'ms2', 'host2', '', 0, 1)")
    doors[0].report(replace(one, kept="/d/store.damaged-1"))
    assert [row.kept for row in doors[1].members()] == ["/d/store.damaged-1", ""]


def test_a_trim_deletes_rows(server: PostgresqlServer) -> None:
    journal, other = server.journal(), server.journal(name="other")
    head, count = claim(journal), 600
    for _ in range(count):
        head = journal.append(head, nonce(), b"a")
    other.append(claim(other), nonce(), b"b")
    journal.trim(head, count - 1)
    stored = "SELECT journal, min(number), count(*) FROM braidfs_entry GROUP BY 1 ORDER BY 1"
    assert server.sql(stored) == f"braidfs|{count - 1}|2\nother|1|1"


@pytest.mark.mount
def test_a_full_disk(server: PostgresqlServer) -> None:
    """The tables lie on a small disk, and the server's log of changes does not."""
    place = server.folder / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(place)], check=True)
    try:
        server.give(place)
        server.sql(f"CREATE TABLESPACE small LOCATION '{place}'")
        server.sql(f"ALTER ROLE {USER} SET default_tablespace = small")
        journal = server.journal()
        head = claim(journal)
        with pytest.raises(JournalFullError, match="No space left"):
            for _ in range(20):
                head = journal.append(head, nonce(), os.urandom(MIB))
        assert journal.sighting().head == head and head.index > 0
        assert len(read_all(journal)) == head.index
        journal.beat(head)
        assert server.journal().sighting().beats == 1
    finally:
        server.stop()
        subprocess.run(["umount", str(place)], check=True)


def test_health(server: PostgresqlServer, standby: PostgresqlServer) -> None:
    claim(server.journal())
    with started_server({"fsync": "off"}, server.password) as unsafe, new_server() as absent:
        health = journal_of(server, standby, unsafe, absent).health()
    assert health.engine == "postgresql"
    first, second, third, fourth = health.members
    assert first == EngineMember(f"127.0.0.1:{server.port}", True, True, first.bytes_used)
    assert second == EngineMember(f"127.0.0.1:{standby.port}", True, False, second.bytes_used)
    assert first.bytes_used > MIB and second.bytes_used > MIB
    assert third.is_reachable and "fsync is off" in third.alarms[0]
    assert not fourth.is_reachable and "refused" in fourth.alarms[0]
