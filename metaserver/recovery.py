"""`braidfs-metaserver --recover-from-local`: begins a new journal from this metaserver's store.

It is for an engine that has lost its quorum, and its data, for good. The administrator configures a
journal that is empty, and chooses the metaserver whose store is the newest. What the journal had
beyond that store is lost, though clients, storage servers and other metaservers have heard of it.
So the records change as in a restore of a backup (metaserver.restore, decision 0061): numbers jump,
and sessions end. The epoch of the map jumps, too: storage servers refuse a metaserver of before
from then on (storageserver.epochs), should the former engine come back with one of its metaservers.
Terms go on far beyond those of the former journal.

Every step may be interrupted, and the command run again. The new store is written beside the former
one, and takes its place; then the journal is claimed, gets its first entry, and is resigned. The
former store is kept as `store.former`. Other metaservers have followed another log: they take
copies by themselves.
"""

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

from fscommon.archive import Record
from fscommon.errors import BraidError, ConfigError
from fscommon.files import sync_directory
from fscommon.observe.words import duration
from metaserver import records
from metaserver.config import MetaserverConfig
from metaserver.last_seen import LastSeen, last_seen
from metaserver.owners import Owner
from metaserver.restore import Jumps, fill, give_to_owner
from metaserver.state_directory import FORMER, RECOVERING, STORE, held
from metaserver.store.journal import Head, Journal, Sighting, UnknownOutcomeError, UnreachableError
from metaserver.store.journaled import JournaledStore, Mark, mark_in
from metaserver.store.lmdb import LmdbStore
from metaserver.store.sound import damage_of
from metaserver.store.terms import ActiveLease, clock_s
from metaserver.store.waist import StoreError, StoreUncertainError

TRIES_S: Final = 30.0
_PAUSE_S: Final = 0.2
_BLOCK: Final = 20_000  # records

Confirm = Callable[[str], bool]
T = TypeVar("T")


class RefusedRecoveryError(BraidError):
    """Nothing was changed; the message says what to do instead."""


def recover(config: MetaserverConfig, door: Journal, *, confirm: Confirm, now_s: int) -> str:
    """Begins the journal behind the door. confirm: is shown what may be lost, and says whether to
    go on. Returns what was done, for people. Raises RefusedRecoveryError, ConfigError, StoreError,
    JournalError, OSError."""
    directory = config.state_directory
    with held(directory):
        _finish_interrupted(directory)
        mark, inodes = _look_at_store(directory)
        sighting = _look_at_journal(door, mark, config.own_name)
        seen = last_seen(directory)
        if not confirm(_what_may_be_lost(mark, inodes, seen, config.own_name, now_s)):
            raise RefusedRecoveryError("nothing was changed")
        jumps = Jumps(now_s)
        cut = _rebuild(directory, jumps, inodes)
        term = jumps.near(seen.head.term if seen is not None else 0)
        head = _begin(directory, door, sighting, Owner(config.own_name, config.own_address), term)
    return (
        f"the journal is begun with {inodes:,} inodes, in term {head.term}; all sessions have "
        f"ended, and {cut:,} files that they were writing are cut to their committed size. The "
        f"former store is {directory / FORMER}. Start braidfs-metaserver here, and then the others"
    )


# ---- what there is -------------------------------------------------------------------------------


def _finish_interrupted(directory: Path) -> None:
    """The former store was out of its place, and the new one, which is whole, not yet in it."""
    beside, store = directory / RECOVERING, directory / STORE
    if beside.exists() and not store.exists():
        beside.rename(store)
        sync_directory(directory)


def _look_at_store(directory: Path) -> tuple[Mark | None, int]:
    """The mark of the store, and how many inodes it has."""
    nothing = f"{directory / STORE} has no names. Recover from another metaserver's store"
    if not (directory / STORE).exists():
        raise RefusedRecoveryError(nothing)
    damage = damage_of(directory / STORE)
    if damage:
        raise RefusedRecoveryError(
            f"the store of this metaserver is damaged: {damage}. Recover from another metaserver's "
            "store, or restore a backup"
        )
    with closing(LmdbStore(directory / STORE, size_max=0)) as store:
        snapshot = store.snapshot()
        try:
            mark = mark_in(snapshot)
            schema = snapshot.get(records.SCHEMA_KEY)
            inodes = records.unpack_number(snapshot.get(records.INODES_KEY))
        finally:
            snapshot.close()
    if schema is None:
        raise RefusedRecoveryError(nothing)
    if records.unpack_number(schema) != records.SCHEMA_VERSION:
        raise RefusedRecoveryError(f"{directory / STORE} is of another release")
    return mark, inodes


def _look_at_journal(door: Journal, mark: Mark | None, name: str) -> Sighting:
    try:
        sighting = door.sighting()
    except UnreachableError as error:
        raise RefusedRecoveryError(
            f"the journal of the configuration does not answer: {error}. If its engine may come "
            "back, wait for it: nothing is lost then. If it is lost for good, configure a journal "
            "that is new and empty"
        ) from error
    head = sighting.head
    if mark is not None and head.log == mark.log and head.index:
        raise RefusedRecoveryError(
            f"the journal is there, and has entry {head.index} of this file system: nothing is "
            "lost. Start braidfs-metaserver without --recover-from-local"
        )
    if head.index:
        raise RefusedRecoveryError(
            f"the journal is not empty: it has {head.index} entries of another log, begun by "
            "another metaserver or another file system. If they are of this file system, start "
            "braidfs-metaserver without --recover-from-local: it takes a copy. Otherwise configure "
            "a journal that is new and empty"
        )
    owner = Owner.of(head.owner)
    if owner is not None and owner.name != name:
        raise RefusedRecoveryError(
            f"metaserver {owner.name} at {owner.address} has claimed the journal: stop it first"
        )
    return sighting


def _what_may_be_lost(
    mark: Mark | None, inodes: int, seen: LastSeen | None, name: str, now_s: int
) -> str:
    applied = mark.index if mark is not None else 0
    lines = [f"The store of this metaserver has {inodes:,} inodes, and entry {applied} of its log."]
    if seen is None:
        lines.append("It is not known what the journal had: how much is lost cannot be told.")
    else:
        lines.append(_seen_text(seen, mark, name, now_s))
    lines += [
        "What the journal had beyond that entry is lost, though programs were told that it is "
        "durable: files made, renamed and removed, and sizes and attributes of files.",
        "Stop all metaservers, and recover from the one with the newest entry. Clients get new "
        "sessions: programs get EIO for what they have open. Objects of files that are lost stay "
        "on the targets.",
    ]
    return "\n".join(lines)


def _seen_text(seen: LastSeen, mark: Mark | None, name: str, now_s: int) -> str:
    head, owner = seen.head, Owner.of(seen.head.owner)
    when = datetime.fromtimestamp(seen.time_s, UTC)
    text = (
        f"It was in touch with the journal last at {when:%Y-%m-%d %H:%M:%S} UTC, "
        f"{duration(max(0, now_s - seen.time_s))} ago: entry {head.index} in term {head.term}, "
        f"active was {owner.name if owner else 'nobody'}."
    )
    if mark is None or mark.log != head.log:
        return f"{text} The store has followed another log."
    if mark.index < head.index:
        return f"{text} The store lacks {head.index - mark.index:,} entries of these."
    if owner is not None and owner.name == name:
        return f"{text} It lacks nothing, unless another one was active after that."
    return f"{text} It had all until then, and lacks what came after."


# ---- the new store and the new journal -----------------------------------------------------------


def _rebuild(directory: Path, jumps: Jumps, inodes: int) -> int:
    """Puts a store with changed records in the place of the store. Returns how many files are to be
    cut."""
    store, beside, former = (directory / name for name in (STORE, RECOVERING, FORMER))
    if beside.exists():
        shutil.rmtree(beside)  # of a run that was interrupted
    try:
        cut = _fill(beside, store, jumps, inodes)
        give_to_owner(directory, beside)
        sync_directory(beside)
    except BaseException:
        shutil.rmtree(beside)
        raise
    if former.exists():
        shutil.rmtree(former)
    store.rename(former)
    beside.rename(store)
    sync_directory(directory)
    return cut


def _fill(beside: Path, store: Path, jumps: Jumps, inodes: int) -> int:
    with (
        closing(LmdbStore(store, size_max=0)) as old,
        closing(LmdbStore(beside, size_max=0)) as new,
    ):
        cut = fill(new, _blocks(old), jumps)
    if damage := damage_of(beside):
        raise StoreError(f"{beside}: {damage}")
    _check_count(beside, inodes)
    return cut


def _blocks(store: LmdbStore) -> Iterator[list[Record]]:
    snapshot = store.snapshot()
    try:
        found = snapshot.range(b"\0", records.KEYS_END)
        while block := list(islice(found, _BLOCK)):
            yield block
    finally:
        snapshot.close()


def _check_count(directory: Path, inodes: int) -> None:
    with closing(LmdbStore(directory, size_max=0)) as store:
        snapshot = store.snapshot()
        try:
            found = sum(1 for _ in snapshot.range(*records.all_of(b"I")))
        finally:
            snapshot.close()
    if found != inodes:
        raise StoreError(f"{directory} has {found} inodes, not {inodes}")


def _begin(directory: Path, door: Journal, sighting: Sighting, owner: Owner, term: int) -> Head:
    """Claims the journal, appends its first entry, and resigns."""
    with closing(LmdbStore(directory / STORE, size_max=0)) as store:
        head = _until_known(lambda: door.claim(sighting, str(owner), term))
        journaled = JournaledStore(store, door, head, lease=ActiveLease(), clock=clock_s)
        snapshot = store.snapshot()
        epoch = snapshot.get(records.MAP_EPOCH_KEY)
        snapshot.close()
        batch = [(records.MAP_EPOCH_KEY, epoch)]
        _until_known(lambda: journaled.commit(batch))
        head = journaled.head
        beats = door.sighting().beats
        return _until_known(lambda: door.claim(Sighting(head, beats), ""))


def _until_known(change: Callable[[], T]) -> T:
    """Tries a change until its outcome is known, for a while."""
    until_s = time.monotonic() + TRIES_S
    while True:
        try:
            return change()
        except (UnknownOutcomeError, StoreUncertainError):
            if time.monotonic() > until_s:
                raise
        threading.Event().wait(_PAUSE_S)


# ---- the command ---------------------------------------------------------------------------------


def ask(text: str) -> bool:
    """Shows what may be lost, and asks a person."""
    print(text, file=sys.stderr)  # noqa: T201 - for the one who started it
    if not sys.stdin.isatty():
        raise ConfigError("nobody can be asked here: --yes goes on without a question")
    print("Begin a new journal from this store? Type yes: ", end="", file=sys.stderr, flush=True)  # noqa: T201
    return sys.stdin.readline().strip() == "yes"
