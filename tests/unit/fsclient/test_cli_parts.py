"""The parts of the command line that need no cluster: numbers, conditions, health, exit codes."""

import os
from pathlib import Path

import click
import pytest

from fsclient.cli import frame
from fsclient.cli.find import Wanted
from fsclient.cli.main import cli
from fsclient.cli.places import find_place
from fsclient.cli.words import Age, Size, bar, duration, holds, size
from fscommon.errors import (
    AuthenticationError,
    BraidError,
    ConfigError,
    FsError,
    Status,
    TransportError,
)
from fscommon.layout.attributes import Attributes
from fscommon.layout.layout import Layout
from fscommon.observe.health import CertificateSeen, problems_of
from fscommon.observe.problem import Severity, overall
from fscommon.observe.rates import Meter
from fscommon.observe.status import paths_text
from fscommon.wire.admin import BytesPath, ClientStatus, NodeStatus, TargetHealth, Traffic
from fscommon.wire.messages import ClusterMap, StatFsReply, StatusReply, TargetEntry


def test_sizes_and_times_for_people() -> None:
    assert [size(n) for n in (0, 1023, 1024, 1 << 20, 1536 << 20, (1 << 20) - 1)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.0 MiB",
        "1.5 GiB",
        "1.0 MiB",
    ]
    assert [duration(s) for s in (0.21, 42, 150, 90000, 400000)] == [
        "0.2 s",
        "42 s",
        "2 min",
        "25 h",
        "5 d",
    ]
    assert bar(0.5, 4) == "██░░" and bar(7, 4) == "████"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", ("", 4096)),
        ("+64KiB", ("+", 65536)),
        ("-1.5g", ("-", 3 << 29)),
        ("1T", ("", 1 << 40)),
    ],
)
def test_sizes_that_are_taken(text: str, value: tuple[str, int]) -> None:
    assert Size().convert(text, None, None) == value


@pytest.mark.parametrize("text", ["", "G", "12X", "1e9", "--1", "9" * 40, "½", "0x10", "+"])
def test_sizes_that_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Size().convert(text, None, None)
    with pytest.raises(click.BadParameter):
        Age().convert(text.replace("X", "y"), None, None)


def test_ages_and_bounds() -> None:
    assert Age().convert("+7", None, None) == ("+", 604800)
    assert Age().convert("90s", None, None) == ("", 90)
    assert holds("+", 5, 5) and not holds("+", 4, 5)
    assert holds("-", 5, 5) and not holds("-", 6, 5)
    assert holds("", 5, 5) and not holds("", 6, 5)


def test_conditions_of_find() -> None:
    file = Attributes(7, size=100, mode=0o100644, uid=1000, mtime_ns=50 * 10**9)
    layout = Layout(7, 1 << 20, 1, (3,)).pack()
    for wanted in (
        Wanted(),
        Wanted(name="*.pt"),
        Wanted(kind=0o100000),
        Wanted(size=("+", 100)),
        Wanted(size=("", 100)),
        Wanted(uid=1000),
        Wanted(target=3),
        Wanted(age=("+", 40.0)),
        Wanted(age=("", 0.0)),
    ):
        assert wanted.takes(b"a.pt", file, layout, 100.0), wanted
    for wanted in (
        Wanted(name="*.bin"),
        Wanted(kind=0o040000),
        Wanted(size=("-", 99)),
        Wanted(uid=0),
        Wanted(target=4),
        Wanted(age=("-", 40.0)),
        Wanted(age=("", 86400.0)),
    ):
        assert not wanted.takes(b"a.pt", file, layout, 100.0), wanted
    assert not Wanted(target=3).takes(b"d", file, b"", 0.0)
    assert Wanted(name="\udcff*").takes(b"\xff1", file, b"", 0.0)


# ---- health ----------------------------------------------------------------------------------


def make_status(**changes: object) -> StatusReply:
    values: dict[str, object] = {
        "cluster": bytes(16),
        "map": ClusterMap(1, bytes(16), (TargetEntry(1, 1, "h:1", "up", 100, 50),)),
        "clients": (),
        "recovering": False,
        "txn": 5,
        "durable": 5,
        "files": StatFsReply(100, 50, 50, 10, 5),
        "nodes": (NodeStatus(1, "s1", "h:1", True, 1.0, True, Traffic()),),
        "health": (TargetHealth(1, 1, 0, 0),),
        "version": "1",
        "uptime_s": 1.0,
        "chunk_size": 1 << 20,
        "stripe_width_max": 4,
    }
    return StatusReply(**{**values, **changes})  # type: ignore[arg-type]


def make_client(**changes: object) -> ClientStatus:
    values: dict[str, object] = {
        "session": 9,
        "node": "gpu1:/data",
        "opens": 0,
        "seconds_since_renewal": 1.0,
        "opened_ns": 0,
        "requests": 1,
        "replaying": False,
        "traffic": Traffic(),
        "seconds_since_report": 1.0,
    }
    return ClientStatus(**{**values, **changes})  # type: ignore[arg-type]


def test_the_way_that_bytes_go_in_few_words() -> None:
    rdma, tcp = BytesPath(1, "rdma", "mlx5_0:1"), BytesPath(2, "tcp", "the port is down")
    assert paths_text(make_client()) == "-"
    assert paths_text(make_client(paths=(rdma,))) == "RDMA"
    assert paths_text(make_client(paths=(tcp,))) == "TCP"
    assert paths_text(make_client(paths=(rdma, tcp))) == "RDMA 1/2, else TCP"


def test_a_sound_cluster_has_no_problems() -> None:
    problems = problems_of(make_status(clients=(make_client(),)))
    assert problems == [] and overall(problems) == "healthy"


@pytest.mark.parametrize(
    ("changes", "word", "health"),
    [
        ({"nodes": (NodeStatus(1, "s1", "h:1", False, 40.0, True, Traffic()),)}, "down", "failing"),
        ({"nodes": ()}, "no storage server", "failing"),
        (
            {"map": ClusterMap(1, b"", (TargetEntry(1, 1, "h:1", "full", 100, 0),))},
            "full",
            "degraded",
        ),
        (
            {"map": ClusterMap(1, b"", (TargetEntry(1, 1, "h:1", "down", 100, 50),))},
            "not served",
            "failing",
        ),
        ({"health": (TargetHealth(1, 1, 0, 3),)}, "3 errors", "failing"),
        ({"files": StatFsReply(100, 5, 5, 10, 5)}, "95% full", "degraded"),
        ({"files": StatFsReply(100, 50, 50, 10, 0)}, "metadata store", "failing"),
        ({"recovering": True, "clients": (make_client(replaying=True),)}, "recovers", "degraded"),
        ({"clients": (make_client(seconds_since_renewal=20.0),)}, "silent", "degraded"),
        ({"txn": 10**6}, "slow", "degraded"),
        (
            {"clients": (make_client(paths=(BytesPath(1, "none", "it has 7"),)),) * 2},
            "s1 takes no more connections of 2 clients",
            "failing",
        ),
    ],
)
def test_each_problem_is_seen_and_says_what_to_do(
    changes: dict[str, object], word: str, health: str
) -> None:
    problems = problems_of(make_status(**changes))
    assert len(problems) == 1 and word in problems[0].what
    assert problems[0].why and problems[0].remedy and overall(problems) == health


@pytest.mark.parametrize(
    ("seconds_left", "said", "health"),
    [
        (86400.0 * 30, "", "healthy"),
        (86400.0 * 20.5, "storage server s1 ends in 20.5 days", "degraded"),
        (0.0, "storage server s1 has ended", "failing"),
        (None, "storage server s1 has ended", "failing"),
    ],
)
def test_certificates_that_end_soon(seconds_left: float | None, said: str, health: str) -> None:
    problems = problems_of(make_status(), [CertificateSeen("storage server s1", seconds_left)])
    assert overall(problems) == health and len(problems) == bool(said)
    for problem in problems:
        assert said in problem.what and "braidfs tls issue --renew" in problem.remedy


def test_the_worst_comes_first() -> None:
    full = {"files": StatFsReply(100, 5, 5, 10, 5), "nodes": ()}
    found = problems_of(make_status(**full))
    assert [one.severity for one in found] == [Severity.ERROR, Severity.WARNING]


def test_rates_are_between_reports_and_survive_a_restart() -> None:
    meter = Meter()

    def take(now_s: float, ago_s: float, count: int) -> float:
        node = NodeStatus(1, "s", "h:1", True, ago_s, True, Traffic(count, 0, count, 0))
        meter.take(make_status(nodes=(node,)), now_s)
        return meter.rates("node 1").read_bytes

    assert take(10.0, 1.0, 1000) == 0
    assert take(12.0, 1.0, 3000) == 1000
    assert take(12.4, 1.4, 3000) == 1000  # it is the same report again
    assert take(14.0, 1.0, 10) == 0  # the server started again


# ---- ends ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BraidError("no"), 1),
        (ConfigError("no"), 2),
        (frame.UnreachableError("no"), 4),
        (TransportError("no"), 1),
        (FsError(Status.ENOENT), 1),
        (AuthenticationError("no"), 1),
        (FileNotFoundError(2, "No such file", "f"), 1),
        (KeyboardInterrupt(), 130),
        (click.UsageError("no"), 2),
        (click.Abort(), 130),
    ],
)
def test_exit_codes(error: BaseException, code: int, capfd: pytest.CaptureFixture[str]) -> None:
    @click.command()
    def fails() -> None:
        raise error

    assert frame.run_cli(fails, []) == code
    assert capfd.readouterr().err.strip()


def test_a_bug_is_not_hidden() -> None:
    @click.command()
    def fails() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        frame.run_cli(fails, [])


def test_where_the_cluster_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "admin.toml"
    monkeypatch.setenv("BRAIDFS_ADMIN_CONFIG", str(file))
    assert str(frame.make_reach(None, None, 1.0).metaservers[0]) == frame.METASERVER
    file.write_text('metaservers = ["m1", "m2:99"]\nkey_file = "/k"\n')
    reach = frame.make_reach(None, None, 1.0)
    assert [str(one) for one in reach.metaservers] == ["m1:7400", "m2:99"]
    assert str(reach.key_file) == "/k" and not reach.is_given
    reach = frame.make_reach("[::1]:5,m3", "/other", 1.0)
    assert [str(one) for one in reach.metaservers] == ["[::1]:5", "m3:7400"]
    assert str(reach.key_file) == "/other" and reach.is_given
    file.write_text("metaserver = 3\n")
    with pytest.raises(ConfigError, match="metaservers"):
        frame.make_reach(None, None, 1.0)


def test_paths_inside_the_file_system() -> None:
    reach = frame.make_reach("m", "/k", 1.0)
    assert find_place(":/a//b/./c", reach).names == (b"a", b"b", b"c")
    assert find_place(":/", reach).names == ()
    for bad in (":/a/../b", "/etc", ".", "relative", ""):
        with pytest.raises(click.BadParameter):
            find_place(bad, reach)


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["status", "--nonsense"],
        ["find"],
        ["find", ":/", "--size", "big"],
        ["find", ":/", "--type", "x"],
        ["top", "--interval", "0"],
        ["node", "ping", "--count", "0"],
        ["client", "evict"],
        ["client", "evict", "1", "--host", "h"],
        ["layout", "set", "/nowhere"],
        ["layout", "set", "/", "--stripe-width", "65"],
        ["layout", "set", "/"],
        ["status", "--timeout", "0"],
        ["completion", "tcsh"],
        ["status", "-s", "a b"],
        ["status", "-s", "h:99999"],
        ["config", "show", "/nowhere.toml"],
    ],
    ids=" ".join,
)
def test_wrong_arguments_are_one_message_and_code_2(
    words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert frame.run_cli(cli, words) == 2
    text = capfd.readouterr().err
    assert text.strip() and "Traceback" not in text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert frame.run_cli(cli, ["completion", shell]) == 0
    assert "_BRAIDFS_COMPLETE" in capfd.readouterr().out


def test_key_create_never_overwrites(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "cluster.key")
    assert frame.run_cli(cli, ["key", "create", path]) == 0
    made = Path(path).read_text()
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert frame.run_cli(cli, ["key", "create", path]) == 2
    assert Path(path).read_text() == made
    capfd.readouterr()
    assert frame.run_cli(cli, ["key", "check", path, "--json"]) == 0
    assert made.strip() not in capfd.readouterr().out
