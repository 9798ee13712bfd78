"""Files with several replicas: what lanes report of them, told to the metaserver.

A replica that fails this client is dropped from the file's layout (DROP_REPLICAS event): lanes go
on with the view that the metaserver answers with. They ask again after a while if it still names
the replica. A file that was closed before all replicas had made its bytes durable is reported when
they have (SYNCED event), by the serial number of its last CLOSE. Touched by the trio thread only.
docs/decisions/0063-mirrors.md. Not here: which replica is to be dropped (client/lane.cpp).
"""

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from fscommon.errors import FsError
from fscommon.layout.layout import unpack_layout
from fscommon.observe.log import RateLimit
from fscommon.wire.messages import Commit, Opened
from fscommon.wire.ops import Op
from fscommon.wire.replicas import DROPS_MAX, DropReplicas, Synced

from .delegated_changes import DelegatedChanges
from .inodes import Inodes
from .ports import Lanes, Metadata

SAY_EVERY_S: Final = 60.0  # of one target
_COMMIT: Final = struct.Struct("<QIHHQ")
_ACKNOWLEDGED: Final = struct.Struct("<IQ")
_DROP: Final = struct.Struct("<QI")
_ROW: Final = struct.Struct("<II")


@dataclass(frozen=True, slots=True)
class CommitEvent:
    """The payload of a COMMIT event. flags: COMMIT_*. targets, incarnations: of a replicated file,
    in which incarnation each target has acknowledged what is not durable. inline: all bytes of a
    new file, or b""."""

    file_id: int
    flags: int
    is_durable: bool
    stripe_bits: int
    targets: tuple[int, ...]
    incarnations: tuple[int, ...]
    inline: bytes

    def request(self, ino: int, size: int, mtime_ns: int) -> Commit:
        return Commit(
            ino,
            self.file_id,
            self.flags,
            size,
            mtime_ns,
            self.stripe_bits,
            self.is_durable,
            self.targets,
            self.incarnations,
        )


def unpack_commit(payload: bytes) -> CommitEvent:
    file_id, flags, durable, count, stripe_bits = _COMMIT.unpack_from(payload)
    end = _COMMIT.size + count * _ACKNOWLEDGED.size
    rows = list(_ACKNOWLEDGED.iter_unpack(payload[_COMMIT.size : end]))
    targets = tuple(target for target, _ in rows)
    incarnations = tuple(incarnation for _, incarnation in rows)
    return CommitEvent(
        file_id, flags, bool(durable), stripe_bits, targets, incarnations, payload[end:]
    )


class Replicas:
    def __init__(
        self,
        meta: Metadata,
        lanes: Lanes,
        inodes: Inodes,
        births: DelegatedChanges,
        log: Callable[[str], None],
    ) -> None:
        self._meta = meta
        self._lanes = lanes
        self._inodes = inodes
        self._births = births
        births.born_closed = self.born_closed
        self._log = log
        self._dropping: dict[int, list[bytes]] = {}  # by inode: the event in work, and the next
        self._told: dict[int, RateLimit] = {}  # by target
        self._closed: dict[int, int] = {}  # the serial number of the CLOSE of each unsynced file
        self._synced: dict[int, int] = {}  # of those that are to be told
        self.dropped_count = 0

    def has(self, ino: int) -> bool:
        """Whether an open file has, or had, several replicas."""
        return self._inodes.opened(ino).is_replicated

    # ---- drops --------------------------------------------------------------------------------

    async def drop(self, ino: int, payload: bytes) -> None:
        """A DROP_REPLICAS event."""
        events = self._dropping.get(ino)
        if events is not None:  # lanes repeat what is not dropped in the end
            if payload not in events:
                events.append(payload)
            return
        events = self._dropping[ino] = [payload]
        try:
            while events:
                await self._drop(ino, events[0])
                events.pop(0)
        except FsError as error:
            self._log(f"inode {ino}: replicas that fail could not be dropped: {error}")
        finally:
            del self._dropping[ino]

    async def _drop(self, ino: int, payload: bytes) -> None:
        self._births.flush()  # the metaserver may not know the file yet
        file_id, epoch = _DROP.unpack_from(payload)
        rows = list(_ROW.iter_unpack(payload[_DROP.size :]))
        for begin in range(0, len(rows), DROPS_MAX):
            objects, targets = zip(*rows[begin : begin + DROPS_MAX], strict=True)
            request = DropReplicas(ino, file_id, epoch, objects, targets)
            reply = await self._meta.call(Op.DROP_REPLICAS, request, Opened, urgent=True)
            self._lanes.inodes.view_put(ino, reply.layout, reply.capability)
            self._note_dropped(ino, set(zip(objects, targets, strict=True)), reply.layout)

    def _note_dropped(self, ino: int, asked: set[tuple[int, int]], layout: bytes) -> None:
        left = {(one.object_number, one.target) for one in unpack_layout(layout).replicas()}
        self.dropped_count += len(asked - left)
        for target in sorted({target for _, target in asked - left}):
            others = self._told.setdefault(target, RateLimit(SAY_EVERY_S)).permit()
            if others is not None:
                self._log(
                    f"target {target} does not store what is written: it has no replica of inode "
                    f"{ino} any more (and of {others} other files, of which nothing was said)"
                )

    # ---- files that are closed and not synced ---------------------------------------------------

    def closing(self, inos: Iterable[int], serial: int) -> tuple[int, ...]:
        """A CLOSE with this serial number is about to be sent. Returns which of these replicated
        files are not known to be durable."""
        unsynced = tuple(ino for ino in inos if self._lanes.inodes.closed_unsynced(ino))
        self._closed.update((ino, serial) for ino in unsynced)
        return unsynced

    def born_closed(self, ino: int) -> None:
        """Lanes have made, written and closed a file, which needs no CLOSE: it counts as closed
        with the serial number 0."""
        is_unsynced = self._lanes.inodes.closed_unsynced(ino)
        (self._closed if is_unsynced else self._synced)[ino] = 0

    def synced(self, ino: int) -> None:
        """A SYNCED event: lanes have nothing of the file that is not durable."""
        if ino not in self._closed or self._lanes.inodes.closed_unsynced(ino):  # written since
            return
        self._synced[ino] = self._closed.pop(ino)

    def tell_synced(self) -> None:
        if self._synced and self._meta.is_ready:
            message = Synced(tuple(self._synced), tuple(self._synced.values()))
            self._synced.clear()
            self._births.flush()  # a file has to be known by then
            self._meta.tell(Op.SYNCED, message)

    def lose(self) -> None:
        """The session was evicted: the metaserver knows nothing of it any more."""
        self._closed.clear()
        self._synced.clear()
