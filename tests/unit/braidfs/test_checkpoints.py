"""What braidfs.checkpoint promises, on a local directory, without root.

The order of calls, crashes and power cuts are tests/model/test_group_commit.py.
"""

import errno
import json
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from braidfs.checkpoint import (
    AttemptUsedError,
    Checkpoints,
    CommitTimeout,
    NotWhole,
    PartFailed,
    Step,
    StepExists,
    StepLost,
)
from braidfs.checkpoint.calls import REMOVAL, Calls
from braidfs.checkpoint.names import default_attempt


@pytest.fixture(params=["disk", "tmpfs"])
def tmp_path(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A new folder on the disk, and one in memory."""
    if request.param == "disk":
        yield tmp_path_factory.mktemp("checkpoints")
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)
        for thread in threading.enumerate():
            if thread.name == REMOVAL:  # it may still make room for the last commit
                thread.join(30)


def _save(checkpoints: Checkpoints, step: int, attempt: str = "a", content: bytes = b"x") -> Step:
    with checkpoints.begin(step, attempt=attempt) as c, c.file("model.pt") as file:
        file.write(content)
    return c.wait(1)


def test_a_step_is_visible_when_all_parts_have_ended(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints", sums=True)
    parts = [checkpoints.begin(1200, part, 3, "try-1") for part in range(3)]
    for number, part in enumerate(parts):
        assert checkpoints.latest() is None
        with part as c, c.file(f"shard/{number}.pt") as file:
            file.write(b"0123456789" * number)
    done = [part.wait(1) for part in parts]
    assert len(set(done)) == 1
    assert checkpoints.latest() == done[0] == Step(1200, done[0].path, 30, 3, "try-1")
    assert done[0].path.name == "step-000001200"
    assert (checkpoints.root / "latest").readlink() == Path("step-000001200")
    manifest = json.loads((done[0].path / "checkpoint.json").read_text())
    assert [file["name"] for file in manifest["files"]] == [f"shard/{n}.pt" for n in range(3)]
    assert all(file["sum"].split(":")[0] in ("xxh3", "blake2b") for file in manifest["files"])


def test_the_ranks_of_a_node_leave_one_mark(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    parts = [checkpoints.begin(1, n, 4, "a", node_parts=(n % 2, 2)) for n in (0, 1)]
    others = [checkpoints.begin(1, n, 4, "a") for n in (2, 3)]
    for part, number in zip((*parts, *others), range(4), strict=True):
        with part as c, c.file(f"{number}.pt") as file:
            file.write(b"1")
        if number == 1:
            assert [one.name for one in (c.path / ".parts").iterdir()] == ["00000+2"]
    assert parts[0].wait(1).parts == 4


def test_files_of_a_library_are_named_by_a_pattern(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    with checkpoints.begin(1, attempt="a") as c:
        (c.path / "d").mkdir()
        (c.path / "d" / "x.bin").write_bytes(b"12")
        c.add("d/**/*")
    assert c.wait(1).bytes == 2
    with pytest.raises(ValueError, match="no file matches"), checkpoints.begin(2, attempt="a") as c:
        c.add("*.pt")
    assert checkpoints.latest() == c_step(checkpoints, 1)


def c_step(checkpoints: Checkpoints, number: int) -> Step:
    return next(step for step in checkpoints.steps() if step.number == number)


def test_an_exception_in_a_part_reaches_the_others_within_a_second(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    with checkpoints.begin(1, 0, 2, "a") as first:
        first.file("0").close()
    failures: list[PartFailed] = []

    def wait() -> None:
        with pytest.raises(PartFailed) as caught:
            first.wait(30)
        failures.append(caught.value)

    waiter = threading.Thread(target=wait)
    waiter.start()
    with pytest.raises(ZeroDivisionError), checkpoints.begin(1, 1, 2, "a"):
        raise ZeroDivisionError("no memory left")
    failed = time.monotonic()
    waiter.join(10)
    assert time.monotonic() - failed < 1
    assert (failures[0].part, failures[0].text) == (1, "ZeroDivisionError: no memory left")
    assert checkpoints.latest() is None


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    with Checkpoints(tmp_path).begin(1, 0, 3, "a") as c:
        c.file("0").close()
    with pytest.raises(CommitTimeout) as caught:
        c.wait(0)
    assert caught.value.missing == (1, 2)


def test_a_step_is_written_once(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    late = checkpoints.begin(7, attempt="late")
    _save(checkpoints, 7, "early", b"early")
    with pytest.raises(StepExists):
        checkpoints.begin(7, attempt="later")
    with pytest.raises(StepExists), late as c, c.file("model.pt") as file:
        file.write(b"late")
    assert (tmp_path / "step-000000007" / "model.pt").read_bytes() == b"early"


def test_an_attempt_of_the_same_name_is_given_up(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    with checkpoints.begin(1, 0, 2, "a") as c:
        c.file("0").close()
    with pytest.raises(AttemptUsedError):
        checkpoints.begin(1, 0, 2, "a")
    with pytest.raises(PartFailed):
        c.wait(1)


def test_two_parts_may_not_write_one_file(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    with checkpoints.begin(1, 0, 2, "a") as c:
        c.file("same").close()
    with pytest.raises(NotWhole, match="parts 0 and 1"), checkpoints.begin(1, 1, 2, "a") as c:
        c.file("same").close()
    assert checkpoints.latest() is None


@pytest.mark.parametrize("name", ["", "/etc/x", "../x", "a//b", ".parts/1", "checkpoint.json"])
def test_names_of_its_own_are_refused(tmp_path: Path, name: str) -> None:
    with (
        pytest.raises(ValueError, match=r"name|attempt"),
        Checkpoints(tmp_path).begin(1, attempt="a") as c,
    ):
        c.file(name)


def test_the_oldest_steps_make_room(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2, keep_every=20)
    for step in (10, 20, 30, 40, 50):
        _save(checkpoints, step)
    assert [step.number for step in checkpoints.steps()] == [20, 40, 50]


def test_a_step_that_is_read_stays(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    _save(checkpoints, 1)
    with checkpoints.reading() as path:
        _save(checkpoints, 2)
        assert (path / "model.pt").read_bytes() == b"x"
        assert not checkpoints.remove(1)
    assert checkpoints.remove(1)
    with pytest.raises(StepLost), checkpoints.reading(1):
        pass


def test_tidy_leaves_what_may_still_be_written(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    old = checkpoints.begin(1, attempt="old")
    time.sleep(0.02)  # the clock of a file system counts in ticks
    new = checkpoints.begin(2, attempt="new")
    (tmp_path / ".removed-step-000000000.x").mkdir()
    assert checkpoints.tidy() == [".removed-step-000000000.x"]
    assert checkpoints.tidy(age=0) == [".step-000000001.old.partial"]
    with pytest.raises(FileNotFoundError), old as c:
        c.file("x")
    with new as c:
        c.file("x").close()
    assert c.wait(1).number == 2


def test_an_error_of_the_disk_passes_with_its_file(tmp_path: Path) -> None:
    class Full(Calls):
        def sync_file(self, path: Path) -> int:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    checkpoints = Checkpoints(tmp_path, calls=Full())
    with pytest.raises(OSError, match="model") as caught:
        _save(checkpoints, 1)
    assert caught.value.errno == errno.ENOSPC
    assert checkpoints.latest() is None


def test_a_coordinator_commits_without_marks(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    path = checkpoints.prepare(5, "a")
    assert path == checkpoints.prepare(5, "a")
    (path / "__0_0.distcp").write_bytes(b"123")
    (path / ".metadata").write_bytes(b"4")
    with pytest.raises(NotWhole, match="distcp: it"):
        checkpoints.commit(5, "a", ["x.distcp"])
    done = checkpoints.commit(5, "a", ["__0_0.distcp", ".metadata"], parts=2)
    assert (done.bytes, done.parts) == (4, 2)
    assert checkpoints.latest() == done == checkpoints.wait(5, "a", timeout=0)


def test_the_attempt_is_that_of_the_launcher() -> None:
    torchrun = {"TORCHELASTIC_RUN_ID": "run/7", "TORCHELASTIC_RESTART_COUNT": "2"}
    assert default_attempt({**torchrun, "SLURM_JOB_ID": "9"}) == "run_7-2"
    assert default_attempt({"SLURM_JOB_ID": "9"}) == "9-0"
    assert default_attempt({"SLURM_JOB_ID": "9"}, alone="word") == "9-0"
    with pytest.raises(ValueError, match="give attempt"):
        default_attempt({})


def test_one_part_needs_no_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that was killed in the middle of a step writes it again, as another attempt."""
    for name in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(ValueError, match="give attempt"):
        checkpoints.begin(7, 0, 2)
    checkpoints.begin(7).file("model.pt").close()
    with checkpoints.begin(7) as again, again.file("model.pt") as file:
        file.write(b"whole")
    assert again.wait(1) == checkpoints.latest()
    with pytest.raises(StepExists):
        checkpoints.begin(7)
