"""Names below a root of checkpoints, against a model of them: any order of calls of one program."""

import contextlib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from braidfs.checkpoint import AttemptUsedError, Checkpoints, Part, PartFailed, StepExists, StepLost
from braidfs.checkpoint.commands import verify_steps

STEPS = st.integers(0, 5)
ATTEMPTS = st.sampled_from("ab")
PARTS = 2


@dataclass
class Unfinished:
    ended: set[int]
    is_failed: bool = False


class Names(RuleBasedStateMachine):
    """Each attempt has two parts. `keep` is 3, and steps that are multiples of 4 stay."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.checkpoints = Checkpoints(self.root, keep=3, keep_every=4)
        self.visible: dict[int, str] = {}
        self.unfinished: dict[tuple[int, str], Unfinished] = {}
        self.read: dict[int, contextlib.ExitStack] = {}

    @rule(step=STEPS, attempt=ATTEMPTS, part=st.integers(0, PARTS - 1), is_failing=st.booleans())
    def write(self, step: int, attempt: str, part: int, is_failing: bool) -> None:
        if step in self.visible:
            with pytest.raises(StepExists):
                self.checkpoints.begin(step, part, PARTS, attempt)
            return
        known = self.unfinished.setdefault((step, attempt), Unfinished(set()))
        if part in known.ended:
            with pytest.raises(AttemptUsedError):
                self.checkpoints.begin(step, part, PARTS, attempt)
            known.is_failed = True
            return
        began = self.checkpoints.begin(step, part, PARTS, attempt)
        known.ended.add(part)
        known.is_failed |= is_failing
        if is_failing:
            with pytest.raises(ZeroDivisionError), began as c:
                c.file(f"{part}").close()
                raise ZeroDivisionError
        elif known.is_failed:
            with pytest.raises(PartFailed):
                self._end(began, part)
        else:
            self._end(began, part)
            if len(known.ended) == PARTS:
                assert began.wait(0).number == step
                self._committed(step, attempt)

    def _end(self, began: Part, part: int) -> None:
        with began as c, c.file(f"{part}") as file:
            file.write(b"x")

    def _committed(self, step: int, attempt: str) -> None:
        del self.unfinished[step, attempt]
        self.visible[step] = attempt
        for old in sorted(self.visible)[:-3]:
            if old % 4 and old not in self.read:
                del self.visible[old]

    @rule(step=STEPS)
    def remove(self, step: int) -> None:
        if step not in self.visible:
            with pytest.raises(StepLost):
                self.checkpoints.remove(step)
            return
        assert self.checkpoints.remove(step) == (step not in self.read)
        if step not in self.read:
            del self.visible[step]

    @precondition(lambda self: self.visible)
    @rule(index=st.integers(0, 5))
    def begin_to_read(self, index: int) -> None:
        step = sorted(self.visible)[index % len(self.visible)]
        stack = self.read.setdefault(step, contextlib.ExitStack())
        stack.enter_context(self.checkpoints.reading(step))

    @precondition(lambda self: self.read)
    @rule(index=st.integers(0, 5))
    def end_reading(self, index: int) -> None:
        self.read.pop(sorted(self.read)[index % len(self.read)]).close()

    @rule()
    def tidy(self) -> None:
        """Attempts that changed last stay: which one that is depends on a clock of ticks."""
        gone = set(self.checkpoints.tidy(age=-1.0))
        for step, attempt in list(self.unfinished):
            if f".step-{step:09d}.{attempt}.partial" in gone:
                del self.unfinished[step, attempt]
        assert len({attempt for _, attempt in self.unfinished}) <= 1

    @invariant()
    def is_as_the_model(self) -> None:
        found = {step.number: step.attempt for step in self.checkpoints.steps()}
        assert found == self.visible
        newest = self.checkpoints.latest()
        assert (newest.number if newest else None) == max(self.visible, default=None)
        assert verify_steps(self.root, (), lambda count: None).exit == 0
        for step, attempt in self.unfinished:
            assert (self.root / f".step-{step:09d}.{attempt}.partial").is_dir()

    def teardown(self) -> None:
        for stack in self.read.values():
            stack.close()
        shutil.rmtree(self.root, ignore_errors=True)


def test_names_are_as_a_model_of_them(sized: Callable[[int, int], int]) -> None:
    chosen = settings(max_examples=sized(25, 2_000), stateful_step_count=25, deadline=None)
    run_machine(Names, settings=chosen)
