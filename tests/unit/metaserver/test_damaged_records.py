"""Records of every kind that are damaged: the metaserver refuses to start, or goes on beside them.

The world is in damage_world, the store with a record of each kind in whole_store.
"""

import inspect
import re

import pytest

from metaserver import records
from metaserver.forms import FORMS, fault_of
from metaserver.fsck import check
from metaserver.store.memory import MemoryStore

from .damage_world import damage_of_seed, kind_of, kinds, run_world
from .whole_store import whole_store

QUICK = 120  # worlds
LONG = 6000
SHARE = 250  # worlds of one test of the long form

pytestmark = pytest.mark.expects_warnings


def test_every_kind_of_record_is_in_the_store_and_has_a_form() -> None:
    """A new kind of record gets a form, and whole_store a record of it."""
    source = inspect.getsource(records)
    letters = {letter.encode() for letter in re.findall(r'pack\(b"([A-Z])"', source)} | {b"M"}
    assert len(letters) > 20, "the pattern finds the kinds"
    assert set(FORMS) == letters
    assert {key[:1] for key, _ in whole_store()} == letters
    single = {value for name, value in vars(records).items() if name.endswith("_KEY")}
    assert single <= {key for key, _ in whole_store()}, "single records are kinds of their own"


def test_a_sound_store_has_no_faults() -> None:
    store = MemoryStore()
    store.commit(whole_store())
    assert [fault_of(*record) for record in whole_store() if fault_of(*record)] == []
    assert check(store.snapshot()) == []


def test_the_quick_form_has_every_kind() -> None:
    assert {kind_of(damage_of_seed(seed).before[0]) for seed in range(QUICK)} == set(kinds())


@pytest.mark.parametrize("first", range(0, QUICK, 10))
def test_nothing_ends_and_no_other_file_is_lost(first: int) -> None:
    ends = {run_world(seed) for seed in range(first, first + 10)}
    assert ends <= {"refused", "went on"}


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", range(QUICK, LONG, SHARE))
def test_nothing_ends_in_thousands_of_worlds(first: int) -> None:
    ended = [run_world(seed) for seed in range(first, min(LONG, first + SHARE))]
    assert {"refused", "went on"} == set(ended)
