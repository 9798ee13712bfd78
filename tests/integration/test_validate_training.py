"""`braidfs validate --suite training` through real mounts, and beside them."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fsclient.cli.frame import run_trio
from fsclient.validate.nodes import NodeError, NodePlan
from fsclient.validate.training import drive
from fsclient.validate.training.engines import toml_of
from fsclient.validate.training.workload import GPUS, Workload, load, parse
from fsclient.validate.worker import Worker, WorkError
from tests.bench.data.dlio import environment
from tests.cluster.cluster import BIN, Cluster
from tests.cluster.process import wait_until
from tests.integration.test_validate import kept_in, left_in, validate

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]
SMALL = """title = "small files"
format = "files"
sample_bytes = 300_000
batch = 8
readers = 4
epochs = 2
utilisation = 0.05
[compute_s]
h100 = 0.02
"""
CHECKPOINT = """title = "small checkpoints"
format = "checkpoint"
bytes = 100_000_000
ranks = 8
every_s = 3600
epochs = 3
utilisation = 0.5
"""


@pytest.fixture
def small(localdir: Path) -> Path:
    file = localdir / "small.toml"
    file.write_text(SMALL)
    return file


@pytest.fixture
def suite(small: Path, cluster: Cluster) -> tuple[object, ...]:
    """The options of a small run."""
    key = cluster.plan.key_file
    return ("--suite", "training", "--workload", small, "--short", "--files", 80, "-k", key)


def test_gpus_on_the_mount_and_an_epoch_from_the_page_cache(
    workdir: Path, suite: tuple[object, ...]
) -> None:
    seen = json.loads(validate(workdir, *suite, "--gpus", 2, "--json").stdout)
    (one,) = seen["results"]
    assert seen["is_met"] and one["is_met"] and one["gpus"] == 2 and one["why_invalid"] == []
    assert [epoch["steps"] for epoch in one["epochs"]] == [10] * 2
    assert all(epoch["bytes"] == 2 * 80 * 300_000 for epoch in one["epochs"])
    assert all(epoch["is_dropped"] for epoch in one["epochs"])
    assert all(epoch["served"] >= 0.95 * epoch["bytes"] for epoch in one["epochs"])
    assert left_in(workdir) == []
    refused = validate(workdir, *suite, "--keep-caches", code=3).stdout
    assert "not valid: from caches: storage servers served" in refused
    assert "caches were not dropped" in refused and "no MLPerf result" in refused


def test_a_largest_count_on_a_file_system_that_is_no_braidfs(
    localdir: Path, suite: tuple[object, ...], small: Path
) -> None:
    place = localdir / "plain"
    place.mkdir()
    small.write_text(SMALL.replace("0.05", "1.0"))  # which nothing can reach
    told = validate(place, *suite, "--gpus", "max", code=3).stdout
    assert "1 GPU at AU" in told and "NOT met" in told
    assert "cannot be checked here" in told and "short form" in told
    assert left_in(place) == []


def test_it_goes_on_after_ctrl_c(
    workdir: Path, localdir: Path, suite: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(localdir / "state"))
    command = [str(BIN / "braidfs"), "validate", str(workdir), *map(str, suite)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    try:
        said = ""
        while "epoch 2" not in said:
            line = running.stderr.readline()
            assert line, said
            said += line
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 130 and "--resume to continue" in errors, errors
    assert "Traceback" not in errors
    assert left_in(workdir) == []
    (kept,) = kept_in(localdir / "state")
    ((before, *_),) = json.loads(kept.read_text())["epochs"].values()
    seen = json.loads(validate(workdir, *suite, "--resume", "--json").stdout)
    (one,) = seen["results"]
    assert one["epochs"][0]["utilisation"] == before["utilisation"]
    assert len(one["epochs"]) == 2 and one["is_met"]
    assert left_in(workdir) == [] and kept_in(localdir / "state") == []
    assert "nothing of this command" in validate(workdir, *suite, "--resume", code=2).stderr


@pytest.mark.full
def test_two_nodes_and_checkpoints(
    workdir: Path, localdir: Path, cluster: Cluster, suite: tuple[object, ...]
) -> None:
    file = localdir / "checkpoint.toml"
    file.write_text(CHECKPOINT)
    checkpoint = ("--workload", file, "--scale", "0.5")
    with cluster.second_client(localdir / "other") as other:
        both = (workdir, other / workdir.name)
        seen = json.loads(validate(*both, *suite, *checkpoint, "--gpus", 3, "--json").stdout)
        files, saved = seen["results"]
        assert files["gpus"] == 3 and files["epochs"][0]["bytes"] == 3 * 80 * 300_000
        assert saved["gpus"] == 8 and saved["scale"] == 0.5 and len(saved["loads"]) == 3
        assert all(one["served"] >= 0.95 * one["bytes"] for one in saved["loads"])
        assert left_in(workdir) == []


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "tmpfs"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(place)], check=True)
    yield place
    subprocess.run(["umount", "-l", str(place)], check=False)


def small_workload(**changes: object) -> Workload:
    text = SMALL
    for key, value in changes.items():
        lines = [line for line in text.splitlines() if not line.startswith(f"{key} =")]
        text = "\n".join([f"{key} = {value}", *lines]) + "\n"
    made = parse("small", text.encode())
    assert isinstance(made, Workload)
    return made


def replay(worker: Worker, action: str, folder: Path, **given: Any) -> Any:
    words = {"folder": str(folder), "name": "small", "workload": toml_of(small_workload()), **given}
    worker.prepare(action, words, len(given.get("ranks", [0])), 30)
    return worker.begin()["found"]


def make(worker: Worker, folder: Path, count: int) -> Any:
    return replay(worker, "make", folder, first=0, end=count, step=1, jobs=1)


def test_a_full_disk_a_lost_file_and_a_mount_that_is_gone(tmpfs: Path) -> None:
    worker = Worker()
    worker.make(str(tmpfs / ".braidfs-validate-x"))
    worker.join(str(tmpfs / ".braidfs-validate-x"), "node-0")
    folder = tmpfs / ".braidfs-validate-x/node-0/data"
    with pytest.raises(WorkError, match=r"00000/0000001[0-9]: No space left on device"):
        make(worker, folder, 20)
    epoch = {"files": 8, "gpus": 1, "ranks": [0], "seed": 1, "steps": 1, "compute_s": 0.0}
    (trace,) = replay(worker, "train", folder, limit_s=10, **epoch)
    assert trace["bytes"] == 8 * 300_000 and trace["steps"] == 1
    (folder / "00000/00000003").write_bytes(b"short")
    with pytest.raises(WorkError, match="00000003: the file ends at byte 5: bytes were lost"):
        replay(worker, "train", folder, limit_s=10, **epoch)
    (folder / "00000/00000003").unlink()
    with pytest.raises(WorkError, match="00000003: No such file"):
        replay(worker, "train", folder, limit_s=10, **epoch)
    subprocess.run(["umount", "-l", str(tmpfs)], check=True)
    assert worker.clean() == str(tmpfs / ".braidfs-validate-x")


def test_an_epoch_ends_at_its_limit(tmp_path: Path) -> None:
    """A reader that is stuck holds up nobody: here a pipe that nobody writes to is in its way."""
    worker = Worker()
    worker.make(str(tmp_path / "run"))
    worker.join(str(tmp_path / "run"), "node-0")
    folder = tmp_path / "run/node-0/data"
    make(worker, folder, 16)
    (folder / "00000/00000003").unlink()
    os.mkfifo(folder / "00000/00000003")
    epoch = {"files": 16, "gpus": 1, "ranks": [0], "seed": 1, "steps": 2, "compute_s": 0.01}
    (trace,) = replay(worker, "train", folder, limit_s=0.5, **epoch)
    assert trace["steps"] < 2 and 0.4 < trace["stopped_s"] < 5
    assert worker.clean() == ""


def test_a_host_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive, "START_SECONDS_MAX", 0.2)
    plan = NodePlan("gpu7", str(tmp_path), ("sleep", "0.8"))
    request = drive.Training((load("retinanet"),), None, 1, short=True)

    async def train() -> None:
        await drive.train(request, [plan], lambda *_: None)

    with pytest.raises(NodeError, match="gpu7 gave no answer in 0 s"):
        run_trio(train)


@pytest.mark.full
def test_the_engine_itself_is_no_limit(tmp_path: Path) -> None:
    """Eight B200 of retinanet on tmpfs: what they lose is the engine's."""
    place = Path("/dev/shm") / tmp_path.name
    place.mkdir()
    try:
        words = ("--suite", "training", "--short", "--gpus", 8, "--keep-caches", "--json")
        seen = json.loads(validate(place, *words, code=3).stdout)
        assert seen["results"][0]["utilisation"]["most"] >= 0.99
        assert left_in(place) == []
    finally:
        place.rmdir()


@pytest.mark.full
def test_dlio_and_the_engine_that_is_built_in_agree(
    workdir: Path, localdir: Path, cluster: Cluster
) -> None:
    """A small unet3d, of which a step takes as long as an A100's, on the mount."""
    file = localdir / "small-unet3d.toml"
    made = load("unet3d")
    assert isinstance(made, Workload)
    file.write_text(toml_of(replace(made, sample_bytes=2_000_000, deviation_bytes=0, readers=2)))
    words: tuple[object, ...] = ("--suite", "training", "--workload", file, "--short", "--json")
    words = (*words, "--gpus", 2, "--gpu", "a100", "-k", cluster.plan.key_file)
    of_dlio = ("--engine", "dlio", "--dlio-environment", environment())
    found = [json.loads(validate(workdir, *words, *more).stdout) for more in ((), of_dlio)]
    assert [one["engine"] for one in found] == ["builtin", "dlio"]
    ours, theirs = (one["results"][0] for one in found)
    print("AU", ours["utilisation"], theirs["utilisation"])
    assert ours["utilisation"]["middle"] == pytest.approx(theirs["utilisation"]["middle"], rel=0.1)
    assert ours["epochs"][0]["bytes"] == pytest.approx(theirs["epochs"][0]["bytes"], rel=0.01)
    assert all(one["served"] >= 0.95 * one["bytes"] for one in theirs["epochs"])
    assert left_in(workdir) == []


@pytest.mark.full
@pytest.mark.parametrize("name", ["retinanet", "unet3d"])
def test_counts_on_the_mount_against_ext4(
    workdir: Path, localdir: Path, cluster: Cluster, name: str
) -> None:
    found = {}
    files = {"retinanet": 480, "unet3d": 21}[name]
    for place in (workdir, localdir):
        words = ("--suite", "training", "--short", "--files", files, "--workload", name)
        command = [str(BIN / "braidfs"), "validate", str(place), *map(str, words)]
        command += ["--gpus", "max", "--gpu", "b200" if name == "retinanet" else "a100"]
        command += ["-k", str(cluster.plan.key_file), "--json"]
        ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=280)
        assert ran.returncode in (0, 3), ran
        (found[place],) = json.loads(ran.stdout)["results"]
    print(name, {str(place): (one["gpus"], one["is_met"]) for place, one in found.items()})
    assert found[workdir]["why_invalid"] == []
    assert all(epoch["served"] is not None for epoch in found[workdir]["epochs"])
    assert wait_until(lambda: left_in(workdir) == left_in(localdir) == [], 10)


def test_each_workload_has_a_time_of_some_gpu() -> None:
    for name in ("unet3d", "retinanet", "resnet50", "cosmoflow", "flux"):
        made = load(name)
        assert isinstance(made, Workload) and made.compute_s[0][0] in GPUS
