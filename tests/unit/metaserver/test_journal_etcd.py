"""The journal in etcd against a server that answers wrongly, late, or not at all."""

import contextlib
import json
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaserver.store.journal import (
    DamagedJournalError,
    FencedError,
    Head,
    JournalError,
    JournalFullError,
    Member,
    Sighting,
    TrimmedError,
    UnknownOutcomeError,
    UnreachableError,
)
from metaserver.store.journals import etcd_gateway
from metaserver.store.journals.etcd import EtcdJournal
from metaserver.store.journals.etcd_gateway import EtcdSettings
from metaserver.store.journals.etcd_layout import PART_SIZE

from .etcd_stand_in import EtcdStandIn, etcd_stand_in, http_answer, json_answer, refusal

PREFIX = "/fs"
NONCE = b"n" * 16
PAYLOAD = random.Random(7).randbytes(5 * PART_SIZE + 3)
FULL = "etcdserver: mvcc: database space exceeded"


@pytest.fixture
def etcd() -> Iterator[EtcdStandIn]:
    with etcd_stand_in() as made:
        yield made


def door(*endpoints: str, timeout_s: float = 20.0, **more: Any) -> EtcdJournal:
    return EtcdJournal(EtcdSettings(endpoints, PREFIX, timeout_s=timeout_s, **more))


@pytest.fixture
def journal(etcd: EtcdStandIn) -> Iterator[EtcdJournal]:
    with contextlib.closing(door(etcd.endpoint)) as opened:
        yield opened


def claimed(journal: EtcdJournal) -> Head:
    return journal.claim(journal.sighting(), "ms1/1")


# Answers that are none.

SOME_HEAD = Head(b"l" * 16, 3, 7, NONCE, "ms1/1")
QUESTIONS: dict[str, Callable[[EtcdJournal], object]] = {
    "sighting": lambda door: door.sighting(),
    "read": lambda door: door.read(0),
    "members": lambda door: door.members(),
    "report": lambda door: door.report(Member("ms1", "host:7000", b"l" * 16, 7, 1)),
    "forget": lambda door: door.forget("ms1"),
    "trim": lambda door: door.trim(SOME_HEAD, 3),
}
CHANGES: dict[str, Callable[[EtcdJournal], object]] = {
    "claim": lambda door: door.claim(Sighting(SOME_HEAD, 0), "ms2/1"),
    "append": lambda door: door.append(SOME_HEAD, NONCE, b"a"),
    "append-large": lambda door: door.append(SOME_HEAD, NONCE, PAYLOAD),
    "beat": lambda door: door.beat(SOME_HEAD),
}
NO_HTTP = {
    "nothing": b"",
    "noise": random.Random(3).randbytes(3000),
    "no-status": b"HTTP/1.1 ok\r\n\r\n",
    "status-of-text": b"HTTP/1.1 2x0 OK\r\nContent-Length: 2\r\n\r\n{}",
    "bad-length": b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n{}",
    "negative-length": b"HTTP/1.1 200 OK\r\nContent-Length: -7\r\n\r\n{}",
    "two-lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
    "cut-off": b"HTTP/1.1 200 OK\r\nContent-Length: 200\r\n\r\n{}",
    "long-header": b"HTTP/1.1 200 OK\r\nA: " + b"a" * 200_000 + b"\r\n\r\n{}",
    "many-headers": b"HTTP/1.1 200 OK\r\n" + b"A: a\r\n" * 5000 + b"\r\n{}",
    "bad-chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "elsewhere": b"HTTP/1.1 302 Found\r\nLocation: /v3\r\nContent-Length: 0\r\n\r\n",
}
NO_JSON = {
    "empty": b"",
    "text": b"upstream is gone",
    "list": b"[]",
    "text-in-json": b'"header"',
    "null": b"null",
    "deep": b"[" * 200_000,
    "not-utf-8": b'{"header": "\xff"}',
    "long-number": b'{"header": ' + b"9" * 10_000 + b"}",
    "no-header": b"{}",
    "bad-header": b'{"header": {"cluster_id": 7}}',
    "compressed": b"\x1f\x8b\x08\x00" + bytes(50),
}
ANSWERS = NO_HTTP | {name: http_answer(body) for name, body in NO_JSON.items()}
ANSWERS |= {f"503-{name}": http_answer(body, "503 Down") for name, body in NO_JSON.items()}


@pytest.mark.parametrize("name", [*QUESTIONS, *CHANGES])
def test_answers_that_are_garbled(etcd: EtcdStandIn, name: str) -> None:
    """The call is made again until its time is over; nothing else than its errors leaves."""
    call = (QUESTIONS | CHANGES)[name]
    expected = UnreachableError if name in QUESTIONS else UnknownOutcomeError
    with contextlib.closing(door(etcd.endpoint, timeout_s=0.05)) as journal:
        for answer in ANSWERS.values():
            etcd.before = lambda path, body, answer=answer: answer  # type: ignore[misc]
            with pytest.raises(expected) as told:
                call(journal)
            assert type(told.value) is expected


def test_an_answer_that_is_too_long(etcd: EtcdStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_gateway, "ANSWER_MAX", 100_000)
    etcd.before = lambda path, body: http_answer(b'{"a":"' + b"a" * 200_000 + b'"}')
    with (
        contextlib.closing(door(etcd.endpoint, timeout_s=0.3)) as journal,
        pytest.raises(UnreachableError, match="too long"),
    ):
        journal.sighting()


_LEAVES: st.SearchStrategy[object] = st.sampled_from(
    [None, True, False, -1, 0, 2.5, 1 << 70, "", "7", "-7", "x", "MQ==", [], [None], {}]
)
_PUBLIC_ERRORS = (
    UnreachableError,
    UnknownOutcomeError,
    FencedError,
    TrimmedError,
    JournalFullError,
    DamagedJournalError,
)


def _spoil(value: Any, choose: random.Random, leaf: object) -> Any:
    """The same with one value within it replaced or removed."""
    if isinstance(value, dict) and value and choose.random() < 0.9:
        key = choose.choice(sorted(value))
        if choose.random() < 0.2:
            return {name: one for name, one in value.items() if name != key}
        return {**value, key: _spoil(value[key], choose, leaf)}
    if isinstance(value, list) and value and choose.random() < 0.9:
        at = choose.randrange(len(value))
        return [*value[:at], _spoil(value[at], choose, leaf), *value[at + 1 :]]
    return leaf


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300, deadline=None
)
@given(st.sampled_from(sorted([*QUESTIONS, *CHANGES])), st.integers(0, 1 << 32), _LEAVES)
def test_answers_with_a_wrong_value(etcd: EtcdStandIn, name: str, seed: int, leaf: object) -> None:
    """One value of an answer is another one: the call believes it, or says that it does not."""
    etcd.records.clear()
    etcd.after = lambda path, answer: None
    with contextlib.closing(door(etcd.endpoint)) as journal:
        head = journal.append(claimed(journal), NONCE, b"a")
        journal.append(head, b"m" * 16, bytes(PART_SIZE))
        journal.report(Member("ms1", "host:7000", b"l" * 16, 7, 1))
    choose = random.Random(seed)
    etcd.after = lambda path, answer: json_answer(_spoil(answer, choose, leaf))
    with contextlib.closing(door(etcd.endpoint, timeout_s=0.05)) as journal:
        try:
            (QUESTIONS | CHANGES)[name](journal)
        except JournalError as error:
            assert type(error) in _PUBLIC_ERRORS
            assert name in CHANGES or not isinstance(error, UnknownOutcomeError)
            assert name in QUESTIONS or not isinstance(error, UnreachableError)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300, deadline=None
)
@given(st.data())
def test_values_that_no_metaserver_wrote(etcd: EtcdStandIn, data: st.DataObject) -> None:
    etcd.records.clear()
    with contextlib.closing(door(etcd.endpoint)) as journal:
        head = journal.append(claimed(journal), NONCE, b"a")
        head = journal.append(head, b"m" * 16, b"b" * 20_000)
        journal.report(Member("ms1", "host:7000", b"l" * 16, 7, 1))
        key = data.draw(st.sampled_from(sorted(etcd.records)))
        value, version = etcd.records[key]
        at = data.draw(st.integers(0, len(value) - 1)) if value else 0
        piece = data.draw(st.binary(max_size=3) | st.sampled_from([b" ", b"0", b"1", b"\n"]))
        etcd.records[key] = (value[:at] + piece + value[at + 1 :], version)
        for call in (journal.sighting, journal.members, lambda: journal.read(0)):
            with contextlib.suppress(DamagedJournalError):
                call()
        with contextlib.suppress(DamagedJournalError, FencedError):
            journal.append(head, b"o" * 16, b"c")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("head", b"2 " + b"00" * 16 + b" 1 0 " + b"00" * 16 + b" ms1/1"),
        ("head", b"1 " + b"00" * 16 + b" 01 0 " + b"00" * 16 + b" ms1/1"),
        ("head", b""),
        ("entries/0000000000000001", b"1 1 00 00 1\na"),
        ("entries/0000000000000009", b"1 1 " + b"00" * 16 + b" " + b"00" * 16 + b" 0\n"),
        ("entries/x", b"1 1 " + b"00" * 16 + b" " + b"00" * 16 + b" 0\n"),
        ("parts/0000000000000002/" + "6d" * 16 + "/0000", b"short"),
    ],
)
def test_damage_is_told(etcd: EtcdStandIn, journal: EtcdJournal, key: str, value: bytes) -> None:
    head = journal.append(claimed(journal), NONCE, b"a")
    journal.append(head, b"m" * 16, b"b" * 20_000)
    etcd.records[f"{PREFIX}/{key}".encode()] = (value, 1)
    with pytest.raises(DamagedJournalError):
        journal.read(0)


def test_a_missing_entry_is_damage_and_a_missing_part_as_well(
    etcd: EtcdStandIn, journal: EtcdJournal
) -> None:
    head = claimed(journal)
    for number in range(4):
        head = journal.append(head, bytes([number]) * 16, bytes(20_000))
    (part,) = (key for key in etcd.records if b"/parts/0000000000000002/" in key)
    del etcd.records[part]
    with pytest.raises(DamagedJournalError, match="a part"):
        journal.read(0)
    del etcd.records[f"{PREFIX}/entries/{3:016x}".encode()]
    with pytest.raises(DamagedJournalError, match="does not follow"):
        journal.read(1)
    del etcd.records[f"{PREFIX}/entries/{4:016x}".encode()]
    with pytest.raises(DamagedJournalError, match="missing"):
        journal.read(3)


def test_a_trim_in_the_midst_of_a_read(etcd: EtcdStandIn, journal: EtcdJournal) -> None:
    head = claimed(journal)
    for number in range(2):
        head = journal.append(head, bytes([number]) * 16, bytes(20_000))

    def trim(path: str, answer: dict[str, Any]) -> None:
        for key in [key for key in etcd.records if f"/{1:016x}".encode() in key]:
            del etcd.records[key]

    etcd.after = trim
    with pytest.raises(TrimmedError):
        journal.read(0)
    assert len(journal.read(1)) == 1


# Endpoints.


@contextlib.contextmanager
def deaf_endpoint() -> Iterator[str]:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_connection_that_is_reset_is_told_in_words() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def reset() -> None:
            peer, _ = listener.accept()
            request = b""
            while not request.endswith(b"}") and (piece := peer.recv(1 << 16)):
                request += piece
            at_once = struct.pack("ii", 1, 0)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)  # a reset, no end
            peer.close()

        thread = threading.Thread(target=reset)
        thread.start()
        with contextlib.closing(door(f"127.0.0.1:{listener.getsockname()[1]}")) as opened:
            (member,) = opened.health().members
        thread.join()
    assert member.alarms == ("[Errno 104] Connection reset by peer",)


def test_the_next_endpoint_is_asked(etcd: EtcdStandIn) -> None:
    with (
        deaf_endpoint() as deaf,
        contextlib.closing(door("127.0.0.1:1", deaf, etcd.endpoint, timeout_s=3)) as journal,
    ):
        began = time.monotonic()
        head = claimed(journal)
        assert time.monotonic() - began < 3
        began = time.monotonic()
        for _ in range(20):
            journal.beat(head)
        assert time.monotonic() - began < 1, "the endpoint that answers is asked first"


def test_an_answer_that_drips(etcd: EtcdStandIn) -> None:
    """A call ends in time even if something always arrives."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:

        def drip() -> None:
            with contextlib.suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
                    for _ in range(40):
                        time.sleep(0.1)
                        connection.sendall(b" ")

        thread = threading.Thread(target=drip)
        thread.start()
        endpoint = f"127.0.0.1:{server.getsockname()[1]}"
        with contextlib.closing(door(endpoint, timeout_s=0.5)) as journal:
            began = time.monotonic()
            with pytest.raises(UnreachableError):
                journal.sighting()
            assert time.monotonic() - began < 2
        thread.join()


def test_endpoints_of_two_clusters_are_not_mixed(etcd: EtcdStandIn) -> None:
    """They would be two logs."""
    with etcd_stand_in() as other:
        other.cluster = "77"
        with contextlib.closing(door(etcd.endpoint, other.endpoint, timeout_s=0.3)) as journal:
            head = claimed(journal)
            etcd.before = lambda path, body: refusal("etcdserver: no leader", 14, "503 Down")
            with pytest.raises(UnknownOutcomeError, match="of the etcd cluster 77"):
                journal.append(head, NONCE, b"a")


def test_what_no_member_would_accept_is_not_tried_again(
    etcd: EtcdStandIn, journal: EtcdJournal
) -> None:
    etcd.before = lambda path, body: refusal("etcdserver: permission denied", 7, "403 Forbidden")
    with pytest.raises(UnreachableError, match="permission denied"):
        journal.sighting()
    assert len(etcd.requests) == 1


def test_a_closed_journal(journal: EtcdJournal) -> None:
    claimed(journal)
    journal.close()
    with pytest.raises(UnreachableError, match="closed"):
        journal.sighting()


# Users.


def test_a_token_that_has_run_out_is_replaced(etcd: EtcdStandIn, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("opensesame\n")
    refused = refusal("etcdserver: invalid auth token", 16, "401 Unauthorized")
    who: dict[str, Any] = {"user": "braid", "password_file": secret}
    with contextlib.closing(door(etcd.endpoint, **who)) as journal:
        journal.sighting()
        assert etcd.requests[0] == (
            "/v3/auth/authenticate",
            {"name": "braid", "password": "opensesame"},
        )
        assert etcd.tokens[1] == "token-1"
        etcd.before = lambda path, body: refused if etcd.tokens[-1] == "token-1" else None
        claimed(journal)
        assert etcd.tokens[-1] == "token-4"
        etcd.before = lambda path, body: None if "auth" in path else refused
        count = len(etcd.requests)
        with (
            contextlib.closing(door(etcd.endpoint, timeout_s=0.2, **who)) as other,
            pytest.raises(UnreachableError, match="invalid auth token"),
        ):
            other.sighting()
        assert len(etcd.requests) - count < 60, "it pauses between rounds"


def test_a_password_that_cannot_be_read(etcd: EtcdStandIn, tmp_path: Path) -> None:
    who: dict[str, Any] = {"user": "braid", "password_file": tmp_path / "none"}
    with (
        contextlib.closing(door(etcd.endpoint, **who)) as journal,
        pytest.raises(UnreachableError, match="the password in"),
    ):
        journal.sighting()
    assert not etcd.requests


# Room, and calls that are made again.


def test_a_change_that_was_made_though_there_is_no_room(
    etcd: EtcdStandIn, journal: EtcdJournal
) -> None:
    """etcd looks at its size once more when it has already decided, and then makes the change."""

    def full_once(path: str, answer: dict[str, Any]) -> bytes:
        etcd.after = lambda path, answer: None
        return refusal(FULL)

    etcd.after = lambda path, answer: None
    seen = journal.sighting()
    etcd.after = full_once
    head = journal.claim(seen, "ms1/1")
    assert head == replace(head, term=1, owner="ms1/1") and len(head.log) == 16
    etcd.after = full_once
    new = journal.append(head, NONCE, b"a")
    assert journal.sighting().head == new == replace(head, index=1, nonce=NONCE)


def _full(path: str, body: dict[str, Any]) -> bytes | None:
    puts = any("request_put" in operation for operation in body.get("success", []))
    return refusal(FULL) if puts else None


def test_a_change_that_was_not_made_as_there_is_no_room(
    etcd: EtcdStandIn, journal: EtcdJournal
) -> None:
    head = claimed(journal)
    etcd.before = _full
    for payload in (b"a", bytes(20_000), PAYLOAD):
        with pytest.raises(JournalFullError, match="no room"):
            journal.append(head, NONCE, payload)
    with pytest.raises(JournalFullError):
        journal.claim(journal.sighting(), "ms2/1")
    with pytest.raises(JournalFullError):
        journal.beat(head)
    with pytest.raises(JournalFullError):
        journal.report(Member("ms1", "host:7000", b"", 0, 0))
    etcd.before = lambda path, body: None
    other = journal.claim(journal.sighting(), "ms2/1")
    etcd.before = _full
    with pytest.raises(FencedError):
        journal.append(head, NONCE, b"a")
    etcd.before = lambda path, body: None
    assert journal.append(other, NONCE, PAYLOAD).index == 1


def test_a_full_etcd_does_not_settle_what_may_still_happen(etcd: EtcdStandIn) -> None:
    """An attempt that was held up on its way happens when there is room again."""
    with contextlib.closing(door(etcd.endpoint, timeout_s=0.3)) as journal:
        head = claimed(journal)
        etcd.before = lambda path, body: refusal("etcdserver: request timed out", 14, "503 Down")
        with pytest.raises(UnknownOutcomeError):
            journal.append(head, NONCE, b"a")
        etcd.before = _full
        with pytest.raises(UnknownOutcomeError, match="no room"):
            journal.append(head, NONCE, b"a")
        with pytest.raises(JournalFullError):
            journal.append(head, b"m" * 16, b"a")
        count = len(etcd.requests)
        late = refusal("etcdserver: request timed out", 14, "503 Down")
        etcd.before = lambda path, body: (
            late if len(etcd.requests) == count + 1 else _full(path, body)
        )
        with pytest.raises(UnknownOutcomeError, match="no room"):
            journal.append(head, b"o" * 16, b"a")
        etcd.before = lambda path, body: None
        assert journal.append(head, NONCE, b"a").index == 1


def test_a_large_append_that_is_fenced_leaves_nothing(
    etcd: EtcdStandIn, journal: EtcdJournal
) -> None:
    head = claimed(journal)
    journal.claim(journal.sighting(), "ms2/1")
    with pytest.raises(FencedError):
        journal.append(head, NONCE, PAYLOAD)
    assert not any(b"/parts/" in key for key in etcd.records)


@pytest.mark.parametrize(
    "change",
    [
        {"endpoints": ()},
        {"timeout_s": 0},
        {"prefix": ""},
        {"prefix": "braidfs"},
        {"prefix": "/braidfs/"},
        {"authority": Path("ca.crt")},
        {"certificate": Path("crt"), "key": Path("key")},
        {"is_tls": True, "certificate": Path("crt")},
        {"is_tls": True, "key": Path("key")},
        {"user": "braid"},
        {"password_file": Path("password")},
    ],
    ids=lambda change: "-".join(change),
)
def test_settings_that_do_not_fit_together(change: dict[str, Any]) -> None:
    good = EtcdSettings(("h1:2379",), PREFIX)
    with pytest.raises(ValueError):
        replace(good, **change)


def _count_puts_of_parts(etcd: EtcdStandIn) -> int:
    bodies = [json.dumps(body) for _, body in etcd.requests]
    return sum("L2ZzL3BhcnRz" in body and "request_put" in body for body in bodies)  # "/fs/parts"


def test_a_large_append_goes_on_where_it_stopped(etcd: EtcdStandIn) -> None:
    with contextlib.closing(door(etcd.endpoint, timeout_s=3)) as journal:
        head = claimed(journal)

        def stop_after_three(path: str, body: dict[str, Any]) -> bytes | None:
            done = sum(b"/parts/" in key for key in etcd.records)
            return refusal("etcdserver: request is too large", 3, "400 Bad") if done == 3 else None

        etcd.before = stop_after_three
        with pytest.raises(UnknownOutcomeError):
            journal.append(head, NONCE, PAYLOAD)
        etcd.before = lambda path, body: None
        etcd.requests.clear()
        new = journal.append(head, NONCE, PAYLOAD)
        assert _count_puts_of_parts(etcd) == 3, "the others have been put before"
        assert [entry.payload for entry in journal.read(0)] == [PAYLOAD]
        assert journal.append(head, NONCE, PAYLOAD) == new
        other = journal.append(new, b"m" * 16, PAYLOAD)
        assert [entry.index for entry in journal.read(1)] == [other.index]


def test_a_large_read_goes_on_where_it_stopped(etcd: EtcdStandIn, journal: EtcdJournal) -> None:
    payload = random.Random(8).randbytes(20 * PART_SIZE)
    journal.append(claimed(journal), NONCE, payload)
    etcd.requests.clear()
    lost = refusal("etcdserver: permission denied", 7, "403 Forbidden")
    etcd.before = lambda path, body: lost if len(etcd.requests) == 4 else None
    with pytest.raises(UnreachableError):
        journal.read(0)
    assert [entry.payload for entry in journal.read(0)] == [payload]
    operations = [len(body["success"]) for _, body in etcd.requests]
    assert operations == [2, 9, 9, 5, 2, 5], "the first 16 parts were kept"


def test_parts_that_no_entry_names_are_removed_by_trim(etcd: EtcdStandIn) -> None:
    with contextlib.closing(door(etcd.endpoint)) as former:
        head = claimed(former)
        for number in range(4):  # of an append that was given up before its last transaction
            key = f"{PREFIX}/parts/{1:016x}/{'66' * 16}/{number:04x}"
            etcd.records[key.encode()] = (bytes(9), 1)
        head = former.append(head, NONCE, PAYLOAD)
        head = former.append(head, b"m" * 16, b"b")
        former.trim(head, 2)
    assert sorted(key.decode().split("/")[2] for key in etcd.records) == ["entries", "head", "turn"]


def test_compaction_is_bounded(etcd: EtcdStandIn, journal: EtcdJournal) -> None:
    head = claimed(journal)
    for number in range(5):
        head = journal.append(head, bytes([number]) * 16, b"")
        journal.trim(head, number)
    asked = [body for path, body in etcd.requests if path == "/v3/kv/compaction"]
    assert len(asked) == 1 and int(asked[0]["revision"]) > 0


def test_a_trim_of_nothing_is_fenced_too(journal: EtcdJournal) -> None:
    head = claimed(journal)
    journal.claim(journal.sighting(), "ms2/1")
    with pytest.raises(FencedError):
        journal.trim(head, 0)


def test_a_long_trim_is_done_in_pieces(etcd: EtcdStandIn, journal: EtcdJournal) -> None:
    head = claimed(journal)
    for number in range(1200):
        head = journal.append(head, number.to_bytes(16, "big"), b"")
    etcd.requests.clear()
    journal.trim(head, 1190)
    assert sum("request_delete_range" in json.dumps(body) for _, body in etcd.requests) == 3
    assert [entry.index for entry in journal.read(1189)] == list(range(1190, 1201))
