"""`braidfs validate` on real mounts: several nodes, reports, damage that it finds, and
interruption.

Sizes are tiny: the tests check what it does and prints, not how fast it is. The remote shell is a
program of the test that runs the command here; everything else is as with ssh.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fsclient.validate.load import BLOCK_BYTES
from fsclient.validate.suites import SUITES, job_text
from fsclient.validate.tools import PHASES
from fsclient.validate.worker import Worker, WorkError
from tests.cluster.cluster import BIN, Cluster
from tests.cluster.process import wait_until

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]
SMALL = ("--seconds", "1", "--size", "4M", "--jobs", "2", "--files", "20")
ENDLESS = ("--seconds", "600", "--size", "4M", "--jobs", "1")


def measuring(verb: str, *words: object, code: int = 0) -> "subprocess.CompletedProcess[str]":
    """`braidfs validate` or `bench`, run to its end."""
    command = [str(BIN / "braidfs"), verb, *map(str, words)]
    seen = subprocess.run(command, check=False, capture_output=True, text=True, timeout=200)
    assert seen.returncode == code, seen
    assert "Traceback" not in seen.stderr
    return seen


validate = partial(measuring, "validate")


def left_in(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.startswith(".braidfs-validate-")]


@pytest.fixture
def two(cluster: Cluster, workdir: Path, localdir: Path) -> Iterator[tuple[Path, Path]]:
    """The same folder of the file system, on two mounts."""
    with cluster.second_client(localdir / "other") as other:
        yield workdir, other / workdir.name


def test_two_nodes_json_and_page(two: tuple[Path, Path], localdir: Path) -> None:
    html = localdir / "report.html"
    need = ("--gpus", 100_000, "--profile", "heavy")
    seen = json.loads(validate(*two, *SMALL, *need, "--json", "--html", html, code=3).stdout)
    assert [node["file_system"] for node in seen["nodes"]] == ["fuse.braidfs"] * 2
    assert [one["phase"] for one in seen["phases"]] == [one.name for one in SUITES["quick"]]
    by_name: dict[str, Any] = {one["phase"]: one for one in seen["phases"]}
    for name in ("check-write", "check-read"):
        assert by_name[name]["bytes"] == 2 * 2 * (4 << 20), name
    # These phases end after one second.
    assert 2 * 2 << 20 <= by_name["write"]["bytes"] <= 2 * 2 * (4 << 20)
    assert 0 < by_name["read"]["bytes"] <= by_name["write"]["bytes"]
    assert by_name["stat"]["operations"] == 2 * 2 * 20
    assert by_name["shared-read"]["bytes"] == 2 * 2 * 64 * BLOCK_BYTES
    assert all(one["nodes"][1]["operations"] > 0 for one in seen["phases"])
    assert seen["damage"] == [] and by_name["check-read"]["is_checked"]
    assert seen["need"]["is_met"] is False and len(seen["sizing"]) == 3
    assert "not</b> enough" in html.read_text() and str(two[1]) in html.read_text()
    assert left_in(two[0]) == []


@pytest.fixture
def tools(localdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nodes that have IOR, mdtest and mpirun, or programs that do and print the same."""
    folder = localdir / "tools"
    folder.mkdir()
    text = Path(__file__).with_name("mpi_stand_ins.py").read_text()
    for name in ("ior", "mdtest", "mpirun"):
        (folder / name).write_text(f"#!{sys.executable}\n{text}")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


@pytest.mark.full
def test_ior_and_mdtest_where_nodes_have_them(
    two: tuple[Path, Path], tools: Path, localdir: Path
) -> None:
    html = localdir / "report.html"
    seen = json.loads(validate(*two, *SMALL, "--json", "--html", html).stdout)
    names = [one["phase"] for one in seen["phases"]]
    assert names == [*(one.name for one in SUITES["quick"]), *(one.name for one in PHASES)]
    by_name: dict[str, Any] = {one["phase"]: one for one in seen["phases"]}
    assert by_name["ior-easy-write"]["bytes"] == 2 * 2 * 4 * (4 << 20)
    assert by_name["ior-hard-read"]["bytes"] == 2 * 2 * 64 * BLOCK_BYTES
    assert by_name["mdtest-stat"]["operations"] == 2 * 2 * 20
    assert all(node["seconds"] > 0 for one in seen["phases"] for node in one["nodes"])
    assert seen["damage"] == [] and "IOR checks" in html.read_text()
    assert "ran on each node by itself" in html.read_text() and left_in(two[0]) == []
    # This one writes other bytes than those that it checks for.
    script = (tools / "ior").read_text()
    spoiled = script.replace('f"{given.G} {task} {at} "', 'f"{given.w} {task} {at} "')
    assert spoiled != script
    (tools / "ior").write_text(spoiled)
    (tools / "mdtest").unlink()
    seen = json.loads(validate(*two, *SMALL, "--json", code=3).stdout)
    assert len(seen["damage"]) == 2 and "IOR read bytes" in seen["damage"][0]
    assert not any("mdtest" in one["phase"] for one in seen["phases"])


@pytest.mark.full
def test_the_full_suite(two: tuple[Path, Path]) -> None:
    small = ("--seconds", "2", "--size", "32M", "--jobs", "2", "--files", "50")
    seen = json.loads(validate(*two, "--suite", "full", *small, "--json").stdout)
    assert [one["phase"] for one in seen["phases"]] == [one.name for one in SUITES["full"]]
    assert all(one["operations"] > 0 for one in seen["phases"]) and seen["damage"] == []
    assert left_in(two[0]) == []


def test_a_remote_node_and_text(workdir: Path, localdir: Path) -> None:
    shell = localdir / "shell"
    shell.write_text(f'#!/bin/sh\necho "$1" >>{localdir}/asked\nPATH={BIN}:$PATH exec sh -c "$2"\n')
    shell.chmod(0o755)
    seen = validate(workdir, "--hosts", "gpu[7-7]", "--ssh", shlex.quote(str(shell)), *SMALL)
    assert "enough for so many GPUs" in seen.stdout and seen.stdout.count("right") == 2
    assert "1/10 Write large files" in seen.stderr
    assert (localdir / "asked").read_text() == "gpu7\n"
    assert left_in(workdir) == []
    shell.write_text("#!/bin/sh\necho no route to $1 >&2; exit 255\n")
    gone = validate(workdir, "--hosts", "gpu7", "--ssh", shlex.quote(str(shell)), code=1)
    assert "gpu7: its worker ended: no route to gpu7" in gone.stderr


def test_places_that_cannot_be_used(workdir: Path, localdir: Path) -> None:
    assert "not BraidFS" in validate(localdir, *SMALL, code=1).stderr
    assert "is not a directory" in validate(workdir / "nothing", *SMALL, code=1).stderr
    assert "are free" in validate(workdir, "--size", "100000T", code=1).stderr
    assert left_in(workdir) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_no_file_stays_whatever_ends_it(workdir: Path, number: int, code: int) -> None:
    command = [str(BIN / "braidfs"), "validate", str(workdir), *ENDLESS]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        # These are the random reads, which would go on for ten minutes.
        assert wait_until(lambda: is_reading(workdir), 60)
        running.send_signal(number)
        _, errors = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == code, errors
    assert "Traceback" not in errors
    assert wait_until(lambda: left_in(workdir) == [], 60)
    assert wait_until(lambda: not is_reading(workdir), 60)


def interrupted(verb: str, folder: Path, *words: str) -> str:
    """Presses Ctrl-C while it reads at random places; returns its output."""
    command = [str(BIN / "braidfs"), verb, str(folder), *words]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert wait_until(lambda: is_reading(folder), 60)
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 130 and "Traceback" not in errors, errors
    assert left_in(folder) == []
    return errors


def kept_in(home: Path) -> list[Path]:
    return sorted((home / "braidfs").glob("*"))


def test_it_goes_on_after_ctrl_c(
    workdir: Path, localdir: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    """Measurements stay as they were, files that later phases need are written again, and the
    report is complete."""
    monkeypatch.setenv("XDG_STATE_HOME", str(localdir))
    monkeypatch.setenv("TMPDIR", str(localdir / "tmp"))
    (localdir / "tmp").mkdir()
    words = ("--seconds", "2", "--size", "4M", "--jobs", "1", "--files", "20")
    assert "nothing of this command" in validate(workdir, *words, "--resume", code=2).stderr
    said = interrupted("validate", workdir, *words)
    assert "3/10 Read 4 KiB" in said and "with --resume to continue" in said
    (kept,) = kept_in(localdir)
    before = json.loads(kept.read_text())
    assert [one["phase"] for one in before["outcomes"]] == ["write", "read"]
    other = json.dumps({**before, "nodes": [[*before["nodes"][0][:4], "1 1"]]})
    kept.write_text(other)
    assert "another file system" in validate(workdir, *words, "--resume", code=1).stderr
    kept.write_text(json.dumps(before))
    if full:
        told = validate(workdir, *words, "--resume").stderr
        assert "1/9 Write large files (again, for the files)" in told and "2/9 Read 4 KiB" in told
        assert "Read large" not in told and kept_in(localdir) == []
        kept.write_text(json.dumps(before))
    seen = json.loads(validate(workdir, *words, "--resume", "--json").stdout)
    assert [one["phase"] for one in seen["phases"]] == [one.name for one in SUITES["quick"]]
    for now, then in zip(seen["phases"], before["outcomes"], strict=False):
        assert now["bytes"] == then["by_node"][0]["bytes"]
        assert now["p99_us"] == round(then["by_node"][0]["p99_us"], 3)
    assert seen["began_ns"] == before["began_ns"] and seen["seconds"] > before["seconds"]
    assert left_in(workdir) == [] and kept_in(localdir) == []
    assert os.listdir(localdir / "tmp") == []


def is_reading(folder: Path) -> bool:
    """Whether a fio of the random reads runs below the folder."""
    for place in Path("/proc").glob("[0-9]*/environ"):
        try:
            words, environment = (place.with_name("cmdline").read_bytes(), place.read_bytes())
        except OSError:
            continue
        is_ours = words.startswith(b"fio\0") and f"PEER={folder}/".encode() in environment
        if is_ours and _is_timed(place):
            return True
    return False


def _is_timed(place: Path) -> bool:
    try:
        job = place.parent / "cwd" / "job.fio"
        return "time_based" in job.read_text()
    except OSError:
        return False


def _run_load(action: str, **given: object) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, "-m", "fsclient.validate.load", action, json.dumps(given)]
    return subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)


def test_a_wrong_byte_in_the_shared_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "shared.0"
    share = {"path": str(path), "ranks": 2, "blocks": 3}
    for rank in (0, 1):
        wrote = _run_load("shared-write", rank=rank, **share)
        assert wrote.returncode == 0, wrote.stderr
    assert path.stat().st_size == 6 * BLOCK_BYTES
    read = _run_load("shared-read", rank=1, **share)
    assert json.loads(read.stdout)["bytes"] == 3 * BLOCK_BYTES
    place = 3 * BLOCK_BYTES + 77
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))
    assert _run_load("shared-read", rank=0, **share).returncode == 0
    wrong = _run_load("shared-read", rank=1, **share)
    assert wrong.returncode == 84 and f"offset {place}" in wrong.stderr


def test_a_wrong_byte_in_a_checked_file_is_found(tmp_path: Path) -> None:
    (check_write, check_read) = [one for one in SUITES["quick"] if one.job == "check"]
    folder = tmp_path / "run"
    worker = Worker()
    worker.make(str(folder))
    worker.join(str(folder), "node-0")
    environment = {"CHECKED": str(folder / "node-0"), "CHECK_SIZE": "1048576", "JOBS": "1"}
    job = job_text(check_write)
    worker.fio(job, {**environment, "VERIFY": "0"}, [], 60)
    job = job_text(check_read)
    right = worker.fio(job, {**environment, "VERIFY": "1"}, ["--verify_only"], 60)
    assert right["job"]["read"]["io_bytes"] == 1 << 20
    with (folder / "node-0" / "check.0").open("r+b") as file:
        file.seek(500_000)
        file.write(os.urandom(16))
    with pytest.raises(WorkError, match="verify") as told:
        worker.fio(job, {**environment, "VERIFY": "1"}, ["--verify_only"], 60)
    assert told.value.is_damage
    worker.clean()
    assert list(tmp_path.iterdir()) == []
