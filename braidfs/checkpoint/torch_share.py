"""Ranges of a checkpoint that several ranks want, read once.

The coordinator sees all plans. It cuts what is wanted more than once into pieces and gives each of
them an owner: with share="node" a rank of each node, with share="job" one rank of the job. Owners
of a node read theirs into a file in memory, which the others of the node open by /proc: it ends
with its last user, however that ends, and needs no room in /dev/shm. Owners of a job broadcast
theirs, one after another, in the order of the plan.

Who cannot get a piece from its owner reads it from the checkpoint, so an owner that dies, hangs or
has no memory costs time only. In a broadcast everybody takes part to the end, also after a failure.
"""

import fcntl
import mmap
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from braidfs.checkpoint.pieces import Inputs, Want, cut, in_parallel, read_all, read_wants
from braidfs.checkpoint.torch_memory import bytes_of

WORTH = 1.5  # an item is shared when so many times its bytes are wanted
JOB_PIECE = 64 << 20
_READY, _FAILED = b"\1", b"\2"
_MEMORY_SHARE = 0.5  # of what is available, for the pieces of a node
_PAUSE_S = 0.001
STALL_S = 60.0  # an owner that has made no other piece in so long is not waited for
_OWN_GROUP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
_Key = tuple[str, int]  # file, number of the piece in it


@dataclass(frozen=True, slots=True)
class Offer:
    """What a rank tells the coordinator of itself: where it is, and its file in memory."""

    node: str
    pid: int
    fd: int
    inode: tuple[int, int]  # device and inode of the file: its descriptor may be another's later
    room: int  # bytes of memory for pieces


@dataclass(frozen=True, slots=True)
class Wanted:
    """A range of a file that a rank wants, and the range of the item that it is of."""

    file: str
    begin: int
    end: int
    size: int  # bytes of it that the rank uses


@dataclass(frozen=True, slots=True)
class Shared:
    """The pieces that are shared, in order, with their owners' ranks; and the ranks' offers."""

    size: int
    pieces: tuple[tuple[_Key, int], ...] = ()
    offers: tuple[Offer | None, ...] = ()
    rank: int = 0

    def of(self, owner: int) -> list[_Key]:
        return [key for key, one in self.pieces if one == owner]


def own_offer(own: "Own") -> Offer:
    """What this rank tells of itself; ranks with the same node can open each other's files in
    memory. Raises OSError where /proc cannot be read."""
    namespace = Path("/proc/self/ns/pid").readlink()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    room = int(_available() * _MEMORY_SHARE)
    return Offer(f"{boot} {namespace}", os.getpid(), own.fd, _inode(own.fd), room)


def _inode(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def _available() -> int:
    """Bytes of memory that the machine has left, and the control groups of this process: the
    kernel ends a container that goes beyond its own limit, whatever the machine has."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return min([int(line.split()[1]) << 10, *rooms_of_groups()])
    return 0


def rooms_of_groups(own: Path = _OWN_GROUP, groups: Path = _GROUPS) -> Iterator[int]:
    """Bytes that are left to each control group (version 2) of this process that has a limit. Page
    cache that the kernel can drop counts as left."""
    try:
        lines = own.read_text().splitlines()
        name = next(one for one in lines if one.startswith("0::/")).removeprefix("0::/")
    except (OSError, StopIteration):
        return
    if ".." in name.split("/"):  # it is outside of what this container sees
        name = ""
    for folder in (groups / name, *(groups / name).parents):
        if not folder.is_relative_to(groups):
            return
        try:
            limit = int((folder / "memory.max").read_text())  # ValueError: "max", so there is none
            used = int((folder / "memory.current").read_text())
            counts = dict(line.split() for line in (folder / "memory.stat").open())
            yield max(0, limit - used + int(counts["inactive_file"]))
        except (OSError, ValueError, KeyError):
            continue


def for_nodes(
    wanted: Sequence[Sequence[Wanted]], offers: Sequence[Offer | None], piece: int
) -> list[Shared]:
    """What each rank shares with the others of its node. piece: bytes of each."""
    found = [Shared(piece, rank=rank) for rank in range(len(wanted))]
    nodes = defaultdict(list)
    for rank, offer in enumerate(offers):
        if offer is not None:
            nodes[offer.node].append((rank, offer))
    for members in nodes.values():
        ranks = [rank for rank, _ in members]
        keys = _worth_sharing([wanted[rank] for rank in ranks], piece)
        room = min(offer.room for _, offer in members)
        keys = keys[: room // piece]
        owned = tuple(
            (key, ranks[number * len(ranks) // len(keys)]) for number, key in enumerate(keys)
        )
        for rank in ranks:
            found[rank] = Shared(piece, owned, tuple(offers), rank)
    return found


def for_job(wanted: Sequence[Sequence[Wanted]], piece: int) -> list[Shared]:
    """What all ranks share: every rank gets every piece, the owners in turn. piece: bytes of
    each."""
    keys = _worth_sharing(wanted, piece)
    owned = tuple((key, number % len(wanted)) for number, key in enumerate(keys))
    return [Shared(piece, owned, rank=rank) for rank in range(len(wanted))]


def _worth_sharing(wanted: Sequence[Sequence[Wanted]], piece: int) -> list[_Key]:
    """The pieces of the ranges that are wanted often enough, in the order of files and offsets."""
    uses: dict[tuple[str, int, int], int] = defaultdict(int)
    for one in (one for ranges in wanted for one in ranges):
        uses[one.file, one.begin, one.end] += one.size
    keys = set[_Key]()
    for (file, begin, end), size in uses.items():
        if end > begin and size >= WORTH * (end - begin):
            keys |= {(file, number) for number in range(begin // piece, (end - 1) // piece + 1)}
    return sorted(keys)


class Own:
    """This rank's pieces for its node, in a file in memory: a byte of state for each, then they.

    The file is locked until all of them are there, so others see by the lock whether its owner is
    alive."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("braidfs-share", os.MFD_CLOEXEC)
        fcntl.flock(self.fd, fcntl.LOCK_EX)

    def give_up(self) -> None:
        """Others read for themselves what is not there yet."""
        fcntl.flock(self.fd, fcntl.LOCK_UN)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    def fill(self, inputs: Inputs, shared: Shared, threads: int) -> None:
        """Reads this rank's pieces. One that cannot be read is marked: others try it themselves.
        Raises OSError and DamagedFile of the first that failed."""
        keys = shared.of(shared.rank)
        try:
            if keys:
                for file in {file for file, _ in keys}:
                    inputs.size(file)  # opens it; threads only read
                length = _position(len(keys), shared.size, len(keys))
                os.posix_fallocate(self.fd, 0, length)
                memory = memoryview(mmap.mmap(self.fd, length))
                jobs = enumerate(keys)
                in_parallel(lambda job: _fill(inputs, memory, job, shared, keys), jobs, threads)
        finally:
            fcntl.flock(self.fd, fcntl.LOCK_UN)


def _fill(
    inputs: Inputs, memory: memoryview, job: tuple[int, _Key], shared: Shared, keys: list[_Key]
) -> None:
    number, (file, index) = job
    begin = index * shared.size
    position = _position(number, shared.size, len(keys))
    length = min(shared.size, inputs.size(file) - begin)
    state = _FAILED
    try:
        inputs.read(file, [memory[position : position + length]], begin)
        state = _READY
    finally:
        memory[number : number + 1] = state


def _position(number: int, size: int, count: int) -> int:
    """Where a piece lies in a file in memory with so many of them."""
    return -(-count // 4096) * 4096 + number * size


class FromNode(Inputs):
    """The files of a checkpoint, of which pieces come from the owners of this node."""

    def __init__(self, folder: Path, shared: Shared) -> None:
        super().__init__(folder)
        self._shared = shared
        self._owners: dict[int, int] = {}  # rank → descriptor of its file in memory
        self._places: dict[_Key, tuple[int, int, int]] = {}
        self._counts: dict[int, int] = {}  # of an owner's pieces
        self._heard: dict[int, tuple[bytes, float]] = {}  # an owner's states, and since when
        self._pause = threading.Event()  # never set
        self.lost: set[int] = set()  # owners whose pieces are read here instead

    def open_owners(self) -> None:
        """Opens the files in memory of those owners that are there. Others are not asked."""
        for owner in sorted({one for _, one in self._shared.pieces}):
            offer = self._shared.offers[owner]
            keys = self._shared.of(owner)
            fd = _opened(offer) if offer is not None else None
            if fd is not None:
                self._owners[owner], self._counts[owner] = fd, len(keys)
                for number, key in enumerate(keys):
                    position = _position(number, self._shared.size, len(keys))
                    self._places[key] = (owner, number, position)

    def __exit__(self, *exception: object) -> None:
        for fd in self._owners.values():
            os.close(fd)
        self._owners.clear()
        super().__exit__(*exception)

    def read(self, file: str, views: list[memoryview], offset: int) -> None:
        size = self._shared.size
        while views:
            part, views = _split(views, size - offset % size)
            length = sum(view.nbytes for view in part)
            place = self._places.get((file, offset // size))
            if place is None or not self._given(part, offset % size, *place):
                super().read(file, part, offset)
            offset += length

    def _given(
        self, views: list[memoryview], offset: int, owner: int, number: int, position: int
    ) -> bool:
        """Fills the views from the offset in a piece on, when its owner has it."""
        if not self._is_ready(owner, number):
            return False
        return read_all(self._owners[owner], views, position + offset) is None

    def _is_ready(self, owner: int, number: int) -> bool:
        """Waits for a piece; False when its owner cannot give it."""
        fd = self._owners[owner]
        while True:
            # Before the look at the state: what an owner wrote before it ended is seen after this.
            ended = owner in self.lost or _may_lock(fd)
            states = os.pread(fd, self._counts[owner], 0)
            state = states[number : number + 1]
            if state in (_READY, _FAILED):
                return state == _READY
            if ended or self._is_stalled(owner, states):
                self.lost.add(owner)
                return False
            self._pause.wait(_PAUSE_S)

    def _is_stalled(self, owner: int, states: bytes) -> bool:
        """Whether it is stopped, or hangs, as far as can be seen: nothing changes for STALL_S."""
        now = time.monotonic()
        before, since = self._heard.get(owner, (None, now))
        if states != before:
            self._heard[owner] = states, now
            return False
        return now - since >= STALL_S


def _opened(offer: Offer) -> int | None:
    """A descriptor of the file of another process; None when it is gone, or not to be opened."""
    try:
        fd = os.open(f"/proc/{offer.pid}/fd/{offer.fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    if _inode(fd) == offer.inode:
        return fd
    os.close(fd)
    return None


def _may_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(fd, fcntl.LOCK_UN)
    return True


def _split(views: list[memoryview], count: int) -> tuple[list[memoryview], list[memoryview]]:
    """The first count bytes of the views, and the others."""
    for number, view in enumerate(views):
        if count < view.nbytes:
            head = [*views[:number], view[:count]] if count else views[:number]
            return head, [view[count:], *views[number + 1 :]]
        count -= view.nbytes
    return views, []


@dataclass(slots=True)
class _Filling:
    """A want that several pieces fill."""

    want: Want
    place: memoryview | None = None
    left: int = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.want.size

    def put(self, offset: int, given: memoryview) -> None:
        """The bytes of the file from an offset on, as far as this want has them."""
        begin, end = max(offset, self.want.offset), min(offset + given.nbytes, self.want.end)
        if self.place is None:
            self.place = self.want.place()
        target = self.place[begin - self.want.offset : end - self.want.offset]
        target[:] = given[begin - offset : end - offset]
        self.left -= end - begin
        if self.left == 0:
            if self.want.done is not None:
                self.want.done(self.place)
            self.place = None


def broadcast(
    inputs: Inputs,
    shared: Shared,
    wants: Iterable[Want],
    group: Any,
    *,
    threads: int,
    failure: Exception | None = None,
) -> list[Want]:
    """Takes part in the broadcast of all shared pieces; returns the wants that they do not fill.

    A failure of this rank, also one of before, is raised after the last piece; one of an owner to
    read is raised by every rank."""
    fillings, others = _by_piece(shared, wants)
    buffer = torch.empty(shared.size + 1, dtype=torch.uint8)
    for key, owner in shared.pieces:
        if owner == shared.rank:
            try:
                _read_piece(inputs, key, buffer, shared.size, threads)
                buffer[-1] = 0
            except Exception as error:
                failure = failure or error
                buffer[-1] = 1
        _send(buffer, owner, group)
        try:
            if buffer[-1]:
                raise OSError(f"rank {owner} could not read {key[0]}")
            if failure is None:
                given = bytes_of(buffer)[: shared.size]
                for one in fillings.get(key, ()):
                    one.put(key[1] * shared.size, given)
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return others


def _by_piece(
    shared: Shared, wants: Iterable[Want]
) -> tuple[dict[_Key, list[_Filling]], list[Want]]:
    """The wants that shared pieces fill, by these pieces; and the others."""
    keys = {key for key, _ in shared.pieces}
    fillings: dict[_Key, list[_Filling]] = defaultdict(list)
    others = []
    for want in wants:
        mine = list(_keys_of(want, shared.size))
        if mine and keys.issuperset(mine):
            filling = _Filling(want)
            for key in mine:
                fillings[key].append(filling)
        else:
            others.append(want)
    return fillings, others


def _keys_of(want: Want, size: int) -> Iterator[_Key]:
    for number in range(want.offset // size, -(-want.end // size)):
        yield want.file, number


def _read_piece(inputs: Inputs, key: _Key, buffer: Any, size: int, threads: int) -> None:
    file, number = key
    length = min(size, inputs.size(file) - number * size)
    view = bytes_of(buffer)[:length]
    wants = list(cut(file, number * size, view, max(1, size // threads)))
    read_wants(inputs, wants, threads=threads, piece=size)


def _send(buffer: Any, owner: int, group: Any) -> None:
    """Broadcasts the buffer from the rank `owner` of the group; by its device if it has no other.
    The device half was not tried on a GPU."""
    source = owner if group is None else dist.get_global_rank(group, owner)
    if "gloo" in dist.get_backend_config(group) or not torch.accelerator.is_available():
        dist.broadcast(buffer, source, group)
        return
    moved = buffer.to(torch.accelerator.current_accelerator())
    dist.broadcast(moved, source, group)
    buffer.copy_(moved)
