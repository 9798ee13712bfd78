"""A metaserver that starts on a store with one damaged record, and works for a while.

`run_world(N)` is decided by N alone, except for the ids that the metaserver draws. It ends well
when the metaserver refuses to start with a sentence that names the record, or goes on: nothing ends
it, nothing hangs, no traceback is logged, what cannot be read is told of, and no other file is
lost.
"""

import logging
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from types import FrameType
from typing import Any, Final

import trio

from fscommon.errors import ConfigError, FsError
from fscommon.layout.layout import Layout, object_length
from fscommon.types import Ino, SessionId
from fscommon.wire.admin import InspectList
from fscommon.wire.backup import BackupBegin, BackupNext
from fscommon.wire.fsck import FsckNames
from fscommon.wire.jobs import JobList
from fscommon.wire.keys import KeyList
from fscommon.wire.messages import (
    Empty,
    GetAttr,
    GetXattr,
    ListXattr,
    Lookup,
    Open,
    ReadDir,
    Rename,
    StatFs,
    Unlink,
)
from fscommon.wire.objects import ObjectMended, ObjectSummed
from fscommon.wire.ops import Op
from fscommon.wire.quota import QuotaList
from fscommon.wire.scrub import Scrub as ScrubRequest
from fscommon.wire.scrub import ScrubList
from fscommon.wire.trash import TrashByAge, TrashList, TrashTrees
from metaserver import records
from metaserver.dropping import Dropping
from metaserver.eviction import Eviction
from metaserver.forms import fault_of
from metaserver.fsck import check
from metaserver.namespace.inode import Inode
from metaserver.namespace.replicas import names_of
from metaserver.reaper import Reaper
from metaserver.records import ObjectName
from metaserver.repair import Repair
from metaserver.repair_policy import RepairPolicy
from metaserver.scrub import Scrub
from metaserver.storage import StorageCalls
from metaserver.store.journaled import MARK_KEY
from metaserver.store.lmdb import DamagedRecordError
from metaserver.store.memory import MemorySnapshot, MemoryStore
from metaserver.store.waist import Batch, RecordError
from metaserver.trash_expiry import TrashExpiry
from metaserver.truncation import Truncation
from metaserver.unsynced import Unsynced
from tests.seeded_trio import run_seeded

from .bench import ROOT, Client
from .mirrors import TWO, CommitsAtOnce, Copiers, LiveBench, background, beats
from .whole_store import whole_store

Record = tuple[bytes, bytes]
SECONDS: Final = 25.0  # of the world
HANGS_S: Final = 5  # of the processor
SETTINGS: Final = replace(TWO, session_timeout_s=4.0)
POLICY: Final = RepairPolicy(rebuild_after_s=5.0, scrub_days=0.0002)
_WHOLE: Final = ObjectSummed(1 << 20, 1, b"digest" + bytes(10), 0, (), (), 1 << 20, 0, 1)


class HangsError(BaseException):
    """The event loop did not get on."""


# ---- damage ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Damage:
    """before, after: the record. after None: its sum is wrong, so that the store refuses it."""

    how: str
    before: Record
    after: Record | None

    @property
    def key(self) -> bytes:
        return self.after[0] if self.after is not None else self.before[0]

    @property
    def is_unreadable(self) -> bool:
        return self.after is None or bool(fault_of(*self.after))

    def is_named_in(self, text: str) -> bool:
        keys = {self.key, self.before[0]}
        names = {repr(key)[2:-1] for key in keys}
        if self.before[0][:1] == b"N":  # its targets name it
            names.add(f"on storage server {records.number_of(self.before[0])},")
        if self.before[0][:1] == b"M":
            names.add(self.before[0][1:].decode())
        return any(name in text for name in names)


def kind_of(key: bytes) -> bytes:
    """The letter; single records are a kind each."""
    return key if key[:1] == b"M" else key[:1]


def _flipped(draw: random.Random, raw: bytes, begin: int = 0) -> bytes:
    changed = bytearray(raw)
    for _ in range(draw.choice((1, 1, 3))):
        changed[draw.randrange(begin, len(raw))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _damage(draw: random.Random, found: list[Record], before: Record) -> Damage:
    key, value = before
    other = draw.choice(found)
    ways: dict[str, Callable[[], Record | None]] = {
        "sum": lambda: None,
        "flip": lambda: (key, _flipped(draw, value)) if value else (key, b"\0"),
        "cut": lambda: (key, value[: draw.randrange(len(value))]) if value else (key, b"\1"),
        "extend": lambda: (key, value + draw.randbytes(draw.choice((1, 8, 200)))),
        "replace": lambda: (key, draw.randbytes(len(value) or 3)),
        "fill": lambda: (key, draw.choice((b"\xff", b"\0")) * len(value)),
        "other value": lambda: (key, other[1]),
        "flip key": lambda: (_flipped(draw, key, 1), value),
        "cut key": lambda: (key[: draw.randrange(1, len(key))], value),
        "extend key": lambda: (key + draw.randbytes(draw.choice((1, 8))), value),
        "replace key": lambda: (key[:1] + draw.randbytes(len(key) - 1), value),
        "number of another file": lambda: (_renumbered(draw, key), value),
        "gone": lambda: (b"", b""),
    }
    how = draw.choice(list(ways))
    after = ways[how]()
    return Damage(how, before, after)


def _renumbered(draw: random.Random, key: bytes) -> bytes:
    """The key with a small number in the place of one of its numbers, as files and targets have."""
    places = list(range(1, len(key) - 7, 8))
    if not places:
        return key
    at = draw.choice(places)
    return key[:at] + draw.randrange(1, 24).to_bytes(8, "big") + key[at + 8 :]


class DamagedSnapshot(MemorySnapshot):
    def __init__(self, inner: MemorySnapshot, bad: set[bytes]) -> None:
        super().__init__(inner._records)
        self._bad = bad

    def get(self, key: bytes) -> bytes | None:
        if key in self._bad:
            raise DamagedRecordError(key)
        return super().get(key)

    def range(self, start: bytes, end: bytes) -> Iterator[Record]:
        for key, value in super().range(start, end):
            if key in self._bad:
                raise DamagedRecordError(key)
            yield key, value


class DamagedStore(MemoryStore):
    """As LMDB, it refuses records whose sums are wrong, until they are written again."""

    def __init__(self, damage: Damage) -> None:
        super().__init__()
        found = dict(whole_store())
        if damage.after is not None:
            del found[damage.before[0]]
            found.update([damage.after] if damage.after[0] else [])
        self.bad = {damage.key} if damage.after is None else set()
        super().commit(list(found.items()))

    def snapshot(self) -> MemorySnapshot:
        return DamagedSnapshot(super().snapshot(), set(self.bad))

    def commit(self, batch: Batch) -> None:
        self.bad -= {key for key, _ in batch}
        super().commit(batch)


# ---- the servers -------------------------------------------------------------------------------


@dataclass
class Everything(Copiers):
    """Targets that do whatever is asked. cuts: to how many bytes objects were cut."""

    cuts: dict[ObjectName, int] = field(default_factory=dict)

    async def cut_replicas(self, layout: Layout, size: int) -> dict[ObjectName, str]:
        await trio.sleep(0.01)
        for name in names_of(layout):
            length = object_length(layout, name.number & 255, size)
            self.cuts[name] = min(length, self.cuts.get(name, length))
        return {}

    async def truncate(self, layout: Layout, size: int) -> None:
        await self.cut_replicas(layout, size)

    async def spill(self, layout: Layout) -> None:
        await trio.sleep(0.01)

    async def sum(self, name: ObjectName, *, reads: bool, timeout_s: float) -> ObjectSummed:
        await self._reach(name.target)
        return _WHOLE

    async def mend(self, name: ObjectName, source: ObjectName, damaged: Any) -> ObjectMended:
        await self._reach(name.target)
        return ObjectMended(0, (), ())


@contextmanager
def said() -> Iterator[list[logging.LogRecord]]:
    """What is logged within."""
    lines: list[logging.LogRecord] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record)

    keeper, root = Keeper(), logging.getLogger()
    root.addHandler(keeper)
    try:
        yield lines
    finally:
        root.removeHandler(keeper)


def text_of(line: logging.LogRecord) -> str:
    fields = getattr(line, "braid_fields", {})
    return " ".join([line.getMessage(), *map(str, fields.values())])


@contextmanager
def cpu_deadline(seconds: float = HANGS_S) -> Iterator[None]:
    def late(signum: int, frame: FrameType | None) -> None:
        raise HangsError(f"it has hung for {seconds} s")

    former = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, 0.1)  # what is raised may be contained
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, former)


# ---- the world ---------------------------------------------------------------------------------


def begin_tasks(bench: LiveBench, storage: StorageCalls, tasks: trio.Nursery) -> Truncation:
    """Begins all that a metaserver does by itself. Truncations begin when the caller says so."""
    parts = background(bench, storage)
    committer = CommitsAtOnce(bench)
    dropping = Dropping(bench.engine, committer, storage, tasks, bench.time)
    tasks.start_soon(dropping.run)
    tasks.start_soon(Repair(parts, dropping, POLICY).run)
    tasks.start_soon(Scrub(parts, dropping, POLICY).run)
    tasks.start_soon(Reaper(parts).run)
    tasks.start_soon(TrashExpiry(parts).run)
    tasks.start_soon(Unsynced(parts).run)
    tasks.start_soon(Eviction(parts, dropping).run, tasks)
    return Truncation(bench.engine, committer, storage, tasks, bench.time, dropping)


async def _work(bench: LiveBench, targets: Everything) -> None:
    async with trio.open_nursery() as tasks:
        truncation = begin_tasks(bench, targets, tasks)
        tasks.start_soon(beats, bench, targets.ended)
        for _ in range(int(SECONDS / 0.5)):
            truncation.start_fresh()
            await trio.sleep(0.5)
        await _requests(bench)
        tasks.cancel_scope.cancel()


async def _requests(bench: LiveBench) -> None:
    admin = Client(bench, bench.connect("admin"), SessionId(0))
    backup = _asked(admin, Op.BACKUP_BEGIN, BackupBegin(True))
    for op, request in _ADMINISTRATION:
        _asked(admin, op, request)
    if backup is not None:
        _asked(admin, Op.FSCK_NAMES, FsckNames(backup.id, b"", True))
        _asked(admin, Op.BACKUP_NEXT, BackupNext(backup.id, b""))
    with suppress(FsError):
        bench.dropped_of(2)
    try:
        client = bench.writer()
    except FsError:
        return
    bench.engine.attach(bench.connect("recall"), client.session)
    for ino in range(1, 20):
        for op, request in (
            (Op.GETATTR, GetAttr(ino)),
            (Op.READDIR, ReadDir(ino, 0, 100)),
            (Op.LISTXATTR, ListXattr(ino)),
            (Op.GETXATTR, GetXattr(ino, b"braidfs.layout")),
            (Op.GETXATTR, GetXattr(ino, b"user.a")),
            (Op.OPEN, Open(ino, True)),
        ):
            _asked(client, op, request)
    for name in (b"file0", b"file1", b"not synced", b"folder"):
        _asked(client, Op.LOOKUP, Lookup(ROOT, name))
    _asked(client, Op.STATFS, StatFs())
    _asked(client, Op.RENAME, Rename(ROOT, b"link", ROOT, b"to", 0))
    _asked(client, Op.UNLINK, Unlink(ROOT, b"to"))
    _asked(client, Op.SESSION_CLOSE, Empty())
    await trio.sleep(3)


_ADMINISTRATION: Final[tuple[tuple[Op, Any], ...]] = (
    (Op.STATUS, Empty()),
    (Op.CLUSTER_MAP, Empty()),
    (Op.JOB_LIST, JobList()),
    (Op.SCRUB_LIST, ScrubList()),
    (Op.SCRUB, ScrubRequest((Ino(3), Ino(7)))),
    (Op.KEY_LIST, KeyList(0, 100)),
    (Op.QUOTA_LIST, QuotaList(0, 0, False, 100)),
    (Op.TRASH_TREES, TrashTrees(0, 100)),
    (Op.TRASH_LIST, TrashList(3, b"", 0, 0, 100)),
    (Op.TRASH_BY_AGE, TrashByAge(3, 0, 0, 100)),
    (Op.INSPECT_LIST, InspectList(ROOT, 0, 100)),
)


def _asked(client: Client, op: Op, request: Any) -> Any:
    """The reply; None: an error, or none came."""
    client.send(op, request)
    client.bench.settle()
    client.bench.engine.leases_changed(client.bench.time())
    if not client.received():
        return None
    try:
        return client.take()
    except FsError:
        return None


# ---- what may not be ----------------------------------------------------------------------------


def _own(record: Record) -> set[int]:
    """The files that the record was about: they may be lost with it."""
    key, value = record
    if key[:1] == b"D":
        return {records.unpack_dentry(value)[0], records.dentry_parent(key)}
    if key[:1] in b"AIXOTCPBEHUWZVYL":
        return {int.from_bytes(key[at : at + 8], "big") for at in range(1, len(key), 8)}
    return set()


def _files(found: dict[bytes, bytes]) -> dict[int, Inode]:
    return {
        records.number_of(key): Inode.parse(value)
        for key, value in found.items()
        if key[:1] == b"I" and not fault_of(key, value)
    }


def _harm(damage: Damage, store: DamagedStore, targets: Everything) -> list[str]:
    """Files that are lost, or have lost bytes, though the damaged record was not about them."""
    before, after = dict(whole_store()), dict(MemoryStore.snapshot(store).range(b"", b"\xff"))
    excused, found = _own(damage.before), _files(after)
    if damage.key in before:  # the damage has taken the place of another record
        excused |= _own((damage.key, before[damage.key]))
    names = {records.unpack_dentry(value)[0] for key, value in before.items() if key[:1] == b"D"}
    lost: list[str] = []
    for ino, was in _files(before).items():
        is_asked = was.attributes.mode >> 12 == 10  # the symlink is renamed and removed
        if ino in excused or (ino not in names and ino != ROOT) or is_asked:
            continue
        now = found.get(ino)
        if now is None:
            lost.append(f"inode {ino} is gone")
            continue
        if (now.attributes.mode, now.attributes.size) != (was.attributes.mode, was.attributes.size):
            lost.append(f"inode {ino} has changed")
        if was.is_file:
            lost += _lost_bytes(ino, now, targets)
    for key, value in before.items():
        is_asked = key[:1] == b"D" and records.dentry_name(key) == b"link"
        if key[:1] in b"DX" and key not in (damage.before[0], damage.key) and not is_asked:
            changed = after.get(key) != value
            about = {records.number_of(key)} if key[:1] == b"X" else set()
            if changed and not about & excused:
                lost.append(f"the record of key {key!r} is gone")
    return lost


def _lost_bytes(ino: int, now: Inode, targets: Everything) -> list[str]:
    layout, lost = now.layout(), []
    for name in names_of(layout):
        if name in targets.deleted:
            lost.append(f"inode {ino} has {name}, which was deleted")
        length = object_length(layout, name.number & 255, now.attributes.size)
        if targets.cuts.get(name, length) < length:
            lost.append(f"inode {ino} has {name}, which was cut")
    return lost


@cache
def kinds() -> tuple[bytes, ...]:
    return tuple(sorted({kind_of(key) for key, _ in whole_store()}))


def damage_of_seed(seed: int) -> Damage:
    draw = random.Random(seed)
    found = list(whole_store())
    kind = kinds()[seed % len(kinds())]
    same = [one for one in found if kind_of(one[0]) == kind]
    return _damage(draw, [one for one in found if one[0][:1] == kind[:1]], draw.choice(same))


def run_world(seed: int) -> str:
    """Returns how it ended. Raises AssertionError, or whatever the metaserver has raised."""
    damage = damage_of_seed(seed)
    store = DamagedStore(damage)
    try:
        with cpu_deadline(), said() as lines:
            ended = _run(seed, damage, store)
    except BaseException as error:
        error.add_note(f"seed {seed}: {damage}")
        error.add_note(
            "again: PYTHONPATH=. .venv/bin/python -c 'from tests.unit.metaserver.damage_world "
            f"import run_world; run_world({seed})'"
        )
        raise
    for line in lines:
        assert not line.exc_info, f"seed {seed}: {damage}: {text_of(line)}: {line.exc_info}"
    if damage.is_unreadable and damage.key and ended == "went on":
        told = any(damage.is_named_in(text_of(line)) for line in lines)
        is_seldom = damage.key[:1] in _SELDOM_READ or damage.key == MARK_KEY
        assert told or is_seldom, f"seed {seed}: {damage} is not told of"
    return ended


_SELDOM_READ: Final = b"BDERVX"  # some of them are read only with their file, session or tree


def _run(seed: int, damage: Damage, store: DamagedStore) -> str:
    faults = check(store.snapshot())
    if damage.is_unreadable and damage.key:
        assert any(damage.is_named_in(one) for one in faults), f"fsck does not tell: {faults}"
    targets = Everything()
    try:
        bench = LiveBench(store, nodes=4, settings=SETTINGS)
    except (RecordError, ConfigError) as error:
        sentence = str(error)
        assert damage.is_named_in(sentence), sentence
        assert len(sentence) < 600 and "\n" not in sentence
        return "refused"
    bench.engine.gate.is_auditing = False
    run_seeded(seed, _work, bench, targets)
    bench.settle()
    harm = _harm(damage, store, targets)
    assert not harm, harm
    check(store.snapshot())
    return "went on"
