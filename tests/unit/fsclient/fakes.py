"""Fakes of what fsclient.fs stands on: a scripted metaserver and the tables of the lanes."""

import struct
from collections.abc import Callable
from typing import Any, TypeVar, cast

import trio

from fscommon.errors import FsError
from fscommon.layout.attributes import Attributes
from fscommon.wire.codec import encode
from fscommon.wire.ops import Op

T = TypeVar("T")
Answer = Callable[[Any], Any]

DIRECTORY = 0o40755
FILE = 0o100644


def record(ino: int, **fields: int) -> bytes:
    return Attributes(ino, **{"mode": FILE, "nlink": 1, **fields}).pack()


def layout(file_id: int) -> bytes:
    return struct.pack("<BBHIQIIQI", 1, 1, 1, 1 << 20, file_id, 0, 0, 0, 7)


class FakeMetadata:
    """Answers each op with what a test put into `answers`: a message, an FsError, or a function of
    the request. Replies to post() wait until deliver_all()."""

    def __init__(self) -> None:
        self.answers: dict[Op, Any] = {}
        self.asked: list[tuple[Op, Any]] = []
        self.told: list[tuple[Op, Any]] = []
        self.waiting: list[Callable[[], None]] = []
        self.is_ready = True

    async def call(self, op: Op, message: object, reply: type[T]) -> T:
        await trio.lowlevel.checkpoint()
        answer = self._answer(op, message)
        if isinstance(answer, FsError):
            raise answer
        assert isinstance(answer, reply)
        return answer

    def post(self, op: Op, message: object, deliver: Callable[..., None]) -> None:
        def finish() -> None:
            answer = self._answer(op, message)
            if isinstance(answer, FsError):
                deliver(answer, b"")
            else:
                deliver(None, encode(answer))

        self.waiting.append(finish)

    def post_patiently(self, op: Op, message: object, deliver: Callable[..., None]) -> None:
        self.post(op, message, deliver)

    def tell(self, op: Op, message: object) -> None:
        self.told.append((op, message))

    def deliver_all(self) -> None:
        waiting, self.waiting = self.waiting, []
        for finish in waiting:
            finish()

    def requests(self, op: Op) -> list[Any]:
        return [message for asked, message in self.asked if asked is op]

    def _answer(self, op: Op, message: object) -> Any:
        self.asked.append((op, message))
        answer = self.answers[op]
        return cast(Answer, answer)(message) if callable(answer) else answer


class FakeLanes:
    """Remembers what it was told; `written` is what inode_written() and inode_take() give."""

    def __init__(self) -> None:
        self.inodes: dict[int, tuple[bytes, bytes, bytes]] = {}
        self.believed: dict[int, bytes] = {}
        self.complete: dict[int, set[bytes]] = {}
        self.handles: dict[int, tuple[int, int]] = {}
        self.written: dict[int, tuple[int, int, int]] = {}
        self.resized: list[int] = []
        self.drained: list[tuple[int, int, bool]] = []
        self.committed: list[tuple[int, int, bytes]] = []
        self.sessions: list[int] = []
        self.done: Callable[..., None] | None = None
        self.punched: list[tuple[int, int, int]] = []
        self.found = -1
        self.invalidated: list[int] = []
        self.locked_inodes: set[int] = set()
        self.drain_status = 0

    def inode_put(self, attributes: bytes, layout: bytes, capability: bytes) -> None:
        ino = int.from_bytes(attributes[:8], "little")
        self.inodes[ino] = (attributes, layout, capability)

    def attributes_put(self, attributes: bytes, valid_ms: int) -> None:
        self.believed[int.from_bytes(attributes[:8], "little")] = attributes

    def complete_put(self, ino: int, valid_ms: int) -> None:
        self.complete[ino] = set()

    def complete_extend(self, ino: int, valid_ms: int) -> None:
        assert ino in self.complete

    def complete_add(self, ino: int, name: bytes) -> None:
        self.complete[ino].add(name)

    def complete_drop(self, ino: int) -> None:
        del self.complete[ino]

    def complete_clear(self) -> None:
        self.complete.clear()

    def inode_drop(self, ino: int) -> None:
        self.inodes.pop(ino, None)

    def inode_written(self, ino: int) -> tuple[int, int, int] | None:
        return self.written.get(ino)

    def inode_take(self, ino: int) -> tuple[int, int, int] | None:
        return self.written.pop(ino, None)

    def inode_resize(self, attributes: bytes, layout: bytes, capability: bytes) -> None:
        self.resized.append(int.from_bytes(attributes[:8], "little"))

    def handle_put(self, fh: int, ino: int, open_flags: int) -> None:
        self.handles[fh] = (ino, open_flags)

    def drain(self, token: int, ino: int, sync: bool) -> None:
        self.drained.append((token, ino, sync))
        if self.done is not None:
            done = self.done
            trio.lowlevel.current_trio_token().run_sync_soon(done, token, self.drain_status)

    def punch(self, token: int, ino: int, begin: int, end: int) -> None:
        self.punched.append((ino, begin, end))
        self._finish(token, 0)

    def seek(self, token: int, ino: int, start: int, hole: bool) -> None:
        self._finish(token, self.found)

    def _finish(self, token: int, result: int) -> None:
        assert self.done is not None
        trio.lowlevel.current_trio_token().run_sync_soon(self.done, token, 0, result)

    def barrier(self, token: int) -> None:
        self._finish(token, 0)

    def invalidate_inode(self, ino: int, offset: int, length: int) -> None:
        self.invalidated.append(ino)

    def counters(self) -> dict[str, int]:
        return {"fuse_notifications": len(self.invalidated), "fuse_notifications_failed": 0}

    def locked(self, ino: int, has_locks: bool) -> None:
        (self.locked_inodes.add if has_locks else self.locked_inodes.discard)(ino)

    def commit_done(self, token: int, status: int, attributes: bytes) -> None:
        self.committed.append((token, status, attributes))

    def session_put(self, session: int) -> None:
        self.sessions.append(session)
