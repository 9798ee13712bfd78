"""Makes an engine from a store: reads its records, or writes the first ones of a new cluster.

It runs once, before anything is served. It refuses a store of a newer schema. The sessions that it
finds must come back and replay. While an earlier recovery is unfinished its `recovery` record
stays, so that clients are told the same durable transaction again.
"""

import itertools
import secrets
import stat
from dataclasses import dataclass, replace
from itertools import chain, islice
from math import inf

from fscommon.errors import ConfigError
from fscommon.layout.attributes import LEASE_DATA, Attributes
from fscommon.layout.capability import capability_key
from fscommon.layout.layout import unpack_layout
from fscommon.types import ROOT_INO, Ino, NodeId, SessionId, TargetId, Txn
from fscommon.wire.codec import decode
from fscommon.wire.ops import OPENING, Op
from metaserver import records
from metaserver.backups import Backups
from metaserver.context import Progress, Services
from metaserver.engine import Engine, Time
from metaserver.forms import FormedSnapshot, Once, log_damage
from metaserver.intents import Intents
from metaserver.jobs import JobTable
from metaserver.keys import ClientKeys, key_of_record
from metaserver.leases.table import Leases
from metaserver.membership import Membership, Node, Target
from metaserver.namespace.charges import charges_of
from metaserver.namespace.inode import Inode
from metaserver.numbers import InodeNumbers
from metaserver.overlay import Overlay
from metaserver.placement import DEFAULT_REPLICAS, ReplicaPolicy
from metaserver.quota.table import QuotaTable
from metaserver.replies import ino_of_reply
from metaserver.scrubs import Place, ScrubTable
from metaserver.sessions import SYSTEM_SESSION, Session, Sessions
from metaserver.store.journaled import MARK_KEY
from metaserver.store.waist import Batch, Store
from metaserver.trash import TrashTable, Tree, TreeState

_EPOCH_SKIP = 1024  # map epochs that the last run may have used without making them durable
# Records that every store in use has.
_NEEDED = (
    records.CLUSTER_KEY,
    records.INO_END_KEY,
    records.INODES_KEY,
    records.MAP_EPOCH_KEY,
    records.inode_key(ROOT_INO),
)
_RECALL_BITS = 40  # the incarnation is above these bits, so no number of a recall is used twice


@dataclass(frozen=True, slots=True)
class Settings:
    cluster_key: bytes
    session_timeout_s: float
    chunk_size: int
    stripe_width_max: int
    lease_duration_s: float = 30.0
    leases_max: int = 100_000  # of one session
    replicas: ReplicaPolicy = DEFAULT_REPLICAS


def boot(store: Store, settings: Settings, time: Time) -> Engine:
    """Raises ConfigError when the store is not one that this program can use, StoreError,
    RecordError."""
    booting = prepare(store, settings, time)
    store.commit(booting.batch)
    return booting.engine(Overlay(store))


@dataclass(frozen=True, slots=True)
class Booting:
    """What is committed before an engine can be made, and what the engine is made of. The batch may
    be tried again until it is durable."""

    batch: Batch
    services: Services

    def engine(self, overlay: Overlay) -> Engine:
        """overlay: over the store, which has the batch durably."""
        engine = Engine(overlay, self.services)
        engine.progress.has_room(overlay.room())
        engine.end_recovery_if_done()
        return engine


def prepare(store: Store, settings: Settings, time: Time) -> Booting:
    """Raises ConfigError when the store is not one that this program can use, RecordError when it
    has to read a record that it cannot read."""
    snapshot = FormedSnapshot(store.snapshot(), Once(log_damage))
    try:
        first = _found(snapshot, time)
        if not first:
            _check(snapshot)
        cluster = first.get(records.CLUSTER_KEY) or snapshot.get(records.CLUSTER_KEY) or b""
        services = _services(snapshot, settings, time, cluster, first, Backups(store))
    finally:
        snapshot.close()
    batch = [*first.items(), *_reservations(services), *services.quotas.take_dirty()]
    return Booting(batch, services)


def _found(snapshot: FormedSnapshot, time: Time) -> dict[bytes, bytes]:
    """The records that an empty store needs; {} for a store in use."""
    raw = snapshot.get(records.SCHEMA_KEY)
    if raw is not None:
        version = records.unpack_number(raw)
        if version != records.SCHEMA_VERSION:
            raise ConfigError(f"the store has schema {version}; this program needs 1")
        return {}
    if any(key != MARK_KEY for key, _ in islice(snapshot.range(b"", records.KEYS_END), 2)):
        raise ConfigError(f"the store has records, but none of key {records.SCHEMA_KEY!r}")
    root = Attributes(
        ino=ROOT_INO,
        atime_ns=time.now_ns,
        mtime_ns=time.now_ns,
        ctime_ns=time.now_ns,
        btime_ns=time.now_ns,
        mode=stat.S_IFDIR | 0o755,
        nlink=2,
        parent=ROOT_INO,
        data_version=1,
        change_version=1,
    )
    return {
        records.SCHEMA_KEY: records.pack_number(records.SCHEMA_VERSION),
        records.CLUSTER_KEY: secrets.token_bytes(16),
        records.inode_key(ROOT_INO): root.pack(),
        records.INODES_KEY: records.pack_number(1),
        records.LACKING_KEY: b"",
    }


def _check(snapshot: FormedSnapshot) -> None:
    """Refuses a store in use where numbers would be given out again that are in use."""
    for key in _NEEDED:
        if snapshot.get(key) is None:
            raise ConfigError(f"the metadata store has no record of key {key!r}")
    ino_end = _number(snapshot, records.INO_END_KEY)
    for letter, behind in ((b"I", records.inode_key(ino_end)), (b"Z", records.doomed_key(ino_end))):
        beyond = next(iter(snapshot.range(behind, records.all_of(letter)[1])), None)
        if beyond is not None:
            raise ConfigError(
                f"the metadata store says that {ino_end} was never the number of a file "
                f"({records.INO_END_KEY!r}), and has a record of key {beyond[0]!r}"
            )


def _number(snapshot: FormedSnapshot, key: bytes) -> int:
    return records.unpack_number(snapshot.get(key))


def _services(
    snapshot: FormedSnapshot,
    settings: Settings,
    time: Time,
    cluster: bytes,
    first: dict[bytes, bytes],
    backups: Backups,
) -> Services:
    keys = _keys(snapshot)
    sessions = _sessions(snapshot, keys, time)
    numbers = InodeNumbers(max(_number(snapshot, records.INO_END_KEY), ROOT_INO + 1))
    for session in sessions.all():
        session.former_slots_end = numbers.next
    intents = Intents()
    for ino in _truncated(snapshot):
        intents.add_former(ino)
    leases = _leases(snapshot, settings, sessions, time)
    return Services(
        cluster=cluster,
        capability_key=capability_key(settings.cluster_key, cluster),
        session_timeout_s=settings.session_timeout_s,
        progress=_progress(snapshot, sessions),
        numbers=numbers,
        membership=_membership(snapshot, settings, time, cluster),
        sessions=sessions,
        keys=keys,
        intents=intents,
        quotas=_quotas(snapshot, first, time),
        trash=_trash(snapshot),
        started_s=time.now_s,
        leases=leases,
        backups=backups,
        jobs=_jobs(snapshot),
        scrubs=_scrubs(snapshot),
    )


def _truncated(snapshot: FormedSnapshot) -> list[Ino]:
    """Returns the files that are to be cut. Who would carry out what is of another file would cut
    that."""
    found: list[Ino] = []
    for key, value in snapshot.range(*records.all_of(b"T")):
        ino = Ino(records.number_of(key))
        raw = next((row for _, row in snapshot.readable(*records.inode_at(ino))), None)
        inode = Inode.parse(raw) if raw is not None else None
        file_id = unpack_layout(records.unpack_intent(value).layout).file_id
        if inode is None or (inode.is_file and inode.layout().file_id == file_id):
            found.append(ino)
        else:
            log_damage(f"the record of key {key!r} is of file {file_id}: nothing is cut")
    return found


def _evicted(snapshot: FormedSnapshot, sessions: Sessions) -> list[SessionId]:
    """Returns the sessions that are not known to be fenced everywhere. One that has files open for
    writing, and no record of its own, is among them."""
    found: dict[SessionId, None] = {}
    for letter in (b"F", b"W"):
        for key, _ in snapshot.keys(*records.all_of(letter)):
            session = SessionId(records.number_of(key))
            if session not in sessions:
                found[session] = None
            elif letter == b"F":
                log_damage(f"the record of key {key!r} is of a session that was not evicted")
    return [*found]


def _leases(snapshot: FormedSnapshot, settings: Settings, sessions: Sessions, time: Time) -> Leases:
    """Only sessions that were not fenced before the restart hold leases: on what they may write."""
    leases = Leases(
        sessions,
        duration_s=min(settings.lease_duration_s, settings.session_timeout_s),
        leases_max=settings.leases_max,
    )
    leases.numbers = itertools.count(secrets.randbits(_RECALL_BITS) + 1)
    for ino in _moved(snapshot):
        leases.connected(SYSTEM_SESSION)
        leases.reassert(SYSTEM_SESSION, ino, LEASE_DATA)
        leases.hold(SYSTEM_SESSION, ino, inf)
    for session in _evicted(snapshot, sessions):
        written = snapshot.keys(*records.written_of(session))
        leases.evict(session, [records.written_ino(key) for key, _ in written], time.now_s)
    return leases


def _moved(snapshot: FormedSnapshot) -> list[Ino]:
    """Returns the files that nobody may write yet, because replicas that have left them may still
    answer (metaserver.copier)."""
    plans = snapshot.range(*records.all_of(b"C"))
    return [
        Ino(records.number_of(key))
        for key, value in plans
        if decode(records.PlanRecord, value).is_added
    ]


def _quotas(snapshot: FormedSnapshot, first: dict[bytes, bytes], time: Time) -> QuotaTable:
    """Counts all inodes once if the store has no accounts yet, or accounts without xattrs."""
    table = QuotaTable()
    is_counted = snapshot.get(records.QUOTA_KEY) == records.QUOTA_COUNTS
    for key, value in snapshot.range(*records.all_of(b"Q")):
        account, stored = records.quota_account(key), records.unpack_quota(value)
        table.put(account, stored if is_counted else replace(stored, bytes=0, inodes=0))
        if not is_counted:
            table.merge([(account, 0, 0)], time.now_ns)  # writes or deletes its record
    if not is_counted:
        inodes = [value for key, value in first.items() if key[:1] == b"I"]
        stored_inodes = (value for _, value in snapshot.range(*records.all_of(b"I")))
        table.merge(charges_of(chain(inodes, stored_inodes), snapshot), time.now_ns)
    return table


def _trash(snapshot: FormedSnapshot) -> TrashTable:
    table = TrashTable()
    for key, value in snapshot.range(*records.all_of(b"P")):
        record = records.unpack_trash_tree(value)
        tree = Tree(TreeState(record.state), record.expiry_s, record.inodes)
        table.put(records.number_of(key), tree)
    return table


def _progress(snapshot: FormedSnapshot, sessions: Sessions) -> Progress:
    txn = Txn(_number(snapshot, records.TXN_KEY))
    unfinished = snapshot.get(records.RECOVERY_KEY)
    return Progress(
        incarnation=secrets.randbits(63) + 1,
        txn=txn,
        durable=txn,
        recovery_txn=txn if unfinished is None else Txn(records.unpack_number(unfinished)),
        recovering=True,
        inodes=max(_number(snapshot, records.INODES_KEY), 1),
    )


def _jobs(snapshot: FormedSnapshot) -> JobTable:
    return JobTable(
        (records.number_of(key), decode(records.JobRecord, value))
        for key, value in snapshot.readable(*records.all_of(b"J"))
    )


def _scrubs(snapshot: FormedSnapshot) -> ScrubTable:
    stored, compared = snapshot.get(records.SCRUB_KEY), snapshot.get(records.COMPARED_KEY)
    findings = [
        (Place(*records.finding_place(key)), decode(records.FindingRecord, value))
        for key, value in snapshot.readable(*records.all_of(b"A"))
    ]
    return ScrubTable(
        dict(sorted(findings, key=lambda one: one[1].found_ns)),
        records.ScrubRecord() if stored is None else decode(records.ScrubRecord, stored),
        None if compared is None else records.unpack_number(compared),
    )


def _keys(snapshot: FormedSnapshot) -> ClientKeys:
    keys = ClientKeys()
    for key, value in snapshot.range(*records.all_of(b"K")):
        keys.put(key_of_record(records.number_of(key), records.unpack_key(value)))
    return keys


def _sessions(snapshot: FormedSnapshot, keys: ClientKeys, time: Time) -> Sessions:
    sessions = Sessions(version=secrets.randbits(62) + 1)
    for key, value in snapshot.range(*records.all_of(b"S")):
        record = records.unpack_session(value)
        session = Session(
            id=SessionId(records.number_of(key)),
            node=record.node,
            opened_ns=record.opened_ns,
            renewed_s=time.now_s,
            key=keys.get(record.key),
            lives=record.lives,
            replaying=True,
        )
        session.condemned = record.key != 0 and session.key is None
        for reply_key, raw in snapshot.range(*records.replies_of(session.id)):
            request_id = records.reply_request_id(reply_key)
            reply = records.unpack_reply(raw)
            session.stored[request_id] = None
            if reply.op in OPENING:
                session.created[request_id] = ino_of_reply(Op(reply.op), reply.body)
        sessions.add(session)
    sessions.orphans.update(
        Ino(records.number_of(key)) for key, _ in snapshot.keys(*records.all_of(b"O"))
    )
    return sessions


def _membership(
    snapshot: FormedSnapshot, settings: Settings, time: Time, cluster: bytes
) -> Membership:
    membership = Membership(
        cluster=cluster,
        epoch=_number(snapshot, records.MAP_EPOCH_KEY) + _EPOCH_SKIP,
        chunk_size=settings.chunk_size,
        width_max=settings.stripe_width_max,
        policy=settings.replicas,
    )
    for key, value in snapshot.range(*records.all_of(b"N")):
        node = records.unpack_node(value)
        membership.put_node(
            Node(
                NodeId(records.number_of(key)),
                node.uuid,
                node.name,
                node.address,
                time.now_s,
                domain=node.domain,
                features=node.features,
            )
        )
    for key, value in snapshot.range(*records.all_of(b"G")):
        target = records.unpack_target(value)
        if membership.node(NodeId(target.node)) is None and not target.is_removed:
            raise ConfigError(
                f"the record of key {key!r} in the metadata store is of a target on storage server "
                f"{target.node}, which has no record"
            )
        number = TargetId(records.number_of(key))
        if target.is_removed:
            membership.put_removed(number, target.uuid)
            continue
        membership.put_target(
            Target(
                id=number,
                uuid=target.uuid,
                node=NodeId(target.node),
                bytes_total=target.bytes_total,
                bytes_free=target.bytes_free,
                is_draining=target.is_draining,
                incarnation=target.incarnation,
                incarnation_kept=target.incarnation,
                is_lost=target.is_lost,
                is_drained=target.is_drained,
                risen_ns=target.risen_ns,
            )
        )
    return membership


def _reservations(services: Services) -> list[tuple[bytes, bytes]]:
    end = services.numbers.reserve_first()
    return [
        (records.INO_END_KEY, records.pack_number(end)),
        (records.QUOTA_KEY, records.QUOTA_COUNTS),
        (records.MAP_EPOCH_KEY, records.pack_number(services.membership.epoch)),
        (records.RECOVERY_KEY, records.pack_number(services.progress.recovery_txn)),
    ]
