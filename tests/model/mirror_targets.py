"""Storage targets of the model of mirrors: objects with a page cache, workers that may be stuck,
connections, a lease, and what the metaserver told (fenced sessions, dropped names).

A name is (file id, target, generation). A target answers clients only between its registration and
the end of its lease, never a fenced session, and never for a dropped name. The checks of session
and name are made when a request arrives, that of the epoch when it is executed: a request may stay
with its worker for long in between.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.model.processes import Future, Process, Steps

if TYPE_CHECKING:
    from tests.model.mirror_world import MirrorWorld

BLOCKS: Final = 2
TARGET_LEASE_S: Final = 10.0
BEAT_S: Final = 1.0

OK: Final = "ok"
RESET: Final = "reset"  # the connection ended; whether the request was executed is unknown
NOT_READY: Final = "not ready"
FENCED: Final = "fenced"
DROPPED: Final = "dropped"
STALE: Final = "stale epoch"
NO_OBJECT: Final = "no object"


class Name(NamedTuple):
    file_id: int
    target: str
    generation: int


class Answer(NamedTuple):
    status: str
    incarnation: int = 0
    value: Any = None


@dataclass(slots=True)
class Object:
    epoch: int = 0
    durable_epoch: int = 0
    blocks: dict[int, int] = field(default_factory=dict)
    durable: dict[int, int] = field(default_factory=dict)
    is_durable: bool = False  # it was synced once, so it exists after a power loss

    def sync(self) -> None:
        self.durable = dict(self.blocks)
        self.durable_epoch = self.epoch
        self.is_durable = True


class Connection:
    """`idle`: it is closed, and none of its requests is with a worker."""

    def __init__(self, session: int, process: Process) -> None:
        self.session = session
        self.process = process
        self.is_closed = False
        self.in_flight = 0
        self.idle = Future()

    def close(self) -> None:
        self.is_closed = True
        if self.in_flight == 0:
            self.idle.resolve()

    def ended_one(self) -> None:
        self.in_flight -= 1
        if self.is_closed and self.in_flight == 0:
            self.idle.resolve()


class Target:
    def __init__(self, world: "MirrorWorld", name: str) -> None:
        self.world = world
        self.name = name
        self.incarnation = 1
        self.objects: dict[Name, Object] = {}
        self.process = Process(world.loop, name)
        self.process.kill()

    # ---- life -----------------------------------------------------------------------------

    def start(self) -> None:
        self.process = Process(self.world.loop, self.name)
        self.is_registered = False
        self.leased_until_s = 0.0
        self.fenced: set[int] = set()
        self.dropped: set[Name] = set()
        self.deleted: set[Name] = set()
        self.connections: dict[int, Connection] = {}
        self.unended: list[Connection] = []
        self.process.spawn(self._beat())

    def kill(self) -> None:
        """The page cache stays."""
        self.process.kill()

    def lose_power(self) -> None:
        """Of what was not synced, some was written back."""
        self.kill()
        self.incarnation += 1
        chance = self.world.chance
        for name, one in list(self.objects.items()):
            for block, value in one.blocks.items():
                if chance.random() < 0.2:
                    one.durable[block] = value
                    one.is_durable = True
            if not one.is_durable:
                del self.objects[name]
                continue
            one.blocks = dict(one.durable)
            one.epoch = one.durable_epoch

    def _beat(self) -> Steps:
        """Registers, and keeps the lease. It counts from when a beat was sent."""
        world = self.world
        process = self.process
        while True:
            sent_s = world.loop.now
            asked = world.meta.beat if self.is_registered else world.meta.register
            reply = yield world.ask(self, world.meta, asked, self.name, process, self.incarnation)
            if isinstance(reply, tuple):
                fenced, dropped = reply
                self.fenced |= fenced
                self.dropped |= dropped
                self.is_registered = True
            elif reply != OK:
                self.is_registered = self.is_registered and reply != NOT_READY
                yield world.chance.random()
                continue
            self.leased_until_s = sent_s + TARGET_LEASE_S
            yield BEAT_S

    # ---- the metaserver's words -----------------------------------------------------------

    def fence(self, session: int) -> Steps:
        """Answered when no worker has a request of the session any more."""
        self.fenced.add(session)
        current = self.connections.pop(session, None)
        if current is not None:
            current.close()
        for connection in [one for one in self.unended if one.session == session]:
            yield connection.idle
        return OK

    def drop(self, name: Name) -> Steps:
        """No request of a client for this name is admitted any more. Answered at once: a request
        that is with a worker hits a name that nobody reads."""
        self.dropped.add(name)
        yield 0.0
        return OK

    def raise_epoch(self, name: Name, epoch: int) -> Steps:
        yield self.world.work_s()
        one = self.objects.setdefault(name, Object())
        one.epoch = max(one.epoch, epoch)
        one.durable_epoch = max(one.durable_epoch, epoch)
        one.is_durable = True
        return OK

    def delete(self, name: Name) -> Steps:
        yield self.world.work_s()
        self.deleted.add(name)
        self.objects.pop(name, None)
        if self.world.breaks("a deletion does not say which generation"):
            for other in [one for one in self.objects if one.file_id == name.file_id]:
                del self.objects[other]
        return OK

    def make_durable(self, name: Name) -> Steps:
        yield self.world.work_s()
        one = self.objects.get(name)
        if one is not None:
            one.sync()
        return Answer(OK, self.incarnation)

    def read_whole(self, name: Name) -> Steps:
        yield self.world.work_s()
        one = self.objects.get(name)
        return Answer(OK, self.incarnation, dict(one.blocks) if one else {})

    def copy(self, name: Name, epoch: int, source: Name) -> Steps:
        """Makes the object from another target's, durably. The answer has the incarnation in which
        the other target was read."""
        world = self.world
        other = world.targets[source.target]
        reply = yield world.ask(self, other, other.read_whole, source)
        if not isinstance(reply, Answer):
            return Answer(RESET)
        for block, value in reply.value.items():
            yield world.work_s()
            if name in self.deleted:
                return Answer(NO_OBJECT)
            self.objects.setdefault(name, Object()).blocks[block] = value
        yield world.work_s()
        if name in self.deleted:
            return Answer(NO_OBJECT)
        one = self.objects.setdefault(name, Object())
        one.epoch = epoch
        if not world.breaks("an addition without a sync of the copy"):
            one.sync()
        return Answer(OK, reply.incarnation)

    # ---- clients --------------------------------------------------------------------------

    def hello(self, session: int) -> Steps:
        """A new connection, once all requests of the session's former ones have ended."""
        connection = Connection(session, self.process)
        former = self.connections.get(session)
        self.connections[session] = connection
        self.unended.append(connection)
        if former is not None:
            former.close()
        if not self.world.breaks("a connection does not wait for the one before"):
            for other in [one for one in self.unended if one.session == session]:
                if other is not connection:
                    yield other.idle
        self.unended = [one for one in self.unended if not one.idle.is_done]
        yield 0.0
        return connection

    def admits(self, connection: Connection, op: str, name: Name) -> str:
        if connection.is_closed or connection.process is not self.process:
            return RESET
        if not self.is_registered or self.world.loop.now > self.leased_until_s:
            return NOT_READY
        if connection.session in self.fenced:
            return FENCED
        if name in self.dropped and not self._is_unchecked(op):
            return DROPPED
        return OK

    def _is_unchecked(self, op: str) -> bool:
        return op in ("punch", "seek") and self.world.breaks(f"an unchecked {op}")

    def serve(
        self, connection: Connection, op: str, name: Name, epoch: int, block: int, value: int
    ) -> Steps:
        status = self.admits(connection, op, name)
        if status != OK:
            yield 0.0
            return Answer(status, self.incarnation)
        self.world.oracle.admitted(op, name)
        connection.in_flight += 1
        yield self.world.work_s()
        answer = self._execute(op, name, epoch, block, value)
        connection.ended_one()
        return answer

    def _execute(self, op: str, name: Name, epoch: int, block: int, value: int) -> Answer:
        status, found = self._done(op, name, epoch, block, value)
        return Answer(status, self.incarnation, found)

    def _done(
        self, op: str, name: Name, epoch: int, block: int, value: int
    ) -> tuple[str, int | None]:
        one = self.objects.get(name)
        if op in ("read", "seek"):
            return (OK, one.blocks.get(block, 0)) if one is not None else (NO_OBJECT, None)
        is_checked = not self._is_unchecked(op) and not (
            op == "sync" and self.world.breaks("a SYNC of a former epoch")
        )
        if one is not None and epoch < one.epoch and is_checked:
            return STALE, None
        if op == "sync":
            if one is not None:
                one.sync()
            return OK, None
        if name in self.deleted:
            return NO_OBJECT, None
        one = self.objects.setdefault(name, Object(epoch=epoch))
        one.epoch = max(one.epoch, epoch)
        one.blocks[block] = value
        return OK, None
