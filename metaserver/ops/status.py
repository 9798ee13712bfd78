"""STATUS: returns the state of the whole cluster in one reply, as the metaserver sees it."""

from typing import Final

from fscommon.version import program_version
from fscommon.wire.admin import ClientStatus, NodeStatus, TargetHealth
from fscommon.wire.group import ALONE
from fscommon.wire.messages import Empty, StatusReply
from fscommon.wire.ops import Op
from metaserver.context import Context
from metaserver.membership import Membership, Node
from metaserver.ops.row import Access, OpRow
from metaserver.ops.statfs import measure
from metaserver.sessions import Session
from metaserver.transaction import Transaction


def status(tx: Transaction, request: Empty, context: Context) -> StatusReply:
    services = context.services
    membership, progress = services.membership, services.progress
    return StatusReply(
        cluster=services.cluster,
        map=membership.map(),
        clients=tuple(_client(session, context) for session in services.sessions.all()),
        recovering=progress.recovering,
        txn=progress.txn,
        durable=progress.durable,
        files=measure(services),
        nodes=tuple(
            _node(node, context) for node in membership.nodes() if _is_part(node, membership)
        ),
        health=tuple(
            TargetHealth(
                target.id,
                target.incarnation,
                target.objects,
                target.errors,
                target.files_total,
                target.files_free,
                target.lacks_files,
            )
            for target in membership.targets()
        ),
        version=program_version(),
        uptime_s=max(0.0, context.now_s - services.started_s),
        chunk_size=membership.chunk_size,
        stripe_width_max=membership.width_max,
        files_free=membership.files_free(),
        group=services.group.status() if services.group is not None else ALONE,
        replicas=membership.policy.replicas,
        replicas_max=membership.policy.replicas_max,
        jobs=services.jobs.rows(context.now_s),
        files_lacking=services.jobs.files_lacking,
        files_endangered=services.jobs.files_endangered,
        objects_damaged=len(services.scrubs.left()),
    )


def _is_part(node: Node, membership: Membership) -> bool:
    """Whether it is one of the storage servers: not one that is gone, and whose targets were
    removed."""
    return not membership.is_down(node.id) or bool(list(membership.targets_of(node.id)))


def _client(session: Session, context: Context) -> ClientStatus:
    reported_s = session.reported_s
    return ClientStatus(
        session=session.id,
        node=session.node,
        opens=len(session.opens),
        seconds_since_renewal=max(0.0, context.now_s - session.renewed_s),
        opened_ns=session.opened_ns,
        requests=session.requests,
        replaying=session.replaying,
        traffic=session.traffic,
        seconds_since_report=-1.0 if reported_s is None else max(0.0, context.now_s - reported_s),
        paths=session.paths,
    )


def _node(node: Node, context: Context) -> NodeStatus:
    services = context.services
    return NodeStatus(
        node=node.id,
        name=node.name,
        address=node.address,
        is_up=services.membership.is_there(node.id),
        seconds_since_heartbeat=max(0.0, context.now_s - node.heard_s),
        is_current=node.session_version == services.sessions.version,
        traffic=node.traffic,
        domain=node.domain,
        features=node.features,
        is_suspect=services.membership.is_suspect(node.id),
    )


ROWS: Final = (OpRow(op=Op.STATUS, run=status, access=Access.ANY),)
