"""DELEGATE and CHANGE_BATCH: files that a client makes, and names that it changes, by itself.

DELEGATE gives a client slots for files. Its footprint and its grant (in its row) take the leases of
the directory. CHANGE_BATCH reports the files that were made from slots, and the names that were
removed or changed; a wrong change fails alone. Clients make no files that quotas could refuse:
beyond their share in trees with limits, or for owners with limits. docs/decisions/
0013-delegation.md and 0014-removals.md explain all of this.
"""

import stat
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Final, TypeVar

from fscommon.errors import FsError, ProtocolError, Status
from fscommon.layout.attributes import LEASE_META_EXCLUSIVE, LEASE_NAMER, LEASE_READER, LEASE_WRITER
from fscommon.layout.layout import is_replicated, unpack_layout, with_inline
from fscommon.layout.template import LayoutDefault, unpack_default
from fscommon.limits import FILE_SIZE_MAX, NAME_LENGTH_MAX
from fscommon.types import FileId, Ino
from fscommon.wire.births import (
    Birth,
    ChangeBatch,
    Changed,
    Delegate,
    Delegated,
    Move,
    Removal,
    Setting,
    Slot,
)
from fscommon.wire.features import FEATURE_POOLS
from fscommon.wire.ops import Op
from metaserver.context import Context
from metaserver.keys import ClientKey
from metaserver.leases.grants import Grant
from metaserver.leases.holders import Need
from metaserver.namespace.charges import (
    Owner,
    charge_many,
    is_limited,
    limited_owners,
    share_of_tree,
)
from metaserver.namespace.entries import Dentry, find_dentry, get_dentry, new_key, put_dentry
from metaserver.namespace.inode import Inode, find, load, load_directory, save, touch_directory
from metaserver.namespace.layouts import cluster_default, may_have, new_layout, only_own_record
from metaserver.namespace.links import drop_name_unasked, remove_plain
from metaserver.namespace.protection import check_may_add, check_may_remove
from metaserver.namespace.replicas import (
    has_written_replicas,
    is_born_of,
    missing_at_birth,
    note_dropped,
    note_lack,
)
from metaserver.namespace.trash import Place
from metaserver.namespace.trees import is_inside
from metaserver.ops import names as named
from metaserver.ops.footprints import CHANGED_NAMES
from metaserver.ops.row import OpRow, always
from metaserver.ops.setattr import set_unasked
from metaserver.records import (
    dentry_key,
    inode_key,
    pack_number,
    unpack_dentry,
    unsynced_key,
    writer_key,
)
from metaserver.transaction import Transaction

CHANGES_MAX = 1024  # of one batch
C = TypeVar("C", Birth, Removal, Setting, Move)


def delegate(tx: Transaction, request: Delegate, context: Context) -> Delegated:
    """Gives slots. Raises ENOENT or ENOTDIR if it is no directory with a name; ENOSPC."""
    owners = limited_owners(context)
    attributes, share = b"", None
    if request.ino and owners is not None:
        directory = load_directory(tx, request.ino).attributes
        has_limits = is_limited(context, directory.tree)
        share = share_of_tree(context, directory) if has_limits else None
        if share is not None or not has_limits:
            attributes = directory.pack()
    context.check_room()
    sessions = context.services.sessions
    sessions.return_slots(context.session, request.returned)
    own = _own_default(tx, request, context)
    layout = own or cluster_default(context)
    count = sessions.slots_wanted(context.session, request.own_count if own else request.count)
    if not may_have(layout.replicas, context):
        count = 0  # CREATE tells the caller why
    slots = tuple([_slot(layout, context) for _ in range(count)])
    uids, gids = owners or ((), ())
    more = (share.files, share.size_limit) if share is not None else (0, 0)
    return Delegated(attributes, slots, uids, gids, *more, own.pool() if own else 0)


def _own_default(tx: Transaction, request: Delegate, context: Context) -> LayoutDefault | None:
    """Returns what the client may know of the directory: its own default, if files in it need
    nothing else that a directory without extended attributes does not need."""
    if not request.ino or not context.services.sessions.has_feature(context.session, FEATURE_POOLS):
        return None
    raw = only_own_record(tx, load_directory(tx, request.ino))
    return unpack_default(raw) if raw is not None else None


def _slot(default: LayoutDefault, context: Context) -> Slot:
    services = context.services
    ino = services.numbers.take()
    layout = new_layout(FileId(ino), default, context).pack()
    services.sessions.slots(context.session)[ino] = layout
    capability = services.capability(context, layout, ino, writable=True)
    return Slot(ino, layout, capability)


def change_batch(tx: Transaction, request: ChangeBatch, context: Context) -> Changed:
    _check(request)
    work = _Batch(tx, context, request)
    names = _births_and_removals(request)
    done = 0
    for move in request.moves:
        for change in islice(names, move.after - done):
            work.change(change)
        done = move.after
        work.move(move)
    for change in names:
        work.change(change)
    work.touch()
    for setting in request.settings:
        work.set(setting)
    return Changed(
        _if_any(work.errors[Birth]),
        _if_any(work.errors[Removal]),
        setting_errors=_if_any(work.errors[Setting]),
        move_errors=_if_any(work.errors[Move]),
    )


def _check(request: ChangeBatch) -> None:
    """Checks the whole batch before anything is done. Raises BAD_REQUEST."""
    names = len(request.births) + len(request.removals)
    if names + len(request.settings) + len(request.moves) > CHANGES_MAX:
        raise FsError(Status.BAD_REQUEST, f"more than {CHANGES_MAX} changes in one batch")
    if any(birth.size > FILE_SIZE_MAX for birth in request.births):
        raise FsError(Status.BAD_REQUEST, "a size is out of range")
    if any(move.replaced == move.ino for move in request.moves):
        raise FsError(Status.BAD_REQUEST, "an inode does not replace itself")
    _check_order([removal.after for removal in request.removals], len(request.births))
    _check_order([move.after for move in request.moves], names)


def _check_order(places: list[int], end: int) -> None:
    if places != sorted(places) or not all(place <= end for place in places):
        raise FsError(Status.BAD_REQUEST, "changes are in order")


def _births_and_removals(request: ChangeBatch) -> Iterator[Birth | Removal]:
    done = 0
    for removal in request.removals:
        yield from request.births[done : removal.after]
        done = removal.after
        yield removal
    yield from request.births[done:]


def _if_any(statuses: list[int]) -> tuple[int, ...]:
    return tuple(statuses) if any(statuses) else ()


class _Batch:
    """One batch while it runs. Each directory changes once, at the end."""

    def __init__(self, tx: Transaction, context: Context, request: ChangeBatch) -> None:
        births = zip(request.births, request.proofs, strict=False)
        self._proofs = {birth.ino: proof for birth, proof in births}
        self._tx = tx
        self._context = context
        self._directories: dict[int, Inode] = {}
        self._times: dict[int, list[int]] = {}  # by directory, when its names came or went
        self._owners: Counter[Owner] = Counter()  # files added, less files removed
        self._bytes: Counter[Owner] = Counter()
        self._born: Counter[tuple[int, int]] = Counter()  # new files, by directory and its tree
        self.errors: defaultdict[type, list[int]] = defaultdict(list)  # by kind of change

    def change(self, change: Birth | Removal) -> None:
        if isinstance(change, Birth):
            self._try(change, self._bear)
        else:
            self._try(change, self._remove)

    def move(self, move: Move) -> None:
        self._try(move, self._move)

    def set(self, setting: Setting) -> None:
        self._try(setting, self._set)

    def _try(self, change: C, make: Callable[[C], None]) -> None:
        """Makes one change, and notes 0 or the status of its error: a wrong change fails alone."""
        try:
            make(change)
        except FsError as error:
            self.errors[type(change)].append(int(error.status))
        else:
            self.errors[type(change)].append(0)

    def _bear(self, birth: Birth) -> None:
        directory = self._directory(birth.parent)
        check_may_add(directory)
        tree = directory.attributes.tree
        _check_slot(self._tx, birth, self._proofs.get(birth.ino, b""), self._context)
        _bear(self._tx, birth, tree, self._context)
        self._touched(birth.parent, birth.time_ns)
        if tree:
            self._born[birth.parent, tree] += 1
        owner = birth.uid, birth.gid, tree
        self._owners[owner] += 1
        self._bytes[owner] += birth.size if birth.changes else 0

    def _remove(self, removal: Removal) -> None:
        directory = self._directory(removal.parent)
        if directory.attributes.flags or not self._remove_plain(removal):
            _remove(self._tx, removal, directory, self._context)
        self._touched(removal.parent, removal.time_ns)

    def _remove_plain(self, removal: Removal) -> bool:
        """Removes an ordinary file on the fast path. Returns False if it must take the slow path,
        or must not be removed."""
        tx = self._tx
        if len(removal.name) > NAME_LENGTH_MAX:
            return False
        key = dentry_key(removal.parent, removal.name)
        named, record = tx.get(key), tx.get(inode_key(removal.ino))
        if named is None or record is None or unpack_dentry(named)[0] != removal.ino:
            return False
        gone = remove_plain(tx, Ino(removal.ino), record, self._context)
        if gone is None:
            return False
        tx.delete(key)
        owner = gone.uid, gone.gid, gone.tree
        self._owners[owner] -= 1
        self._bytes[owner] -= gone.size
        return True

    def _move(self, move: Move) -> None:
        _move(self._tx, move, self._directory(move.parent), self._context)
        self._touched(move.parent, move.time_ns)

    def _set(self, setting: Setting) -> None:
        key = self._context.key
        if key is not None and key.is_confined and not is_inside(self._tx, setting.ino, key):
            raise FsError(Status.ESTALE)
        set_unasked(self._tx, setting, self._context)

    def _touched(self, parent: int, time_ns: int) -> None:
        self._times.setdefault(parent, []).append(time_ns)

    def touch(self) -> None:
        for parent, times in self._times.items():
            touch_directory(self._tx, self._directories[parent], max(times), names=len(times))
            self._context.services.sessions.filled(self._context.session, Ino(parent))
        shares = self._context.services.quotas.shares
        for (parent, tree), count in self._born.items():
            shares.used(self._context.session, Ino(parent), tree, count)
        for owner, count in self._owners.items():
            charge_many(self._context, owner, count, self._bytes[owner])

    def _directory(self, ino: int) -> Inode:
        """Loads the directory once for the batch. Raises ESTALE, ENOENT, ENOTDIR."""
        known = self._directories.get(ino)
        if known is None:
            known = self._directories[ino] = load_directory(self._tx, ino)
        return known


def _remove(tx: Transaction, removal: Removal, directory: Inode, context: Context) -> None:
    """Removes a name. Raises ENOENT; ESTALE if another inode has the name; EISDIR, EPERM."""
    dentry = get_dentry(tx, removal.parent, removal.name)
    inode = _removable(tx, dentry, removal.ino, directory)
    tx.delete(dentry.key)
    place = Place(removal.parent, removal.name)
    drop_name_unasked(tx, inode, place, removal.time_ns, context)


def _removable(tx: Transaction, dentry: Dentry | None, ino: int, directory: Inode) -> Inode:
    """Returns the inode with the name. Raises ESTALE if it is another inode; EISDIR, EPERM."""
    if dentry is None or dentry.ino != ino:
        raise FsError(Status.ESTALE, "the name is another inode's")
    inode = load(tx, dentry.ino)
    if inode.is_directory:
        raise FsError(Status.EISDIR)
    check_may_remove(directory, inode)
    return inode


def _move(tx: Transaction, move: Move, directory: Inode, context: Context) -> None:
    """Renames a file. Raises ENOENT, EEXIST; ESTALE if another inode has one of the names; EISDIR,
    EPERM."""
    dentry = get_dentry(tx, move.parent, move.name)
    inode = _removable(tx, dentry, move.ino, directory)
    check_may_add(directory)
    taken = find_dentry(tx, move.parent, move.new_name)
    if not move.replaced and taken is not None:
        raise FsError(Status.EEXIST)
    replaced = _removable(tx, taken, move.replaced, directory) if move.replaced else None
    tx.delete(dentry.key)
    put_dentry(tx, dentry_key(move.parent, move.new_name), inode.ino, inode.attributes.mode)
    context.services.leases.dismiss(context.session, inode.ino, context.now_s)
    save(tx, inode.changed(move.time_ns))
    if replaced is not None:
        place = Place(move.parent, move.new_name)
        drop_name_unasked(tx, replaced, place, move.time_ns, context, replaced=True)


def _bear(tx: Transaction, birth: Birth, tree: int, context: Context) -> None:
    """Makes the file as the client has made it. Raises EEXIST."""
    key = new_key(tx, birth.parent, birth.name)
    ino = Ino(birth.ino)
    sessions = context.services.sessions
    tx.put(inode_key(ino), birth.record(tree) + birth.layout)
    put_dentry(tx, key, ino, stat.S_IFREG)
    slot = sessions.slots(context.session).pop(ino, None)
    if is_replicated(birth.layout):
        note_dropped(tx, ino, missing_at_birth(slot, birth.layout))
        note_lack(tx, ino, b"", birth.layout)
    if birth.is_open:
        sessions.open(context.session, ino, writable=birth.writable)
        if birth.writable:
            context.notes[writer_key(context.session, ino)] = b""
    elif has_written_replicas(birth.layout):
        context.notes[unsynced_key(ino, context.session)] = pack_number(0)
    context.inodes_added += 1


def _was_given(tx: Transaction, birth: Birth, proof: bytes, context: Context) -> bool:
    services = context.services
    ino = Ino(birth.ino)
    if not services.numbers.is_former(ino) or find(tx, ino) is not None:
        return False
    is_confined = context.key is not None and context.key.is_confined
    return not is_confined or services.has_made(context, proof, birth.layout, ino)


def _check_slot(tx: Transaction, birth: Birth, proof: bytes, context: Context) -> None:
    """Raises BAD_REQUEST if the file is of no slot of this session. Slots are known in memory only.
    A slot from before a restart is known by its number, and by its capability if the client is not
    trusted."""
    services = context.services
    ino = Ino(birth.ino)
    given = services.sessions.slots(context.session).get(ino)
    if given == birth.layout:
        return
    try:
        layout = unpack_layout(birth.layout)
    except ProtocolError as error:
        raise FsError(Status.BAD_REQUEST, str(error)) from None
    if given is None and not _was_given(tx, birth, proof, context):
        raise FsError(Status.BAD_REQUEST, f"inode {ino} is no slot of this session")
    fresh = replace(layout, truncate_epoch=0, durable_stripes=0) == layout
    bare = with_inline(birth.layout, b"") if layout.inline else birth.layout
    if layout.file_id != ino or not fresh or (given is not None and not is_born_of(given, bare)):
        raise FsError(Status.BAD_REQUEST, f"inode {ino} has another layout")
    if layout.inline and len(layout.inline) != birth.size:
        raise FsError(Status.BAD_REQUEST, f"inode {ino} has bytes of another size")
    for replica in layout.replicas():
        if services.membership.target(replica.target) is None:
            raise FsError(Status.BAD_REQUEST, f"there is no target {replica.target}")


# ---- leases --------------------------------------------------------------------------------------


def _delegated(tx: Transaction, request: Delegate) -> list[Need]:
    return [Need(Ino(request.ino), CHANGED_NAMES)] if request.ino else []


def _granted(request: Delegate, reply: Delegated) -> Iterator[Grant]:
    if reply.attributes:
        yield reply.attributes, LEASE_NAMER


def _changed(tx: Transaction, request: ChangeBatch) -> list[Need]:
    """Only the directories: a batch waits for no leases on inodes, because all other requests of
    its client come behind it (docs/decisions/0014-removals.md)."""
    return [Need(Ino(ino), CHANGED_NAMES) for ino in _parents(request)]


def _parents(request: ChangeBatch) -> set[int]:
    parents = {birth.parent for birth in request.births}
    parents.update(removal.parent for removal in request.removals)
    parents.update(move.parent for move in request.moves)
    return parents


def _changed_afterwards(request: ChangeBatch) -> list[Need]:
    inos = [change.ino for change in request.removals]
    inos += [change.ino for change in request.settings]
    inos += [ino for move in request.moves for ino in (move.ino, move.replaced) if ino]
    return [Need(Ino(ino), LEASE_META_EXCLUSIVE) for ino in inos]


def _already_held(request: ChangeBatch, reply: Changed) -> Iterator[tuple[Ino, int]]:
    errors = reply.errors or (0,) * len(request.births)
    for birth, error in zip(request.births, errors, strict=True):
        if not error:
            yield Ino(birth.ino), LEASE_WRITER if birth.writable else LEASE_READER


# ---- keys ----------------------------------------------------------------------------------------


def _own_directory(tx: Transaction, request: Delegate, key: ClientKey) -> Delegate:
    """Takes the directory out of the request of a client whose users are not the cluster's: its
    files are made and removed by ordinary requests, as in a tree that is full."""
    return request if key.who is None else Delegate(0, 0)


def _own_changes(tx: Transaction, request: ChangeBatch, key: ClientKey) -> ChangeBatch:
    if key.who is not None:
        raise FsError(Status.EPERM, f"CHANGE_BATCH is not for the key '{key.name}' of a client")
    return request


# No row has `squash`: a client for which it would matter gets no directory, and is refused batches.
ROWS: Final = (
    OpRow(
        op=Op.DELEGATE,
        run=delegate,
        footprint=_delegated,
        grants=_granted,
        names=named.its_ino_if_any,
        changes=always,
        rewrite=_own_directory,
    ),
    OpRow(
        op=Op.CHANGE_BATCH,
        run=change_batch,
        footprint=_changed,
        changes_afterwards=_changed_afterwards,
        already_held=_already_held,
        names=_parents,
        rewrite=_own_changes,
    ),
)
