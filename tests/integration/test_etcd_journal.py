"""The journal in three real members of etcd that are killed, stopped, locked, and filled."""

import contextlib
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from metaserver.store.journal import (
    Head,
    Journal,
    JournalFullError,
    TrimmedError,
    UnknownOutcomeError,
    UnreachableError,
)
from metaserver.store.journals.etcd import EtcdJournal
from metaserver.store.journals.etcd_gateway import EtcdSettings
from tests.cluster.etcd import EtcdCertificates, EtcdCluster, make_etcd_certificates, running_etcd
from tests.cluster.process import PATIENCE, wait_until
from tests.conformance.journal_chains import Appenders, new_nonce, read_all

PREFIX = "/braidfs"
MIB = 1 << 20
TIMEOUT_S = 4.0
ELECTION_S = 10.0 * PATIENCE  # by which another member leads, and clients have found it


@pytest.fixture
def three(tmp_path: Path) -> Iterator[EtcdCluster]:
    with running_etcd(tmp_path, 3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> EtcdCertificates:
    return make_etcd_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def doors() -> Iterator[Callable[[EtcdSettings], EtcdJournal]]:
    """Opens a door; all are closed at the end."""
    with contextlib.ExitStack() as opened:
        yield lambda settings: opened.enter_context(contextlib.closing(EtcdJournal(settings)))


Doors = Callable[[EtcdSettings], EtcdJournal]


def settings_of(cluster: EtcdCluster, first: int = 0) -> EtcdSettings:
    """Settings of a door that asks this member first."""
    endpoints = cluster.endpoints[first:] + cluster.endpoints[:first]
    return EtcdSettings(endpoints, PREFIX, timeout_s=TIMEOUT_S)


def append(journal: Journal, at: Head, payload: bytes, seconds: float) -> Head:
    """Appends as a metaserver does: the same again until the outcome is known."""
    nonce = new_nonce()
    deadline = time.monotonic() + seconds
    while True:
        try:
            return journal.append(at, nonce, payload)
        except UnknownOutcomeError:
            assert time.monotonic() < deadline


def claim(journal: Journal) -> Head:
    return journal.claim(journal.sighting(), "ms1/1")


@contextlib.contextmanager
def appending(cluster: EtcdCluster, doors: Doors) -> Iterator[Appenders]:
    """Six threads append small and large entries; at the end, the whole log is checked."""

    def payload(nonce: bytes) -> bytes:
        size = 3 * MIB // 2 if nonce[0] < 16 else 20_000 if nonce[0] < 64 else 100
        return random.Random(nonce).randbytes(size)

    claim(doors(settings_of(cluster)))
    opened = [doors(settings_of(cluster, number % 3)) for number in range(6)]
    appenders = Appenders(opened, payload)
    thread = threading.Thread(target=appenders.run, args=(1 << 30,))
    thread.start()
    try:
        assert wait_until(lambda: len(appenders.acknowledged) > 20, 60 * PATIENCE)
        yield appenders
        count = len(appenders.acknowledged)
        assert wait_until(lambda: len(appenders.acknowledged) > count + 20, 60 * PATIENCE)
    finally:
        appenders.stop()
        thread.join()
    for number in range(3):  # each member alone tells the same
        only = replace(settings_of(cluster), endpoints=(cluster.endpoints[number],))
        log = read_all(doors(replace(only, timeout_s=30 * PATIENCE)))
        appenders.check(log, is_calm=False)


@pytest.mark.timeout(240)
def test_the_leader_is_killed_amid_appends(three: EtcdCluster, doors: Doors) -> None:
    with appending(three, doors) as appenders:
        for _ in range(2):
            leader = three.leader()
            leader.program.kill()
            count = len(appenders.acknowledged)
            assert wait_until(lambda: len(appenders.acknowledged) > count + 5, 60 * PATIENCE)  # noqa: B023
            three.start()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("is_leader", [True, False], ids=["leader", "follower"])
def test_a_member_is_stopped_amid_appends(
    three: EtcdCluster, doors: Doors, is_leader: bool
) -> None:
    """Its kernel still accepts connections, so only time tells."""
    with appending(three, doors) as appenders:
        leader = three.leader()
        others = [member for member in three.members if member != leader]
        victim = leader if is_leader else others[0]
        victim.program.signal(signal.SIGSTOP)
        count = len(appenders.acknowledged)
        assert wait_until(lambda: len(appenders.acknowledged) > count + 10, 60 * PATIENCE)
        victim.program.signal(signal.SIGCONT)


def test_a_stopped_member_holds_a_door_up_once(three: EtcdCluster, doors: Doors) -> None:
    leader = three.leader()
    follower = next(number for number in range(3) if three.members[number] != leader)
    journal = doors(settings_of(three, follower))
    head = claim(journal)
    three.members[follower].program.signal(signal.SIGSTOP)
    began = time.monotonic()
    head = append(journal, head, b"a", TIMEOUT_S)
    assert time.monotonic() - began < TIMEOUT_S
    began = time.monotonic()
    for _ in range(10):
        journal.beat(head)
    assert time.monotonic() - began < TIMEOUT_S / 2 - 0.5


def test_everything_is_killed_and_started_again(three: EtcdCluster, doors: Doors) -> None:
    journal = doors(settings_of(three))
    head = claim(journal)
    payloads = [random.Random(size).randbytes(size) for size in (0, 30_000, 2 * MIB, 9)]
    for payload in payloads:
        head = append(journal, head, payload, ELECTION_S)
    for member in three.members:
        member.program.kill()
    began = time.monotonic()
    with pytest.raises(UnreachableError):
        journal.sighting()
    nonce = new_nonce()
    with pytest.raises(UnknownOutcomeError):
        journal.append(head, nonce, b"z")
    assert time.monotonic() - began < 2 * TIMEOUT_S + PATIENCE
    three.start()
    assert journal.sighting().head == head
    assert journal.append(head, nonce, b"z").index == 5
    assert [entry.payload for entry in read_all(journal)] == [*payloads, b"z"]


def test_without_a_majority_nothing_is_promised(three: EtcdCluster, doors: Doors) -> None:
    journal = doors(settings_of(three))
    head = claim(journal)
    for member in three.members[:2]:
        member.program.kill()
    nonce = new_nonce()
    with pytest.raises(UnreachableError):
        journal.sighting()
    for _ in range(2):
        with pytest.raises(UnknownOutcomeError):
            journal.append(head, nonce, b"a")
    three.members[0].program.start(ready=False)
    deadline = time.monotonic() + ELECTION_S
    while True:
        with contextlib.suppress(UnknownOutcomeError):
            new = journal.append(head, nonce, b"a")
            break
        assert time.monotonic() < deadline
    assert [entry.nonce for entry in read_all(journal)] == [new.nonce]


def test_tls_with_certificates_of_clients(
    tmp_path: Path, certificates: EtcdCertificates, doors: Doors
) -> None:
    """Whoever has no certificate, or trusts another authority, is refused."""
    with running_etcd(tmp_path, 3, certificates=certificates) as cluster:
        plain = settings_of(cluster)
        good = replace(
            plain,
            is_tls=True,
            authority=certificates.authority,
            certificate=certificates.certificate,
            key=certificates.key,
        )
        journal = doors(good)
        head = append(journal, claim(journal), bytes(3 * MIB), ELECTION_S)
        assert doors(good).sighting().head == head
        other = make_etcd_certificates(tmp_path / "other")
        refused = "certificate|authority|EOF|reset|Broken pipe"
        for bad, words in {
            replace(good, certificate=None, key=None): refused,
            replace(good, authority=other.authority): "verify failed",
            replace(good, certificate=other.certificate, key=other.key): refused,
            replace(good, authority=tmp_path / "none"): "No such file",
            replace(plain, timeout_s=1.0): "HTTP status 400|closed connection",
        }.items():
            with pytest.raises(UnreachableError, match=words):
                doors(replace(bad, timeout_s=1.0)).sighting()
        assert all(member.is_reachable for member in journal.health().members)


def test_a_certificate_that_is_replaced_is_used(
    tmp_path: Path, certificates: EtcdCertificates, doors: Doors
) -> None:
    """A connection that fails is made anew with the files of that moment."""
    mine = make_etcd_certificates(tmp_path / "mine")
    with running_etcd(tmp_path, 1, certificates=certificates) as cluster:
        journal = doors(
            replace(
                settings_of(cluster),
                is_tls=True,
                authority=certificates.authority,
                certificate=mine.certificate,
                key=mine.key,
            )
        )
        with pytest.raises(UnreachableError):
            journal.sighting()
        shutil.copy(certificates.certificate, mine.certificate)
        shutil.copy(certificates.key, mine.key)
        assert claim(journal).term == 1


def test_users_and_passwords(tmp_path: Path, certificates: EtcdCertificates, doors: Doors) -> None:
    secret = tmp_path / "password"
    secret.write_text("open sésame\n")
    with running_etcd(tmp_path, 3, certificates=certificates) as cluster:
        cluster.require_users("braid", "open sésame", PREFIX)
        good = replace(
            settings_of(cluster),
            is_tls=True,
            authority=certificates.authority,
            certificate=certificates.certificate,
            key=certificates.key,
            user="braid",
            password_file=secret,
        )
        journal = doors(good)
        head = append(journal, claim(journal), bytes(2 * MIB), ELECTION_S)
        journal.beat(head)
        with pytest.raises(UnreachableError, match="permission denied"):
            doors(replace(good, prefix="/other")).sighting()
        with pytest.raises(UnreachableError, match=r"permission denied|user name is empty"):
            doors(replace(good, user="", password_file=None, timeout_s=1.0)).sighting()
        wrong = tmp_path / "wrong"
        wrong.write_text("open barley")
        with pytest.raises(UnreachableError, match="authentication failed"):
            doors(replace(good, password_file=wrong)).sighting()
        for member in cluster.members:  # tokens are in their memory
            member.program.stop()
        cluster.start()
        head = append(journal, head, b"b", ELECTION_S)
        journal.trim(head, 2)
        with pytest.raises(TrimmedError):
            journal.read(0)


def _filled(journal: EtcdJournal, head: Head) -> Head:
    """Appends until etcd is full."""
    with pytest.raises(JournalFullError, match="no room"):
        for number in range(100):
            head = append(journal, head, random.Random(number).randbytes(MIB), 60 * PATIENCE)
    return head


@pytest.mark.timeout(240)
def test_a_full_etcd_takes_no_more_until_it_has_been_trimmed(tmp_path: Path, doors: Doors) -> None:
    """Questions are answered, and trim works; then an administrator makes room."""
    with running_etcd(tmp_path, 3, quota=32 * MIB) as cluster:
        settings = replace(settings_of(cluster), timeout_s=20 * PATIENCE)
        journal = doors(settings)
        head = claim(journal)
        head = _filled(journal, head)
        assert 5 < head.index < 40
        assert journal.sighting().head == head
        for change in (
            lambda: journal.append(head, new_nonce(), b"a"),
            lambda: journal.beat(head),
            lambda: journal.claim(journal.sighting(), "ms2/1"),
        ):
            with pytest.raises(JournalFullError):
                change()
        health = journal.health().members
        assert any("NOSPACE" in alarm for member in health for alarm in member.alarms)
        assert {member.bytes_max for member in health} == {32 * MIB}
        journal.trim(head, head.index)  # also compacts
        for endpoint in cluster.endpoints:
            cluster.control("defrag", endpoints=(endpoint,))
        cluster.control("alarm", "disarm")
        new = append(journal, head, b"again", 30 * PATIENCE)
        assert [entry.index for entry in read_all(journal, head.index - 1)] == [
            head.index,
            new.index,
        ]
        assert not any(member.alarms for member in journal.health().members)
        assert max(member.bytes_used for member in journal.health().members) < 16 * MIB


@pytest.mark.timeout(240)
def test_a_full_etcd_recovers_by_the_care_of_the_active(tmp_path: Path, doors: Doors) -> None:
    """Its alarm is said; room is made in one member after the other. (test_etcd_care.py tests in
    which order: another one may lead at any time.)"""
    with running_etcd(tmp_path, 3, quota=32 * MIB) as cluster:
        settings = replace(settings_of(cluster), timeout_s=20 * PATIENCE)
        journal = doors(settings)
        head = claim(journal)
        head = _filled(journal, head)
        newest = read_all(journal, head.index - 1)
        caring = doors(settings)
        before = [said for _ in range(4) for said in caring.care(head)]
        assert not any("is ended" in said for said in before), "there is no room"
        assert any("NOSPACE" in alarm for one in journal.health().members for alarm in one.alarms)
        journal.trim(head, head.index)
        done: list[str] = []
        deadline = time.monotonic() + 60 * PATIENCE
        while not (done and "its alarm NOSPACE is ended" in done[-1]):
            done += caring.care(head)
            assert time.monotonic() < deadline, done
            time.sleep(0.1)
        assert len(done) > 1, "members were defragmented before"
        assert not any(one.alarms for one in journal.health().members)
        journal.beat(head)
        new = append(journal, head, b"again", 30 * PATIENCE)
        assert read_all(journal, head.index - 1)[:1] == newest
        assert read_all(journal, head.index)[0].nonce == new.nonce
        assert caring.care(head) == []


def test_health(three: EtcdCluster, doors: Doors) -> None:
    journal = doors(settings_of(three))
    claim(journal)
    health = journal.health()
    assert (health.engine, len(health.members)) == ("etcd", 3)
    assert all(member.is_reachable and not member.alarms for member in health.members)
    assert [one.endpoint for one in health.members if one.is_leader] == [three.leader().endpoint]
    assert all(member.bytes_used > 0 for member in health.members)
    assert {member.bytes_max for member in health.members} == {2 << 30}, "etcd's default"
    three.leader().program.kill()
    began = time.monotonic()
    dead = [member for member in journal.health().members if not member.is_reachable]
    assert time.monotonic() - began < TIMEOUT_S + PATIENCE
    assert len(dead) == 1 and "refused" in dead[0].alarms[0]
