"""A pytest plugin for `./dev test`: tests that do not use the shared mount run in a process of
their own beside the others, which mostly wait.

Their output comes before the summary; if one of them fails, the whole run fails.
"""

import subprocess

import pytest

from tests.dev.steps import BUILD, tool

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
    "tests/deployment/test_package.py",
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
WAIT_SECONDS = 1800.0  # it waits so long after the others are done
SHOWN_LINES = 400


class Beside:
    def __init__(self, words: list[str]) -> None:
        self._log = BUILD / "log" / "tests-without-a-mount.log"
        self._log.parent.mkdir(parents=True, exist_ok=True)
        command = ["nice", "-n", "5", tool("python"), "-m", "pytest", *words, *FOLDERS]
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

    def lines(self) -> list[str]:
        return self._log.read_text(errors="replace").splitlines()

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()


_BESIDE: pytest.StashKey[Beside] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    words = ["-p", "no:cacheprovider"] + (["--full"] if config.getoption("--full") else [])
    config.stash[_BESIDE] = Beside(words)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    beside = session.config.stash[_BESIDE]
    if session.exitstatus == pytest.ExitCode.INTERRUPTED:
        beside.end()
    if beside.wait() and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    beside = config.stash[_BESIDE]
    terminalreporter.section("tests that do not use the shared mount, beside these")
    failed = beside.wait() != 0
    for line in beside.lines()[-SHOWN_LINES if failed else -1 :]:
        terminalreporter.write_line(line)


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_BESIDE].end()
