"""How several unit tests wait."""

from collections.abc import Callable

import trio


async def eventually(is_so: Callable[[], bool]) -> None:
    """Raises AssertionError after some twenty seconds."""
    for _ in range(2000):
        if is_so():
            return
        await trio.sleep(0.01)
    raise AssertionError("it never came")
