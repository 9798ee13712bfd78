"""The conformance suite of the Journal waist, run against every engine of ENGINES.

An engine is one entry there: it starts what it needs in a folder and gives `Engine`, which makes
fresh logs and opens doors to them. An engine starts once for the whole module; each test has a log
of its own.
"""

import contextlib
import functools
import itertools
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from metaserver.store.journal import (
    NO_NONCE,
    NONCE_SIZE,
    PAYLOAD_MAX,
    READ_BYTES_MAX,
    Entry,
    FencedError,
    Head,
    Journal,
    JournalError,
    Member,
    Sighting,
    TrimmedError,
    UnknownOutcomeError,
    UnreachableError,
)
from metaserver.store.journals.etcd import EtcdJournal
from metaserver.store.journals.etcd_gateway import EtcdSettings
from metaserver.store.journals.memory import Fault, MemoryJournal, MemoryLog
from metaserver.store.journals.postgresql import PostgresqlJournal
from tests.cluster.etcd import running_etcd
from tests.cluster.plan import HOST
from tests.cluster.postgresql import started_server
from tests.cluster.process import PATIENCE

from .journal_chains import Appenders, new_nonce, read_all

SILENT_TIMEOUT_S = 1.0
TIMEOUT_SLACK_S = 1.5 * PATIENCE
MIB = 1 << 20

Open = Callable[[], Journal]


@dataclass(frozen=True, slots=True)
class Engine:
    """new_log: makes an empty log, and returns what opens a door to it. silent: opens a door to an
    engine that never answers; its calls end after SILENT_TIMEOUT_S."""

    new_log: Callable[[], Open]
    silent: Open


@contextlib.contextmanager
def memory_engine(_: Path) -> Iterator[Engine]:
    yield Engine(
        new_log=lambda: functools.partial(MemoryJournal, MemoryLog()),
        silent=lambda: MemoryJournal(MemoryLog(), lambda _: Fault.LOST),
    )


@contextlib.contextmanager
def postgresql_engine(_: Path) -> Iterator[Engine]:
    names = (f"log{number}" for number in itertools.count())
    with started_server() as server, socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        yield Engine(
            new_log=lambda: functools.partial(server.journal, name=next(names)),
            silent=lambda: PostgresqlJournal(
                f"postgresql://postgres@127.0.0.1:{port}/postgres", timeout_s=SILENT_TIMEOUT_S
            ),
        )


@contextlib.contextmanager
def etcd_engine(folder: Path) -> Iterator[Engine]:
    numbers = itertools.count()
    with (
        running_etcd(folder) as cluster,
        contextlib.closing(socket.create_server((HOST, 0))) as deaf,
    ):

        def new_log() -> Open:
            settings = EtcdSettings(cluster.endpoints, f"/log-{next(numbers)}", timeout_s=60)
            return functools.partial(EtcdJournal, settings)

        address = f"{HOST}:{deaf.getsockname()[1]}"  # its connections are never accepted
        silent = EtcdSettings((address, address), "/log", timeout_s=SILENT_TIMEOUT_S)
        yield Engine(new_log, functools.partial(EtcdJournal, silent))


ENGINES: dict[str, Callable[[Path], AbstractContextManager[Engine]]] = {
    "memory": memory_engine,
    "postgresql": postgresql_engine,
    "etcd": etcd_engine,
}


@pytest.fixture(scope="module", params=list(ENGINES))
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    with ENGINES[request.param](tmp_path_factory.mktemp(request.param)) as started:
        yield started


@pytest.fixture
def open_door(engine: Engine) -> Iterator[Open]:
    """Opens a door to the one log of the test; all doors are closed at its end."""
    open_one = engine.new_log()
    with contextlib.ExitStack() as opened:

        def door() -> Journal:
            return opened.enter_context(contextlib.closing(open_one()))

        yield door


@pytest.fixture
def journal(open_door: Open) -> Journal:
    return open_door()


def claim(journal: Journal, owner: str = "ms1/1") -> Head:
    return journal.claim(journal.sighting(), owner)


def extend(journal: Journal, head: Head, *payloads: bytes) -> Head:
    for payload in payloads:
        head = journal.append(head, new_nonce(), payload)
    return head


def test_an_empty_journal(journal: Journal) -> None:
    assert journal.sighting() == Sighting(Head(), 0)
    assert list(journal.read(0)) == []
    assert list(journal.read(7)) == []
    assert list(journal.members()) == []


def test_the_first_claim_makes_a_log(open_door: Open) -> None:
    journal = open_door()
    head = claim(journal, "ms1/1")
    assert len(head.log) == 16 and any(head.log)
    assert head == Head(head.log, 1, 0, NO_NONCE, "ms1/1")
    assert open_door().sighting() == Sighting(head, 0)


def test_logs_have_different_identities(engine: Engine) -> None:
    with (
        contextlib.closing(engine.new_log()()) as one,
        contextlib.closing(engine.new_log()()) as other,
    ):
        assert claim(one).log != claim(other).log


def test_a_claim_raises_the_term_and_keeps_the_rest(open_door: Open) -> None:
    journal = open_door()
    first = extend(journal, claim(journal), b"a")
    second = claim(open_door(), "ms2/äöü '\"\\ 9")
    assert second == replace(first, term=2, owner="ms2/äöü '\"\\ 9")
    assert journal.sighting() == Sighting(second, 0)


@pytest.mark.parametrize("appended", [(), (b"a", b"b")], ids=["first", "later"])
def test_a_claim_may_be_repeated(open_door: Open, appended: tuple[bytes, ...]) -> None:
    """After an outcome that was unknown, a metaserver claims again with the same arguments."""
    journal = open_door()
    if appended:
        extend(journal, claim(journal, "ms0/1"), *appended)
    seen = journal.sighting()
    head = journal.claim(seen, "ms1/1")
    assert journal.claim(seen, "ms1/1") == head
    assert open_door().claim(seen, "ms1/1") == head
    assert journal.sighting().head == head


def test_a_claim_is_refused_after_a_beat(open_door: Open) -> None:
    active, standby = open_door(), open_door()
    head = claim(active)
    seen = standby.sighting()
    active.beat(head)
    with pytest.raises(FencedError):
        standby.claim(seen, "ms2/1")
    assert standby.sighting() == Sighting(head, 1)
    assert standby.claim(standby.sighting(), "ms2/1").term == 2
    assert standby.sighting().beats == 0, "beats are those of the term"


def test_a_claim_is_refused_after_an_append(open_door: Open) -> None:
    active, standby = open_door(), open_door()
    head = claim(active)
    seen = standby.sighting()
    head = extend(active, head, b"a")
    with pytest.raises(FencedError):
        standby.claim(seen, "ms2/1")
    assert standby.sighting() == Sighting(head, 0)


@pytest.mark.parametrize("was_empty", [True, False])
def test_of_two_claims_one_is_refused(open_door: Open, was_empty: bool) -> None:
    one, other = open_door(), open_door()
    if not was_empty:
        claim(one, "ms0/1")
    seen = one.sighting()
    head = one.claim(seen, "ms1/1")
    with pytest.raises(FencedError):
        other.claim(seen, "ms2/1")
    assert other.sighting().head == head


def test_a_claim_that_was_overtaken_is_refused_when_repeated(open_door: Open) -> None:
    one, other = open_door(), open_door()
    seen = one.sighting()
    one.claim(seen, "ms1/1")
    later = claim(other, "ms2/1")
    with pytest.raises(FencedError):
        one.claim(seen, "ms1/1")
    assert one.sighting().head == later


def test_many_claim_at_once_and_one_of_them_wins(open_door: Open) -> None:
    doors = [open_door() for _ in range(6)]
    seen = doors[0].sighting()
    together = threading.Barrier(len(doors))

    def compete(number: int) -> Head | None:
        together.wait(30)
        try:
            return doors[number].claim(seen, f"ms{number}/1")
        except FencedError:
            return None

    with ThreadPoolExecutor(len(doors)) as pool:
        won = [head for head in pool.map(compete, range(len(doors))) if head]
    assert [doors[0].sighting().head] == won


def test_appends_make_a_chain(open_door: Open) -> None:
    journal = open_door()
    start = claim(journal)
    nonces = [new_nonce() for _ in range(3)]
    head = start
    for number, one in enumerate(nonces):
        head = journal.append(head, one, b"entry %d" % number)
        assert head == replace(start, index=number + 1, nonce=one)
    assert list(open_door().read(0)) == [
        Entry(1, 1, nonces[0], NO_NONCE, b"entry 0"),
        Entry(2, 1, nonces[1], nonces[0], b"entry 1"),
        Entry(3, 1, nonces[2], nonces[1], b"entry 2"),
    ]


def test_an_append_may_be_repeated(open_door: Open) -> None:
    journal, other = open_door(), open_door()
    at = claim(journal)
    one = new_nonce()
    head = journal.append(at, one, b"a")
    assert journal.append(at, one, b"a") == head
    journal.beat(head)
    assert other.sighting() == Sighting(head, 1) and len(other.read(0)) == 1
    assert journal.append(at, one, b"a") == head
    assert open_door().append(at, one, b"a") == head
    assert [entry.payload for entry in read_all(other)] == [b"a"]


def test_an_append_is_fenced_after_a_claim(open_door: Open) -> None:
    former, later = open_door(), open_door()
    head = extend(former, claim(former), b"a")
    new = claim(later, "ms2/1")
    with pytest.raises(FencedError):
        former.append(head, new_nonce(), b"b")
    new = extend(later, new, b"c")
    with pytest.raises(FencedError):
        former.append(head, new_nonce(), b"b")
    assert [entry.payload for entry in read_all(former)] == [b"a", b"c"]
    assert [entry.term for entry in read_all(former)] == [1, 2]
    assert former.sighting().head == new


def test_an_append_that_won_and_then_lost_the_journal_is_fenced(open_door: Open) -> None:
    """The entry is in the log; but its metaserver is not the active one any more."""
    former, later = open_door(), open_door()
    at = claim(former)
    one = new_nonce()
    former.append(at, one, b"a")
    new = claim(later, "ms2/1")
    with pytest.raises(FencedError):
        former.append(at, one, b"a")
    assert [entry.payload for entry in read_all(later)] == [b"a"]
    assert later.sighting().head == new


@pytest.mark.parametrize(
    "change",
    [
        {"index": 0, "nonce": NO_NONCE},
        {"nonce": b"n" * NONCE_SIZE},
        {"term": 7},
        {"owner": "ms1/2"},
        {"log": b"l" * 16},
    ],
    ids=lambda change: "-".join(change),
)
def test_an_append_compares_the_whole_head(journal: Journal, change: dict[str, object]) -> None:
    head = extend(journal, claim(journal), b"a")
    with pytest.raises(FencedError):
        journal.append(replace(head, **change), new_nonce(), b"b")  # type: ignore[arg-type]
    assert journal.sighting().head == head


def test_whoever_resigned_may_not_append(open_door: Open) -> None:
    former, later = open_door(), open_door()
    head = extend(former, claim(former), b"a")
    resigned = former.claim(former.sighting(), "")
    assert resigned == replace(head, term=2, owner="")
    assert later.sighting() == Sighting(resigned, 0)
    with pytest.raises(FencedError):
        former.append(head, new_nonce(), b"b")
    with pytest.raises(FencedError):
        former.beat(head)
    assert extend(later, claim(later, "ms2/1"), b"c").index == 2


def test_beats_are_counted(open_door: Open) -> None:
    active, beating, standby = open_door(), open_door(), open_door()
    head = claim(active)
    for count in range(1, 4):
        beating.beat(head)
        assert standby.sighting() == Sighting(head, count)
    later = extend(active, head, b"a")
    beating.beat(head)
    assert standby.sighting() == Sighting(later, 4), "a beat names an older entry of the term"


def test_a_beat_is_fenced_by_another_term_and_another_owner(journal: Journal) -> None:
    head = claim(journal, "ms1/1")
    for other in (replace(head, owner="ms2/1"), replace(head, term=2), replace(head, term=0)):
        with pytest.raises(FencedError):
            journal.beat(other)
    later = claim(journal, "ms1/1")
    with pytest.raises(FencedError):
        journal.beat(head)
    assert journal.sighting() == Sighting(later, 0)


def test_entries_are_read_after_one(journal: Journal) -> None:
    extend(journal, claim(journal), *(b"%d" % number for number in range(1, 41)))
    assert [entry.index for entry in read_all(journal)] == list(range(1, 41))
    assert [entry.payload for entry in read_all(journal, 38)] == [b"39", b"40"]
    assert list(journal.read(40)) == []
    assert list(journal.read(1000)) == []


def test_many_entries_are_read(journal: Journal) -> None:
    extend(journal, claim(journal), *(b"%d" % number for number in range(600)))
    assert [entry.payload for entry in read_all(journal)] == [b"%d" % one for one in range(600)]


def test_a_read_is_bounded(journal: Journal) -> None:
    size = 3 * MIB // 2
    payloads = [bytes([number]) * size for number in range(9)]
    extend(journal, claim(journal), *payloads)
    page = journal.read(0)
    assert 1 <= len(page) < len(payloads)
    assert sum(len(entry.payload) for entry in page) <= READ_BYTES_MAX + size
    assert [entry.payload for entry in read_all(journal)] == payloads


@pytest.mark.parametrize("size", [0, 1, 16383, 16384, 16385, MIB - 1, MIB, MIB + 1, 20 * MIB + 7])
def test_entries_of_all_sizes(open_door: Open, size: int) -> None:
    journal = open_door()
    payload = random.Random(size).randbytes(size)
    at = extend(journal, claim(journal), b"before")
    one = new_nonce()
    head = journal.append(at, one, payload)
    assert journal.append(at, one, payload) == head
    extend(journal, head, b"behind")
    assert [e.payload for e in read_all(open_door())] == [b"before", payload, b"behind"]


def test_a_large_append_is_fenced_and_leaves_no_entry(open_door: Open) -> None:
    former, later = open_door(), open_door()
    head = extend(former, claim(former), b"a")
    new = claim(later, "ms2/1")
    with pytest.raises(FencedError):
        former.append(head, new_nonce(), bytes(5 * MIB))
    assert later.sighting().head == new
    assert [e.payload for e in read_all(later)] == [b"a"]


@pytest.mark.parametrize("payload", [bytes(PAYLOAD_MAX + 1), b"a"], ids=["payload", "nonce"])
def test_what_does_not_fit_is_refused(journal: Journal, payload: bytes) -> None:
    head = claim(journal)
    with pytest.raises(ValueError):
        journal.append(head, new_nonce()[: 16 if len(payload) > 1 else 15], payload)
    assert journal.sighting().head == head


def test_trim_deletes_the_oldest(open_door: Open) -> None:
    journal, other = open_door(), open_door()
    head = extend(journal, claim(journal), *(b"%d" % number for number in range(1, 11)))
    journal.trim(head, 0)
    journal.trim(head, 1)
    assert len(read_all(other)) == 10
    journal.trim(head, 4)
    for after in (0, 2):
        with pytest.raises(TrimmedError):
            other.read(after)
    assert [entry.payload for entry in read_all(other, 3)] == [b"%d" % n for n in range(4, 11)]
    journal.trim(head, 4)
    journal.trim(head, 2)
    assert read_all(other, 3)[0].index == 4, "a trim that was repeated, and one of before"


def test_trim_never_deletes_the_newest(journal: Journal) -> None:
    first = extend(journal, claim(journal), b"a")
    head = extend(journal, first, b"b", b"c")
    journal.trim(first, 1000)
    assert [entry.payload for entry in journal.read(2)] == [b"c"]
    with pytest.raises(TrimmedError):
        journal.read(1)
    assert list(journal.read(3)) == []
    head = extend(journal, head, b"d")
    assert [entry.payload for entry in journal.read(2)] == [b"c", b"d"]
    assert journal.sighting().head == head


def test_trim_of_nothing(journal: Journal) -> None:
    head = claim(journal)
    journal.trim(head, 5)
    assert list(journal.read(0)) == []
    extend(journal, head, b"a")
    assert [entry.payload for entry in journal.read(0)] == [b"a"]


def test_trim_deletes_large_entries(journal: Journal) -> None:
    payload = random.Random(1).randbytes(3 * MIB)
    head = extend(journal, claim(journal), payload, payload, b"c")
    journal.trim(head, 2)
    assert [entry.payload for entry in journal.read(1)] == [payload, b"c"]
    with pytest.raises(TrimmedError):
        journal.read(0)


def test_trim_is_fenced(open_door: Open) -> None:
    former, later = open_door(), open_door()
    head = extend(former, claim(former), b"a", b"b", b"c")
    claim(later, "ms2/1")
    with pytest.raises(FencedError):
        former.trim(head, 3)
    assert len(read_all(later)) == 3


def test_a_claim_may_raise_the_term_further(open_door: Open) -> None:
    """That of a log that is begun where another one was lost; a lower term changes nothing."""
    journal = open_door()
    seen = journal.sighting()
    head = journal.claim(seen, "ms1/1", 1 << 40)
    assert head.term == 1 << 40 and journal.sighting().head == head
    assert journal.claim(seen, "ms1/1", 1 << 40) == head, "the same call again"
    head = journal.append(head, b"n" * NONCE_SIZE, b"first")
    other = open_door()
    assert other.claim(other.sighting(), "ms2/1", 7).term == (1 << 40) + 1
    with pytest.raises(FencedError):
        journal.append(head, b"m" * NONCE_SIZE, b"second")


def test_members(open_door: Open) -> None:
    journal, other = open_door(), open_door()
    two = Member("ms2", "host2:7000", b"l" * 16, 12, 1)
    one = Member("ms1 'ä\"\\/%", "[::1]:7000", b"", 0, 0)
    journal.report(two)
    journal.report(one)
    assert list(other.members()) == [one, two]
    two = replace(two, applied=1 << 60, reports=2, kept="/d/store.damaged-1")
    other.report(two)
    assert list(journal.members()) == [one, two]
    journal.forget(one.name)
    journal.forget(one.name)
    assert list(other.members()) == [two]
    assert journal.sighting() == Sighting(Head(), 0), "members are no part of the log"


def test_an_acknowledged_append_is_seen_through_every_door(open_door: Open) -> None:
    writer, readers = open_door(), [open_door() for _ in range(3)]
    head = claim(writer)
    for number in range(30):
        head = extend(writer, head, b"%d" % number)
        reader = readers[number % len(readers)]
        assert reader.sighting().head == head
        assert [entry.payload for entry in reader.read(number)] == [b"%d" % number]


@pytest.mark.timeout(120)
def test_appends_of_many_threads_make_one_chain(open_door: Open) -> None:
    claim(open_door())
    appenders = Appenders([open_door() for _ in range(6)], lambda nonce: nonce)
    appenders.run(each=12)
    log = read_all(open_door())
    appenders.check(log)
    assert len(log) >= 6 * 12


SOME_HEAD = Head(b"l" * 16, 3, 7, b"n" * NONCE_SIZE, "ms1/1")
SOME_MEMBER = Member("ms1", "host:7000", b"l" * 16, 7, 1)
QUESTIONS: dict[str, Callable[[Journal], object]] = {
    "sighting": lambda door: door.sighting(),
    "read": lambda door: door.read(0),
    "members": lambda door: door.members(),
    "report": lambda door: door.report(SOME_MEMBER),
    "forget": lambda door: door.forget("ms1"),
    "trim": lambda door: door.trim(SOME_HEAD, 3),
}
CHANGES: dict[str, Callable[[Journal], object]] = {
    "claim": lambda door: door.claim(Sighting(SOME_HEAD, 0), "ms2/1"),
    "append": lambda door: door.append(SOME_HEAD, new_nonce(), b"a"),
    "append-large": lambda door: door.append(SOME_HEAD, new_nonce(), bytes(5 * MIB)),
    "beat": lambda door: door.beat(SOME_HEAD),
}


@pytest.mark.parametrize("name", [*QUESTIONS, *CHANGES])
def test_an_engine_that_does_not_answer(engine: Engine, name: str) -> None:
    expected: type[JournalError]
    expected = UnreachableError if name in QUESTIONS else UnknownOutcomeError
    call = (QUESTIONS | CHANGES)[name]
    with contextlib.closing(engine.silent()) as door:
        began = time.monotonic()
        with pytest.raises(expected) as told:
            call(door)
        assert time.monotonic() - began < SILENT_TIMEOUT_S + TIMEOUT_SLACK_S
    assert type(told.value) is expected and str(told.value)


def test_doors_may_be_closed_twice(open_door: Open) -> None:
    journal = open_door()
    claim(journal)
    journal.close()
    journal.close()
    assert open_door().sighting().head.term == 1
