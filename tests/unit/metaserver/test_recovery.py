"""A journal that is lost for good is begun anew from one metaserver's store."""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from fscommon.errors import ConfigError
from metaserver import records, recovery
from metaserver.config import MetaserverConfig
from metaserver.fsck import check
from metaserver.last_seen import LastSeen, keep_seen, last_seen
from metaserver.recovery import RefusedRecoveryError, recover
from metaserver.state_directory import FORMER, RECOVERING, STORE, check_restored
from metaserver.store.follower import Follower, NeedsCopyError
from metaserver.store.journal import FencedError, Head
from metaserver.store.journaled import JournaledStore
from metaserver.store.journals.memory import Fault, MemoryJournal, MemoryLog
from metaserver.store.lmdb import LmdbStore
from metaserver.store.memory import MemoryStore
from metaserver.store.terms import ActiveLease

from .bench import ROOT, Bench
from .test_restore import stored

NOW_S = 1_800_000_000


class Place:
    """A metaserver's state directory, with a store that has followed `former`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = MetaserverConfig(
            state_directory=directory,
            key_file=directory / "key",
            journal="etcd://h:2379/braidfs",
            name="meta1",
        )
        self.former, self.log = MemoryLog(), MemoryLog()
        self.shown: list[str] = []
        store = LmdbStore(directory / STORE, size_max=0)
        door = MemoryJournal(self.former)
        head = door.claim(door.sighting(), "meta1 h1:7400 p")
        lease = ActiveLease()
        self.journaled = JournaledStore(store, door, head, lease=lease, clock=time.monotonic)
        bench = Bench(self.journaled)
        client = bench.client()
        for number in range(50):
            client.create(ROOT, b"file %d" % number)
        bench.settle()
        self.epoch = bench.engine.services.membership.epoch
        self.inodes = bench.engine.progress.inodes
        store.close()

    def saw(self, index: int = 0, owner: str = "meta1 h1:7400 p", ago_s: int = 3600) -> None:
        head = replace(self.former.head, index=index or self.former.head.index, owner=owner)
        keep_seen(self.directory, LastSeen(head, NOW_S - ago_s))

    def recover(self, answer: bool = True, *, door: MemoryJournal | None = None) -> str:
        def confirm(text: str) -> bool:
            self.shown.append(text)
            return answer

        door = door or MemoryJournal(self.log)
        return recover(self.config, door, confirm=confirm, now_s=NOW_S)

    def records(self, name: str = STORE) -> dict[bytes, bytes]:
        with closing(LmdbStore(self.directory / name, size_max=0)) as store:
            return dict(stored(store))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def number(found: dict[bytes, bytes], key: bytes) -> int:
    return records.unpack_number(found.get(key))


def test_a_new_journal_is_begun(place: Place) -> None:
    place.saw()
    before = place.records()
    said = place.recover()
    head = place.log.head
    assert (head.index, head.owner) == (1, ""), "whoever has this store claims at once"
    assert head.log != place.former.head.log
    assert head.term >= place.former.head.term + (1 << 20)
    assert f"in term {head.term}" in said and f"{place.inodes} inodes" in said
    after = place.records()
    assert place.records(FORMER) == before
    names = [key for key in before if key[:1] == b"D"]
    assert len(names) == 50 and {key: before[key] for key in names} == {
        key: after[key] for key in after if key[:1] == b"D"
    }
    assert number(after, records.MAP_EPOCH_KEY) >= place.epoch + (1 << 20)
    assert number(after, records.INO_END_KEY) > number(before, records.INO_END_KEY) + (1 << 39)
    assert [key for key in after if key[:1] == b"S"] == [], "sessions have ended"
    with closing(LmdbStore(place.directory / STORE, size_max=0)) as store:
        assert Follower(store, MemoryJournal(place.log)).follow(head)
        snapshot = store.snapshot()
        assert check(snapshot) == []
        snapshot.close()
        door = MemoryJournal(place.log)
        claimed = door.claim(door.sighting(), "meta1 h1:7400 q")
        assert claimed.term == head.term + 1
        journaled = JournaledStore(store, door, claimed, lease=ActiveLease(), clock=time.monotonic)
        bench = Bench(journaled, targets=0)
        assert bench.client().lookup(ROOT, b"file 7").ino


def test_other_metaservers_take_copies(place: Place) -> None:
    other = MemoryStore()
    door = MemoryJournal(place.former)
    other.commit([*place.records().items()])
    follower = Follower(other, door)
    assert follower.follow(place.former.head)
    place.recover()
    with pytest.raises(NeedsCopyError, match="another journal"):
        Follower(other, MemoryJournal(place.log)).follow(place.log.head)


def test_what_may_be_lost_is_shown(place: Place) -> None:
    newest = place.former.head.index
    with pytest.raises(RefusedRecoveryError, match="nothing was changed"):
        place.recover(answer=False)
    assert "how much is lost cannot be told" in place.shown[-1]
    assert f"{place.inodes} inodes, and entry {newest} of its log" in place.shown[-1]
    cases: list[tuple[int, str, str]] = [
        (newest, "meta1 h1:7400 p", "It lacks nothing, unless another one was active after that"),
        (newest, "meta2 h2:7400 p", "active was meta2. It had all until then, and lacks"),
        (newest + 1234, "meta2 h2:7400 p", "The store lacks 1,234 entries of these"),
        (newest, "", "active was nobody"),
    ]
    for index, owner, words in cases:
        place.saw(index, owner)
        with pytest.raises(RefusedRecoveryError):
            place.recover(answer=False)
        assert words in place.shown[-1]
        assert "at 2027-01-15 07:00:00 UTC, 60 min ago" in place.shown[-1], place.shown[-1]
    assert place.log.head == Head() and not (place.directory / FORMER).exists()


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (lambda place: place.former, "nothing is lost. Start braidfs-metaserver without"),
        (lambda place: begun(), "it has 1 entries of another log"),
        (lambda place: claimed("meta2 h2:7400 p"), "metaserver meta2 at h2:7400 has claimed"),
    ],
)
def test_a_journal_that_is_not_empty_is_refused(
    place: Place, log: Callable[[Place], MemoryLog], words: str
) -> None:
    before = place.records()
    place.log = log(place)
    head = place.log.head
    with pytest.raises(RefusedRecoveryError, match=words):
        place.recover()
    assert place.shown == [] and place.records() == before and place.log.head == head


def begun() -> MemoryLog:
    log = MemoryLog()
    door = MemoryJournal(log)
    door.append(door.claim(door.sighting(), "x h:1 p"), b"n" * 16, b"")
    return log


def claimed(owner: str) -> MemoryLog:
    log = MemoryLog()
    door = MemoryJournal(log)
    door.claim(door.sighting(), owner)
    return log


def test_a_journal_that_does_not_answer(place: Place) -> None:
    door = MemoryJournal(place.log, lambda _: Fault.LOST)
    with pytest.raises(RefusedRecoveryError, match="If its engine may come back, wait for it"):
        place.recover(door=door)


def test_stores_that_nothing_can_be_recovered_from(place: Place, tmp_path: Path) -> None:
    data = place.directory / STORE / "data.mdb"
    data.write_bytes(b"another program's" * 1000)
    with pytest.raises(RefusedRecoveryError, match="is damaged"):
        place.recover()
    empty = Place.__new__(Place)
    empty.__dict__.update(place.__dict__)
    empty.directory = tmp_path / "empty"
    empty.config = replace(place.config, state_directory=empty.directory)
    with pytest.raises(RefusedRecoveryError, match="has no names"):
        empty.recover()
    assert not (empty.directory / STORE).exists(), "a restore may come next"
    (empty.directory / STORE).mkdir()
    with pytest.raises(RefusedRecoveryError, match="has no names"):
        empty.recover()


@pytest.mark.parametrize("call", ["claim", "append"])
@pytest.mark.parametrize("fault", [Fault.LOST, Fault.ANSWER_LOST])
def test_an_unknown_outcome_is_settled(place: Place, call: str, fault: Fault) -> None:
    planned = [fault]
    door = MemoryJournal(
        place.log, lambda name: planned.pop() if planned and name == call else Fault.NONE
    )
    place.recover(door=door)
    assert place.log.head.index == 1 and not planned


class EndsHereError(Exception):
    """The process ends here."""


@pytest.mark.parametrize("at", ["give_to_owner", "_begin", "claim", "append", "resign"])
def test_it_may_be_interrupted_anywhere(
    place: Place, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.saw()
    inodes = {key for key in place.records() if key[:1] == b"I"}

    def interrupted(*_: object, **__: object) -> None:
        raise EndsHereError

    with monkeypatch.context() as patched:
        if at in ("give_to_owner", "_begin"):
            patched.setattr(recovery, at, interrupted)
        elif at == "append":
            patched.setattr(MemoryJournal, "append", interrupted)
        else:
            claim = MemoryJournal.claim

            def claims(door: MemoryJournal, seen: object, owner: str, term: int = 0) -> Head:
                if (at == "claim") == bool(owner):
                    raise EndsHereError
                return claim(door, seen, owner, term)  # type: ignore[arg-type]

            patched.setattr(MemoryJournal, "claim", claims)
        with pytest.raises(EndsHereError):
            place.recover()
    if at == "resign":
        with pytest.raises(RefusedRecoveryError, match="nothing is lost"):
            place.recover()
    else:
        place.recover()
    assert place.log.head.index == 1
    assert {key for key in place.records() if key[:1] == b"I"} == inodes
    with closing(LmdbStore(place.directory / STORE, size_max=0)) as store:
        assert Follower(store, MemoryJournal(place.log)).follow(place.log.head)


def test_between_the_two_renames(place: Place) -> None:
    """A metaserver that is started then does not begin an empty name space."""
    before = place.records()
    (place.directory / STORE).rename(place.directory / RECOVERING)
    with pytest.raises(ConfigError, match=r"a recovery in .* was interrupted"):
        check_restored(place.directory)
    place.recover()
    check_restored(place.directory)
    assert {key for key in place.records() if key[:1] == b"D"} == {
        key for key in before if key[:1] == b"D"
    }


def test_what_was_seen_is_kept(tmp_path: Path) -> None:
    assert last_seen(tmp_path) is None
    seen = LastSeen(Head(b"l" * 16, 7, 9, owner="a h:1 p"), NOW_S)
    keep_seen(tmp_path, seen)
    assert last_seen(tmp_path) == seen
    (tmp_path / "journal.seen").write_text("{}")
    with pytest.raises(ConfigError, match="move it away"):
        last_seen(tmp_path)
    keep_seen(tmp_path / "none", seen)


def test_terms_of_the_new_journal_are_above_the_former(place: Place) -> None:
    """A claim of the former active metaserver, by what it has seen, is fenced."""
    place.saw()
    place.recover()
    door = MemoryJournal(place.log)
    with pytest.raises(FencedError):
        door.append(place.former.head, b"n" * 16, b"")
    with pytest.raises(FencedError):
        door.beat(place.former.head)
