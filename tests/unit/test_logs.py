"""A warning that a test did not declare is found, once, in whole lines only."""

from pathlib import Path

import pytest

from tests.cluster.logs import LATE_SECONDS, Expected, LogReader, SlowMachine, complaint

INFO = "time=2026-01-01T00:00:00.000Z level=info part=a event=ready\n"
WARNING = 'time=2026-01-01T00:00:00.000Z level=warning part=a event="a retry"\n'
ERROR = "time=2026-01-01T00:00:00.000Z level=error part=a event=lost\n"
NOTHING = Expected()


def test_only_what_is_not_declared(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(INFO + WARNING + ERROR + "Traceback (most recent call last):\n")
    found = LogReader(tmp_path).unexpected
    assert len(found(Expected())) == 3
    assert len(LogReader(tmp_path).unexpected(Expected(any_warning=True))) == 2
    (one,) = LogReader(tmp_path).unexpected(Expected(("event=lost", "Traceback")))
    assert one.startswith("a.log: time=") and "a retry" in complaint([one])


def test_each_line_once(tmp_path: Path) -> None:
    reader = LogReader(tmp_path)
    log = tmp_path / "a.log"
    log.write_text(WARNING + ERROR[:20])
    assert len(reader.unexpected(Expected())) == 1
    assert reader.unexpected(Expected()) == []
    with log.open("a") as file:
        file.write(ERROR[20:])
    assert len(reader.unexpected(Expected())) == 1


def test_what_only_says_slow_is_shown_and_no_failure(tmp_path: Path) -> None:
    slow = WARNING.replace("a retry", "connection to node 1 ended: no answer for too long (why)")
    (tmp_path / "a.log").write_text(slow)
    reader = LogReader(tmp_path)
    with pytest.warns(SlowMachine, match="no answer"):
        assert reader.unexpected(Expected()) == []
    (tmp_path / "b.log").write_text(slow.replace("warning", "error"))
    assert len(reader.unexpected(Expected())) == 1


def test_what_was_expected_may_come_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("tests.cluster.logs.time.monotonic", lambda: now)
    reader = LogReader(tmp_path)
    log = tmp_path / "a.log"

    def next_test(lines: str, expected: Expected = NOTHING) -> int:
        with log.open("a") as file:
            file.write(lines)
        return len(reader.unexpected(expected))

    assert next_test(WARNING, Expected(any_warning=True)) == 0
    now += 3 * LATE_SECONDS
    assert next_test(WARNING) == 0  # it is the next test, however long it took
    assert next_test(WARNING) == 1
    assert next_test(ERROR, Expected(("event=lost",))) == 0
    for _ in range(5):  # all are of one moment
        assert next_test(ERROR) == 0
    now += LATE_SECONDS + 1
    assert next_test("") == 0
    assert next_test(ERROR) == 1
