"""Layouts of new files: from the cluster's default, a directory's default, or set for one file.

The default of a directory is an xattr record (fscommon.layout.template). New sub-directories
inherit it, so only the parent of a new file matters. The xattr `braidfs.layout` of a file is made
from its layout record and stored nowhere. It may be set as long as nothing was ever written: then
no object exists, and the new layout can keep the file id.
"""

from dataclasses import replace
from typing import Final

from fscommon.errors import FsError, Status
from fscommon.layout.layout import VACANT, Layout, is_replicated, replicas_wanted
from fscommon.layout.template import LAYOUT_XATTR, LayoutDefault, parse_default, unpack_default
from fscommon.types import FileId
from fscommon.wire.features import FEATURE_REPLICAS
from metaserver.context import Context
from metaserver.namespace.inode import Inode
from metaserver.records import xattr_key
from metaserver.transaction import Transaction

_OLD_CLIENT: Final = "the file has replicas, which this client's release does not know: upgrade it"


def cluster_default(context: Context) -> LayoutDefault:
    membership = context.services.membership
    return LayoutDefault(membership.chunk_size, membership.width_max, membership.policy.replicas)


def own_record(tx: Transaction, directory: Inode) -> bytes | None:
    """Returns the packed default that was set for this directory itself."""
    if not directory.attributes.xattr_count:
        return None
    return tx.get(xattr_key(directory.ino, LAYOUT_XATTR))


def only_own_record(tx: Transaction, directory: Inode) -> bytes | None:
    """Returns own_record() if it is the only extended attribute of the directory."""
    return own_record(tx, directory) if directory.attributes.xattr_count == 1 else None


def default_in(tx: Transaction, directory: Inode, context: Context) -> LayoutDefault:
    raw = own_record(tx, directory)
    return cluster_default(context) if raw is None else unpack_default(raw)


def shape_of(layout: Layout) -> LayoutDefault:
    """Returns what a new file with such a layout is to get."""
    return LayoutDefault(layout.chunk_size, layout.stripe_width, replicas_wanted(layout))


def new_layout(file_id: FileId, wanted: LayoutDefault, context: Context) -> Layout:
    """Chooses the targets of a new file. Raises ENOSPC; EOPNOTSUPP if it is to have replicas, and
    the cluster or the session's client does not let it."""
    membership = context.services.membership
    if wanted.replicas == 1:
        alone = membership.place(file_id, wanted.stripe_width)
        return Layout(file_id, wanted.chunk_size, len(alone), alone)
    check_may_have(wanted.replicas, context)
    targets = membership.place_replicas(file_id, wanted.stripe_width, wanted.replicas)
    return Layout(
        file_id,
        wanted.chunk_size,
        len(targets) // wanted.replicas,
        targets,
        wanted.replicas,
        replicas_wanted=wanted.replicas,
    )


def check_may_have(replicas: int, context: Context) -> None:
    """Raises EOPNOTSUPP if a file cannot get so many replicas."""
    most = context.services.membership.policy.replicas_max
    if replicas > most:
        raise FsError(Status.EOPNOTSUPP, too_many_replicas(replicas, most))
    if not context.services.sessions.has_feature(context.session, FEATURE_REPLICAS):
        raise FsError(Status.EOPNOTSUPP, _OLD_CLIENT)


def may_have(replicas: int, context: Context) -> bool:
    """Whether a new file can get so many replicas."""
    try:
        if replicas > 1:
            check_may_have(replicas, context)
    except FsError:
        return False
    return True


def too_many_replicas(replicas: int, most: int) -> str:
    return (
        f"{replicas} replicas are more than this cluster gives a file: replicas_max in the table "
        f"[layout] of the metaserver's configuration is {most}"
    )


def check_knows(tail: bytes, context: Context) -> None:
    """Raises EOPNOTSUPP if the session's client cannot read this layout of a file."""
    if is_replicated(tail) and not context.services.sessions.has_feature(
        context.session, FEATURE_REPLICAS
    ):
        raise FsError(Status.EOPNOTSUPP, _OLD_CLIENT)


def layout_text(tx: Transaction, inode: Inode) -> bytes:
    """Returns the value of braidfs.layout. Raises ENODATA for a directory without a default."""
    if inode.is_file:
        layout = inode.layout()
        return f"{shape_of(layout).text()},targets={targets_text(layout)}".encode()
    raw = own_record(tx, inode) if inode.is_directory else None
    if raw is None:
        raise FsError(Status.ENODATA)
    return unpack_default(raw).text().encode()


def targets_text(layout: Layout) -> str:
    """The targets of all stripes as `1:2`, those of the replicas of a stripe as `1+2:2+3`; a place
    without a replica is `-`."""
    names = ["-" if target == VACANT else str(target) for target in layout.targets]
    count = layout.replica_count
    return ":".join("+".join(names[at : at + count]) for at in range(0, len(names), count))


def wanted_default(tx: Transaction, inode: Inode, value: bytes, context: Context) -> LayoutDefault:
    """Returns the default with the changes that the text asks for. Raises EINVAL; ERANGE
    if these are more replicas than the cluster gives; ENOSPC if a directory is to have more than
    there are failure domains."""
    if inode.is_directory:
        base = default_in(tx, inode, context)
    elif inode.is_file:
        base = shape_of(inode.layout())
    else:
        raise FsError(Status.EOPNOTSUPP, "only files and directories have a layout")
    try:
        wanted = parse_default(value, base)
    except ValueError as error:
        raise FsError(Status.EINVAL, str(error)) from None
    most = context.services.membership.policy.replicas_max
    if wanted.replicas > most:
        raise FsError(Status.ERANGE, too_many_replicas(wanted.replicas, most))
    if inode.is_directory and wanted.replicas > base.replicas:
        _check_domains(wanted.replicas, context)
    return wanted


def _check_domains(replicas: int, context: Context) -> None:
    """Raises ENOSPC if nobody could make a file with so many replicas even while all storage
    servers are up, unless the policy lets files have fewer."""
    membership = context.services.membership
    domains = {node.id: node.domain for node in membership.nodes()}
    count = len({domains[target.node] for target in membership.targets() if not target.is_lost})
    if count < replicas and not membership.policy.degraded_ok:
        raise FsError(
            Status.ENOSPC,
            f"{replicas} replicas need {replicas} failure domains, and the cluster has {count}",
        )


def with_layout(inode: Inode, wanted: LayoutDefault, context: Context) -> Inode:
    """Returns the file with a new layout. Raises EINVAL if it was ever written, EBUSY if open.

    The reply must be durable before it leaves: a replay might choose other targets."""
    old = inode.layout()
    context.check_not_truncating(inode.ino)
    if inode.attributes.size or old.durable_stripes or old.truncate_epoch or old.generation_last:
        raise FsError(Status.EINVAL, "the file was written: copy it to a new file instead")
    if context.services.sessions.is_open(inode.ino):
        raise FsError(Status.EBUSY, "the file is open")
    fresh = new_layout(FileId(old.file_id), wanted, context)
    return Inode(inode.attributes, replace(fresh, flags=old.flags).pack())
