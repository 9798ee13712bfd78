"""What is wrong with replicas, and with the jobs that make them or move them. Pure."""

from fscommon.observe.jobs import ENDED, has_lost_files, job_of, job_progress, job_what
from fscommon.observe.problem import Problem, Severity
from fscommon.wire.features import FEATURE_REPLICAS
from fscommon.wire.messages import StatusReply, TargetEntry


def replicas(status: StatusReply) -> list[Problem]:
    return [*_places(status), *_lacking(status), *_damaged(status), *_jobs(status)]


def _places(status: StatusReply) -> list[Problem]:
    found = [
        Problem(
            Severity.WARNING,
            f"storage server {node.name} ({node.address}) goes down too often",
            "it went down more than 3 times within 10 minutes: new replicas avoid it for as long",
            f"look into its log, and at the host and network of {node.name}",
        )
        for node in status.nodes
        if node.is_suspect
    ]
    domains = domains_for_replicas(status)
    if len(domains) >= status.replicas or status.replicas == 1:
        return found
    count = f"{len(domains)} failure domain" + "s" * (len(domains) != 1)
    return [
        *found,
        Problem(
            Severity.ERROR,
            f"new files are to have {status.replicas} replicas, and {count} can take them",
            "no such file can be made, or it gets fewer replicas where degraded_ok says so",
            "start storage servers of other domains, or make room there; braidfs node list shows "
            "the domains",
        ),
    ]


def _lacking(status: StatusReply) -> list[Problem]:
    """Those of which one replica is left come first."""
    if not status.files_lacking:
        return []
    repair = job_of(status.jobs, "repair", 0)
    progress = f": {job_progress(repair)}" if repair is not None else ""
    others = status.files_lacking - status.files_endangered
    what, more = f"{_files(others, 'lack')} replicas", ""
    if status.files_endangered:
        what = f"{_files(status.files_endangered, 'have')} one replica left"
        more = f"{others:,} more lack replicas; " if others else ""
    return [
        Problem(
            Severity.WARNING,
            what,
            f"{more}they are made again, the most endangered first{progress}",
            "wait, and lose no other disk meanwhile; braidfs find :/ --degraded lists the files",
        )
    ]


def _damaged(status: StatusReply) -> list[Problem]:
    if not status.objects_damaged:
        return []
    count = status.objects_damaged
    return [
        Problem(
            Severity.ERROR,
            "1 object has damage" if count == 1 else f"{count:,} objects have damage",
            "no replica has these blocks any more, or none that answers: readers get EIO",
            "braidfs scrub --paths names the files: restore them, and braidfs scrub PATH",
        )
    ]


def _files(count: int, verb: str) -> str:
    if count != 1:
        return f"{count:,} files {verb}"
    return "1 file " + {"have": "has", "lack": "lacks"}[verb]


def _jobs(status: StatusReply) -> list[Problem]:
    found = []
    for row in status.jobs:
        if row.state == "paused":
            found.append(
                Problem(
                    Severity.NOTE,
                    f"job {row.job} is paused",
                    f"{job_what(row)}, but not now",
                    f"braidfs job resume {row.job} lets it go on",
                )
            )
        if row.state == "waiting" and not has_lost_files(row):
            found.append(
                Problem(
                    Severity.NOTE if row.kind == "drain" else Severity.WARNING,
                    f"job {row.job} waits",
                    f"{job_what(row)}, but {row.because}",
                    "where no target can take more, add targets or storage servers of other "
                    "domains; it goes on by itself",
                )
            )
        if row.files_failed and row.state == "running":
            found.append(
                Problem(
                    Severity.NOTE if row.rate > 0 else Severity.WARNING,
                    f"job {row.job} fails for some files",
                    f"{row.files_failed:,} tries failed, the last one because {row.last_failure}",
                    "they are tried again; if that does not help, the metaserver's log says more",
                )
            )
    return found


def domains_for_replicas(status: StatusReply) -> set[str]:
    """The failure domains that new replicas can go to."""
    up = {row.node for row in status.map.targets if row.state == "up"}
    return {
        node.domain
        for node in status.nodes
        if node.node in up and node.features & FEATURE_REPLICAS and not node.is_suspect
    }


def draining(status: StatusReply, row: TargetEntry) -> Problem:
    job = job_of(status.jobs, "drain", row.target)
    what = f"target {row.target} is draining"
    if job is None:
        objects = sum(health.objects for health in status.health if health.target == row.target)
        why = f"it gets no new files; {objects} objects are on it, and stay there"
        remedy = (
            f"braidfs target drain {row.target} moves them to other targets; "
            f"braidfs target set-state up {row.target} ends it"
        )
    elif job.state == ENDED:
        what = f"target {row.target} is drained"
        why = "what it had is on other targets"
        remedy = f"braidfs target remove {row.target}, and take its device out"
    else:
        why = f"what it has is moved to other targets: {job_progress(job)}"
        remedy = f"wait; braidfs target set-state up {row.target} ends it"
    return Problem(Severity.NOTE, what, why, remedy)


def lost(status: StatusReply, row: TargetEntry) -> Problem:
    """It leaves the map when no file names it any more."""
    job = job_of(status.jobs, "rebuild", row.target)
    what = f"target {row.target} is lost"
    if job is not None and job.state != ENDED and not has_lost_files(job):
        return Problem(
            Severity.WARNING,
            what,
            f"what it had is made again from other replicas: {job_progress(job)}",
            "wait: it leaves the list by itself",
        )
    return Problem(
        Severity.ERROR,
        what,
        "files name it that have no other replica, and nobody can read them",
        "braidfs find :/ --lost lists them: restore them from a copy, or remove them",
    )
