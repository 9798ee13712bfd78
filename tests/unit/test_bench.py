"""How `./dev bench data` judges its measurements (tests.bench.data.bars), which cases it has, and
how it counts the CPU time and the system calls of several processes together.
"""

import os
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.bench import hand_over
from tests.bench.data import suite
from tests.bench.data.amounts import FULL, QUICK, TINY, Amounts
from tests.bench.data.bars import Bar, Row, Than, judge
from tests.bench.data.cost import Serving, spending
from tests.bench.data.suite import CASES, Measured, chosen, results
from tests.bench.data.workers import together
from tests.dev.steps import StepError

FASTER = Row("epoch", "files/s", (Bar(Than.LOCAL, 0.5), Bar(Than.PEERS, 3.0)))


def _met(row: Row, medians: dict[tuple[str, str], float], *peers: str) -> list[bool | None]:
    return [one.met for one in judge(row, medians, peers)]


def test_a_bar_is_a_share_of_another_systems_median() -> None:
    rates = {("epoch", "braidfs"): 60.0, ("epoch", "ext4"): 100.0, ("epoch", "moose"): 15.0}
    assert _met(FASTER, rates, "moose") == [True, True]
    rates["epoch", "braidfs"] = 44.0
    assert _met(FASTER, rates, "moose") == [False, False]


def test_the_best_peer_counts() -> None:
    rates = {("epoch", "braidfs"): 60.0, ("epoch", "moose"): 15.0, ("epoch", "ceph"): 30.0}
    assert _met(Row("epoch", "files/s", (Bar(Than.PEERS, 3.0),)), rates, "moose", "ceph") == [False]
    slow = Row("epoch", "µs", (Bar(Than.PEERS, 3.0, at_most=True),), less_is_better=True)
    assert _met(slow, rates, "moose", "ceph") == [False]  # 60 is four times 15
    rates["epoch", "braidfs"] = 45.0
    assert _met(slow, rates, "moose", "ceph") == [True]


def test_what_was_not_measured_is_not_judged() -> None:
    assert _met(FASTER, {("epoch", "braidfs"): 60.0}, "moose") == [None, None]
    assert _met(FASTER, {("epoch", "ext4"): 60.0}, "moose") == [None, None]
    assert _met(FASTER, {("epoch", "ext4"): 60.0}) == [None]  # this is a run without peers


def test_bars_of_a_value_and_of_another_row() -> None:
    late = Row("p99", "µs", (Bar(Than.ITSELF, 5.0, at_most=True, row="p50"),), less_is_better=True)
    medians = {("p99", "braidfs"): 90.0, ("p50", "braidfs"): 20.0}
    assert _met(late, medians) == [True]
    medians["p50", "braidfs"] = 10.0
    assert _met(late, medians) == [False]
    cost = Row("p99", "s", (Bar(Than.VALUE, 80.0, at_most=True),))
    assert _met(cost, medians) == [False]


def test_what_cannot_be_run_yet_is_below_its_bar() -> None:
    row = Row("sealed", "files/s", (Bar(Than.LOCAL, 0.85),), lacking="trees cannot be sealed")
    assert [one.met for one in judge(row, {}, ())] == [False]
    found = results(Measured(), {"small files": [row]}, ["braidfs", "ext4"])
    assert found["below"] == ["sealed: at least 0.85 of ext4: trees cannot be sealed"]


@pytest.mark.parametrize("amounts", [FULL, QUICK, TINY])
def test_rows_have_names_of_their_own_and_bars_name_rows(amounts: Amounts) -> None:
    rows = [row for case in CASES for row in case.rows(amounts)]
    names = [row.name for row in rows]
    assert len(names) == len(set(names))
    assert {bar.row for row in rows for bar in row.bars} - {""} <= set(names)


def test_systems_measured_beside_more_other_work_are_told() -> None:
    measured = Measured()
    measured.busy |= {"braidfs": [0.1, 0.2], "ext4": [0.3, 0.3], "moose": [1.0, 0.9]}
    found = results(measured, {}, ["braidfs", "ext4", "moose"])
    assert [text.split()[0] for text in found["failures"]] == ["moose"]


def test_cases_are_chosen_by_their_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {key: partial(replace, CASES[0], key=key) for key in "tuk"}
    monkeypatch.setattr(suite, "TORCH_CASES", made)
    for words, keys in (("k", "k"), ("c,k,u", "cuk"), ("c", "ctuk"), ("", "abcdefhituk")):
        found = [case.key for case in chosen(words, with_torch=True)]
        assert sorted(found) == sorted(keys)
    assert [case.key for case in chosen("c,a")] == ["a", "c"]
    assert chosen("") == list(CASES)
    assert [case.key for case in chosen("g")] == ["a", "b", "c", "d"]
    assert [case.key for case in chosen("v")] == ["v"]
    with pytest.raises(StepError, match="no case x"):
        chosen("x")
    with pytest.raises(StepError, match="case k: only with --torch"):
        chosen("a,k")


def test_what_processes_spend_is_counted() -> None:
    with spending(Serving(client=(os.getpid(),))) as spent:
        for _ in range(20):
            time.sleep(0.001)
        end_s = time.process_time() + 0.02
        while time.process_time() < end_s:
            pass
    assert spent.client.switches >= 20
    assert 0.02 <= spent.client.cpu_s < 10
    assert spent.servers.switches == 0


def test_a_thread_that_ends_takes_nothing_from_the_count() -> None:
    ended = threading.Event()

    def work() -> None:
        for _ in range(50):
            time.sleep(0.001)
        ended.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.1)
    with spending(Serving(client=(os.getpid(),))) as spent:
        ended.set()
        thread.join()
    assert spent.switches >= 0


def test_work_of_several_processes_is_added_up() -> None:
    done = together([lambda: 2.0, lambda: 3.0])
    assert done.count == 5.0
    assert done.rate == pytest.approx(5.0 / done.seconds)


def test_a_process_that_fails_is_told() -> None:
    def fail() -> float:
        raise OSError(5, "no such luck")

    with pytest.raises(RuntimeError, match="no such luck"):
        together([lambda: 1.0, fail])


def test_a_process_that_dies_is_told() -> None:
    with pytest.raises(RuntimeError, match="was killed"):
        together([lambda: 1.0, lambda: os._exit(9)])


def test_a_file_is_passed_to_and_fro(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    here = tmp_path / "one"
    passed = hand_over.pass_to_and_fro([here, here], turns=20)
    assert passed.per_s > 0 and 0 < passed.p50_ms <= passed.p99_ms
    assert not list(here.iterdir())
    (tmp_path / "other" / "passed").write_bytes(bytes(hand_over.SIZE))
    with pytest.raises(RuntimeError, match="turn 1 read something else"):
        hand_over.pass_to_and_fro([here, tmp_path / "other"], turns=20)
    one, other = hand_over.HandOvers(9, 1, 5), hand_over.HandOvers(3, 2, 8)
    assert hand_over.median([one, other, one]) == one
