"""The suite `training` of `braidfs validate` without a file system: utilisation, the search,
workload files, options.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from fsclient.cli.frame import EXIT_USAGE, run_cli
from fsclient.cli.main import cli
from fsclient.cli.training import sentence_of
from fsclient.validate.nodes import NodeError, local_nodes
from fsclient.validate.run import NOTHING_KEPT
from fsclient.validate.training import dlio, drive
from fsclient.validate.training.drive import Counted, Result, Training, train
from fsclient.validate.training.engines import toml_of
from fsclient.validate.training.replay import Read, ranges_of, reads_of, run_all
from fsclient.validate.training.utilisation import Epoch, Search, Spread, Trace, epoch_of, of_save
from fsclient.validate.training.workload import (
    GPUS,
    NAMES,
    TEXT_BYTES_MAX,
    Checkpoint,
    Workload,
    load,
    parse,
)
from fscommon.errors import ConfigError


def test_utilisation_of_traces_made_by_hand() -> None:
    # Four steps of one second; the first ends at 5 s, and each later one waits for half a second.
    trace = Trace.of_steps(100.0, [5.0, 6.5, 8.0, 9.5], 9.5, (40, 4))
    assert trace.utilisation(1.0) == pytest.approx(3 / 4.5)
    # A GPU that never waits; one that did two steps, and then waited until it was stopped.
    fed = Trace.of_steps(100.0, [1.0, 2.0, 3.0, 4.0], 4.0, (40, 4))
    stuck = Trace.of_steps(101.0, [1.0, 2.0], 11.0, (20, 2))
    assert fed.utilisation(1.0) == 1.0 and stuck.utilisation(1.0) == pytest.approx(0.1)
    both = epoch_of([[fed, stuck]], 1.0, 4)
    assert both.utilisation == pytest.approx(4 / 13) and both.lowest == pytest.approx(0.1)
    assert both.is_cut and both.steps == 2 and both.seconds == 12.0
    assert (both.bytes, both.files) == (60, 6) and both.bytes_per_second == 5
    # No step at all.
    nothing = epoch_of([[Trace.of_steps(0.0, [], 7.0, (0, 0))]], 1.0, 4)
    assert nothing.utilisation == nothing.lowest == 0.0 and nothing.is_cut
    assert not epoch_of([[fed]], 1.0, 4).is_cut
    # Another node's clock says something else.
    assert epoch_of([[fed, stuck], [replace(fed, began_s=9e5)]], 1.0, 4).seconds == 12.0
    assert of_save(1800.0, 200.0) == 0.9
    assert Spread.of([0.5, 0.9, 0.7]) == Spread(0.7, 0.5, 0.9)


def test_an_epoch_is_from_caches() -> None:
    def epoch(served: int | None) -> Epoch:
        return Epoch(1.0, 1.0, 500, 1000, 10, 1.0, served)

    assert not epoch(None).is_from_caches and not epoch(950).is_from_caches
    assert epoch(949).is_from_caches and epoch(0).is_from_caches


@given(most=st.integers(1, 4096), holds=st.integers(0, 5000))
def test_search_finds_the_largest_count(most: int, holds: int) -> None:
    search, tried = Search(most), []
    while (count := search.wanted) is not None:
        assert 1 <= count <= most and count not in tried
        tried.append(count)
        search.tell(count, count <= holds)
    assert search.best == min(most, holds)
    assert search.is_at_most == (holds >= most)
    assert len(tried) <= 2 * most.bit_length() + 1


@given(st.lists(st.booleans(), min_size=40, max_size=40))
def test_search_ends_whatever_storage_does(answers: list[bool]) -> None:
    search = Search(4096)
    while (count := search.wanted) is not None:
        search.tell(count, answers.pop())
    assert 0 <= search.best <= 4096


@pytest.mark.parametrize("name", NAMES)
def test_workload_files(name: str) -> None:
    made = load(name)
    assert made.name == name and 0 < made.utilisation <= 1 and made.epochs >= 3
    if isinstance(made, Checkpoint):
        assert made.rank_bytes(1.0) * made.ranks == pytest.approx(made.bytes, rel=1e-6)
        assert made.rank_bytes(1e-15) == 1
        return
    assert parse(name, toml_of(made).encode()) == made
    assert {gpu for gpu, _ in made.compute_s} <= set(GPUS)
    files = made.files_of(500)
    assert 500 <= made.steps_of(files) <= 500 + made.reads_per_file
    assert sum(made.file_bytes(index) for index in range(300)) / 300 == pytest.approx(
        made.file_bytes_mean, rel=0.1
    )
    reads = reads_of(made, range(3))
    assert len(reads) == 3 * made.reads_per_file == len(set(reads))
    for read in reads:
        size = made.file_bytes(read.file)
        ranges = ranges_of(made, read, size)
        assert all(
            offset >= 0 and length > 0 and offset + length <= size for offset, length in ranges
        )


def test_one_gpu_needs_what_is_published() -> None:
    needs = {("unet3d", "h100"): 3.18, ("cosmoflow", "h100"): 0.81, ("retinanet", "b200"): 0.163}
    needs |= {("resnet50", "h100"): 0.205, ("flux", "b200"): 0.077, ("unet3d", "a100"): 1.61}
    for (name, gpu), expected in needs.items():
        made = load(name)
        assert isinstance(made, Workload)
        rate = made.sample_bytes * made.batch / made.compute_of(gpu) / 1e9
        assert rate == pytest.approx(expected, rel=0.01)
    with pytest.raises(ConfigError, match="cosmoflow has no time of a step on b200: it has those"):
        made = load("cosmoflow")
        assert isinstance(made, Workload)
        made.compute_of("b200")


def test_columns_are_read_each_from_its_place() -> None:
    made = load("flux")
    assert isinstance(made, Workload) and made.read_samples == 6
    ranges = ranges_of(made, Read(0, 6, 6), made.file_bytes(0))
    assert ranges[0] == (6 * 2_097_312, 6 * 2_097_312)
    assert ranges[1] == (288 * 2_097_312 + 6 * 1_636, 6 * 1_636)
    assert sum(length for _, length in ranges) == 6 * made.sample_bytes


GOOD = toml_of(load("unet3d"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("batch = 0", "batch must be a whole number from 1 to 65536"),
        ("batch = true", "batch must be a whole number"),
        ("batch = 1.5", "batch must be a whole number"),
        ('batch = "7"', "batch must be a whole number"),
        ("utilisation = nan", "utilisation must be a number"),
        ("utilisation = inf", "utilisation must be a number"),
        ("utilisation = 1.1", "utilisation must be a number from 0.01 to 1"),
        ("readers = 65", "readers must be a whole number from 1 to 64"),
        ("sample_bytes = -1", "sample_bytes must be"),
        ("deviation_bytes = 146_600_629", "deviation_bytes is more than sample_bytes"),
        ("samples_per_file = 8", "more samples than a batch"),
        ("columns = [1, 2]", "columns is for the format columns"),
        ("columns = 3", "columns must be a list"),
        ('format = "tape"', "format must be one of files, records, columns, checkpoint"),
        ("format = []", "format must be one of"),
        ('title = ""', "title must be a line"),
        ('title = "a\\u001b[31mb"', "title must be a line"),
        ("surprise = 1", "there is no key 'surprise'"),
        ("compute_s = {}", "the table compute_s must have"),
        ("compute_s = {v100 = 1.0}", "compute_s has no GPU 'v100'"),
        ("compute_s = {h100 = 0}", "compute_s.h100 must be a number"),
        ("batch = ", "is not TOML"),
        ("\x00", "is not TOML"),
    ],
)
def test_workload_files_that_make_no_sense(line: str, told: str) -> None:
    key = line.partition(" ")[0]
    lines = GOOD.splitlines()
    if key == "compute_s":
        lines = lines[: lines.index("[compute_s]")]
    text = "\n".join([line, *(one for one in lines if not one.startswith(f"{key} ="))])
    with pytest.raises(ConfigError, match="the workload mine") as error:
        parse("mine", text.encode())
    assert told in str(error.value) and "\n" not in str(error.value)


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_in_one_sentence(text: bytes) -> None:
    with pytest.raises(ConfigError) as error:
        parse("mine", text)
    assert "\n" not in str(error.value)


@given(
    key=st.sampled_from(
        sorted(line.partition(" ")[0] for line in GOOD.splitlines() if " = " in line)
    ),
    value=st.sampled_from(["0", "-1", "1e300", "[[]]", "{}", '"x"', "1979-05-27", "true", "[1]"]),
)
@settings(max_examples=60)
def test_a_wrong_value_is_refused_or_means_something(key: str, value: str) -> None:
    lines = [f"{key} = {value}" if one.startswith(f"{key} =") else one for one in GOOD.splitlines()]
    try:
        made = parse("mine", "\n".join(lines).encode())
    except ConfigError:
        return
    assert isinstance(made, Workload) and made.files_of(10) >= 1


def test_a_workload_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no workload bert: take one of unet3d"):
        load("bert")
    with pytest.raises(ConfigError, match=r"cannot read the workload .*: No such file"):
        load(str(tmp_path / "x.toml"))
    with pytest.raises(ConfigError, match=r"cannot read the workload .*: Is a directory"):
        load(f"{tmp_path}/")
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (TEXT_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match="is larger than"):
        load(str(large))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--gpus", "max"], "--gpus max is of the suite training"),
        (["--gpus", "0"], "neither a count of GPUs"),
        (["--gpus", "9" * 400], "neither a count of GPUs"),
        (["--gpus", "many", "--suite", "training"], "neither a count of GPUs"),
        (["--workload", "unet3d"], "--workload is of the suite training"),
        (["--short"], "--short is of the suite training"),
        (["--suite", "training", "--jobs", "2"], "--jobs is not of the suite training"),
        (["--suite", "training", "--html", "x"], "--html is not of the suite training"),
        (["--suite", "training", "--scale", "0"], "--scale"),
        (["--suite", "training", "--gpu", "v100"], "--gpu"),
        (["--suite", "training", "--workload", "bert"], "there is no workload bert"),
        (
            ["--suite", "training", "--workload", "cosmoflow", "--gpu", "b200"],
            "cosmoflow has no time of a step on b200",
        ),
        (["--suite", "training", "--workload", "flux", "--workload", "flux"], "named twice"),
        (["--suite", "training", "--engine", "dlio"], "belong together"),
        (["--suite", "training", "--dlio-environment", "/tmp"], "belong together"),
        (
            ["--suite", "training", "--engine", "dlio", "--dlio-environment", "/tmp"],
            "has no bin/python",
        ),
        (["--suite", "training", "--resume"], "nothing of this command"),
        (["--suite", "training", "--gpus", "1000001"], "neither a count of GPUs"),
        (["--suite", "training", "--gpus", "0000000010"], "neither a count of GPUs"),
    ],
)
def test_wrong_options(
    words: list[str],
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert run_cli(cli, ["validate", str(tmp_path), *words]) == EXIT_USAGE
    assert told in " ".join(capsys.readouterr().err.split())


def test_the_line_of_a_result() -> None:
    epoch = Epoch(0.87, 0.85, 500, 1_466_000_000, 4540, 1.0)
    made = load("retinanet")
    line = sentence_of(Result(made, "b200", 9, (epoch,) * 3, ()))
    assert line == "retinanet, b200: 9 GPUs at AU 0.87 (0.85), 4,540 files/s, 1.47 GB/s"
    result = Result(made, "b200", 9, (epoch,) * 3, ("from caches",))
    assert result.is_enough and not result.is_met


def test_results_of_dlio() -> None:
    text = (
        '{"1": {"proc": {"block1": [3.0, 1.0]}, "compute": {"block1": [1.0, 1.0, 1.0]}, '
        '"au": {"block1": 50.0}}}'
    )
    (trace,) = dlio.traces({"0_output.json": text}, 1.0)
    assert trace.steps == 3 and trace.utilisation(1.0) == pytest.approx(0.5)
    none = text.replace("[3.0, 1.0]", "[]")
    for wrong in ("", "[]", "{}", '{"1": {}}', "null", '{"1": {"proc": 3}}', none):
        with pytest.raises(ValueError, match=r"0_output\.json is not a result of DLIO"):
            dlio.traces({"0_output.json": wrong}, 1.0)
    words = dlio.overrides(load("unet3d"), "/data/a b", 70, "/r")  # type: ignore[arg-type]
    assert "++workload.dataset.data_folder='/data/a b'" in words
    assert "++workload.reader.batch_size=7" in words


def fails(error: Exception) -> Callable[[], object]:
    def work() -> object:
        raise error

    return work


def test_a_process_tells_why_it_could_not() -> None:
    def run(work: Callable[[], object]) -> object:
        told, (go, lets_go) = os.open("/dev/null", os.O_WRONLY), os.pipe()
        os.write(lets_go, b"g")
        os.close(lets_go)
        return run_all([work], told, go)

    assert run(lambda: 7) == [7]
    with pytest.raises(OSError, match=r"^RuntimeError: can't start new thread$"):
        run(fails(RuntimeError("can't start new thread")))
    with pytest.raises(OSError, match=r"^/a/b: Input/output error$"):
        run(fails(OSError(5, os.strerror(5), "/a/b")))


def small_checkpoint(ranks: int) -> Checkpoint:
    return Checkpoint("small", "small", 8 * ranks, ranks, 3600.0, 1, 0.5)


def run_on(folder: Path, ranks: int, counting: Callable[[], Counted]) -> None:
    async def count() -> Counted:
        return counting()

    request = Training((small_checkpoint(ranks),), None, 1)
    trio.run(train, request, local_nodes([str(folder)]), lambda *_: None, NOTHING_KEPT, count)


def test_a_node_runs_so_many_ranks_and_no_more(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="has 513 ranks, and no more than 512 are run"):
        run_on(tmp_path, 513, lambda: Counted({}, 0.0))
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_key_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> Counted:
        raise ConfigError("the key is wrong")

    async def write(*_: object) -> None:
        pytest.fail("it has begun to write")

    monkeypatch.setattr(drive.Stage, "is_braidfs", True)
    monkeypatch.setattr(drive.Stage, "replay", write)
    with pytest.raises(ConfigError, match="the key is wrong"):
        run_on(tmp_path, 2, refuse)
    assert list(tmp_path.iterdir()) == []
