"""A pytest plugin for `./dev test`: two processes run the tests, because most of them mostly wait.

Each process takes the next file that neither has begun, so both end at about the same time: this
one takes tests of mounts first, the one beside it first those in FOLDERS. The output of the process
beside comes before the summary; if one of its tests fails, the whole run fails.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.dev.steps import BUILD, ROOT, tool

FOLDERS = (
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
    # They have clusters of their own, and wait for leases that run out.
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
NICENESS = 5  # of FOLDERS, of which some compute for long
WAIT_SECONDS = 1800.0  # it waits so long after the others are done
SHOWN_LINES = 400


class Beside:
    def __init__(self, claims: Path, words: Sequence[str]) -> None:
        self._log = BUILD / "log" / "tests-beside.log"
        self._log.parent.mkdir(parents=True, exist_ok=True)
        sharing = ("-p", "tests.dev.beside", f"--beside={claims}", f"--ignore={NOT_BESIDE}")
        command = [tool("python"), "-m", "pytest", "-p", "no:cacheprovider", *sharing, *words]
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

    def __init__(self, items: Sequence[pytest.Item], claims: Path, *, is_beside: bool) -> None:
        self._claims = claims
        self._is_beside = is_beside
        self._by_name: dict[str, list[pytest.Item]] = {}
        for item in items:
            self._by_name.setdefault(_unit_of(item.path), []).append(item)

    def taken(self) -> Iterator[pytest.Item]:
        """The tests of each unit that this process is the first to take."""
        for name in self._in_order():
            if self._take(name):
                yield from self._by_name[name]

    def _in_order(self) -> list[str]:
        quiet = [name for name in self._by_name if _is_quiet(name)]
        others = [name for name in self._by_name if not _is_quiet(name)]
        return [*quiet, *reversed(others)] if self._is_beside else [*others, *reversed(quiet)]

    def _take(self, name: str) -> bool:
        try:
            (self._claims / name.replace("/", "+")).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def _unit_of(path: Path) -> str:
    name = str(path.relative_to(ROOT))
    return next((folder for folder in WHOLE_FOLDERS if _is_below(name, folder)), name)


def _is_quiet(name: str) -> bool:
    return any(_is_below(name, folder) for folder in FOLDERS)


def _is_below(name: str, folder: str) -> bool:
    return name == folder or name.startswith(f"{folder}/")


def _set_niceness(wanted: int) -> None:
    with contextlib.suppress(PermissionError):  # only root may lower it
        os.setpriority(os.PRIO_PROCESS, 0, wanted)


_BESIDE: pytest.StashKey[Beside] = pytest.StashKey()
_CLAIMS: pytest.StashKey[Path] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--beside", type=Path, help="the other process's folder of begun files")


def pytest_configure(config: pytest.Config) -> None:
    given: Path | None = config.getoption("--beside")
    config.stash[_CLAIMS] = claims = given or BUILD / "begun-tests"
    if given is None:
        shutil.rmtree(claims, ignore_errors=True)
        claims.mkdir(parents=True)
        full = ["--full"] if config.getoption("--full") else []
        config.stash[_BESIDE] = Beside(claims, [*full, *config.args])


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """pytest's own loop, over the tests that this process takes."""
    if session.testsfailed and not session.config.option.continue_on_collection_errors:
        raise session.Interrupted(f"{session.testsfailed} errors during collection")
    is_beside = _BESIDE not in session.config.stash
    units = Units(session.items, session.config.stash[_CLAIMS], is_beside=is_beside).taken()
    item = next(units, None)
    while item is not None:
        following = next(units, None)
        if is_beside:
            _set_niceness(NICENESS if _is_quiet(_unit_of(item.path)) else 0)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    beside = session.config.stash.get(_BESIDE, None)
    if beside is None:
        return
    if session.exitstatus == pytest.ExitCode.INTERRUPTED:
        beside.end()
    if beside.wait() and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if beside := config.stash.get(_BESIDE, None):
        terminalreporter.section("tests of the process beside this one")
        for line in beside.report():
            terminalreporter.write_line(line)


def pytest_unconfigure(config: pytest.Config) -> None:
    if beside := config.stash.get(_BESIDE, None):
        beside.end()
