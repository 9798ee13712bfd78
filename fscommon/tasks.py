"""How every program runs its tasks.

Nurseries raise the exception that caused a failure, not an ExceptionGroup around it; and the cycle
collector seldom stops the event loop.
"""

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

GC_ALLOCATIONS: Final = 20_000  # between two runs over the youngest objects


@asynccontextmanager
async def open_tasks() -> AsyncIterator[trio.Nursery]:
    """A nursery. When exactly one thing failed in it, that exception is raised without a group
    around it."""
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
    except BaseExceptionGroup as group:
        single = sole_exception(group)
        if single is None:
            raise
        raise single from single.__cause__


def sole_exception(group: BaseExceptionGroup[BaseException]) -> BaseException | None:
    """The only exception in nested groups, not counting cancellations; None when there are more or
    none."""
    leaves = [leaf for leaf in _leaves(group) if not isinstance(leaf, trio.Cancelled)]
    return leaves[0] if len(leaves) == 1 else None


def first_exception(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """One exception of a group whose exceptions all say the same, if possible not a
    cancellation."""
    leaves = _leaves(group)
    return next((leaf for leaf in leaves if not isinstance(leaf, trio.Cancelled)), leaves[0])


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


def calm_collector() -> None:
    """Makes the cycle collector run seldom and over little: what exists now lives as long as the
    program, and a request leaves few cycles behind. Called once, before the event loop starts."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_ALLOCATIONS, 20, 20)
