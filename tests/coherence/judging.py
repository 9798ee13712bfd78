"""The scripts of each kind, the models that judge them, and the verdict on the recorded history."""

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.coherence import histories
from tests.coherence.histories import PLAIN, Manner
from tests.model.file_models import Appends, Counter, Locks, Names
from tests.model.linearizability import Model, Operation, check

MODELS: dict[str, Model] = {
    "names": Names(),
    "appends": Appends(),
    "locks": Locks(),
    "counter": Counter(),
}


def make_chance() -> random.Random:
    seed = int(os.environ.get("BRAIDFS_TEST_SEED", random.SystemRandom().randrange(1 << 30)))
    print(f"repeat with BRAIDFS_TEST_SEED={seed}")
    return random.Random(seed)


def make_scripts(
    kind: str, chance: random.Random, clients: int, count: int
) -> list[histories.Script]:
    makers: dict[str, Callable[[int], histories.Script]] = {
        "names": lambda client: histories.names_script(chance, count, client, 6),
        "appends": lambda client: histories.appends_script(chance, count, client, 4),
        "locks": lambda client: histories.locks_script(chance, count, client, 3),
        "counter": lambda _: histories.counter_script(chance, count // 4, 3),
    }
    return [makers[kind](client) for client in range(clients)]


def record_and_judge(
    bases: Sequence[Path],
    scripts: Sequence[histories.Script],
    model: Model,
    meanwhile: Callable[[], None] | None = None,
    manner: Manner = PLAIN,
) -> list[Operation]:
    history = histories.record(bases, scripts, meanwhile, manner)
    assert not manner.to_the_end or len(history) == sum(map(len, scripts))
    judge(history, model)
    return history


def judge(history: Sequence[Operation], model: Model) -> None:
    verdict = check(history, model)
    if not verdict:
        left = [one for one in history if one not in verdict.order]
        keys = {_key(one.argument) for one in verdict.order[-1:]}
        next_ones = [one for one in left if _key(one.argument) in keys][:8]
        print("possible until:", *verdict.order[-5:], "then seen:", *next_ones, sep="\n  ")
    assert verdict, "no order explains what was seen"


def _key(argument: object) -> object:
    """A value that is equal for operations of the same part of the model."""
    return getattr(argument, "file", None) or str(argument).partition("'")[2][:2]
