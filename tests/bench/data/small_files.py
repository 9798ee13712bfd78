"""Case a: a data set of small files, written and then read whole in random order, epoch by epoch.

Files have 4 to 256 KiB, lognormal with a median of 100 KiB, like ImageNet's. Cold: nothing is
cached anywhere. Warm: the epoch after that, in another order. After a remount: the servers may have
it cached, the client has not. Each process has its share of the order; files are opened, read whole
by Python's open().read() (or mapped), and closed.
"""

import math
import mmap
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from braidfs.announce import Announcer
from tests.bench.data.amounts import KIB, Amounts
from tests.bench.data.bars import LOCAL, Bar, Row, Than
from tests.bench.data.case import Case, Values
from tests.bench.data.cost import Spent, peak_mib, spending
from tests.bench.data.places import BraidPlace, NullPlace, Place
from tests.bench.data.workers import together

SIZE_MIN, SIZE_MEDIAN, SIZE_MAX = 4 * KIB, 100 * KIB, 256 * KIB
SPREAD = 0.6  # it is the sigma of the logarithm
CREATORS = 4
BARRED = (4, 16)  # these numbers of processes have bars
CREATE = f"create with data, {CREATORS} processes"
REMOUNTED = "epoch after a remount, {} processes"
SEALED_COLD = "epoch cold, {} processes, sealed tree mounted read-only"
SEALED_WARM = "epoch warm, {} processes, sealed tree mounted read-only"
CACHED = f"{REMOUNTED}, with cache_dir"
FILLING = "epoch cold, {} processes, into an empty cache_dir"
ANNOUNCED = "epoch cold, {}, announced"
UNBUFFERED = "epoch warm, {} processes, without Python's buffer"
SEALED_UNBUFFERED = f"{SEALED_WARM}, without Python's buffer"
MAPPED = "epoch by mmap, cold, {} processes"
CREATE_CPU = "CPU per file created with data"
COLD_CPU = "CPU per file of a cold epoch"
COLD_SWITCHES = "context switches per file of a cold epoch"
CLIENT_PEAK = "client's peak RSS after the epochs"
SERVERS_PEAK = "servers' peak RSS after the epochs"


@dataclass(frozen=True, slots=True)
class FileSet:
    paths: tuple[str, ...]
    sizes: tuple[int, ...]

    def moved(self, old: Path, new: Path) -> "FileSet":
        """The files by their paths where another mount shows the folder."""
        paths = tuple(path.replace(f"{old}", f"{new}", 1) for path in self.paths)
        return FileSet(paths, self.sizes)


def file_set(folder: Path, amounts: Amounts) -> FileSet:
    random = Random(4)
    middle = math.log(SIZE_MEDIAN)
    drawn = (int(random.lognormvariate(middle, SPREAD)) for _ in range(amounts.files))
    sizes = tuple(min(SIZE_MAX, max(SIZE_MIN, one)) for one in drawn)
    paths = tuple(
        f"{folder}/set/d{number % amounts.folders:04}/f{number:06}"
        for number in range(amounts.files)
    )
    return FileSet(paths, sizes)


def null_set(place: NullPlace, amounts: Amounts) -> FileSet:
    """As many files, each of the median's size."""
    place.shape(amounts.files, SIZE_MEDIAN)
    paths = tuple(f"{place.folder}/f{number}" for number in range(amounts.files))
    return FileSet(paths, (SIZE_MEDIAN,) * amounts.files)


def create(files: FileSet, folder: Path, amounts: Amounts) -> float:
    """The rate in files a second."""
    (folder / "set").mkdir()
    for number in range(amounts.folders):
        (folder / "set" / f"d{number:04}").mkdir()
    content = memoryview(os.urandom(SIZE_MAX))

    def write(share: Sequence[int]) -> float:
        for index in share:
            with open(files.paths[index], "wb", buffering=0) as file:
                if file.write(content[: files.sizes[index]]) != files.sizes[index]:
                    raise OSError(0, f"a short write to {files.paths[index]}")
        return len(share)

    # A process has directories of its own, like those of an unpacked data set.
    shares = [
        [one for one in range(amounts.files) if one % amounts.folders % CREATORS == creator]
        for creator in range(CREATORS)
    ]
    return together([partial(write, share) for share in shares]).rate


def read_whole(path: str) -> int:
    with open(path, "rb") as file:
        return len(file.read())


def read_unbuffered(path: str) -> int:
    """Python's open() asks first whether a file with a buffer is a terminal: that is ioctl(2),
    which FUSE passes on to the mount. This function does not ask."""
    with open(path, "rb", buffering=0) as file:
        return len(file.readall())


def read_mapped(path: str) -> int:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        return len(mapped[:])


def epoch(
    files: FileSet, processes: int, seed: int, read: Callable[[str], int] = read_whole
) -> float:
    """The rate in files a second; each file is read once."""
    order = _order(files, seed)

    def work(share: Sequence[int]) -> float:
        for index in share:
            if read(files.paths[index]) != files.sizes[index]:
                raise OSError(0, f"{files.paths[index]} is not as long as it was written")
        return len(share)

    shares = [order[first::processes] for first in range(processes)]
    return together([partial(work, share) for share in shares]).rate


def _order(files: FileSet, seed: int) -> list[int]:
    order = list(range(len(files.paths)))
    Random(seed).shuffle(order)
    return order


def announced_epoch(files: FileSet, processes: int, seed: int, folder: Path) -> float:
    """The rate in files a second; announcing the order to the mount is part of the epoch."""
    began_s = time.monotonic()
    with Announcer(folder) as announcer:
        announcer.announce(files.paths[index] for index in _order(files, seed))
    told_s = time.monotonic() - began_s
    count = len(files.paths)
    return count / (count / epoch(files, processes, seed) + told_s)


def _cold(processes: int) -> str:
    return f"epoch cold, {_processes(processes)}"


def _warm(processes: int) -> str:
    return f"epoch warm, {_processes(processes)}"


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _middle(amounts: Amounts) -> int:
    return 4 if 4 in amounts.processes else amounts.processes[0]


def _rows(amounts: Amounts) -> Iterator[Row]:
    yield Row(CREATE, "files/s", (Bar(Than.PEERS, 3.0),))
    cold = (Bar(Than.LOCAL, 0.5), Bar(Than.PEERS, 3.0))
    warm = (Bar(Than.LOCAL, 0.45), Bar(Than.PEERS, 4.0))
    for count in amounts.processes:
        yield Row(_cold(count), "files/s", cold if count in BARRED else ())
        yield Row(_warm(count), "files/s", warm if count in BARRED else ())
    middle = _middle(amounts)
    yield Row(REMOUNTED.format(middle), "files/s")
    yield Row(MAPPED.format(middle), "files/s")
    for count in sorted({1, *amounts.processes}):
        yield Row(ANNOUNCED.format(_processes(count)), "files/s")
    yield Row(UNBUFFERED.format(middle), "files/s")
    yield Row(SEALED_COLD.format(middle), "files/s")
    sealed = (Bar(Than.LOCAL, 0.85, row=_warm(middle)),)
    yield Row(SEALED_WARM.format(middle), "files/s", sealed)
    sealed = (Bar(Than.LOCAL, 0.85, row=UNBUFFERED.format(middle)),)
    yield Row(SEALED_UNBUFFERED.format(middle), "files/s", sealed)
    yield Row(CACHED.format(middle), "files/s", (Bar(Than.LOCAL, 0.7, row=_cold(middle)),))
    yield Row(FILLING.format(middle), "files/s")
    yield Row(CREATE_CPU, "µs", less_is_better=True)
    yield Row(COLD_CPU, "µs", less_is_better=True)
    yield Row(COLD_SWITCHES, "", less_is_better=True)
    yield Row(CLIENT_PEAK, "MiB", less_is_better=True)
    yield Row(SERVERS_PEAK, "MiB", less_is_better=True)


def _run(place: Place, amounts: Amounts) -> Values:
    values: dict[str, float] = {}
    if isinstance(place, NullPlace):
        files = null_set(place, amounts)
    else:
        files = file_set(place.folder, amounts)
        os.sync()
        with spending(place.serving()) as spent:
            values[CREATE] = create(files, place.folder, amounts)
        values |= _spent(place, {CREATE_CPU: spent.cpu_s / amounts.files * 1e6})
    for count in amounts.processes:
        place.chill()
        with spending(place.serving()) as spent:
            values[_cold(count)] = epoch(files, count, seed=count)
        values[_warm(count)] = epoch(files, count, seed=count + 100)
        if count == _middle(amounts):
            values[UNBUFFERED.format(count)] = epoch(files, count, count + 200, read_unbuffered)
            values |= _spent(place, _cold_cost(spent, amounts))
    values |= _others(place, files, amounts)
    return values


def _others(place: Place, files: FileSet, amounts: Amounts) -> Values:
    values = {}
    middle = _middle(amounts)
    serving = place.serving()
    peaks = {CLIENT_PEAK: peak_mib(serving.client), SERVERS_PEAK: peak_mib(serving.servers)}
    if place.name != LOCAL:
        place.remount()
        values[REMOUNTED.format(middle)] = epoch(files, middle, seed=7)
    if isinstance(place, BraidPlace):
        for count in sorted({1, *amounts.processes}):
            place.chill()
            rate = announced_epoch(files, count, seed=count, folder=place.folder)
            values[ANNOUNCED.format(_processes(count))] = rate
        values |= _cached(place, files, middle)
    place.chill()
    values[MAPPED.format(middle)] = epoch(files, middle, 8, read_mapped)
    with place.sealed(place.folder / "set") as mounted:
        if mounted is not None:
            there = files.moved(place.folder / "set", mounted)
            Path("/proc/sys/vm/drop_caches").write_text("3")
            values[SEALED_COLD.format(middle)] = epoch(there, middle, 9)
            values[SEALED_WARM.format(middle)] = epoch(there, middle, 10)
            values[SEALED_UNBUFFERED.format(middle)] = epoch(there, middle, 11, read_unbuffered)
    return {**values, **_spent(place, peaks)}


def _cached(place: BraidPlace, files: FileSet, processes: int) -> Values:
    """The page cache is dropped for all: the second time the files are read from the local disk."""
    values: dict[str, float] = {}
    with place.with_cache():
        place.chill()
        values[FILLING.format(processes)] = epoch(files, processes, seed=17)
        place.chill()
        values[CACHED.format(processes)] = epoch(files, processes, seed=18)
    return values


def _cold_cost(spent: Spent, amounts: Amounts) -> Values:
    return {
        COLD_CPU: spent.cpu_s / amounts.files * 1e6,
        COLD_SWITCHES: spent.switches / amounts.files,
    }


def _spent(place: Place, values: Values) -> Values:
    """Adds nothing for a place that does not name its processes."""
    return values if place.serving().client else {}


SMALL_FILES = Case("a", "small files", lambda amounts: tuple(_rows(amounts)), _run)
