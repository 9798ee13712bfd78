"""fsck: checks that the records of a store agree with each other. It changes nothing.

It reads one snapshot of a metaserver that is not running (or the memory store of a test). It checks
that every dentry names an inode of its type; that every inode has as many names as its nlink, and
that only orphans have none; that a directory has one name, its parent's number, and one link for
each sub-directory; that every directory is reached from the root; and that xattr counts, file ids,
doomed objects and intents agree; and that no layout has a replica that was dropped. It does not
look at objects on targets: a scrub does.
"""

import stat
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from fscommon.errors import BraidError
from fscommon.layout.layout import is_replicated, unpack_layout
from fscommon.types import ROOT_INO, Ino
from fscommon.wire.codec import decode
from metaserver import records
from metaserver.forms import FORMS, FormedSnapshot, Once
from metaserver.namespace.charges import charges_of
from metaserver.namespace.inode import Inode
from metaserver.namespace.replicas import lack_of, names_of
from metaserver.quota.table import QuotaTable
from metaserver.store.lmdb import LmdbStore
from metaserver.store.waist import RecordError, Snapshot


@dataclass(slots=True)
class _Seen:
    inodes: dict[Ino, Inode] = field(default_factory=dict)
    names: Counter[Ino] = field(default_factory=Counter)
    subdirectories: Counter[Ino] = field(default_factory=Counter)
    parents: dict[Ino, Ino] = field(default_factory=dict)  # of directories, from their dentries
    kept: Counter[Ino] = field(default_factory=Counter)  # entries of the trash
    file_ids: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def check(stored: Snapshot) -> list[str]:
    """Returns one sentence for each fault; [] for a sound store."""
    seen = _Seen()
    snapshot = FormedSnapshot(stored, Once(seen.faults.append))
    _read_inodes(snapshot, seen)
    _read_dentries(snapshot, seen)
    seen.kept.update(
        records.kept_place(key)[2] for key, _ in snapshot.readable(*records.all_of(b"B"))
    )
    _check_inodes(snapshot, seen)
    _check_tree(seen)
    _check_rest(snapshot, seen)
    _check_writers(snapshot, seen)
    _check_replicas(snapshot, seen)
    _check_quotas(snapshot, seen)
    _check_trash(snapshot, seen)
    _read_others(snapshot)
    return seen.faults


def _has(snapshot: FormedSnapshot, key: bytes) -> bool:
    """Whether there is such a record, be it readable or not."""
    return _get(snapshot, key) is not None


def _get(snapshot: FormedSnapshot, key: bytes) -> bytes | None:
    """Returns the record; b"" for one that cannot be read, which is a fault already."""
    try:
        return snapshot.get(key)
    except RecordError:
        return b""


def _read_inodes(snapshot: FormedSnapshot, seen: _Seen) -> None:
    for key, value in snapshot.readable(*records.all_of(b"I")):
        ino = Ino(records.number_of(key))
        inode = Inode.parse(value)
        if inode.is_file:
            layout = inode.layout()
            seen.file_ids[layout.file_id] += 1
            if len(layout.inline) > inode.attributes.size:
                seen.faults.append(f"inode {ino} has {len(layout.inline)} bytes behind its end")
        seen.inodes[ino] = inode


def _read_dentries(snapshot: FormedSnapshot, seen: _Seen) -> None:
    for key, value in snapshot.readable(*records.all_of(b"D")):
        parent, name = records.dentry_parent(key), records.dentry_name(key)
        ino, kind = records.unpack_dentry(value)
        where = f"entry {name!r} of {parent}"
        if records.dentry_key(parent, name) != key:
            seen.faults.append(f"{where} has a wrong hash")
        if parent not in seen.inodes or not seen.inodes[parent].is_directory:
            seen.faults.append(f"{where} is in no directory")
        inode = seen.inodes.get(ino)
        if inode is None:
            seen.faults.append(f"{where} names inode {ino}, which is not there")
            continue
        if stat.S_IFMT(inode.attributes.mode) >> 12 != kind:
            seen.faults.append(f"{where} has a wrong type")
        seen.names[ino] += 1
        if inode.is_directory:
            seen.subdirectories[parent] += 1
            seen.parents[ino] = parent
            if inode.attributes.parent != parent:
                seen.faults.append(f"{where} says parent {inode.attributes.parent}")


def _check_inodes(snapshot: FormedSnapshot, seen: _Seen) -> None:
    for ino, inode in seen.inodes.items():
        if ino == ROOT_INO:
            seen.names[ino] += 1
        is_orphan = _has(snapshot, records.orphan_key(ino))
        kept = seen.kept[ino]
        if is_orphan + kept != (seen.names[ino] == 0):
            held = f"orphan: {is_orphan}, in the trash: {kept}"
            seen.faults.append(f"inode {ino}: {seen.names[ino]} names, {held}")
        links = inode.attributes.nlink
        expected = 2 + seen.subdirectories[ino] if inode.is_directory else seen.names[ino]
        if links != (0 if is_orphan or kept else expected):
            seen.faults.append(f"inode {ino} has nlink {links}, not {expected}")
        if inode.is_directory and seen.names[ino] > 1:
            seen.faults.append(f"directory {ino} has {seen.names[ino]} names")
        xattr_count = sum(1 for _ in snapshot.readable(*records.xattrs_of(ino)))
        if inode.attributes.xattr_count != xattr_count:
            seen.faults.append(f"inode {ino} has {xattr_count} xattrs")


def _check_tree(seen: _Seen) -> None:
    sound = {ROOT_INO}
    for ino in seen.parents:
        path: list[Ino] = []
        while ino not in sound and ino in seen.parents and len(path) <= len(seen.parents):
            path.append(ino)
            ino = seen.parents[ino]  # noqa: PLW2901 - climbing
        if ino in sound:
            sound.update(path)
        else:
            seen.faults.append(f"directory {path[0]} does not hang from the root")


def _read_others(snapshot: FormedSnapshot) -> None:
    """What nothing else reads is read, so that one that cannot be read is a fault."""
    for letter in FORMS:
        for _ in snapshot.readable(*records.all_of(letter)):
            pass


def _check_rest(snapshot: FormedSnapshot, seen: _Seen) -> None:
    for key, _ in snapshot.readable(*records.all_of(b"R")):
        if not _has(snapshot, records.session_key(records.number_of(key))):
            seen.faults.append(f"a reply to session {records.number_of(key)}, which is not there")
    for letter, what in ((b"X", "xattr"), (b"O", "orphan")):
        for key, _ in snapshot.readable(*records.all_of(letter)):
            if records.number_of(key) not in seen.inodes:
                seen.faults.append(f"{what} of {records.number_of(key)}, which is not there")
    for key, _ in snapshot.readable(*records.all_of(b"Z")):
        seen.file_ids[records.number_of(key)] += 1
    for key, value in snapshot.readable(*records.all_of(b"T")):
        inode = seen.inodes.get(Ino(records.number_of(key)))
        if inode is None or not inode.is_file or inode.layout().file_id != _file_of_intent(value):
            seen.faults.append(f"intent of {records.number_of(key)} fits no file")
    twice = [file_id for file_id, count in seen.file_ids.items() if count > 1]
    seen.faults += [f"file id {file_id} is used more than once" for file_id in twice]
    raw = _get(snapshot, records.INODES_KEY)
    stored = records.unpack_number(raw or None)
    if stored != len(seen.inodes):
        seen.faults.append(f"{len(seen.inodes)} inodes, but the count says {stored}")


def _check_writers(snapshot: FormedSnapshot, seen: _Seen) -> None:
    for key, _ in snapshot.readable(*records.all_of(b"W")):
        session = records.number_of(key)
        owners = records.session_key(session), records.fence_key(session)
        if not any(_has(snapshot, owner) for owner in owners):
            seen.faults.append(f"what session {session} writes outlived it")


def _check_replicas(snapshot: FormedSnapshot, seen: _Seen) -> None:
    dropped = {records.dropped_name(key) for key, _ in snapshot.readable(*records.all_of(b"Y"))}
    of_files = {
        records.dropped_name_of_file(key) for key, _ in snapshot.readable(*records.all_of(b"V"))
    }
    for name in dropped ^ of_files:
        seen.faults.append(f"{name} was dropped, says only one of two records")
    for name in dropped:
        if not seen.file_ids[name.file_id]:
            seen.faults.append(f"{name} was dropped from no file")
    lone = {records.lone_name(key) for key, _ in snapshot.readable(*records.all_of(b"L"))}
    for _, value in snapshot.readable(*records.all_of(b"C")):
        lone.update(decode(records.PlanRecord, value).names())
    for ino, inode in seen.inodes.items():
        if inode.is_file and is_replicated(inode.tail):
            bad = (dropped | lone).intersection(names_of(inode.layout()))
            seen.faults += [f"inode {ino} has {name}, which is gone or not made" for name in bad]
    _check_lacks(snapshot, seen)
    for key, _ in snapshot.readable(*records.all_of(b"U")):
        ino, _ = records.unsynced_place(key)
        if ino not in seen.inodes or not is_replicated(seen.inodes[ino].tail):
            seen.faults.append(f"inode {ino} is to be synced everywhere, and has no replicas")


def _check_lacks(snapshot: FormedSnapshot, seen: _Seen) -> None:
    if not _has(snapshot, records.LACKING_KEY):
        return  # the index is made anew after the next start
    stored = {records.lacking_place(key) for key, _ in snapshot.readable(*records.all_of(b"H"))}
    real: set[tuple[int, Ino]] = set()
    for ino, inode in seen.inodes.items():
        left = lack_of(inode.tail) if inode.is_file else None
        if left is not None:
            real.add((left, ino))
    for left, ino in stored - real:
        seen.faults.append(f"inode {ino} does not lack replicas of a stripe with {left}")
    for left, ino in real - stored:
        seen.faults.append(f"inode {ino} has {left} replicas of a stripe, and is in no list")


def _check_quotas(snapshot: FormedSnapshot, seen: _Seen) -> None:
    if _get(snapshot, records.QUOTA_KEY) != records.QUOTA_COUNTS:
        return  # the accounts are counted at the next start
    counted = QuotaTable()
    inodes = (inode.attributes.pack() for inode in seen.inodes.values())
    counted.merge(charges_of(inodes, snapshot), 0)
    for key, value in snapshot.readable(*records.all_of(b"Q")):
        account = records.quota_account(key)
        stored, real = records.unpack_quota(value), counted.take(account)
        if (stored.bytes, stored.inodes) != (real.bytes, real.inodes):
            seen.faults.append(
                f"account {account} says {stored.bytes} bytes in {stored.inodes} inodes, "
                f"not {real.bytes} in {real.inodes}"
            )
    seen.faults += [f"account {account} has no record" for account, _ in counted.listing()]


def _check_trash(snapshot: FormedSnapshot, seen: _Seen) -> None:
    aged = {
        records.kept_of_aged(key, value): key
        for key, value in snapshot.readable(*records.all_of(b"E"))
    }
    counted: Counter[int] = Counter()
    for key, value in snapshot.readable(*records.all_of(b"B")):
        directory, hashed, ino = records.kept_place(key)
        entry = records.unpack_kept(value)
        counted[entry.tree] += 1
        if ino not in seen.inodes:
            seen.faults.append(f"inode {ino} of the trash is not there")
        if records.name_hash(entry.name) != hashed:
            seen.faults.append(f"entry {entry.name!r} of the trash of {directory} has a wrong hash")
        if aged.pop(key, None) != records.aged_key(entry.tree, entry.removed_ns, ino):
            seen.faults.append(f"inode {ino} of the trash has no age")
    seen.faults += [f"an age in the trash, {key!r}, is of no entry" for key in aged.values()]
    for key, value in snapshot.readable(*records.all_of(b"P")):
        tree, count = records.number_of(key), records.unpack_trash_tree(value).inodes
        if counted.pop(tree, 0) != count:
            seen.faults.append(f"the trash of {tree} says it has {count} inodes")
    seen.faults += [f"entries of the trash of {tree}, which is no tree" for tree in counted]


def _file_of_intent(value: bytes) -> int:
    return unpack_layout(records.unpack_intent(value).layout).file_id


def main(argv: list[str] | None = None) -> int:
    """`python -m metaserver.fsck STATE_DIRECTORY` exits with 0 if the store is sound."""
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) != 1:
        print("usage: python -m metaserver.fsck STATE_DIRECTORY", file=sys.stderr)  # noqa: T201
        return 2
    try:
        store = LmdbStore(Path(arguments[0]) / "store", size_max=1 << 20)
        faults = check(store.snapshot())
    except BraidError as error:
        faults = [str(error)]
    for fault in faults:
        print(fault)  # noqa: T201 - the output of a command
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
