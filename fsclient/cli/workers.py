"""Threads that work through paths, for verbs that go over trees of files."""

import queue
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final

_WAITING_MAX: Final = 1024
TICK_S: Final = 0.2


class Workers:
    """Threads that call work(path, is_over) for what take() gives them. Leaving the block ends
    them; work is to look at is_over now and then."""

    def __init__(self, work: Callable[[str, threading.Event], object], count: int) -> None:
        self._work_on = work
        self._paths: queue.Queue[str] = queue.Queue(_WAITING_MAX)
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._work) for _ in range(count)]

    def __enter__(self) -> "Workers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def take(self, path: str) -> bool:
        """False when there is no room for it yet."""
        try:
            self._paths.put(path, timeout=TICK_S)
        except queue.Full:
            return False
        return True

    def wait(self, seconds: float) -> bool:
        """Whether everything that was taken has been worked on."""
        with self._paths.all_tasks_done:
            return self._paths.all_tasks_done.wait_for(
                lambda: self._paths.unfinished_tasks == 0, seconds
            )

    def _work(self) -> None:
        while not self._is_over.is_set():
            try:
                path = self._paths.get(timeout=TICK_S)
            except queue.Empty:
                continue
            try:
                self._work_on(path, self._is_over)
            finally:
                self._paths.task_done()
