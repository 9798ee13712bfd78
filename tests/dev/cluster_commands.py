"""`./dev up`, `./dev down`, `./dev status`: a loopback cluster for people to try."""

import os
import shlex
from dataclasses import replace
from pathlib import Path

from tests.cluster import engines, mounts
from tests.cluster.cluster import BIN, Cluster
from tests.cluster.plan import HOST, ClusterPlan, PlanError, PlanWishes, make_plan, recorded
from tests.dev.build import build, has_fuse
from tests.dev.steps import ROOT, StepError, console

DEFAULT_STATE = ROOT / ".state"


def _say(text: str) -> None:
    console.print(f"[green]✓[/] {text}")


def _refuse_without_rights() -> None:
    if os.geteuid() != 0:
        raise StepError("./dev up mounts a file system and links its mount helper: run it as root")
    if not has_fuse():
        raise StepError("/dev/fuse is missing: load the module (modprobe fuse) or allow the device")


def up(state: Path, wishes: PlanWishes) -> None:
    _refuse_without_rights()
    old = recorded(state)
    plan = _with_domains(make_plan(state, **wishes))
    if old:
        _refuse_while_it_runs(old, plan)
    build()
    cluster = Cluster(plan, _say)
    cluster.start()
    _print_where(plan)


def _with_domains(plan: ClusterPlan) -> ClusterPlan:
    """Each storage server is a failure domain of its own, though all are on one host: so people
    can try files with replicas."""
    own = {
        server.name: {"domain": server.name, **plan.settings.get(server.name, {})}
        for server in plan.storageservers
    }
    return replace(plan, settings={**plan.settings, **own})


def _refuse_while_it_runs(old: ClusterPlan, plan: ClusterPlan) -> None:
    first = f"./dev down --state {shlex.quote(str(plan.state))} first"
    if old.mount != plan.mount and mounts.is_mounted(old.mount):
        raise PlanError(f"this cluster is mounted at {old.mount}: {first}")
    is_as_before = (old.metaservers, old.journal) == (plan.metaservers, plan.journal)
    if not is_as_before and Cluster(old).running():
        raise PlanError(f"programs of this cluster run that know no other metaservers: {first}")


def _print_where(plan: ClusterPlan) -> None:
    quoted = shlex.quote(str(plan.mount))
    engine_names = plan.journal.names if plan.journal else ()
    names = ", ".join([*engine_names, *(server.name for server in plan.servers), "client"])
    suffix = "" if plan.state == DEFAULT_STATE else f" --state {shlex.quote(str(plan.state))}"
    print(
        f"""
BraidFS is mounted at   {plan.mount}
its state is in         {plan.state}
  logs                  {plan.state}/log
  stored bytes          {_stored(plan)}
  configuration         {plan.state}/config
  a second client       . {plan.state}/cluster.env
                        mount -t fuse.braidfs "$BRAIDFS_SOURCE" DIR -o "$BRAIDFS_OPTIONS"

Try:
  cp -r /usr/share/doc {quoted}/ && diff -r --no-dereference /usr/share/doc {quoted}/doc
  dd if=/dev/zero of={quoted}/big bs=1M count=1024 conv=fsync
  df -h {quoted}
  ./dev status{suffix}
  ./dev down{suffix}
{_replicas_to_try(plan)}{_take_over_to_try(plan, suffix)}
braidfs, its command line (set +a ends the export):
  set -a; . {shlex.quote(str(plan.state / "cluster.env"))}; set +a
  {shlex.quote(str(BIN / "braidfs"))} status
A program that was killed:
  {shlex.quote(str(plan.state / "run"))}/NAME.start    with NAME one of {names}
""",
        end="",
    )


def _stored(plan: ClusterPlan) -> str:
    names = ["targets", "meta", *(server.name for server in plan.standbys)]
    if plan.journal:
        names.append(plan.engine_folder.name)
    return ", ".join(f"{plan.state}/{name}" for name in names)


def _replicas_to_try(plan: ClusterPlan) -> str:
    if len(plan.storageservers) == 1:
        return ""
    safe, run = shlex.quote(str(plan.mount / "safe")), shlex.quote(str(plan.state / "run"))
    last = plan.storageservers[-1].name
    return f"""
Files that outlive a storage server, as two servers have each byte of them:
  mkdir {safe} && {shlex.quote(str(BIN / "braidfs"))} layout set {safe} --replicas 2
  cp -r /usr/share/doc {safe}/
  kill -9 $(cat {run}/{last}.pid)
  diff -r --no-dereference /usr/share/doc {safe}/doc
  {run}/{last}.start
"""


def _take_over_to_try(plan: ClusterPlan, suffix: str) -> str:
    if not plan.standbys:
        return ""
    run = shlex.quote(str(plan.state / "run"))
    active = engines.active_name(plan) or plan.metaserver.name
    return f"""
Kill the active metaserver while programs work on the mount:
  ./dev status{suffix}    says which one is active: now it is {active}
  kill -9 $(cat {run}/{active}.pid)
Names wait for about five seconds and no program sees an error: another metaserver has become the
active one, as ./dev status says. The killed one comes back as a standby:
  {run}/{active}.start
"""


def _known(state: Path) -> ClusterPlan:
    plan = recorded(state)
    if plan is None:
        raise PlanError(f"there is no cluster in {state}: ./dev up makes one")
    return plan


def down(state: Path) -> None:
    cluster = Cluster(_known(state), _say)
    if not cluster.running() and not mounts.is_mounted(cluster.mount_path):
        _say("nothing is running")
        return
    cluster.stop()
    _say(f"all stopped; ./dev up finds the data in {state} again")


def status(state: Path) -> bool:
    """Prints one line for each process; True when all of them run."""
    plan = _known(state)
    running = Cluster(plan).running()
    engine = dict(zip(plan.journal.names, plan.journal.ports, strict=True) if plan.journal else ())
    for name, port in engine.items():
        _status_line(name, running.get(name), f"{HOST}:{port}")
    active = engines.active_name(plan) if engine.keys() & running.keys() else None
    for server in plan.servers:
        role = " (active)" if server.name == active and server.name in running else ""
        _status_line(server.name, running.get(server.name), f"{HOST}:{server.port}{role}")
    where = str(plan.mount) if mounts.is_mounted(plan.mount) else f"{plan.mount} (not mounted)"
    _status_line("client", running.get("client"), where)
    if mounts.is_mounted(plan.mount) and "client" in running:
        space = os.statvfs(plan.mount)
        total, free = space.f_frsize * space.f_blocks, space.f_frsize * space.f_bavail
        print(f"space             {free / 1e9:.1f} GB free of {total / 1e9:.1f} GB")
    return len(running) == len(engine) + len(plan.servers) + 1


def _status_line(name: str, pid: int | None, where: str) -> None:
    print(f"{name:<17} {f'pid {pid}' if pid else 'not running':<13} {where}")
