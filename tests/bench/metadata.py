"""`./dev bench metadata`: names and attributes, on BraidFS, local ext4, null FUSE and the peers.

Each case is one pass over the same number of empty files, spread over a folder for each process, by
one process, by some and by many; on BraidFS also by four clients, each a mount of its own that has
its share of the processes and folders. *Warm*: the client saw every file a moment ago. *Cold*: the
kernel has dropped names and attributes (drop_caches), so that the client's own tables and its
servers answer. A round runs every case on every system; the median of the rounds counts. Null FUSE
has only its own few files: it runs the cases that are possible with those. A locked file that two
clients use in turns (hand_over.py) is measured besides, on BraidFS only, because scripts of peers
mount once.
"""

import os
import shutil
import statistics
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench.cases import SMALL_COUNT, create_files, timed
from tests.bench.hand_over import HandOvers, median, pass_to_and_fro
from tests.bench.report import write_results
from tests.bench.systems import running
from tests.cluster.cluster import Cluster
from tests.dev.build import build
from tests.dev.steps import BUILD, StepError, console

FILES = 12_000  # it is the total number
BRAID = "braidfs"
NULL = "nullfs"
LOCAL = "ext4"
PEER_SECONDS_MAX = 180


@dataclass(frozen=True, slots=True)
class Setting:
    """How many processes work, and on how many clients; several clients only on BraidFS."""

    processes: int
    clients: int = 1

    def __str__(self) -> str:
        return f"{self.processes}" + (f" on {self.clients} clients" if self.clients > 1 else "")


SETTINGS = (Setting(1), Setting(4), Setting(16), Setting(4, 4), Setting(16, 4))

# Its arguments are the folder of one process and the number of files in it.
Pass = Callable[[Path, int], None]


@dataclass(frozen=True, slots=True)
class Case:
    """`least_of_null`: for one process. `of_peers`: at least so many times the best peer, by number
    of processes."""

    name: str
    run: Pass
    cold: bool = False
    least_of_null: float | None = None
    of_peers: tuple[tuple[int, float], ...] = ()


def _stat(folder: Path, count: int) -> None:
    with _opened(folder) as fd:
        for name in _names(folder, count):
            os.stat(name, dir_fd=fd)


def _open(folder: Path, count: int) -> None:
    with _opened(folder) as fd:
        for name in _names(folder, count):
            os.close(os.open(name, os.O_RDONLY, dir_fd=fd))


def _find(folder: Path, count: int) -> None:
    """Does what `find -size` does: a listing, and the attributes of each file."""
    with os.scandir(folder) as entries:
        seen = sum(1 for entry in entries if entry.stat(follow_symlinks=False).st_size == 0)
    if seen != count:
        raise RuntimeError(f"{folder} has {seen} files instead of {count}")


def _rename(folder: Path, count: int) -> None:
    with _opened(folder) as fd:
        for number in range(count):
            os.rename(f"{number}", f"r{number}", src_dir_fd=fd, dst_dir_fd=fd)


def _remove(folder: Path, count: int) -> None:
    subprocess.run(["rm", "-r", folder], check=True)


CASES = (
    Case("create", create_files, of_peers=((16, 1.5),)),
    Case("stat, warm", _stat, least_of_null=0.5),
    Case("open for reading and close, warm", _open, least_of_null=0.5),
    Case("stat, cold", _stat, cold=True),
    Case("list with attributes, warm", _find),
    Case("list with attributes, cold", _find, cold=True, of_peers=((1, 1.0),)),
    Case("open for reading and close, again", _open),
    Case("rename", _rename),
    Case("rm -r", _remove, of_peers=((1, 1.0), (4, 1.5))),
)


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def _names(folder: Path, count: int) -> list[str]:
    """Null FUSE has files of its own, fewer than needed: they are used again and again."""
    if (folder / "f0").exists():
        return [f"f{number % SMALL_COUNT}" for number in range(count)]
    return [f"{number}" for number in range(count)]


Key = tuple[str, Setting]  # the text is the name of the case
Runs = dict[Key, dict[str, list[float]]]
Passed = dict[str, list[HandOvers]]  # the key is the system


def metadata(rounds: int, peers: Path | None) -> bool:
    """True when every bar was met. `peers`: a folder of NAME-up and NAME-down scripts."""
    build(tests=True)
    runs: Runs = defaultdict(lambda: defaultdict(list))
    found = sorted(peers.glob("*-up")) if peers else []
    ups = {path.name.removesuffix("-up"): path for path in found}
    if peers and not ups:
        raise StepError(f"no NAME-up script in {peers}")
    failed: dict[str, str] = {}
    passed: Passed = defaultdict(list)
    with running() as systems:
        folders = systems.folders()
        for round_ in range(rounds):
            for system, folder in folders.items():
                _pass_over(system, folder, runs)
            _clients_pass_over(systems.cluster, runs)
            passed[LOCAL].append(pass_to_and_fro([systems.local, systems.local]))
            passed[BRAID].append(_passed_by_clients(systems.cluster))
            for name, up in ups.items():
                if name not in failed:
                    failed |= _peer(up, name, runs)
            console.print(f"  round {round_ + 1} of {rounds} done")
    for system, turns in passed.items():
        where = "two clients" if system == BRAID else "one mount"
        print(f"one locked file to and fro, {system}, {where}: {median(turns)}")
    return _report(runs, passed, [name for name in ups if name not in failed], failed)


def _peer(up: Path, name: str, runs: Runs) -> dict[str, str]:
    """Measures one peer, which is started and stopped; returns why it could not be measured."""
    point = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=BUILD / "bench"))
    try:
        words = [str(up), str(point)]
        subprocess.run(words, check=True, capture_output=True, text=True, timeout=PEER_SECONDS_MAX)
        _pass_over(name, point, runs)
    except (subprocess.SubprocessError, OSError, RuntimeError) as error:
        output = getattr(error, "stderr", "") or ""
        return {name: f"{error} {output[-300:]}".strip()}
    finally:
        words = [str(up.with_name(f"{name}-down")), "wipe"]
        subprocess.run(words, check=False, capture_output=True, timeout=PEER_SECONDS_MAX)
        point.rmdir()
    return {}


def _pass_over(system: str, folder: Path, runs: Runs) -> None:
    for setting in SETTINGS:
        if setting.clients == 1:
            _run_cases(system, [folder], setting, runs)


def _clients_pass_over(cluster: Cluster, runs: Runs) -> None:
    """The other clients are mounted only as long as they are needed, because the
    metaserver tells a client when it is the only one."""
    for setting in SETTINGS:
        if setting.clients == 1:
            continue
        with ExitStack() as stack:
            points = [cluster.plan.state / f"client-{n}" for n in range(2, setting.clients + 1)]
            others = [stack.enter_context(cluster.second_client(point)) for point in points]
            _run_cases(BRAID, [cluster.mount_path, *others], setting, runs)


def _passed_by_clients(cluster: Cluster) -> HandOvers:
    with cluster.second_client(cluster.plan.state / "client-2") as other:
        return pass_to_and_fro([cluster.mount_path, other])


def _run_cases(system: str, roots: Sequence[Path], setting: Setting, runs: Runs) -> None:
    processes = setting.processes
    bases = [roots[number % len(roots)] / f"p{number}" for number in range(processes)]
    if system == NULL:
        bases = [roots[0]] * processes
    else:
        for base in bases:
            base.mkdir()
    for case in CASES:
        if system == NULL and case.run not in (_stat, _open):
            continue
        if case.cold:
            Path("/proc/sys/vm/drop_caches").write_text("2")
        seconds = timed(case.run, bases, FILES // processes)
        runs[case.name, setting][system].append(FILES // processes * processes / seconds)
    if system != NULL:
        for base in bases:
            shutil.rmtree(base, ignore_errors=True)


def _report(runs: Runs, passed: Passed, peers: list[str], failed: dict[str, str]) -> bool:
    systems = [BRAID, LOCAL, NULL, *peers]
    table = Table(title=f"names and attributes: medians, files a second ({FILES:,} files)")
    for column in ("case", "processes", *systems, "of ext4", "least bars"):
        table.add_column(column, justify="left" if column == "case" else "right")
    below = []
    for case in CASES:
        for setting in SETTINGS:
            medians = _medians(runs, case, setting)
            bars = list(_bars(case, setting, medians, peers)) if setting.clients == 1 else []
            below += [f"{case.name}, {setting}: {text}" for text, met in bars if not met]
            shown = ", ".join(f"[{'green' if met else 'red'}]{text}[/]" for text, met in bars)
            values = [f"{medians[name]:,.0f}" if name in medians else "-" for name in systems]
            local = medians.get(LOCAL) or _medians(runs, case, Setting(setting.processes))[LOCAL]
            share = f"{medians[BRAID] / local:.2f}"
            table.add_row(case.name, str(setting), *values, share, shown or "-")
    Console(width=max(console.width, 150)).print(table)
    for name, why in failed.items():
        print(f"{name} could not be measured: {why}")
    content = {f"{case}, {setting}": dict(values) for (case, setting), values in runs.items()}
    turns = {system: [asdict(one) for one in runs_] for system, runs_ in passed.items()}
    kept = {"failures": below, "cases": content, "one file to and fro": turns}
    print(f"all runs: {write_results('metadata', kept)}")
    for text in below:
        print(f"below the bar: {text}")
    return not below


def _medians(runs: Runs, case: Case, setting: Setting) -> dict[str, float]:
    found = runs[case.name, setting]
    return {system: statistics.median(values) for system, values in found.items()}


def _bars(
    case: Case, setting: Setting, medians: dict[str, float], peers: list[str]
) -> Iterator[tuple[str, bool]]:
    mine = medians[BRAID]
    if case.least_of_null is not None and setting.processes == 1:
        got = mine / medians[NULL]
        yield f"{got:.2f} of {NULL}, at least {case.least_of_null}", got >= case.least_of_null
    measured = [name for name in peers if name in medians]
    for count, times in case.of_peers:
        if count == setting.processes and measured:
            best = max(measured, key=medians.__getitem__)
            got = mine / medians[best]
            yield f"{got:.2f} of {best}, at least {times}", got >= times
