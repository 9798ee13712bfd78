"""CLUSTER_MAP, REGISTER, HEARTBEAT, TARGET_DROPPED, TARGET_SET: storage servers, their addresses,
and which of their targets get new files."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from fscommon.errors import FsError, Status
from fscommon.types import NodeId, TargetId
from fscommon.wire.admin import TARGETS_SET_MAX, TargetSet
from fscommon.wire.codec import encode
from fscommon.wire.features import FEATURE_REPLICAS
from fscommon.wire.messages import ClusterMap, Empty
from fscommon.wire.ops import Op
from fscommon.wire.servers import (
    DROPPED_MAX,
    DroppedNames,
    Heartbeat,
    HeartbeatReply,
    Register,
    Registered,
    TargetDropped,
    TargetReport,
)
from metaserver.context import Context, Services
from metaserver.jobs import DRAIN, Job
from metaserver.membership import NODE_TIMEOUT_S, Node, Target
from metaserver.namespace.replicas import lost_power
from metaserver.ops import names
from metaserver.ops.row import Access, OpRow, always
from metaserver.placement import domain_of
from metaserver.records import (
    MAP_EPOCH_KEY,
    NodeRecord,
    TargetRecord,
    dropped_at,
    dropped_name,
    job_key,
    node_key,
    pack_number,
    target_key,
)
from metaserver.transaction import Transaction

_HOW_TO_USE_AGAIN: Final = (
    ": when its directory is empty, braidfs target add --replaced makes a new target there"
)
_UUID_LENGTH = 16
_TEXT_LENGTH_MAX = 255
_TARGETS_PER_NODE_MAX = 256


def cluster_map(tx: Transaction, request: Empty, context: Context) -> ClusterMap:
    return context.services.membership.map()


def register(tx: Transaction, request: Register, context: Context) -> Registered:
    _check_register(request, context.services.cluster)
    services = context.services
    node = _node(request, context)
    membership = services.membership
    reports = [one for one in request.targets if membership.removed(one.uuid) is None]
    targets = _targets(reports, node, context)
    for target in targets:
        if has_lost(services.membership.target(target.id), target.incarnation):
            lost_power(tx, target.id)
    record = NodeRecord(node.uuid, node.name, node.address, node.domain, node.features)
    tx.put(node_key(node.id), encode(record))
    changed = services.membership.put_node(node)
    for target in targets:
        if services.membership.target(target.id) is None and len(services.sessions):
            target.joining_epoch = services.membership.epoch + 1
    for target in targets:
        put_target(tx, target)
        changed |= services.membership.put_target(target)
    changed |= bool(services.membership.unserved(node.id, [target.id for target in targets]))
    if changed:
        bump_map_epoch(tx, services)
        services.sessions.outdate_slots()
    context.wait_durable = True
    return Registered(
        node=node.id,
        cluster=services.cluster,
        targets=tuple([_number_of(report, services) for report in request.targets]),
        capability_key=services.capability_key,
        map_epoch=services.membership.epoch,
        sessions=services.sessions.ids(),
        timeout_s=NODE_TIMEOUT_S,
        features=FEATURE_REPLICAS,
        refusals=_refusals(request.targets, services),
        removed=tuple(filter(None, (membership.removed(one.uuid) for one in request.targets))),
    )


def _number_of(report: TargetReport, services: Services) -> int:
    known = services.membership.target_by_uuid(report.uuid)
    return known.id if known is not None else services.membership.removed(report.uuid) or 0


def _refusals(reports: tuple[TargetReport, ...], services: Services) -> tuple[str, ...]:
    """Says of each target why it is not part of the cluster any more; () if all are."""
    sentences: list[str] = []
    for report in reports:
        known = services.membership.target_by_uuid(report.uuid)
        number = _number_of(report, services)
        why = f"target {number} was removed from the cluster" if known is None else ""
        if known is not None and known.is_lost:
            why = f"target {number} was given up as lost, and its replicas are made elsewhere"
        sentences.append(why and why + _HOW_TO_USE_AGAIN)
    return tuple(sentences) if any(sentences) else ()


def has_lost(known: Target | None, incarnation: int) -> bool:
    """Whether the target with this incarnation has lost what was not synced. known: the target as
    it was before."""
    return known is not None and 0 < known.incarnation_kept < incarnation


def put_target(tx: Transaction, target: Target) -> None:
    tx.put(target_key(target.id), encode(_record_of(target)))
    target.incarnation_kept = target.incarnation


def put_removed(tx: Transaction, target: Target, services: Services) -> None:
    """Takes the target out of the cluster, for good."""
    tx.put(target_key(target.id), encode(replace(_record_of(target), is_removed=True)))
    services.membership.put_removed(target.id, target.uuid)


def _record_of(target: Target) -> TargetRecord:
    return TargetRecord(
        target.uuid,
        target.node,
        target.bytes_total,
        target.bytes_free,
        target.is_draining,
        target.incarnation,
        target.risen_ns,
        target.is_lost,
        is_drained=target.is_drained,
    )


def bump_map_epoch(tx: Transaction, services: Services) -> None:
    services.membership.epoch += 1
    tx.put(MAP_EPOCH_KEY, pack_number(services.membership.epoch))


def _check_register(request: Register, cluster: bytes) -> None:
    if request.cluster not in (b"", cluster):
        raise FsError(Status.EINVAL, "this storage server belongs to another cluster")
    uuids = [report.uuid for report in request.targets]
    if len(request.uuid) != _UUID_LENGTH or any(len(uuid) != _UUID_LENGTH for uuid in uuids):
        raise FsError(Status.BAD_REQUEST, "a uuid has 16 bytes")
    if len(set(uuids)) != len(uuids):
        raise FsError(Status.EINVAL, "one target is listed twice")
    if len(uuids) > _TARGETS_PER_NODE_MAX:
        raise FsError(Status.EINVAL, f"a node has at most {_TARGETS_PER_NODE_MAX} targets")
    texts = request.name, request.address, request.domain
    if max(map(len, texts)) > _TEXT_LENGTH_MAX:
        raise FsError(Status.BAD_REQUEST, "name, address or domain is too long")


def _node(request: Register, context: Context) -> Node:
    membership = context.services.membership
    known = membership.node_by_uuid(request.uuid)
    return Node(
        id=known.id if known else membership.next_node_id(),
        uuid=request.uuid,
        name=request.name,
        address=request.address,
        heard_s=context.now_s,
        session_version=context.services.sessions.version,
        domain=request.domain or domain_of(request.address, request.name),
        features=request.features,
        is_registered=True,
        connection=context.peer,
    )


def _targets(reports: Sequence[TargetReport], node: Node, context: Context) -> list[Target]:
    membership = context.services.membership
    known = [membership.target_by_uuid(report.uuid) for report in reports]
    fresh = iter(membership.next_target_ids(known.count(None)))
    return [
        Target(
            id=target.id if target else next(fresh),
            uuid=report.uuid,
            node=node.id,
            bytes_total=report.bytes_total,
            bytes_free=report.bytes_free,
            files_total=report.files_total,
            files_free=report.files_free,
            objects=report.objects,
            errors=report.errors,
            incarnation=max(report.incarnation, target.incarnation if target else 0),
            is_draining=target is not None and target.is_draining,
            is_lost=target is not None and target.is_lost,
            is_drained=target is not None and target.is_drained,
            risen_ns=_risen_ns(target, report, context),
            joining_epoch=target.joining_epoch if target is not None else 0,
        )
        for target, report in zip(known, reports, strict=True)
    ]


def _risen_ns(target: Target | None, report: TargetReport, context: Context) -> int:
    if has_lost(target, report.incarnation):
        return context.now_ns
    return target.risen_ns if target is not None else 0


def target_set(tx: Transaction, request: TargetSet, context: Context) -> Empty:
    """Opens or closes targets to new files; answered when durable. Clients hear of it with their
    next renewal, and return their slots on these targets. Raises ENOENT, EBUSY, EINVAL."""
    context.check_serving()
    services = context.services
    if not 0 < len(request.targets) <= TARGETS_SET_MAX:
        raise FsError(Status.EINVAL, f"name 1 to {TARGETS_SET_MAX} targets")
    changed = services.membership.set_draining(request.targets, request.is_draining)
    for number in set(request.targets):
        _set_drain(tx, request, TargetId(number), context)
    for target in changed:
        put_target(tx, target)
    if changed:
        bump_map_epoch(tx, services)
        services.sessions.outdate_slots()
    context.wait_durable = True
    return Empty()


def _set_drain(tx: Transaction, request: TargetSet, target: TargetId, context: Context) -> None:
    """Starts the job that empties the target, or ends it."""
    jobs = context.services.jobs
    if request.is_draining and request.moves:
        put_job(tx, jobs.start(DRAIN, target, context.now_ns))
    elif not request.is_draining and (job := jobs.of(DRAIN, target)) is not None:
        jobs.end(job, context.now_ns)
        put_job(tx, job)


def put_job(tx: Transaction, job: Job) -> None:
    tx.put(job_key(job.id), encode(job.record))


def let_join(services: Services) -> list[Target]:
    """Opens targets to new files that all clients know by now, and returns them."""
    joined = services.membership.joined(services.sessions.map_epoch_min())
    if joined:
        services.sessions.outdate_slots()
    return joined


def _check_registered(node: Node, request: Heartbeat, services: Services) -> None:
    """Raises NO_TARGET if the storage server must register again, because names of its objects may
    have been dropped that it was not told: while its lease had run out, while another metaserver
    was active, or because a target has lost what was not synced."""
    membership = services.membership
    if membership.is_down(node.id) or not node.is_registered:
        raise FsError(Status.NO_TARGET, "the lease has run out: register again")
    for report in request.targets:
        if has_lost(membership.target(report.target), report.incarnation):
            raise FsError(Status.NO_TARGET, f"target {report.target} has lost bytes: register it")


def heartbeat(tx: Transaction, request: Heartbeat, context: Context) -> HeartbeatReply:
    services = context.services
    node = services.membership.node(NodeId(request.node))
    if node is None:
        raise FsError(Status.NO_TARGET, f"node {request.node} is not known: register")
    _check_registered(node, request, services)
    node.session_version = request.session_version
    node.traffic = request.traffic
    services.scrubs.report(request.damaged)
    if services.membership.heard(node.id, request.targets, context.now_s):
        bump_map_epoch(tx, services)
        services.sessions.outdate_slots()  # clients return those on full targets
    for target in services.membership.targets_of(node.id):
        if target.incarnation > target.incarnation_kept:
            put_target(tx, target)
            context.wait_durable = True
    version = services.sessions.version
    current = request.session_version == version
    return HeartbeatReply(
        map_epoch=services.membership.epoch,
        session_version=version,
        sessions=None if current else services.sessions.ids(),
    )


def target_dropped(tx: Transaction, request: TargetDropped, context: Context) -> DroppedNames:
    """A page of names that layouts name no longer, answered when they are durable."""
    after = request.after_file_id, request.after_object
    found = tx.keys(*dropped_at(request.target, after))
    page = [dropped_name(key) for key in islice(found, DROPPED_MAX + 1)]
    context.wait_durable = True
    end = len(page) <= DROPPED_MAX
    page = page[:DROPPED_MAX]
    file_ids, objects = [name.file_id for name in page], [name.number for name in page]
    return DroppedNames(tuple(file_ids), tuple(objects), end=end)


ROWS: Final = (
    OpRow(op=Op.CLUSTER_MAP, run=cluster_map, access=Access.ANY, names=names.no_inodes),
    OpRow(op=Op.REGISTER, run=register, access=Access.SERVER),
    OpRow(op=Op.HEARTBEAT, run=heartbeat, access=Access.SERVER),
    OpRow(op=Op.TARGET_DROPPED, run=target_dropped, access=Access.SERVER),
    OpRow(op=Op.TARGET_SET, run=target_set, access=Access.ADMIN, audited=always),
)
