"""DELEGATE and CREATE_BATCH: files that a client makes by itself.

DELEGATE gives slots; that it also takes the directory's leases is its footprint and its grant
(metaserver.leases). CREATE_BATCH tells what became of slots; a birth that is wrong fails alone.
Where quotas could refuse a file clients make none: in trees that have limits, of owners that do.
docs/decisions/0013-delegation.md has the whole.
"""

from collections import Counter
from dataclasses import replace

from fscommon.errors import FsError, ProtocolError, Status
from fscommon.layout.attributes import Attributes
from fscommon.layout.layout import unpack_layout
from fscommon.types import FileId, Ino
from fscommon.wire.births import Birth, Born, CreateBatch, Delegate, Delegated, Slot
from metaserver.context import Context
from metaserver.namespace.birth import default_layout
from metaserver.namespace.entries import new_key, put_dentry
from metaserver.namespace.inode import Inode, find, load_directory, save, touch_directory
from metaserver.namespace.protection import check_may_add
from metaserver.quota.charges import Owner, charge_born, is_limited, limited_owners
from metaserver.records import writer_key
from metaserver.transaction import Transaction

BIRTHS_MAX = 1024  # in one batch
SLOTS_MAX = 4096  # of one session, not used yet
_S_IFREG = 0o100000
_PERMISSIONS = 0o7777


def delegate(tx: Transaction, request: Delegate, context: Context) -> Delegated:
    """Raises ENOENT, ENOTDIR for what is no directory with a name; ENOSPC."""
    owners = limited_owners(context)
    attributes = b""
    if request.ino:
        directory = load_directory(tx, request.ino).attributes
        if owners is not None and not is_limited(context, directory.tree):
            attributes = directory.pack()
    services = context.services
    if services.progress.store_is_full:
        raise FsError(Status.ENOSPC, "the metadata store is full")
    slots = services.sessions.slots(context.session)
    count = max(0, min(request.count, SLOTS_MAX - len(slots)))
    return Delegated(attributes, tuple([_slot(context) for _ in range(count)]), *(owners or ()))


def _slot(context: Context) -> Slot:
    services = context.services
    ino = services.numbers.take()
    layout = default_layout(ino, context)
    services.sessions.slots(context.session)[ino] = layout
    capability = services.capability(context, FileId(ino), ino, writable=True)
    return Slot(ino, layout, capability)


def create_batch(tx: Transaction, request: CreateBatch, context: Context) -> Born:
    if len(request.births) > BIRTHS_MAX:
        raise FsError(Status.BAD_REQUEST, f"more than {BIRTHS_MAX} births in one batch")
    errors = [0] * len(request.births)
    parents: dict[int, Inode] = {}
    times: dict[int, list[int]] = {}  # of the names that came
    owners: Counter[Owner] = Counter()
    for index, birth in enumerate(request.births):
        try:
            if birth.parent not in parents:
                parents[birth.parent] = _directory(tx, birth.parent)
            tree = parents[birth.parent].attributes.tree
            _bear(tx, birth, tree, context)
        except FsError as error:
            errors[index] = int(error.status)
        else:
            times.setdefault(birth.parent, []).append(birth.time_ns)
            owners[birth.uid, birth.gid, tree] += 1
    for parent, came in times.items():
        touch_directory(tx, parents[parent], max(came), names=len(came))
    for owner, count in owners.items():
        charge_born(context, owner, count)
    return Born(tuple(errors) if any(errors) else ())


def _directory(tx: Transaction, ino: int) -> Inode:
    """Raises ENOENT, ENOTDIR, EPERM."""
    directory = load_directory(tx, ino)
    check_may_add(directory)
    return directory


def _bear(tx: Transaction, birth: Birth, tree: int, context: Context) -> None:
    """The file as the client has it. Raises EEXIST; BAD_REQUEST for what is not of a slot of this
    session."""
    key = new_key(tx, birth.parent, birth.name)
    ino = Ino(birth.ino)
    _check_slot(tx, birth, context)
    attributes = Attributes(
        ino=ino,
        atime_ns=birth.time_ns,
        mtime_ns=birth.time_ns,
        ctime_ns=birth.time_ns,
        btime_ns=birth.time_ns,
        mode=_S_IFREG | birth.mode & _PERMISSIONS,
        nlink=1,
        uid=birth.uid,
        gid=birth.gid,
        data_version=1,
        change_version=1,
        tree=tree,
    )
    save(tx, Inode(attributes, birth.layout))
    put_dentry(tx, key, ino, attributes.mode)
    sessions = context.services.sessions
    sessions.slots(context.session).pop(ino, None)
    sessions.open(context.session, ino, writable=birth.writable)
    if birth.writable:
        context.notes[writer_key(context.session, ino)] = b""
    context.inodes_added += 1


def _check_slot(tx: Transaction, birth: Birth, context: Context) -> None:
    """Slots are known in memory only; what was given before a restart is told by its number."""
    services = context.services
    ino = Ino(birth.ino)
    given = services.sessions.slots(context.session).get(ino)
    if given is None and not (services.numbers.is_former(ino) and find(tx, ino) is None):
        raise FsError(Status.BAD_REQUEST, f"inode {ino} is no slot of this session")
    try:
        layout = unpack_layout(birth.layout)
    except ProtocolError as error:
        raise FsError(Status.BAD_REQUEST, str(error)) from None
    fresh = replace(layout, truncate_epoch=0, durable_stripes=0) == layout
    if layout.file_id != ino or not fresh or (given is not None and given != birth.layout):
        raise FsError(Status.BAD_REQUEST, f"inode {ino} has another layout")
    for target in layout.targets:
        if services.membership.target(target) is None:
            raise FsError(Status.BAD_REQUEST, f"there is no target {target}")
