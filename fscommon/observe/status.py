"""STATUS as dictionaries that JSON can hold: what `--json` and the metaserver's page show. Pure."""

from typing import Any

from fscommon.observe.jobs import job_json, job_of, share_done
from fscommon.observe.problem import Problem, overall
from fscommon.wire.admin import ClientStatus, NodeStatus, Traffic
from fscommon.wire.features import FEATURE_REPLICAS
from fscommon.wire.group import JournalStatus, MetaserverStatus
from fscommon.wire.jobs import JobRow
from fscommon.wire.messages import StatusReply, TargetEntry


def status_json(reply: StatusReply, problems: list[Problem]) -> dict[str, Any]:
    return {
        "cluster": reply.cluster.hex(),
        "health": overall(problems),
        "problems": [problem.as_json() for problem in problems],
        "metaserver": {
            "version": reply.version,
            "uptime_s": round(reply.uptime_s, 3),
            "state": "recovering" if reply.recovering else "ready",
            "transaction": reply.txn,
            "transaction_durable": reply.durable,
            "map_epoch": reply.map.epoch,
        },
        "metaservers": [metaserver_json(row, reply) for row in reply.group.metaservers],
        "journal": None if reply.group.is_alone else journal_json(reply.group.journal),
        "space": {
            "bytes_total": reply.files.bytes_total,
            "bytes_available": reply.files.bytes_available,
            "inodes_used": reply.files.inodes_total - reply.files.inodes_free,
            "inodes_total": reply.files.inodes_total,
            "inodes_free": inodes_free(reply),
        },
        "layout": {
            "chunk_size": reply.chunk_size,
            "stripe_width": reply.stripe_width_max,
            "replicas": reply.replicas,
            "replicas_max": reply.replicas_max,
        },
        "files": {"lack_replicas": reply.files_lacking, "one_replica_left": reply.files_endangered},
        "damaged_objects": reply.objects_damaged,
        "jobs": [job_json(row) for row in reply.jobs],
        "nodes": [node_json(node) for node in reply.nodes],
        "targets": [target_json(reply, row) for row in reply.map.targets],
        "clients": [client_json(client) for client in reply.clients],
    }


def metaserver_json(row: MetaserverStatus, reply: StatusReply) -> dict[str, Any]:
    return {
        "name": row.name,
        "address": row.address,
        "role": role_text(row),
        "term": reply.group.journal.term if row.is_active else None,
        "applied": row.applied,
        "behind": row.behind,
        "behind_s": round(row.behind_s, 3),
        "seconds_since_report": round(row.seconds_since_report, 3),
        "damaged_store": row.kept or None,
    }


def role_text(row: MetaserverStatus) -> str:
    return "active" if row.is_active else "standby"


def journal_json(journal: JournalStatus) -> dict[str, Any]:
    return {
        "engine": journal.engine,
        "term": journal.term,
        "index": journal.index,
        "append_p50_s": round(journal.append_p50_s, 6),
        "append_p99_s": round(journal.append_p99_s, 6),
        "silence_s": round(journal.silence_s, 3),
        "servers": [
            {
                "endpoint": server.endpoint,
                "reachable": server.is_reachable,
                "leader": server.is_leader,
                "bytes_used": server.bytes_used,
                "bytes_max": server.bytes_max or None,
                "alarms": list(server.alarms),
            }
            for server in journal.servers
        ],
    }


def inodes_free(reply: StatusReply) -> int:
    """As STATFS reports it: new files need room in the metadata store and on targets."""
    return min(reply.files.inodes_free, reply.files_free)


def traffic_json(traffic: Traffic) -> dict[str, int]:
    return {
        "read_bytes": traffic.read_bytes,
        "written_bytes": traffic.written_bytes,
        "reads": traffic.reads,
        "writes": traffic.writes,
    }


def node_json(node: NodeStatus) -> dict[str, Any]:
    return {
        "node": node.node,
        "name": node.name,
        "address": node.address,
        "state": "up" if node.is_up else "down",
        "seconds_since_heartbeat": round(node.seconds_since_heartbeat, 3),
        "has_current_sessions": node.is_current,
        "domain": node.domain,
        "knows_replicas": bool(node.features & FEATURE_REPLICAS),
        "suspect": node.is_suspect,
        **traffic_json(node.traffic),
    }


def target_json(status: StatusReply, row: TargetEntry) -> dict[str, Any]:
    health = next((one for one in status.health if one.target == row.target), None)
    job = leaving_job(status, row)
    return {
        "target": row.target,
        "node": row.node,
        "node_name": node_name(status, row.node),
        "address": row.address,
        "state": row.state,
        "bytes_total": row.bytes_total,
        "bytes_free": row.bytes_free,
        "objects": health.objects if health else 0,
        "errors": health.errors if health else 0,
        "files_total": health.files_total if health else 0,
        "files_free": health.files_free if health else 0,
        "incarnation": health.incarnation if health else 0,
        "job": job.job if job else None,
        "share_done": share_done(job) if job else None,
    }


def leaving_job(status: StatusReply, row: TargetEntry) -> JobRow | None:
    """The job that takes away what the target has, or makes again what it had."""
    if row.state == "up":
        return None
    kinds = ("rebuild",) if row.state == "lost" else ("drain", "rebuild")
    found = [job for kind in kinds if (job := job_of(status.jobs, kind, row.target))]
    return max(found, key=lambda job: job.job, default=None)


def node_name(status: StatusReply, node: int) -> str:
    return next((row.name for row in status.nodes if row.node == node), str(node))


def client_json(client: ClientStatus) -> dict[str, Any]:
    return {
        "session": session_text(client.session),
        "client": client.node,
        "state": "replaying" if client.replaying else "live",
        "opened_ns": client.opened_ns,
        "seconds_since_renewal": round(client.seconds_since_renewal, 3),
        "opens": client.opens,
        "requests": client.requests,
        "seconds_since_report": round(client.seconds_since_report, 3),
        **traffic_json(client.traffic),
        "paths": [
            {"node": path.node, "transport": path.transport, "because": path.because}
            for path in client.paths
        ],
    }


def paths_text(client: ClientStatus) -> str:
    """Over which transport the client's bytes go, in few words."""
    for transport in ("rdma", "tls"):  # a client uses one of them
        count = sum(path.transport == transport for path in client.paths)
        if count:
            by_it = transport.upper()
            all_of_them = count == len(client.paths)
            return by_it if all_of_them else f"{by_it} {count}/{len(client.paths)}, else TCP"
    return "TCP" if client.paths else "-"


def session_text(session: int) -> str:
    return f"{session:016x}"
