"""What is wrong with a cluster, why, and what to do: plain rules over one STATUS reply. Pure.

The command line and the metaserver's page show it. Both add the certificates that they have seen,
and why metaservers are silent (fscommon.rpc.silences): neither is part of STATUS.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from fscommon.observe.health_of_replicas import draining, lost, replicas
from fscommon.observe.problem import Problem, Severity
from fscommon.observe.words import duration, size
from fscommon.wire.admin import NO_PATH
from fscommon.wire.group import EngineServer, JournalStatus, MetaserverStatus
from fscommon.wire.messages import StatusReply, TargetEntry

_SILENT_CLIENT_S: Final = 15.0
_NEARLY_FULL: Final = 0.9
_UNDURABLE_MAX: Final = 50_000
# playbooks renew in the last 30 days; monitoring/alerts.yml has this number, too
CERTIFICATE_DAYS_MIN: Final = 21
_DAY_S: Final = 86400
SILENT_STANDBY_S: Final = 10.0  # who has not reported for so long takes nothing over
_LATE_STANDBY_S: Final = 15.0  # it reports seldom, so one that follows seems some seconds late
# A metaserver that is active since then has not heard of all others yet.
_NEW_S: Final = SILENT_STANDBY_S
ENGINE_FULL: Final = 0.8  # monitoring/alerts.yml has this number, too
_ENGINE_ALMOST_FULL: Final = 0.95
# One in a hundred may take so long; it is 1 to 10 ms otherwise. monitoring/alerts.yml has it, too.
SLOW_APPEND_S: Final = 0.3
_NO_REASONS: Final[Mapping[str, str]] = MappingProxyType({})
_RENEW: Final = (
    "run the playbook site.yml, or braidfs tls issue --renew and copy its files there: the server "
    "takes them without a restart"
)


@dataclass(frozen=True, slots=True)
class CertificateSeen:
    """A server's certificate, as the server showed it. seconds_left: None when only its end in the
    past is known."""

    server: str
    seconds_left: float | None


_ONLY_METASERVER: Final = Problem(
    Severity.NOTE,
    "there is one metaserver",
    "no other one has reported to the journal; if it fails, or its host, all operations on names "
    "wait until it runs again",
    "start braidfs-metaserver on another host with the same `journal`: it takes over then",
)

_MORE_ROOM = (
    "make room on the disk of the metaserver's state_directory, or raise store_size_max of "
    "braidfs-metaserver, if it is set, and restart it; or remove files"
)


def problems_of(
    status: StatusReply,
    certificates: Sequence[CertificateSeen] = (),
    silences: Mapping[str, str] = _NO_REASONS,
) -> list[Problem]:
    """silences: why standbys are silent, half a sentence for each, by its name."""
    found = [
        *_metaserver(status),
        *_standbys(status, silences),
        *_damaged_stores(status),
        *_journal(status),
        *_nodes(status),
        *replicas(status),
        *_targets(status),
        *_space(status),
        *_clients(status),
        *_certificates(certificates),
    ]
    return sorted(found, key=lambda problem: -problem.severity)


def _metaserver(status: StatusReply) -> list[Problem]:
    found = []
    if status.recovering:
        waiting = [client.node for client in status.clients if client.replaying]
        found.append(
            Problem(
                Severity.WARNING,
                "the metaserver recovers from a restart",
                f"{len(waiting)} earlier clients have not come back: {', '.join(waiting[:5])}",
                "wait: they come back, or expire; braidfs client evict ends one that is dead",
            )
        )
    if status.txn - status.durable > _UNDURABLE_MAX:
        found.append(
            Problem(
                Severity.WARNING,
                "the metaserver's disk is slow",
                f"{status.txn - status.durable} operations are answered and not yet durable",
                "look at braidfs_commit_seconds and at the disk of its state_directory",
            )
        )
    files = status.files
    if files.inodes_free == 0:
        found.append(
            Problem(
                Severity.ERROR,
                "the metadata store is full",
                "no new file, name or extended attribute can be made; "
                "files can be read and removed",
                _MORE_ROOM,
            )
        )
    elif files.inodes_free * 10 <= files.inodes_total:
        used = 100 - 100 * files.inodes_free // files.inodes_total
        found.append(
            Problem(
                Severity.WARNING,
                f"the metadata store is {used} % full",
                "when it is full no new file can be made",
                _MORE_ROOM,
            )
        )
    return found


def silent_standbys(status: StatusReply) -> list[MetaserverStatus]:
    """Those that have not reported to the journal for too long."""
    if status.group.is_alone or status.uptime_s < _NEW_S:
        return []
    return [row for row in status.group.standbys if row.seconds_since_report > SILENT_STANDBY_S]


def _standbys(status: StatusReply, silences: Mapping[str, str]) -> list[Problem]:
    if status.group.is_alone or status.uptime_s < _NEW_S:
        return []
    rows = status.group.standbys
    if not rows:
        return [_ONLY_METASERVER]
    silent = silent_standbys(status)
    if len(silent) == len(rows):
        return [_no_standby(silent, silences)]
    found = [
        Problem(
            Severity.WARNING,
            f"standby metaserver {row.name} ({row.address}) is silent",
            f"it has not reported to the journal for {duration(row.seconds_since_report)}"
            + _reason(row, silences),
            f"start braidfs-metaserver on {row.name}; if it runs, its log says why it does not "
            "reach the journal",
        )
        for row in silent
    ]
    return found + [
        Problem(
            Severity.WARNING,
            f"standby metaserver {row.name} ({row.address}) does not follow the journal",
            f"it lacks {row.behind:,} entries, for {duration(row.behind_s)} now; until it has them "
            "it takes nothing over",
            "look into its log: its disk may be slow, or it takes a copy of the state",
        )
        for row in rows
        if row not in silent and row.behind_s > _LATE_STANDBY_S
    ]


def _damaged_stores(status: StatusReply) -> list[Problem]:
    return [
        Problem(
            Severity.WARNING,
            f"the store of metaserver {row.name} ({row.address}) was damaged",
            f"it was replaced by a copy, and is kept as {row.kept}",
            f"look at the disk of {row.name}; when nobody needs the damaged store, remove it",
        )
        for row in status.group.metaservers
        if row.kept
    ]


def _reason(row: MetaserverStatus, silences: Mapping[str, str]) -> str:
    reason = silences.get(row.name)
    return f", and {reason}" if reason else ""


def _no_standby(silent: list[MetaserverStatus], silences: Mapping[str, str]) -> Problem:
    said = "; ".join(
        f"{row.name} has not reported for {duration(row.seconds_since_report)}"
        + _reason(row, silences)
        for row in silent
    )
    return Problem(
        Severity.WARNING,
        "there is no standby metaserver",
        f"{said}; if the active metaserver fails, nobody takes over",
        "start braidfs-metaserver on another host with the same `journal`; if it runs, its log "
        "says why it does not reach the journal",
    )


def _journal(status: StatusReply) -> list[Problem]:
    journal = status.group.journal
    found = []
    absent = [server for server in journal.servers if not server.is_reachable]
    if absent:
        count = len(journal.servers)
        leading = (one for one in journal.servers if one.is_leader and one.is_reachable)
        leader = next((one.endpoint for one in leading), "")
        leads = f"{leader} leads" if leader else "none of them leads yet, so that changes wait"
        found.append(
            Problem(
                Severity.WARNING,
                f"{', '.join(server.endpoint for server in absent)} of {journal.engine} "
                + ("is not reachable" if len(absent) == 1 else "are not reachable"),
                f"{count - len(absent)} of {count} servers of the journal answer, and {leads}: "
                + "; ".join(alarm for server in absent for alarm in server.alarms),
                f"start {journal.engine} there: changes wait when fewer than half are left",
            )
        )
    if journal.append_p99_s > SLOW_APPEND_S:
        found.append(_slow_engine(journal))
    for server in journal.servers:
        if server.is_reachable and server.bytes_used > ENGINE_FULL * server.bytes_max > 0:
            found.append(_full_engine(journal.engine, server))
        if server.is_reachable and server.alarms:
            found.append(
                Problem(
                    Severity.ERROR,
                    f"{journal.engine} has an alarm at {server.endpoint}",
                    "; ".join(server.alarms),
                    "with NOSPACE no change is made until there is room: the active metaserver "
                    "makes some and ends the alarm, or its log says why it cannot; what other "
                    "alarms mean is in etcd's documentation",
                )
            )
    return found


def _slow_engine(journal: JournalStatus) -> Problem:
    return Problem(
        Severity.WARNING,
        f"the journal in {journal.engine} is slow",
        f"of its appends of the last minute, one in two took {_milliseconds(journal.append_p50_s)} "
        f"and one in a hundred {_milliseconds(journal.append_p99_s)}; each fsync waits for one",
        f"look at the disks and the network of the servers of {journal.engine}, and at what else "
        "runs there",
    )


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms or more"


def _full_engine(engine: str, server: EngineServer) -> Problem:
    share = server.bytes_used / server.bytes_max
    return Problem(
        Severity.ERROR if share > _ENGINE_ALMOST_FULL else Severity.WARNING,
        f"the store of {engine} at {server.endpoint} is {share:.0%} full",
        f"it has {size(server.bytes_used)} of {size(server.bytes_max)}; when it is full, no change "
        "of the file system can be made",
        "a metaserver that is behind keeps entries for ten minutes; if all follow, the active one "
        "makes the store smaller when half of it is free; else raise --quota-backend-bytes of etcd",
    )


def _nodes(status: StatusReply) -> list[Problem]:
    found = []
    for node in status.nodes:
        if node.is_up:
            continue
        rows = [row for row in status.map.targets if row.node == node.node]
        targets = [str(row.target) for row in rows if row.state != "lost"]
        if not targets:  # it was removed, or is told of as lost
            continue
        found.append(
            Problem(
                Severity.ERROR,
                f"storage server {node.name} ({node.address}) is down",
                f"no heartbeat for {duration(node.seconds_since_heartbeat)}; files that have their "
                f"only replica on targets {', '.join(targets)} wait, and fail after the clients' "
                "timeout",
                f"start braidfs-storageserver on {node.name}; if it runs, its log says why "
                "it does not reach the metaserver; if it is gone for good, braidfs target remove "
                f"--server {node.name} --lost has what it had made again elsewhere",
            )
        )
    if not status.nodes:
        found.append(
            Problem(
                Severity.ERROR,
                "no storage server has joined",
                "no file can hold bytes",
                "start braidfs-storageserver with this metaserver in its `metaservers`",
            )
        )
    return found


def _targets(status: StatusReply) -> list[Problem]:
    found = []
    up = {node.node for node in status.nodes if node.is_up}
    for row in status.map.targets:
        if row.state == "down" and row.node in up:
            found.append(
                Problem(
                    Severity.ERROR,
                    f"target {row.target} is not served",
                    f"its server at {row.address} runs, but could not open it",
                    "look into that server's log: is the device mounted? then "
                    "systemctl reload braidfs-storageserver there",
                )
            )
        if row.state == "draining":
            found.append(draining(status, row))
        if row.state == "lost":
            found.append(lost(status, row))
        if row.state == "full":
            found.append(_full(status, row))
    for health in status.health:
        if health.errors:
            found.append(
                Problem(
                    Severity.ERROR,
                    f"target {health.target} had {health.errors} errors",
                    "its device failed reads or writes, or blocks failed their checksum",
                    "the storage server's log names object and offset; "
                    "check the device (smartctl), restore the files",
                )
            )
    return found


def _full(status: StatusReply, row: TargetEntry) -> Problem:
    health = next((one for one in status.health if one.target == row.target), None)
    if health is not None and health.lacks_files:
        return Problem(
            Severity.WARNING,
            f"target {row.target} is full: it has no inodes left",
            f"{health.files_free} of the {health.files_total} inodes of its file system are free, "
            f"and {size(row.bytes_free)}; the first write of a new file there is ENOSPC",
            f"remove small files: braidfs find :/ --target {row.target} --size -1M; or add targets "
            "with more inodes (mkfs.ext4 -i, or XFS): new files avoid full ones",
        )
    return Problem(
        Severity.WARNING,
        f"target {row.target} is full",
        f"{size(row.bytes_free)} of {size(row.bytes_total)} are free; "
        "writing to files that lie on it is ENOSPC",
        f"remove files: braidfs find :/ --target {row.target} --size +1G; "
        "or add targets: new files avoid full ones",
    )


def _space(status: StatusReply) -> list[Problem]:
    total, free = status.files.bytes_total, status.files.bytes_available
    if not total or 1 - free / total < _NEARLY_FULL:
        return []
    return [
        Problem(
            Severity.WARNING,
            f"the cluster is {1 - free / total:.0%} full",
            f"{size(free)} of {size(total)} are available",
            "remove files or add a storage server",
        )
    ]


def _clients(status: StatusReply) -> list[Problem]:
    silent = [
        Problem(
            Severity.WARNING,
            f"client {client.node} is silent",
            f"not heard from for {duration(client.seconds_since_renewal)}",
            "if its host is dead, wait: it is evicted when its session ends",
        )
        for client in status.clients
        if client.seconds_since_renewal > _SILENT_CLIENT_S and not client.replaying
    ]
    return silent + _refused_clients(status)


def _refused_clients(status: StatusReply) -> list[Problem]:
    """One problem for each storage server, however many clients it refuses."""
    refused: dict[int, list[tuple[str, str]]] = {}
    for client in status.clients:
        for path in client.paths:
            if path.transport == NO_PATH:
                refused.setdefault(path.node, []).append((client.node, path.because))
    names = {node.node: node.name for node in status.nodes}
    return [
        Problem(
            Severity.ERROR,
            f"storage server {names.get(node, node)} takes no more connections of "
            f"{len(clients)} clients: {', '.join(name for name, _ in clients[:3])}",
            clients[0][1],
            "raise LimitNOFILE of its service, or mount with fewer lanes; what these clients do "
            "there waits, and fails after their timeout",
        )
        for node, clients in sorted(refused.items())
    ]


def _certificates(certificates: Sequence[CertificateSeen]) -> list[Problem]:
    found = []
    for seen in certificates:
        left_s = seen.seconds_left
        if left_s is None or left_s <= 0:
            found.append(
                Problem(
                    Severity.ERROR,
                    f"the certificate of {seen.server} has ended",
                    "new TLS connections are refused; existing ones go on",
                    _RENEW,
                )
            )
        elif left_s < CERTIFICATE_DAYS_MIN * _DAY_S:
            found.append(
                Problem(
                    Severity.WARNING,
                    f"the certificate of {seen.server} ends in {left_s / _DAY_S:.1f} days",
                    "after that no TLS connection can begin, and nobody has renewed it yet",
                    _RENEW,
                )
            )
    return found
