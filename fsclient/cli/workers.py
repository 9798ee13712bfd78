"""For verbs that walk trees: the files below a directory, threads that work on them, failures."""

import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final

_WAITING_MAX: Final = 1024
_TICK_S: Final = 0.2
_SHOWN_MAX: Final = 10  # failures that are shown


@dataclass(slots=True)
class Failures:
    """Paths on which the work failed, the first ones by name. All threads count under the mutex."""

    failed: int = 0
    failures: list[str] = field(default_factory=list)
    mutex: threading.Lock = field(default_factory=threading.Lock)

    def fail(self, path: str, error: OSError) -> None:
        with self.mutex:
            self.failed += 1
            if len(self.failures) < _SHOWN_MAX:
                self.failures.append(f"{path}: {error.strerror}")


def files_below(
    top: str, device: int, failures: Failures, enter: Callable[[str], bool] = lambda folder: True
) -> Iterator[str]:
    """Yields regular files of that device below a directory, in the order of the directories; it
    follows no link. enter: called with each directory before it is listed; False: it is left
    out."""
    folders = [top]
    while folders:
        folder = folders.pop()
        if not enter(folder):
            continue
        try:
            with os.scandir(folder) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            failures.fail(folder, error)
            continue
        for entry in found:
            if entry.is_file(follow_symlinks=False):
                yield entry.path
            elif entry.is_dir(follow_symlinks=False) and _is_on(device, entry, failures):
                folders.append(entry.path)


def _is_on(device: int, entry: "os.DirEntry[str]", failures: Failures) -> bool:
    try:
        return entry.stat(follow_symlinks=False).st_dev == device
    except OSError as error:
        failures.fail(entry.path, error)
        return False


class Workers:
    """Threads that call work(path, is_over), which must check is_over now and then."""

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
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def go_through(self, paths: Iterable[str], looked: Callable[[], None]) -> None:
        """Returns when all paths are done. looked: called again and again until then."""
        with self:
            for path in paths:
                while not self._take(path):
                    looked()
                looked()
            while not self._wait():
                looked()

    def _take(self, path: str) -> bool:
        """Takes a path. False: there is no room for it yet."""
        try:
            self._paths.put(path, timeout=_TICK_S)
        except queue.Full:
            return False
        return True

    def _wait(self) -> bool:
        """Waits a moment; returns whether everything that was taken is done."""
        with self._paths.all_tasks_done:
            return self._paths.all_tasks_done.wait_for(
                lambda: self._paths.unfinished_tasks == 0, _TICK_S
            )

    def _work(self) -> None:
        while not self._is_over.is_set():
            try:
                path = self._paths.get(timeout=_TICK_S)
            except queue.Empty:
                continue
            try:
                self._work_on(path, self._is_over)
            finally:
                self._paths.task_done()
