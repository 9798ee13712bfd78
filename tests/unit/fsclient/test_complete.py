"""Completeness of directories: proved by consecutive versions, lost by anything else."""

from dataclasses import replace

from fsclient.fs.complete import DIRECTORIES_MAX, CompleteDirectories
from fsclient.leases.holder import Leases
from fscommon.layout.attributes import Attributes, unpack_attributes

from .fakes import FakeLanes

BLANK = unpack_attributes(bytes(128))


def record(ino: int, version: int) -> bytes:
    attributes: Attributes = replace(BLANK, ino=ino, data_version=version)
    return attributes.pack()


def made(believe_s: float = 1.0) -> tuple[FakeLanes, CompleteDirectories]:
    lanes = FakeLanes()
    complete = CompleteDirectories(
        lanes, Leases(lanes, lambda: 100.0), lambda: 100.0, lambda: 1000.0, believe_s
    )
    complete.made(record(7, 1), 100.0)
    return lanes, complete


def test_a_new_directory_is_complete_and_stays_so_by_own_changes() -> None:
    lanes, complete = made()
    complete.entering(7, b"a")
    complete.changed(record(7, 2), 100.0)
    complete.changed(record(7, 3), 100.0)
    assert lanes.complete == {7: {b"a"}}


def test_a_version_that_skips_says_that_somebody_else_was_there() -> None:
    lanes, complete = made()
    complete.changed(record(7, 3), 100.0)
    assert lanes.complete == {}
    complete.entering(7, b"a")
    complete.changed(record(7, 4), 100.0)
    assert lanes.complete == {}


def test_directories_of_others_are_never_complete() -> None:
    lanes, complete = made()
    complete.entering(8, b"a")
    complete.changed(record(8, 2), 100.0)
    assert set(lanes.complete) == {7}


def test_belief_is_counted_from_when_the_request_left() -> None:
    told: list[int] = []
    lanes = FakeLanes()
    lanes.entries_complete = lambda ino, valid_ms: told.append(valid_ms)  # type: ignore[method-assign]
    sole_until = [1000.0]
    complete = CompleteDirectories(
        lanes, Leases(lanes, lambda: 100.0), lambda: 100.0, lambda: sole_until[0], 1.0
    )
    complete.made(record(7, 1), 99.5)
    complete.made(record(8, 1), 90.0)
    sole_until[0] = 100.0625
    complete.made(record(9, 1), 100.0)
    sole_until[0] = 0.0
    complete.made(record(10, 1), 100.0)
    assert told == [500, 0, 62, 0]


def test_switched_off_and_cleared() -> None:
    lanes, _ = made(believe_s=0.0)
    assert lanes.complete == {}
    lanes, complete = made()
    complete.clear()
    complete.changed(record(7, 2), 100.0)
    assert lanes.complete == {}


def test_the_oldest_directory_goes_when_there_are_too_many() -> None:
    lanes, complete = made()
    for ino in range(1000, 1000 + DIRECTORIES_MAX):
        complete.made(record(ino, 1), 100.0)
    assert 7 not in lanes.complete
    assert len(lanes.complete) == DIRECTORIES_MAX
