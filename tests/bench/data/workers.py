"""Work done by several processes at once, timed from the first one's start to the last one's end.

They are forked, so a piece of work is a closure; its result comes back through a pipe. All begin
together, when each is ready.
"""

import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier

READY_SECONDS_MAX = 60.0
SECONDS_MAX = 1800.0


@dataclass(frozen=True, slots=True)
class Share:
    """What one process did. `count`: files, bytes, or another unit of the work."""

    began_s: float
    ended_s: float
    count: float


@dataclass(frozen=True, slots=True)
class Together:
    shares: tuple[Share, ...]

    @property
    def seconds(self) -> float:
        last = max(one.ended_s for one in self.shares)
        return last - min(one.began_s for one in self.shares)

    @property
    def count(self) -> float:
        return sum(one.count for one in self.shares)

    @property
    def rate(self) -> float:
        return self.count / max(self.seconds, 1e-9)


Work = Callable[[], float]


def together(works: Sequence[Work]) -> Together:
    context = multiprocessing.get_context("fork")
    ready = context.Barrier(len(works))
    ends = [context.Pipe(duplex=False) for _ in works]
    processes = [
        context.Process(target=_run, args=(work, ready, writer))
        for work, (_, writer) in zip(works, ends, strict=True)
    ]
    for process, (_, writer) in zip(processes, ends, strict=True):
        process.start()
        writer.close()
    try:
        return Together(tuple(_result(reader) for reader, _ in ends))
    finally:
        for process in processes:
            if process.is_alive():
                process.join(5)
            if process.is_alive():
                process.kill()
            process.join()


def _run(work: Work, ready: Barrier, writer: Connection) -> None:
    try:
        ready.wait(READY_SECONDS_MAX)
        began_s = time.monotonic()
        count = work()
        writer.send(Share(began_s, time.monotonic(), count))
    # The parent raises it, because the traceback of a child is not visible.
    except Exception as error:
        writer.send(f"{type(error).__name__}: {error}")


def _result(reader: Connection) -> Share:
    if not reader.poll(SECONDS_MAX):
        raise RuntimeError(f"a process of the benchmark was not done after {SECONDS_MAX:.0f} s")
    try:
        found = reader.recv()
    except EOFError:
        raise RuntimeError("a process of the benchmark was killed") from None
    if not isinstance(found, Share):
        raise RuntimeError(str(found))
    return found
