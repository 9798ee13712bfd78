"""Runs trio so that a seed decides everything, in time that jumps."""

from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch

import trio
from trio._core import _run
from trio.testing import MockClock


def run_seeded(seed: int, work: Callable[..., Awaitable[object]], *args: Any) -> None:
    """The seed also decides in which order tasks go on that could do so at once."""
    _run._r.seed(seed)
    with patch.object(_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True):
        trio.run(work, *args, clock=MockClock(autojump_threshold=0))
