"""A pytest plugin for `./dev test`: three processes run the tests, as most of them mostly wait.

Each process takes the next file that none has begun. This one takes tests of mounts first, a second
one first those with clusters of their own; these two end at about the same time. The third one
takes only tests without clusters, in the time that the others leave. The output of the processes
beside this one comes before the summary; if one of their tests fails, the whole run fails.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.dev.steps import BUILD, ROOT, tool

# Tests that compute, and need no cluster.
COMPUTING = (
    "tests/unit",
    "tests/wire",
    "tests/golden",
    "tests/conformance",
    "tests/test_tidy.py",
    "tests/test_tidy_cpp.py",
    "tests/model/test_leases.py",
    "tests/model/test_linearizability.py",
    "tests/model/test_lock_table.py",
    "tests/model/test_metaserver_replay.py",
    "tests/model/test_mirrors.py",
    "tests/model/test_takeover.py",
)
# Tests with clusters of their own, which wait for leases that run out.
CLUSTERS = (
    "tests/integration/test_disks.py",
    "tests/integration/test_etcd_journal.py",
    "tests/integration/test_postgresql_journal.py",
    "tests/integration/test_meta_switch.py",
    "tests/integration/test_mirror_servers.py",
    "tests/integration/test_mirrors.py",
    "tests/integration/test_mirrors_under_load.py",
    "tests/integration/test_object_copy.py",
    "tests/integration/test_rebuild_and_drain.py",
    "tests/integration/test_several_metaservers.py",
    "tests/integration/test_take_over.py",
    "tests/integration/test_recovery_of_metaservers.py",
    "tests/integration/test_stray_objects.py",
    "tests/integration/test_take_over_engine.py",
    "tests/integration/test_take_over_faults.py",
)
# One process runs all files of such a folder, because its fixtures of all of them are costly.
WHOLE_FOLDERS = ("tests/deployment", "tests/fuse/posix")
NOT_BESIDE = "tests/rdma"  # it starts a guest as soon as its tests are collected
# What each process takes: the first group in order, what is left of others from their ends.
GROUPS = {
    "mounts": ("mounts", "clusters", "computing"),
    "clusters": ("clusters", "mounts", "computing"),
    "computing": ("computing",),
}
NICENESS = 5  # beside this process, of what is no test of a mount: some compute for long
WAIT_SECONDS = 1800.0  # it waits so long after the others are done
SHOWN_LINES = 400


class Beside:
    """One process beside this one; role: a key of GROUPS."""

    def __init__(self, role: str, claims: Path, words: Sequence[str]) -> None:
        self.role = role
        self._log = BUILD / "log" / f"tests-{role}.log"
        self._log.parent.mkdir(parents=True, exist_ok=True)
        sharing = ("-p", "tests.dev.beside", f"--beside={claims}", f"--role={role}")
        command = [tool("python"), "-m", "pytest", "-p", "no:cacheprovider", *sharing]
        command += [f"--ignore={NOT_BESIDE}", *words]
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def wait(self) -> int:
        """Waits for the process; returns its exit code."""
        try:
            return self._process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def report(self) -> list[str]:
        """What it printed after its tests; of one that failed, the end of everything."""
        lines = self._log.read_text(errors="replace").splitlines()
        if self.wait() != 0:
            return lines[-SHOWN_LINES:]
        titles = [number for number, line in enumerate(lines) if line.startswith("=")]
        after = lines[titles[1] :] if len(titles) > 1 else lines
        return [line for line in after if not line.startswith("SKIPPED")]

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()


class Units:
    """The tests of a session by file, or by folder where one process runs all of a folder."""

    def __init__(self, items: Sequence[pytest.Item], claims: Path, role: str) -> None:
        self._claims = claims
        self._role = role
        self._by_name: dict[str, list[pytest.Item]] = {}
        for item in items:
            self._by_name.setdefault(_unit_of(item.path), []).append(item)

    def taken(self) -> Iterator[pytest.Item]:
        """The tests of each unit that this process is the first to take."""
        for name in self._in_order():
            if self._take(name):
                yield from self._by_name[name]

    def _in_order(self) -> list[str]:
        own, *others = GROUPS[self._role]
        order = [name for name in self._by_name if _group_of(name) == own]
        for group in others:
            order += reversed([name for name in self._by_name if _group_of(name) == group])
        return order

    def _take(self, name: str) -> bool:
        try:
            (self._claims / name.replace("/", "+")).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def _unit_of(path: Path) -> str:
    name = str(path.relative_to(ROOT))
    return next((folder for folder in WHOLE_FOLDERS if _is_below(name, folder)), name)


def _group_of(name: str) -> str:
    for group, folders in (("computing", COMPUTING), ("clusters", CLUSTERS)):
        if any(_is_below(name, folder) for folder in folders):
            return group
    return "mounts"


def _is_below(name: str, folder: str) -> bool:
    return name == folder or name.startswith(f"{folder}/")


def _set_niceness(wanted: int) -> None:
    with contextlib.suppress(PermissionError):  # only root may lower it
        os.setpriority(os.PRIO_PROCESS, 0, wanted)


_BESIDE: pytest.StashKey[list[Beside]] = pytest.StashKey()
_CLAIMS: pytest.StashKey[Path] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--beside", type=Path, help="the first process's folder of begun files")
    parser.addoption("--role", choices=GROUPS, default="mounts", help="which tests come first")


def pytest_configure(config: pytest.Config) -> None:
    given: Path | None = config.getoption("--beside")
    config.stash[_CLAIMS] = claims = given or BUILD / "begun-tests"
    if given is None:
        shutil.rmtree(claims, ignore_errors=True)
        claims.mkdir(parents=True)
        full = ["--full"] if config.getoption("--full") else []
        config.stash[_BESIDE] = [
            Beside("clusters", claims, [*full, *config.args]),
            Beside("computing", claims, [*full, *COMPUTING]),
        ]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """pytest's own loop, over the tests that this process takes."""
    if session.testsfailed and not session.config.option.continue_on_collection_errors:
        raise session.Interrupted(f"{session.testsfailed} errors during collection")
    role: str = session.config.getoption("--role")
    units = Units(session.items, session.config.stash[_CLAIMS], role).taken()
    item = next(units, None)
    while item is not None:
        following = next(units, None)
        if role != "mounts":
            is_mount = _group_of(_unit_of(item.path)) == "mounts"
            _set_niceness(0 if is_mount else NICENESS)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    others = session.config.stash.get(_BESIDE, [])
    if session.exitstatus == pytest.ExitCode.INTERRUPTED:
        for beside in others:
            beside.end()
    codes = [beside.wait() for beside in others]
    if any(codes) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for beside in config.stash.get(_BESIDE, []):
        terminalreporter.section(f"tests of the process beside this one: {beside.role}")
        for line in beside.report():
            terminalreporter.write_line(line)


def pytest_unconfigure(config: pytest.Config) -> None:
    for beside in config.stash.get(_BESIDE, []):
        beside.end()
