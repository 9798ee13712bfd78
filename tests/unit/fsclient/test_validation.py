"""`braidfs validate` without a cluster: checksums, sizes, lists of hosts, the page. All functions
are pure.
"""

from html.parser import HTMLParser

import pytest

from fsclient.cli.frame import EXIT_USAGE, run_cli
from fsclient.cli.main import cli
from fsclient.validate import load, page, tools
from fsclient.validate.kept import steps
from fsclient.validate.nodes import HOSTS_MAX, expand_hosts
from fsclient.validate.outcome import Findings, Measured, NodeFacts, Outcome, of_fio, together
from fsclient.validate.sizing import GB, PROFILES, Need, sizings
from fsclient.validate.suites import AMOUNTS, BENCHES, BLOCK_BYTES, SUITES, Kind, job_text
from fsclient.validate.tools import PHASES


def test_the_slowest_node_makes_the_rate() -> None:
    both = together([Measured(1000, 10, 1.0, 5, 9), Measured(1000, 10, 4.0, 7, 8)])
    assert (both.bytes_per_second, both.operations_per_second) == (500, 5)
    assert (both.p50_us, both.p99_us) == (7, 9)
    assert together([]).bytes_per_second == 0


@pytest.mark.parametrize(
    ("read", "write", "gpus", "limits"),
    [
        (8 * GB, 6 * GB, [8, 4, 2], ["write", "write", "write"]),
        (7.9 * GB, 60 * GB, [7, 3, 1], ["read", "read", "read"]),
        (100 * GB, 2.9 * GB, [3, 1, 0], ["write", "write", "write"]),
        (0, 0, [0, 0, 0], ["write", "write", "write"]),
    ],
)
def test_sizes(read: float, write: float, gpus: list[int], limits: list[str]) -> None:
    found = sizings(read, write)
    assert [one.profile.name for one in found] == ["light", "medium", "heavy"]
    assert [one.gpus for one in found] == gpus and [one.limit for one in found] == limits


def test_need_is_met_by_both_directions() -> None:
    medium = PROFILES[1]
    assert Need(2, medium, 4 * GB, 3 * GB).is_met
    assert not Need(2, medium, 4 * GB, 2.9 * GB).is_met
    assert not Need(2, medium, 3.9 * GB, 30 * GB).is_met


def test_host_lists() -> None:
    assert expand_hosts("gpu[08-10],login") == ["gpu08", "gpu09", "gpu10", "login"]
    assert expand_hosts("r[1-2]n[1-2]") == ["r1n1", "r1n2", "r2n1", "r2n2"]
    assert expand_hosts("root@10.0.0.1") == ["root@10.0.0.1"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a,,b",
        "-oProxyCommand=x",
        "a b",
        "gpu[3-1]",
        "x;y",
        f"g[0-{HOSTS_MAX}]",
        "a[0-999]b[0-999]",
    ],
)
def test_what_is_no_host_list(text: str) -> None:
    with pytest.raises(ValueError, match="host"):
        expand_hosts(text)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "PATH"),
        (["data", "--hosts", "a"], "absolute"),
        (["/a", "/b", "--hosts", "a"], "one"),
        (["/data", "--hosts", "gpu[9-1]"], "no range"),
        (["/data", "--size", "4K"], "1 MiB"),
        (["/data", "--html", "/nonexistent/x.html"], "no folder"),
        (["/data", "--gpus", "0"], "0"),
    ],
)
def test_wrong_arguments(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(cli, ["validate", *words]) == EXIT_USAGE
    assert told in capsys.readouterr().err


def test_every_phase_has_its_job_or_load() -> None:
    for suite, phases in SUITES.items():
        assert len({phase.name for phase in phases}) == len(phases)
        assert AMOUNTS[suite].node_bytes(1) > 0
        for phase in phases:
            assert bool(phase.job) != bool(phase.load)
            if phase.job:
                assert "[" in job_text(phase) and "numjobs=${JOBS}" in job_text(phase)
    assert load.BLOCK_BYTES == BLOCK_BYTES


def test_fio_sums_are_of_the_direction_that_counts() -> None:
    row = {
        "io_bytes": 5,
        "total_ios": 1,
        "runtime": 500,
        "clat_ns": {"percentile": {"50.000000": 2000, "99.000000": 3000}},
    }
    empty = {"io_bytes": 0, "total_ios": 0, "runtime": 0, "clat_ns": {}}
    seen = of_fio({"read": row, "write": empty}, Kind.CHECK, verifies=True)
    assert (seen.bytes_per_second, seen.p50_us, seen.p99_us) == (10, 2, 3)
    assert of_fio({"read": row, "write": empty}, Kind.CHECK, verifies=False).bytes == 0


def test_ior_and_mdtest_are_called_and_understood() -> None:
    amounts, by_name = AMOUNTS["quick"], {phase.name: phase for phase in tools.PHASES}
    easy, hard = by_name["ior-easy-write"], by_name["ior-hard-read"]
    assert tools.place(easy, "/d/own", "/d/peer") == "/d/own/ior-easy"
    assert tools.place(hard, "/d/own", "/d/peer") == "/d/peer/ior-hard"
    words = tools.command(hard, "/d/peer/ior-hard", amounts, 4)
    assert words[:4] == ["mpirun", "-n", "4", "ior"] and "-R" in words and "-w" not in words
    assert tools.command(easy, "/x", amounts, 1)[0] == "ior"
    said = "Max Write: 512.00 MiB/sec (536.87 MB/sec)\nMax Read:  256.00 MiB/sec (268.44 MB/sec)\n"
    seen = tools.measured(easy, said, amounts, 2)
    assert (seen.bytes, seen.seconds) == (2 * 256 << 20, 1.0)
    assert tools.measured(hard, said, amounts, 1).bytes_per_second == 256 << 20
    for name, line in (
        ("create", "File creation     :"),
        ("stat", "File stat"),
        ("remove", "   File removal      :"),
    ):
        text = f"SUMMARY rate: (of 1 iterations)\n{line}     2000.000   2000.0   2000.0   0.000\n"
        seen = tools.measured(by_name[f"mdtest-{name}"], text, amounts, 4)
        assert seen.operations_per_second == 2000 and seen.operations == 4 * amounts.files
    with pytest.raises(ValueError, match="printed no"):
        tools.measured(easy, "nothing", amounts, 1)
    assert tools.is_damage("WARNING: Incorrect data on read (3 errors found).")


class _Balanced(HTMLParser):
    """Collects what a page would load, and tags that were not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]
        self.loads += [tag] if tag in ("script", "link", "iframe", "img") else []
        if tag not in ("meta", "html"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_whole_and_loads_nothing() -> None:
    phases = SUITES["full"]
    two = (Measured(2 * 10**9, 2000, 1.0, 10, 20), Measured(10**9, 1000, 1.0, 10, 30))
    findings = Findings("full", 0, 12.0)
    findings.nodes = tuple(
        NodeFacts(name, name, "/data", "6", 8, 1 << 33, "fio-3", "fuse.braidfs", "m:/", 1)
        for name in ("<gpu1>", "gpu2")
    )
    findings.outcomes = [Outcome(phase, two) for phase in phases]
    findings.outcomes[-1] = Outcome(phases[-1], two, ("gpu2: <b>wrong</b>",))
    text = page.page(findings, AMOUNTS["full"], Need(4, PROFILES[0], 3 * GB, 3 * GB))
    seen = _Balanced()
    seen.feed(text)
    assert seen.open == [] and seen.loads == []
    assert "&lt;gpu1&gt;" in text and "<b>wrong</b>" not in text
    assert "<b>not</b> enough" in text and text.count("<svg") == 5
    assert "3 light, 1 medium, 0 heavy" in text


def test_table_fits_a_terminal() -> None:
    names = [phase.title for phases in SUITES.values() for phase in phases]
    assert max(map(len, names)) <= 24, "the table is to fit 80 columns"


def test_what_is_left_after_an_interrupt() -> None:
    """Each phase that is not finished, and before it the phase that creates its files, once."""
    for phases in (*SUITES.values(), *BENCHES.values(), PHASES):
        names = [phase.name for phase in phases]
        assert [step.phase.name for step in steps(phases, frozenset())] == names
        assert all(phase.needs in ("", *names) for phase in phases)
        for count in range(len(names)):
            left = steps(phases, frozenset(names[:count]))
            assert [step.phase.name for step in left if not step.is_again] == names[count:]
            made = [step.phase.name for step in left]
            assert len(made) == len(set(made))
            for place, step in enumerate(left):
                assert not step.phase.needs or step.phase.needs in made[:place]
