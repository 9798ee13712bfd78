"""One rank of a job that writes or reads a shared file: a program for mpirun and a Python that has
mpi4py.

`mpirun -n N python -m tests.bench.data.mpi_ranks {JSON}`: path, pattern (its index in PATTERNS),
count (transfers of each rank), reading, collective (MPI-IO, all ranks together, instead of pwrite
and pread). Ranks begin together; rank 0 prints one JSON object: seconds (from the first one's start
to the last one's end) and bytes of all.
"""

import json
import sys
import time

from mpi4py import MPI  # type: ignore[import-not-found]

from tests.bench.data import buffers, patterns


def _collective(path: str, offsets: list[int], transfer: int, *, reading: bool) -> float:
    mode = MPI.MODE_RDONLY if reading else MPI.MODE_CREATE | MPI.MODE_WRONLY
    file = MPI.File.Open(MPI.COMM_WORLD, path, mode)
    content = buffers.pages(transfer) if reading else buffers.filled(transfer)
    for offset in offsets:
        if reading:
            file.Read_at_all(offset, content)
            patterns.check(content, offset)
        else:
            file.Write_at_all(offset, patterns.marked(content, offset))
    if not reading:
        file.Sync()
    file.Close()
    return float(len(offsets) * transfer)


def main(path: str, pattern: int, count: int, *, reading: bool, collective: bool) -> None:
    world, chosen = MPI.COMM_WORLD, patterns.PATTERNS[pattern]
    ranks = world.Get_size()
    share = (world.Get_rank() + (ranks // 2 if reading else 0)) % ranks
    offsets = list(chosen.offsets(share, ranks, count))
    world.Barrier()
    began_s = time.monotonic()
    if collective:
        done = _collective(path, offsets, chosen.transfer, reading=reading)
    else:
        done = (patterns.read if reading else patterns.write)(path, offsets, chosen.transfer)
    ended_s = time.monotonic()
    seconds = world.allreduce(ended_s, MPI.MAX) - world.allreduce(began_s, MPI.MIN)
    total = world.allreduce(done, MPI.SUM)
    if world.Get_rank() == 0:
        print(json.dumps({"seconds": seconds, "bytes": total}))


def _all_or_none(given: str) -> None:
    """A rank that fails ends the others, which would wait for it."""
    try:
        main(**json.loads(given))
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        MPI.COMM_WORLD.Abort(1)


if __name__ == "__main__":
    _all_or_none(sys.argv[1])
