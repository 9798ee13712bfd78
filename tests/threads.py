"""Threads that tests run beside themselves."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def running_beside(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """During the block work(is_over) runs in a thread. It returns when is_over is set, which is so
    at the end of the block."""
    is_over = threading.Event()
    thread = threading.Thread(target=work, args=(is_over,))
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
