"""A standby takes a copy of the active metaserver's state, in place of its own store.

The records come in parts of one snapshot, as those of a backup do, with stored replies and the mark
of the journal: the standby follows the journal from there. Until the copy is whole it lies beside
the store. The former store, if it has names, is kept as `store.former`, one of them: an
administrator who learns that the wrong state has won still has it. The state of another cluster is
never taken.
"""

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import trio

from fscommon.auth.handshake import HelloFields
from fscommon.errors import BraidError
from fscommon.files import sync_directory
from fscommon.net.address import parse_address
from fscommon.net.transport import Transport
from fscommon.rpc.caller import Caller, open_caller
from fscommon.rpc.snapshot import read_snapshot
from metaserver.records import CLUSTER_KEY
from metaserver.state_directory import FORMER, STORE
from metaserver.store.follower import ForeignStateError
from metaserver.store.journal import UnreachableError
from metaserver.store.journaled import has_names
from metaserver.store.lmdb import DamagedRecordError, DamagedStoreError, LmdbStore

COPYING: Final = "store.copying"
CALL_S_MAX: Final = 10.0


async def take_copy(
    address: str,
    own: LmdbStore,
    directory: Path,
    *,
    key: bytes,
    transport: Transport | None,
    came: Callable[[int, int], None] = lambda bytes_so_far, bytes_about: None,
) -> int:
    """Replaces the store in `directory`, which `own` has open and which is closed then. came: it is
    called with the bytes of records that are here, and about how many there are. Returns how many
    records were copied. Raises UnreachableError if there is no copy, for whatever reason, also a
    full disk; ForeignStateError, DamagedStoreError: `own` is open then, too."""
    beside = directory / COPYING
    shutil.rmtree(beside, ignore_errors=True)
    mine, is_kept = _state_of(own)
    try:
        with closing(LmdbStore(beside, size_max=0)) as copied:
            async with open_caller(
                parse_address(address),
                key=key,
                hello=HelloFields("admin", "standby"),
                timeout_s=CALL_S_MAX,
                transport=transport,
            ) as caller:
                count = await _receive(caller, copied, came)
            theirs = _cluster(copied)
    except (BraidError, OSError) as error:
        shutil.rmtree(beside, ignore_errors=True)  # it may have filled the disk
        raise UnreachableError(f"no copy from {address}: {error}") from error
    if mine is not None and mine != theirs:
        raise ForeignStateError(
            "the active metaserver has the names of another cluster than this one's store"
        )
    own.close()
    await trio.to_thread.run_sync(lambda: _replace(directory, is_kept=is_kept))
    return count


async def _receive(caller: Caller, store: LmdbStore, came: Callable[[int, int], None]) -> int:
    count = size = about = 0

    def begun(size: int) -> None:
        nonlocal about
        about = size

    parts = read_snapshot(caller, whole=True, timeout_s=CALL_S_MAX, begun=begun)
    async for part, records in parts:
        await trio.to_thread.run_sync(store.commit, records)
        count += len(records)
        size += len(part.records)
        came(size, max(size, about))
    return count


def _state_of(own: LmdbStore) -> tuple[bytes | None, bool]:
    """Which cluster it is of, and whether it has names. Raises DamagedStoreError."""
    try:
        return _cluster(own), has_names(own)
    except DamagedRecordError as error:
        raise DamagedStoreError(error.message) from error


def _cluster(store: LmdbStore) -> bytes | None:
    snapshot = store.snapshot()
    try:
        return snapshot.get(CLUSTER_KEY)
    finally:
        snapshot.close()


def _replace(directory: Path, *, is_kept: bool) -> None:
    """Interrupted at any step, there is a store, or a copy that is taken anew."""
    store, former = directory / STORE, directory / FORMER
    if is_kept:
        shutil.rmtree(former, ignore_errors=True)
        store.rename(former)
    else:
        shutil.rmtree(store)
    (directory / COPYING).rename(store)
    sync_directory(directory)
