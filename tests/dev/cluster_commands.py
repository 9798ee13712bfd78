"""`./dev up`, `./dev down`, `./dev status`: a loopback cluster for people to try."""

import os
import shlex
from pathlib import Path

from tests.cluster import mounts
from tests.cluster.cluster import BIN, Cluster
from tests.cluster.plan import ClusterPlan, PlanError, make_plan, recorded
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


def up(state: Path, mount: Path | None, storage_servers: int | None, targets: int | None) -> None:
    _refuse_without_rights()
    old = recorded(state)
    if old and mount and old.mount != mount and mounts.is_mounted(old.mount):
        raise PlanError(f"this cluster is mounted at {old.mount}: ./dev down --state {state} first")
    plan = make_plan(state, mount=mount, storage_servers=storage_servers, targets=targets)
    build()
    cluster = Cluster(plan, _say)
    cluster.start()
    _print_where(plan)


def _print_where(plan: ClusterPlan) -> None:
    quoted = shlex.quote(str(plan.mount))
    names = ", ".join([*(server.name for server in plan.servers), "client"])
    suffix = "" if plan.state == DEFAULT_STATE else f" --state {shlex.quote(str(plan.state))}"
    print(
        f"""
BraidFS is mounted at   {plan.mount}
its state is in         {plan.state}
  logs                  {plan.state}/log
  stored bytes          {plan.state}/targets, {plan.state}/meta
  configuration         {plan.state}/config
  a second client       . {plan.state}/cluster.env
                        mount -t fuse.braidfs "$BRAIDFS_SOURCE" DIR -o "$BRAIDFS_OPTIONS"

Try:
  cp -r /usr/share/doc {quoted}/ && diff -r /usr/share/doc {quoted}/doc
  dd if=/dev/zero of={quoted}/big bs=1M count=1024 conv=fsync
  df -h {quoted}
  ./dev status{suffix}
  ./dev down{suffix}

braidfs, its command line (set +a ends the export):
  set -a; . {shlex.quote(str(plan.state / "cluster.env"))}; set +a
  {shlex.quote(str(BIN / "braidfs"))} status
A program that was killed:
  {shlex.quote(str(plan.state / "run"))}/NAME.start    with NAME one of {names}
""",
        end="",
    )


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
    for server in plan.servers:
        _status_line(server.name, running.get(server.name), f"127.0.0.1:{server.port}")
    where = str(plan.mount) if mounts.is_mounted(plan.mount) else f"{plan.mount} (not mounted)"
    _status_line("client", running.get("client"), where)
    if mounts.is_mounted(plan.mount) and "client" in running:
        space = os.statvfs(plan.mount)
        total, free = space.f_frsize * space.f_blocks, space.f_frsize * space.f_bavail
        print(f"space             {free / 1e9:.1f} GB free of {total / 1e9:.1f} GB")
    return len(running) == len(plan.servers) + 1


def _status_line(name: str, pid: int | None, where: str) -> None:
    print(f"{name:<17} {f'pid {pid}' if pid else 'not running':<13} {where}")
