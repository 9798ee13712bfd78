"""Storage servers that answer the metaserver with nonsense, and the metaserver's work with them.

`run_world(N)` starts a metaserver on a store with all kinds of work, over a network in memory. For
LIES_S its storage servers, some or all of them, answer with whatever the seed says; then they start
anew and are honest. Meanwhile nothing may end the metaserver's tasks, hold up its event loop, fill
its memory or its log, or be taken for a bug of its own; afterwards all work is done.
"""

import random
import struct
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, Final

import trio
import trio.lowlevel

from fscommon.net.memory import MemoryTransport
from fscommon.net.serve import Peer, serve
from fscommon.net.stream import FrameStream
from fscommon.types import SessionId
from fscommon.wire.codec import encode
from fscommon.wire.frame import Frame, encode_frame
from fscommon.wire.header import FLAG_REPLY
from fscommon.wire.jobs import JobList, Jobs
from fscommon.wire.messages import Failure, MkDir
from fscommon.wire.objects import ObjectCopied, ObjectMended, ObjectSummed
from fscommon.wire.ops import Op
from fscommon.wire.scrub import ScrubList, ScrubListed
from metaserver.namespace.inode import Inode
from metaserver.records import number_of
from metaserver.scrubs import KEPT_MAX
from metaserver.storage import StorageCalls
from metaserver.store.memory import MemoryStore
from metaserver.truncation import Truncation
from tests.seeded_trio import run_seeded

from .bench import ROOT, USER, Client
from .damage_world import SETTINGS, begin_tasks, cpu_deadline, said, text_of
from .mirrors import LiveBench, beats
from .whole_store import whole_store

KEY: Final = b"k" * 32
CPU_S: Final = 60.0
LIES_S: Final = 60.0
HONEST_S: Final = 200.0
LINES_MAX: Final = 1500  # of the log, in all that time
TASKS_MAX: Final = 400
_DONE: Final = b"CFHLTUZ"  # records of work that ends when storage servers do what they are asked
_FLOOD: Final = 2000  # frames
_U64: Final = (1 << 64) - 1
_WHOLE: Final = ObjectSummed(1 << 20, 1, b"digest" + bytes(10), 0, (), (), 1 << 20, 0, 1)


# ---- storage servers -----------------------------------------------------------------------------


@dataclass
class StorageServer:
    """lies: by which draws it lies; None: it is honest."""

    number: int
    lies: random.Random | None
    asked: Counter[int] = field(default_factory=Counter)
    open: set[trio.CancelScope] = field(default_factory=set)

    async def run(self, transport: MemoryTransport) -> None:
        address = f"127.0.0.1:{self.number}"
        await serve(address, key=KEY, on_connection=self._serve, transport=transport)

    def starts_anew(self) -> None:
        """Its process is another one, and honest."""
        self.lies = None
        for scope in self.open:
            scope.cancel()

    async def _serve(self, peer: Peer, stream: FrameStream) -> None:
        with trio.CancelScope() as scope:
            self.open.add(scope)
            if self.lies is not None and self.lies.random() < 0.05:
                await trio.sleep_forever()  # it answers nothing at all
            while batch := await stream.receive_batch():
                for frame in batch:
                    await trio.sleep(0.001)
                    self.asked[frame.header.op] += 1
                    if not await self._answer(stream, frame):
                        return
        self.open.discard(scope)

    async def _answer(self, stream: FrameStream, frame: Frame) -> bool:
        """Returns False if it ends the connection."""
        draw = self.lies
        if draw is None:
            await stream.send(_reply(frame, _honest(frame)))
            return True
        way = draw.choice(_WAYS)
        for octets in way(draw, frame):
            if octets is None:
                return False
            await stream.send(octets)
        return True


def _honest(frame: Frame) -> bytes:
    op = frame.header.op
    if op == Op.DELETE_ALL:
        return bytes(2 * frame.header.length)
    return encode(_MESSAGES[op]) if op in _MESSAGES else b""


_MESSAGES: Final[dict[int, Any]] = {
    Op.OBJECT_COPY: ObjectCopied(1, 1, 1 << 20),
    Op.OBJECT_SUM: _WHOLE,
    Op.OBJECT_MEND: ObjectMended(0, (), ()),
}


def _reply(frame: Frame, body: bytes, **fields: int) -> bytes:
    given: dict[str, Any] = {
        "request_id": frame.header.request_id,
        "flags": FLAG_REPLY,
        "offset": 1,  # the incarnation
        **fields,
    }
    op = given.pop("op", frame.header.op)
    return encode_frame(op, body=body, **given)


# ---- lies: each gives the frames to be sent; None ends the connection ---------------------------

Octets = list[bytes | None]


def _truth(draw: random.Random, frame: Frame) -> Octets:
    return [_reply(frame, _honest(frame))]


def _random_body(draw: random.Random, frame: Frame) -> Octets:
    return [_reply(frame, draw.randbytes(draw.choice((1, 7, 100, 60_000))))]


def _cut_body(draw: random.Random, frame: Frame) -> Octets:
    body = _honest(frame)
    return [_reply(frame, body[: draw.randrange(len(body) + 1)])]


def _random_status(draw: random.Random, frame: Frame) -> Octets:
    status = draw.choice((1, 2, 5, 28, *range(1000, 1020), 4000, 65535))
    message = draw.choice(("", "no", "x" * 60_000, "\0\n\x1b[31m"))
    body = draw.choice((b"", encode(Failure(message)), draw.randbytes(9)))
    return [_reply(frame, body, status=status)]


def _random_numbers(draw: random.Random, frame: Frame) -> Octets:
    """A message of the right kind whose numbers make no sense."""

    def number() -> int:
        return draw.choice(
            (0, 1, 4096, 1 << 40, (1 << 63) - 1, (1 << 64) - 1, draw.getrandbits(64))
        )

    many = draw.choice((0, 1, 3, 1024, 20_000))
    offsets = tuple([number() for _ in range(many)])
    lengths = offsets[: draw.choice((0, many, many, many // 2))]
    digest = draw.choice((b"", b"x" * 16, b"y" * 64))
    count = number()
    messages: dict[int, Any] = {
        Op.OBJECT_COPY: ObjectCopied(draw.choice((1, number())), draw.choice((1, number())), count),
        Op.OBJECT_SUM: ObjectSummed(
            number(), 1, digest, count, offsets, lengths, number(), number(), number()
        ),
        Op.OBJECT_MEND: ObjectMended(count, offsets, lengths),
    }
    found = messages.get(frame.header.op)
    body = encode(found) if found is not None else _honest(frame)
    return [_reply(frame, body, offset=number(), length=number() & 0xFFFFFFFF)]


def _damaged(draw: random.Random, frame: Frame) -> Octets:
    """What may well be, but is not."""
    count = draw.randrange(1, 4)
    ranges = tuple(range(0, 8192 * count, 8192)), (4096,) * count
    messages: dict[int, Any] = {
        Op.OBJECT_SUM: replace(
            _WHOLE,
            digest=draw.choice((b"", b"other" * 3)),
            blocks_damaged=count,
            offsets=ranges[0],
            lengths=ranges[1],
        ),
        Op.OBJECT_MEND: ObjectMended(draw.choice((0, count)), *draw.choice((ranges, ((), ())))),
    }
    found = messages.get(frame.header.op)
    return [_reply(frame, encode(found) if found is not None else _honest(frame))]


def _another_message(draw: random.Random, frame: Frame) -> Octets:
    return [_reply(frame, encode(draw.choice(list(_MESSAGES.values()))))]


def _another_op(draw: random.Random, frame: Frame) -> Octets:
    return [_reply(frame, b"", op=draw.choice((0, 1, 3, 18, 22, 64, 202, 255)))]


def _another_id(draw: random.Random, frame: Frame) -> Octets:
    wrong = draw.choice((0, 1, frame.header.request_id + 1, (1 << 64) - 1))
    return [_reply(frame, _honest(frame), request_id=wrong)]


def _twice(draw: random.Random, frame: Frame) -> Octets:
    return [_reply(frame, _honest(frame))] * 2


def _a_request(draw: random.Random, frame: Frame) -> Octets:
    return [_reply(frame, b"", flags=0)]


def _no_frame(draw: random.Random, frame: Frame) -> Octets:
    return [draw.randbytes(draw.choice((1, 79, 80, 5000)))]


def _half_a_frame(draw: random.Random, frame: Frame) -> Octets:
    whole = _reply(frame, _honest(frame) or b"x")
    return [whole[: draw.randrange(1, len(whole))], draw.choice((None, b""))]


def _wrong_length(draw: random.Random, frame: Frame) -> Octets:
    """The header names a body, or a payload, that is too long; its sum is right."""
    whole = bytearray(_reply(frame, b""))
    at = draw.choice((44, 48))
    struct.pack_into("<I", whole, at, draw.choice((1 << 20, 1 << 30, (1 << 32) - 1)))
    return [bytes(whole)]


def _flood(draw: random.Random, frame: Frame) -> Octets:
    """Answers to an earlier request, which nobody waits for any more."""
    earlier = _reply(frame, b"x" * 1000, request_id=max(1, frame.header.request_id - 1))
    return [earlier * 50] * (_FLOOD // 50)


def _silence(draw: random.Random, frame: Frame) -> Octets:
    return []


def _end(draw: random.Random, frame: Frame) -> Octets:
    return [None]


_WAYS: Final = (
    *((_truth,) * 8),
    _random_body,
    _cut_body,
    _random_status,
    _random_status,
    *((_random_numbers,) * 4),
    *((_damaged,) * 4),
    _another_message,
    _another_op,
    _another_id,
    _twice,
    _a_request,
    _no_frame,
    _half_a_frame,
    _wrong_length,
    _flood,
    _silence,
    _end,
)


# ---- the world -----------------------------------------------------------------------------------


@dataclass
class Seen:
    """What was seen of the metaserver."""

    tasks: int = 0
    findings: int = 0
    lines: int = 0
    asked: Counter[int] = field(default_factory=Counter)
    left: dict[bytes, int] = field(default_factory=dict)


async def _work(bench: LiveBench, servers: list[StorageServer], seen: Seen) -> None:
    transport = MemoryTransport()
    membership = bench.engine.services.membership
    async with trio.open_nursery() as tasks:
        for server in servers:
            tasks.start_soon(server.run, transport)
        storage = StorageCalls(membership, key=KEY, tasks=tasks, transport=transport)
        truncation = begin_tasks(bench, storage, tasks)
        tasks.start_soon(beats, bench, frozenset())
        await _look_on(bench, truncation, seen, LIES_S)
        for server in servers:
            server.starts_anew()
        await _look_on(bench, truncation, seen, HONEST_S)
        tasks.cancel_scope.cancel()


async def _look_on(bench: LiveBench, truncation: Truncation, seen: Seen, seconds: float) -> None:
    """Administrators and clients are answered all the time."""
    admin = Client(bench, bench.connect("admin"), SessionId(0))
    for second in range(int(seconds)):
        truncation.start_fresh()
        seen.tasks = max(seen.tasks, trio.lowlevel.current_statistics().tasks_living)
        seen.findings = max(seen.findings, len(bench.engine.services.scrubs.findings))
        if second % 10 == 0:
            jobs: Jobs = admin.call(Op.JOB_LIST, JobList())
            listed: ScrubListed = admin.call(Op.SCRUB_LIST, ScrubList())
            assert jobs.rows and listed.end
        if second % 20 == 10:
            client = bench.writer()
            client.call(Op.MKDIR, MkDir(ROOT, b"%f" % trio.current_time(), 0o755, USER))
        await trio.sleep(1.0)


def run_world(seed: int) -> Seen:
    """Raises AssertionError, or whatever the metaserver has raised."""
    draw = random.Random(seed)
    liars = {1, 2, 3, 4} if seed % 2 else {draw.randrange(1, 5)}
    servers = [
        StorageServer(number, random.Random(f"{seed} {number}") if number in liars else None)
        for number in range(1, 5)
    ]
    store = MemoryStore()
    store.commit(whole_store())
    bench = LiveBench(store, nodes=4, settings=SETTINGS)
    bench.engine.gate.is_auditing = False
    seen = Seen()
    try:
        with cpu_deadline(CPU_S), said() as lines:
            run_seeded(seed, _work, bench, servers, seen)
            bench.settle()
        _check(bench, seen)
        seen.lines = len(lines)
        seen.asked = sum((server.asked for server in servers), Counter())
        for line in lines:
            assert not line.exc_info, f"{text_of(line)}: {line.exc_info}"
        assert seen.lines < LINES_MAX and seen.tasks < TASKS_MAX and seen.findings <= KEPT_MAX, seen
    except BaseException as error:
        error.add_note(
            f"seed {seed}, again: PYTHONPATH=. .venv/bin/python -c 'from tests.unit.metaserver."
            f"lying_servers import run_world; run_world({seed})'"
        )
        raise
    return seen


def _check(bench: LiveBench, seen: Seen) -> None:
    """No file is lost, whatever storage servers say, and the work is done."""
    found = list(bench.store.snapshot().range(b"", b"\xff"))
    names = {int.from_bytes(value[:8], "little") for key, value in found if key[:1] == b"D"}
    inodes = {number_of(key): Inode.parse(value) for key, value in found if key[:1] == b"I"}
    assert names - inodes.keys() == set()
    before = {key for key, _ in whole_store() if key[:1] == b"D"}
    assert before <= {key for key, _ in found}, "all names are there"
    for letter in _DONE:
        count = sum(key[0] == letter for key, _ in found)
        if count:
            seen.left[bytes([letter])] = count
    assert not seen.left, f"what is not done: {seen.left}"
