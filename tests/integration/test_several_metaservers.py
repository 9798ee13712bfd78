"""`./dev up --metaservers 2`: the journal's engine, a take-over, and a state that is extended."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.cluster import mounts
from tests.cluster.cluster import BIN
from tests.cluster.engines import active_name
from tests.cluster.plan import ETCD, POSTGRESQL, ClusterPlan, recorded
from tests.cluster.process import is_gone, wait_until
from tests.dev.steps import ROOT

pytestmark = [pytest.mark.mount, pytest.mark.timeout(600)]
TAKE_OVER_SECONDS_MAX = 60.0


def dev(*words: str, expected: int = 0) -> str:
    done = subprocess.run(
        (str(ROOT / "dev"), *words), check=False, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == expected, done.stdout + done.stderr
    return done.stdout + done.stderr


def plan_of(state: Path) -> ClusterPlan:
    plan = recorded(state)
    assert plan is not None
    return plan


def pid_of(state: Path, name: str) -> int:
    return int((state / "run" / f"{name}.pid").read_text())


def log_of(state: Path, name: str) -> str:
    return (state / "log" / f"{name}.log").read_text()


@pytest.fixture
def state(localdir: Path) -> Iterator[Path]:
    folder = localdir / "state"
    yield folder
    dev("down", "--state", str(folder))
    assert not mounts.is_mounted(folder / "mnt")


@pytest.fixture
def where(state: Path) -> tuple[str, str]:
    return ("--state", str(state))


def up(state: Path, *words: str) -> str:
    return dev("up", "--state", str(state), "--storage-servers", "1", *words)


def kill_active(state: Path) -> str:
    """Kills the active metaserver; returns its name."""
    name = active_name(plan_of(state))
    assert name is not None
    end(pid_of(state, name), signal.SIGKILL)
    return name


def end(pid: int, sign: signal.Signals) -> None:
    os.kill(pid, sign)
    assert wait_until(partial(is_gone, pid), 10)


def is_healthy(state: Path) -> bool:
    """Whether `braidfs status` says so, as a person runs it."""
    words = f"set -a; . {state}/cluster.env; exec {BIN}/braidfs status"
    return subprocess.run(("sh", "-c", words), check=False, timeout=60).returncode == 0


def start_by_script(state: Path, name: str) -> None:
    """The script has a descriptor that the program must not keep: a pipe that is read to its
    end."""
    reader, writer = os.pipe()
    try:
        script = str(state / "run" / f"{name}.start")
        subprocess.run((script,), check=True, pass_fds=(writer,), timeout=60)
    finally:
        os.close(writer)
    with open(reader, "rb") as pipe:
        assert pipe.read() == b""


@pytest.mark.parametrize("engine", [ETCD, POSTGRESQL])
def test_the_active_is_killed(state: Path, where: tuple[str, str], engine: str) -> None:
    said = up(state, "--metaservers", "2", "--journal", engine)
    assert "kill -9" in said and "metaserver-2" in said
    plan, mount = plan_of(state), state / "mnt"
    assert plan.journal is not None
    (mount / "before").write_bytes(b"before")
    killed = kill_active(state)
    assert killed == "metaserver", "the first one begins the journal"
    (mount / "meanwhile").write_bytes(b"meanwhile")
    assert active_name(plan) == "metaserver-2"
    shown = dev("status", *where, expected=1)
    assert re.search(r"^metaserver +not running", shown, re.M)
    assert re.search(r"^metaserver-2 +pid \d+ +127.0.0.1:\d+ \(active\)$", shown, re.M)
    start_by_script(state, killed)
    member = plan.journal.names[0]
    # A PostgreSQL that is killed leaves processes, and starts when they have ended.
    end(pid_of(state, member), signal.SIGKILL if engine == ETCD else signal.SIGQUIT)
    start_by_script(state, member)
    (mount / "after").write_bytes(b"after")
    shown = dev("status", *where)
    assert all(re.search(rf"^{name} +pid", shown, re.M) for name in plan.journal.names)
    assert wait_until(lambda: is_healthy(state), TAKE_OVER_SECONDS_MAX)

    pids = {path.stem: int(path.read_text()) for path in (state / "run").glob("*.pid")}
    assert pids.keys() >= {*plan.journal.names, "metaserver", "metaserver-2", "client"}
    dev("down", *where)
    assert [name for name, pid in pids.items() if not is_gone(pid)] == []
    said = up(state)
    assert f"{active_name(plan)}.pid)" in said, "it says how to kill the active one"
    assert plan_of(state) == plan
    for name in ("before", "meanwhile", "after"):
        assert (mount / name).read_bytes() == name.encode()


def test_a_state_with_one_metaserver_is_extended(state: Path, where: tuple[str, str]) -> None:
    up(state)
    mount = state / "mnt"
    for number in range(20):
        (mount / f"{number}").write_bytes(b"%d" % number)
    assert "./dev down" in dev("up", *where, "--metaservers", "2", expected=1)
    assert plan_of(state).journal is None, "what is refused is not recorded"
    dev("down", *where)
    up(state, "--metaservers", "2")
    assert wait_until(lambda: "took a copy" in log_of(state, "metaserver-2"), 60)
    assert kill_active(state) == "metaserver"
    assert sorted(os.listdir(mount), key=int) == [f"{number}" for number in range(20)]
    assert active_name(plan_of(state)) == "metaserver-2"
    assert all((mount / f"{n}").read_bytes() == b"%d" % n for n in range(20))
    dev("down", *where)
    refused = dev("up", *where, "--metaservers", "1", expected=1)
    assert len(refused.strip().splitlines()) == 1 and "2 metaservers" in refused
    refused = dev("up", *where, "--journal", "postgresql", expected=1)
    assert len(refused.strip().splitlines()) == 1 and "its journal in etcd" in refused
