"""Processes in virtual time: tasks are generators, one seed decides every delay.

A task yields a number of seconds, or a `Future` whose value it waits for. A process has tasks; when
it is killed they end where they are, and what they had in memory is gone. The loop raises what a
task raises.
"""

import heapq
import itertools
import random
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final

TIMED_OUT: Final = "timed out"
Steps = Generator[Any, Any, Any]


class Future:
    """A value that comes later. The first value counts."""

    __slots__ = ("_waiting", "is_done", "value")

    def __init__(self) -> None:
        self.is_done = False
        self.value: Any = None
        self._waiting: list[Callable[[Any], None]] = []

    def resolve(self, value: Any = None) -> None:
        if self.is_done:
            return
        self.is_done, self.value = True, value
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call(value)

    def then(self, call: Callable[[Any], None]) -> None:
        if self.is_done:
            call(self.value)
        else:
            self._waiting.append(call)


class Loop:
    """Virtual time in seconds."""

    def __init__(self, chance: random.Random) -> None:
        self.now = 0.0
        self.chance = chance
        self._order = itertools.count()
        self._due: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []

    def after(self, seconds: float, call: Callable[..., object], *given: Any) -> None:
        heapq.heappush(self._due, (self.now + seconds, next(self._order), call, given))

    def run_until(self, end: float) -> None:
        while self._due and self._due[0][0] <= end:
            self.now, _, call, given = heapq.heappop(self._due)
            call(*given)
        self.now = end

    def either(self, future: Future, seconds: float) -> Future:
        """The future's value, or TIMED_OUT."""
        first = Future()
        future.then(first.resolve)
        self.after(seconds, first.resolve, TIMED_OUT)
        return first


def all_of(futures: Iterable[Future]) -> Future:
    """The list of all their values."""
    waited = list(futures)
    done = Future()
    left = len(waited)

    def one_more(_value: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            done.resolve([one.value for one in waited])

    if not waited:
        done.resolve([])
    for future in waited:
        future.then(one_more)
    return done


class Task:
    __slots__ = ("_process", "_steps", "ended", "is_running")

    def __init__(self, process: "Process", steps: Steps) -> None:
        self._process = process
        self._steps = steps
        self.ended = Future()  # its value is what the generator returns
        self.is_running = True

    def go_on(self, value: Any = None) -> None:
        if not self.is_running:
            return
        stands_still_s = self._process.paused_until_s - self._process.loop.now
        if stands_still_s > 0:
            self._process.loop.after(stands_still_s, self.go_on, value)
            return
        try:
            wanted = self._steps.send(value)
        except StopIteration as end:
            self.is_running = False
            self._process.tasks.discard(self)
            self.ended.resolve(end.value)
            return
        if isinstance(wanted, Future):
            wanted.then(self.go_on)
        else:
            self._process.loop.after(wanted, self.go_on)

    def kill(self) -> None:
        self.is_running = False
        self._steps.close()


class Process:
    def __init__(self, loop: Loop, name: str) -> None:
        self.loop = loop
        self.name = name
        self.is_alive = True
        self.paused_until_s = 0.0  # it stands still until then, as by SIGSTOP
        self.tasks: set[Task] = set()

    def spawn(self, steps: Steps) -> Future:
        """Runs the generator from now on. The future resolves with what it returns."""
        task = Task(self, steps)
        self.tasks.add(task)
        self.loop.after(0.0, task.go_on)
        return task.ended

    def kill(self) -> None:
        self.is_alive = False
        for task in list(self.tasks):
            task.kill()
        self.tasks.clear()
