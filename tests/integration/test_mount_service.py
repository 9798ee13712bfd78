"""A mount as braidfs-mount@.service runs it: its command, its rights, and a supervisor that gets
its notifications, stores its descriptors and starts it again.

tests/deployment/test_units.py runs it under a real systemd.
"""

import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import mounts
from tests.cluster.cluster import BIN, Cluster
from tests.cluster.process import command_of, is_gone, wait_until
from tests.cluster.silent_fuse import SERVICE, silent_mount
from tests.cluster.supervisor import Supervisor
from tests.dev.steps import ROOT

from .test_restart import Writer, is_working
from .test_survival import get_on, reading

pytestmark = [pytest.mark.mount, pytest.mark.timeout(180), pytest.mark.expects_warnings]
UNIT = (ROOT / "packaging" / "systemd" / "braidfs-mount@.service").read_text()


def setting(name: str) -> list[str]:
    """The values of a key of the unit."""
    return re.findall(rf"^{name}=(.*)$", UNIT, re.M)


def limited(words: list[str]) -> list[str]:
    """The command, run with the unit's capabilities and unable to gain others."""
    (kept,) = setting("CapabilityBoundingSet")
    added = "".join(f",+{word.removeprefix('CAP_').lower()}" for word in kept.split())
    return ["setpriv", f"--bounding-set=-all{added}", "--no-new-privs", *words]


@pytest.fixture
def point(localdir: Path) -> Path:
    point = localdir / "point"
    point.mkdir()
    return point


@pytest.fixture
def service(cluster: Cluster, point: Path, localdir: Path) -> Iterator[Supervisor]:
    (line,) = setting("ExecStart")
    given = {
        "${SOURCE}": cluster.plan.source(),
        "${OPTIONS}": cluster.plan.options(),
        "%f": str(point),
        "braidfs": str(BIN / "braidfs"),
    }
    words = [given.get(word, word) for word in line.split()]
    environment = dict(text.split("=", 1) for text in setting("Environment"))
    environment["WATCHDOG_USEC"] = "400000"
    made = Supervisor(localdir, limited(words), environment)
    yield made
    made.forget()
    made.stop()
    while mounts.is_mounted(point):
        mounts.unmount(point, lazy=True)


def has_watch(pid: int) -> bool:
    """Whether a process watches this client for its death."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return any(command_of(one)[-2:] == ["fsclient.death_watch", str(pid)] for one in pids)


def test_it_says_what_it_does_and_has_few_rights(service: Supervisor, point: Path) -> None:
    pid = service.start()
    assert mounts.is_mounted(point) and mounts.client_pid(point) == pid
    status = Path(f"/proc/{pid}/status").read_text()
    (bound,) = re.findall(r"^CapBnd:\s(\w+)", status, re.M)
    (kept,) = setting("CapabilityBoundingSet")
    assert int(bound, 16).bit_count() == len(kept.split()) and "NoNewPrivs:\t1" in status
    assert wait_until(lambda: service.said["WATCHDOG=1"] >= 5, 20)
    assert wait_until(lambda: has_watch(pid), 20)
    (point / "by-service").write_bytes(b"x" * 100_000)
    assert service.end(signal.SIGTERM) == 0
    assert service.said["STOPPING=1"] == 1 and not mounts.is_mounted(point)
    assert wait_until(lambda: not has_watch(pid), 20)


def test_killed_it_goes_on_in_the_next_process(
    cluster: Cluster, service: Supervisor, point: Path
) -> None:
    """The client is killed twice while others read; the unit's store never has more than one
    generation."""
    octets = os.urandom(4 << 20)
    (cluster.mount_path / "served").write_bytes(octets)
    service.start()
    device = point.stat().st_dev
    with reading(point / "served", octets) as readers:
        for number in (1, 2):
            assert get_on(readers)
            assert service.end(signal.SIGKILL) == -signal.SIGKILL
            service.start()
            kinds = {name for name in service.names() if name != "main"}
            assert kinds == {f"{kind}-{number}" for kind in ("lanes", "record", "state")}
        assert get_on(readers) and point.stat().st_dev == device
    assert service.names()["main"] == 1
    assert service.end(signal.SIGTERM) == 0 and not mounts.is_mounted(point)
    (cluster.mount_path / "served").unlink()


def test_a_dead_process_that_cannot_end_holds_up_no_next_one(point: Path, localdir: Path) -> None:
    """The kernel keeps a thread of it, as it does of a client whose notification waits for a page
    that a READ has locked."""
    service = Supervisor(localdir, [sys.executable, "-c", SERVICE, str(point)], {})
    try:
        with silent_mount(str(point)) as asked:
            killed = service.start()
            assert asked.wait(20)
            assert service.end(signal.SIGKILL) == -signal.SIGKILL
            assert not is_gone(killed) and service.said["BARRIER=1"] == 1
            assert service.start() != killed
            assert service.end(signal.SIGTERM) == -signal.SIGTERM
        assert wait_until(lambda: is_gone(killed), 20)
    finally:
        service.stop()


def test_restarted_it_leaves_the_mount_to_the_next_process(
    service: Supervisor, point: Path, full: bool
) -> None:
    """Writers lose nothing when the unit's restart is repeated here; then come a reload and
    a kill."""
    (number,) = setting("RestartKillSignal")
    (left,) = setting("RestartForceExitStatus")
    service.start()
    folder = point / "writers"
    folder.mkdir()
    writer = Writer(folder)
    writer.start()
    for _ in range(2 if full else 1):
        assert is_working([writer])
        assert service.end(signal.Signals[number]) == int(left)
        assert sum(name.startswith("left-") for name in service.names()) == 1
        service.start()
        assert not any(name.startswith("left-") for name in service.names())
    assert is_working([writer])
    words = [str(BIN / "braidfs"), "client", "restart", str(point), "--json"]
    reloaded = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
    assert reloaded[0]["pid"] == service.pid
    assert is_working([writer])
    writer.stopping.set()
    writer.join(60)
    assert not writer.errors, writer.errors
    assert service.end(signal.SIGKILL) == -signal.SIGKILL
    service.start()
    assert len(list(folder.iterdir())) > 1
    subprocess.run(("rm", "-r", folder), check=True)
    # A killed one would keep its leases, for which the next test would wait until they run out.
    assert service.end(signal.SIGTERM) == 0 and not mounts.is_mounted(point)


@pytest.mark.full
def test_what_is_left_dead_is_mounted_anew(service: Supervisor, point: Path) -> None:
    """The store was lost, or comes from a release whose format this one does not read."""
    service.start()
    service.end(signal.SIGKILL)
    service.forget()
    with pytest.raises(OSError) as dead:
        os.listdir(point)
    assert dead.value.errno == errno.ENOTCONN
    service.start()
    (point / "again").touch()
    service.end(signal.SIGKILL)
    ((_, state),) = [row for row in service.store if row[0].startswith("state-")]
    words = os.pread(state, 1 << 20, 0)
    os.pwrite(state, words.replace(b'"version": 2', b'"version": 1'), 0)
    assert os.pread(state, 1 << 20, 0) != words
    service.start()
    assert (point / "again").exists()
    (point / "again").unlink()
    assert sum(entry.mountpoint == str(point) for entry in mounts.mount_entries()) == 1


def test_a_wrong_option_is_told_and_not_tried_again(
    cluster: Cluster, point: Path, localdir: Path
) -> None:
    (wrong,) = setting("RestartPreventExitStatus")
    words = [
        str(BIN / "braidfs"),
        "mount",
        "--foreground",
        cluster.plan.source(),
        str(point),
        "-o",
        "timeuot=3",
    ]
    seen = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    assert seen.returncode == int(wrong) and "did you mean 'timeout'" in seen.stderr
