"""How much each case does: full, quick (a few minutes in total), and tiny (a test, seconds)."""

from dataclasses import dataclass

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Amounts:
    """`processes`: of the epochs. `writers`, `blocks`: of checkpoints, with `stream_bytes` for each
    writer. `depths`: of random reads. `seconds`: of a case that runs for a time."""

    files: int
    folders: int
    processes: tuple[int, ...]
    stream_bytes: int
    writers: tuple[int, ...]
    blocks: tuple[int, ...]
    random_bytes: int
    depths: tuple[int, ...]
    seconds: int
    ranks: int
    rank_bytes: int
    swap_bytes: int
    tensors: tuple[tuple[int, int], ...]  # each entry has the bytes of one tensor and the depth
    engines: tuple[str, ...]  # they are for tensors


FULL = Amounts(
    files=20_000,
    folders=200,
    processes=(1, 4, 16),
    stream_bytes=GIB,
    writers=(1, 4, 8),
    blocks=(MIB, 16 * MIB),
    random_bytes=GIB,
    depths=(1, 8, 32),
    seconds=5,
    ranks=4,
    rank_bytes=256 * MIB,
    swap_bytes=2 * GIB,
    tensors=((MIB, 32), (16 * MIB, 8), (64 * MIB, 1)),
    engines=("libaio", "io_uring"),
)
QUICK = Amounts(
    files=4_000,
    folders=40,
    processes=(1, 4, 16),
    stream_bytes=256 * MIB,
    writers=(1, 4),
    blocks=(MIB, 16 * MIB),
    random_bytes=512 * MIB,
    depths=(1, 32),
    seconds=2,
    ranks=4,
    rank_bytes=64 * MIB,
    swap_bytes=512 * MIB,
    tensors=((MIB, 32), (16 * MIB, 8)),
    engines=("io_uring",),
)
TINY = Amounts(
    files=120,
    folders=6,
    processes=(2,),
    stream_bytes=4 * MIB,
    writers=(2,),
    blocks=(MIB,),
    random_bytes=4 * MIB,
    depths=(1,),
    seconds=1,
    ranks=2,
    rank_bytes=2 * MIB,
    swap_bytes=8 * MIB,
    tensors=((MIB, 2),),
    engines=("io_uring",),
)


def bytes_text(count: int) -> str:
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if count % size == 0:
            return f"{count // size} {unit}"
    return f"{count} B"
