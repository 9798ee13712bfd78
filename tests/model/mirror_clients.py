"""Clients of the model of mirrors, and the runner of repairs.

A client writes to every replica of the layout that it knows (its view), and reads from any. A write
call belongs to (name, epoch) for life. A piece is complete when every replica of the view has
acknowledged it, and waits for the piece before it of the same block. Pieces are held until they are
durable, or the lease is given back.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tests.model.mirror_metaserver import EVICTED, EXCLUSIVE, SHARED, Held, Layout
from tests.model.mirror_targets import (
    BLOCKS,
    DROPPED,
    FENCED,
    NO_OBJECT,
    NOT_READY,
    OK,
    RESET,
    STALE,
    Answer,
    Connection,
    Name,
)
from tests.model.processes import Future, Process, Steps, all_of

if TYPE_CHECKING:
    from tests.model.mirror_world import MirrorWorld

DEAD_S: Final = 4.0  # a target that is refused or silent for so long is dropped
CLIENT_LEASE_S: Final = 6.0  # from when a renewal was sent
RENEW_S: Final = 1.0
COPY_S: Final = 8.0


class Link:
    """A client's connection to a target. All calls of a connection end when it ends."""

    def __init__(self, client: "Client", target: str) -> None:
        self._client = client
        self._target = client.world.targets[target]
        self._connection: Connection | None = None
        self._connecting: Future | None = None

    def call(self, op: str, name: Name, epoch: int, block: int = 0, value: int = 0) -> Steps:
        world = self._client.world
        if self._connection is None:
            if self._connecting is None:
                self._connecting = self._client.process.spawn(self._connect())
            yield self._connecting
        connection = self._connection
        if connection is None:
            return Answer(RESET)
        request = (connection, op, name, epoch, block, value)
        answer = yield world.ask(
            self._client, self._target, self._target.serve, *request, wait_s=DEAD_S
        )
        if self._connection is not connection:
            return Answer(RESET)
        if not isinstance(answer, Answer) or answer.status == RESET:
            self._connection = None
            return Answer(RESET)
        client = self._client
        client.seen[self._target.name] = max(
            answer.incarnation, client.seen.get(self._target.name, 0)
        )
        return answer

    def _connect(self) -> Steps:
        hello = self._target.hello
        client = self._client
        reply = yield client.world.ask(client, self._target, hello, client.session, wait_s=DEAD_S)
        self._connection = reply if isinstance(reply, Connection) else None
        self._connecting = None


class Piece:
    """acked: the replicas that have it, with their incarnations at that time."""

    def __init__(self, op: str, file: str, block: int, value: int, before: Future | None) -> None:
        self.op, self.file, self.block, self.value = op, file, block, value
        self.before = before
        self.acked: dict[Name, int] = {}
        self.done = Future()


def _forget_lost(pieces: list[Piece], incarnations: dict[str, int]) -> list[Piece]:
    """Forgets acknowledgements of before a power loss. These pieces are sent again, and so is each
    later one of the same block."""
    lost: dict[Name, set[int]] = {}
    again = []
    for piece in pieces:
        for name, incarnation in list(piece.acked.items()):
            blocks = lost.setdefault(name, set())
            if incarnation < incarnations.get(name.target, 0) or piece.block in blocks:
                blocks.add(piece.block)
                del piece.acked[name]
                if piece not in again:
                    again.append(piece)
    return again


class Client:
    def __init__(self, world: "MirrorWorld", name: str) -> None:
        self.world = world
        self.name = name
        self.process = Process(world.loop, name)

    # ---- session --------------------------------------------------------------------------

    def start(self) -> None:
        self.process = Process(self.world.loop, self.name)
        self.session = 0
        self.leased_until_s = 0.0
        self.views: dict[str, Layout] = {}
        self.leases: dict[str, Held] = {}
        self.recalled: dict[str, int] = {}
        self.in_use: dict[str, int] = {}
        self.handles: dict[str, int] = {}  # of files that are open to write
        self.pieces: dict[str, list[Piece]] = {}
        self.unsynced: dict[str, dict[Name, int]] = {}  # by pieces that are not held any more
        self.seen: dict[str, int] = {}  # the newest incarnation of each target
        self.last: dict[tuple[str, int], Piece] = {}  # the newest piece of each block
        self.links = {target: Link(self, target) for target in self.world.targets}
        self.process.spawn(self._live())

    def _live(self) -> Steps:
        self.session = yield from self._until_answered(self.world.meta.open_session)
        self.process.spawn(self._renew())
        yield from self._work()

    def _renew(self) -> Steps:
        world = self.world
        while True:
            sent_s = world.loop.now
            reply = yield world.ask(self, world.meta, world.meta.renew, self.session)
            if reply == OK:
                self.leased_until_s = sent_s + CLIENT_LEASE_S
            elif reply == EVICTED:
                self.lost()
            yield RENEW_S

    def lost(self) -> None:
        """The session is no more: everything that depends on it is forgotten."""
        self.world.loop.after(0.0, self.world.restart_client, self, self.process)

    def _until_answered(self, handler: Any, *given: Any, wait_s: float = 2.0) -> Steps:
        """Asks the metaserver again and again; the handler looks at what is there."""
        world = self.world
        while True:
            reply = yield world.ask(self, world.meta, handler, *given, wait_s=wait_s)
            if reply == EVICTED:
                self.lost()
                yield 1e9
            if reply not in world.no_answers:
                return reply
            yield 0.1 + 0.3 * world.chance.random()

    # ---- leases ---------------------------------------------------------------------------

    def has_lease(self, file: str, *modes: str) -> bool:
        held = self.leases.get(file)
        return (
            held is not None
            and held.mode in modes
            and held.number > self.recalled.get(file, 0)
            and self.world.loop.now < self.leased_until_s
        )

    def _acquire(self, file: str, mode: str) -> Steps:
        """The lease is in use until _release(). False: not to be had now."""
        world = self.world
        modes = (EXCLUSIVE,) if mode == EXCLUSIVE else (EXCLUSIVE, SHARED)
        self.in_use[file] = self.in_use.get(file, 0) + 1
        for _ in range(3):
            if self.has_lease(file, *modes):
                return True
            self.in_use[file] -= 1  # others may have it meanwhile
            reply = yield world.ask(
                self, world.meta, world.meta.acquire, self.session, file, mode, wait_s=6.0
            )
            self.in_use[file] += 1
            if isinstance(reply, tuple):
                held, file_id = reply
                if held.number > self.recalled.get(file, 0):
                    self.leases[file] = held
                if file not in self.views or self.views[file].file_id != file_id:
                    yield from self._look(file)
            else:
                yield 0.2
        self._release(file)
        return False

    def _release(self, file: str) -> None:
        self.in_use[file] -= 1

    def recall(self, file: str, number: int) -> Steps:
        """Gives the lease back when what is under way has ended, and all pieces are complete."""
        is_known = number <= self.recalled.get(file, 0)
        self.recalled[file] = max(number, self.recalled.get(file, 0))
        held = self.leases.get(file)
        if held is not None and held.number <= number:
            if is_known:
                return
            while self.in_use.get(file, 0) > 0 or self._has_incomplete(file):
                yield 0.05
            self.in_use[file] = self.in_use.get(file, 0) + 1
            yield from self._settle(file)
            self._release(file)
            if self.leases.get(file) is held:  # not another one by now
                del self.leases[file]
                for piece in self.pieces.pop(file, ()):
                    self.last.pop((file, piece.block), None)
                    self.unsynced.setdefault(file, {}).update(piece.acked)
                self.world.oracle.let_go(self.session, file)
        yield from self._until_answered(self.world.meta.give_back, self.session, file, number)

    def _has_incomplete(self, file: str) -> bool:
        return any(not piece.done.is_done for piece in self.pieces.get(file, ()))

    def _settle(self, file: str) -> Steps:
        """All pieces are complete, and no replica is known to have lost one since."""
        while True:
            for piece in list(self.pieces.get(file, ())):
                yield piece.done
            if self._has_incomplete(file):
                continue  # an earlier piece that is sent again may not come behind a later one
            again = _forget_lost(self.pieces.get(file, []), self.seen)
            if not again:
                return
            before: dict[int, Future] = {}
            for piece in again:
                piece.done, piece.before = Future(), before.get(piece.block)
                before[piece.block] = piece.done
                self.process.spawn(self._store(piece))

    # ---- views ----------------------------------------------------------------------------

    def _look(self, file: str) -> Steps:
        view = yield from self._until_answered(self.world.meta.look, self.session, file)
        self._see(file, view)

    def _see(self, file: str, view: Layout) -> None:
        """A new view changes where pieces go, never which ones there are. A late answer brings no
        former one back."""
        known = self.views.get(file)
        is_former = known is not None and view[:2] < known[:2]
        if is_former:
            return
        if self.world.breaks("a new view drops pieces") and known != view:
            for piece in self.pieces.get(file, ()):
                piece.done.resolve()
        self.views[file] = view

    def _drop(self, file: str, view: Layout, names: Sequence[Name]) -> Steps:
        answer = yield from self._until_answered(
            self.world.meta.drop, self.session, file, view, tuple(names), wait_s=6.0
        )
        self._see(file, answer)

    # ---- bytes ----------------------------------------------------------------------------

    def _reach(self, op: str, name: Name, epoch: int, block: int = 0, value: int = 0) -> Steps:
        """One call, over as many connections as it takes. RESET: no answer for DEAD_S."""
        began_s = self.world.loop.now
        link = self.links[name.target]
        while True:
            answer = yield from link.call(op, name, epoch, block, value)
            if answer.status not in (RESET, NOT_READY):
                return answer
            if self.world.loop.now - began_s >= DEAD_S:
                return Answer(RESET)
            yield 0.2

    def _store(self, piece: Piece) -> Steps:
        if piece.before is not None:
            yield piece.before
        yield from self._store_now(piece)
        piece.done.resolve()

    def _store_now(self, piece: Piece) -> Steps:
        file = piece.file
        while True:
            view = self.views[file]
            todo = [name for name in view.replicas if name not in piece.acked]
            if not todo or (piece.acked and self.world.breaks("acknowledged with one replica")):
                return
            calls = [
                self._reach(piece.op, name, view.epoch, piece.block, piece.value) for name in todo
            ]
            answers = yield all_of(self.process.spawn(call) for call in calls)
            yield from self._note(piece, view, list(zip(todo, answers, strict=True)))

    def _note(self, piece: Piece, view: Layout, answers: list[tuple[Name, Answer]]) -> Steps:
        for name, answer in answers:
            if answer.status == OK:
                piece.acked[name] = answer.incarnation
        yield from self._mend_view(piece.file, view, answers)

    def _mend_view(self, file: str, view: Layout, answers: list[tuple[Name, Answer]]) -> Steps:
        """Asks for another view when a replica refuses this one, or could not be reached."""
        statuses = {answer.status for _, answer in answers}
        if FENCED in statuses:
            self.lost()
            yield 1e9
        dead = [name for name, answer in answers if answer.status == RESET]
        if dead:
            yield from self._drop(file, view, dead)
        elif statuses & {STALE, DROPPED, NO_OBJECT}:
            yield from self._look(file)
            if self.world.breaks("a refused call gets a newer epoch") and STALE in statuses:
                self.views[file] = view._replace(epoch=self.views[file].epoch)

    def _sync(self, file: str, pieces: list[Piece]) -> Steps:
        """All replicas have these pieces durably; what one lost meanwhile is sent again."""
        while True:
            yield from self._settle(file)
            view = self.views[file]
            calls = [self._reach("sync", name, view.epoch) for name in view.replicas]
            answers = yield all_of(self.process.spawn(call) for call in calls)
            both = list(zip(view.replicas, answers, strict=True))
            yield from self._mend_view(file, view, both)
            if self.views[file] == view and all(
                answer.status == OK
                and all(one.acked.get(name) == answer.incarnation for one in pieces)
                for name, answer in both
            ):
                return

    def _sync_closed(self, file: str, handle: int, acked: dict[Name, int]) -> Steps:
        """After a close, without the lease. A replica that lost the bytes was dropped when it
        returned; if it is still named it was the last one, and they are lost."""
        yield self.world.idle_s()
        for _ in range(30):
            view = self.views[file]
            calls = [self._reach("sync", name, view.epoch) for name in view.replicas]
            answers = yield all_of(self.process.spawn(call) for call in calls)
            is_durable = True
            for name, answer in zip(view.replicas, answers, strict=True):
                if answer.status != OK or acked.get(name, answer.incarnation) != answer.incarnation:
                    is_durable = False
            if is_durable:
                yield from self.world.misfortune()
                yield from self._until_answered(self.world.meta.synced, self.session, file, handle)
                return
            yield 1.0
            yield from self._look(file)
            for name, answer in zip(view.replicas, answers, strict=True):
                if answer.status == OK and name in self.views[file].replicas:
                    acked[name] = answer.incarnation

    # ---- what programs do -----------------------------------------------------------------

    def _work(self) -> Steps:
        world = self.world
        while world.loop.now < world.works_until_s:
            yield world.chance.random() * 0.4
            file = world.chance.choice(world.names)
            act = world.chance.choices(
                (self._write, self._read, self._fsync, self._close, self._truncate),
                (8, 6, 2, 2, 0.3),
            )[0]
            yield from act(file)
        for file in list(self.handles):
            yield from self._close(file)

    def _write(self, file: str) -> Steps:
        world = self.world
        if file not in self.handles:
            handle = world.new_value()
            opened = world.meta.open_to_write
            view = yield from self._until_answered(opened, self.session, file, handle)
            self._see(file, view)
            self.handles[file] = handle
        if not (yield from self._acquire(file, EXCLUSIVE)):
            return
        for _ in range(world.chance.choice((1, 1, 3))):
            self._put(file)
        self._release(file)

    def _put(self, file: str) -> None:
        world = self.world
        block = world.chance.randrange(BLOCKS)
        value = world.new_value()
        op = world.chance.choice(("write", "write", "punch"))
        before = self.last.get((file, block))
        piece = Piece(op, file, block, value, before.done if before else None)
        self.last[file, block] = piece
        self.pieces.setdefault(file, []).append(piece)
        world.oracle.written(self.session, file, block, value)
        self.process.spawn(self._store(piece))

    def _read(self, file: str) -> Steps:
        world = self.world
        mode = world.chance.choice((SHARED, SHARED, EXCLUSIVE))
        if not (yield from self._acquire(file, mode)):
            return
        block = world.chance.randrange(BLOCKS)
        number = self.leases[file].number
        losses = world.oracle.losses(file, block)
        piece = self.last.get((file, block))
        if piece is not None:
            value = piece.value
        else:
            value = yield from self._read_remote(file, block)
        held = self.leases.get(file)
        in_time = world.loop.now < self.leased_until_s
        if value is not None and in_time and held is not None and held.number == number:
            world.oracle.read(file, block, value, losses)
        self._release(file)

    def _read_remote(self, file: str, block: int) -> Steps:
        """None: no replica answers. One that has no such object is believed where the others cannot
        be asked (a hole): had it lost power, it would not answer for this file."""
        world = self.world
        for _ in range(8):
            view = self.views[file]
            order = list(view.replicas)
            world.chance.shuffle(order)
            is_absent = False
            for name in order:
                op = world.chance.choice(("read", "seek"))
                answer = yield from self.links[name.target].call(op, name, view.epoch, block)
                if answer.status == OK:
                    return answer.value
                is_absent = is_absent or answer.status == NO_OBJECT
            if is_absent:
                return 0
            yield 0.2
            yield from self._look(file)
        return None

    def _fsync(self, file: str) -> Steps:
        """It fails if the lease has run out meanwhile, since others may have the file, and if the
        only replica lost what was not held any more."""
        if file not in self.handles or not (yield from self._acquire(file, EXCLUSIVE)):
            return
        pieces = list(self.pieces.get(file, ()))
        yield from self._sync(file, pieces)
        is_lost = any(
            name in self.views[file].replicas and self.seen[name.target] != incarnation
            for name, incarnation in self.unsynced.pop(file, {}).items()
        )
        if self.world.loop.now < self.leased_until_s:
            for piece in pieces:
                self._forget(piece)
            if not is_lost:
                self.world.oracle.fsynced(file)
        self._release(file)

    def _forget(self, piece: Piece) -> None:
        self.pieces[piece.file].remove(piece)
        if self.last.get((piece.file, piece.block)) is piece:
            del self.last[piece.file, piece.block]

    def _close(self, file: str) -> Steps:
        """The metaserver refuses a close while it knows of a replica that lost power after it had
        acknowledged."""
        if file not in self.handles:
            return
        meta = self.world.meta
        held = self.leases.get(file)
        handle = self.handles[file]
        while True:
            yield from self._settle(file)
            pieces = self.pieces.get(file, ())
            acked = {name: incarnation for one in pieces for name, incarnation in one.acked.items()}
            incarnations = {name.target: incarnation for name, incarnation in acked.items()}
            reply = yield from self._until_answered(
                meta.close, self.session, file, handle, incarnations
            )
            if reply == OK:
                break
            self.seen.update(reply)
        del self.handles[file]
        in_time = self.world.loop.now < self.leased_until_s  # else others may have the file
        if in_time and held is not None and self.leases.get(file) == held:
            self.world.oracle.closed(file)
        self.process.spawn(self._sync_closed(file, handle, acked))

    def _truncate(self, file: str) -> Steps:
        world = self.world
        if not (yield from self._acquire(file, EXCLUSIVE)):
            return
        yield from self._settle(file)
        for piece in list(self.pieces.get(file, ())):
            self._forget(piece)
        request = world.new_value()
        truncate = world.meta.truncate
        view = yield from self._until_answered(truncate, self.session, file, request)
        if isinstance(view, Layout):
            self._see(file, view)
        else:
            yield from self._look(file)
        self._release(file)


class Runner(Client):
    """Repairs files that have too few replicas: one job after the other."""

    def start(self) -> None:
        super().start()
        self.claimed: set[str] = set()

    def recall(self, file: str, number: int) -> Steps:
        """A job ends soon, and gives the claim back. One that has ended gave it back in vain."""
        if file not in self.claimed:
            yield from self._until_answered(self.world.meta.give_back, self.session, file, number)

    def _work(self) -> Steps:
        world = self.world
        world.runner_sessions.add(self.session)
        while True:
            yield 0.5 + world.chance.random()
            for file in world.names:
                if len(world.meta.state.files[file].replicas) < world.copies:
                    yield from self._repair(file)

    def _repair(self, file: str) -> Steps:
        self.claimed.add(file)
        yield from self._repair_claimed(file)
        self.claimed.discard(file)

    def _repair_claimed(self, file: str) -> Steps:
        world = self.world
        meta = world.meta
        claim = yield world.ask(self, meta, meta.acquire, self.session, file, SHARED, wait_s=6.0)
        if not isinstance(claim, tuple):
            return
        planned = yield world.ask(self, meta, meta.plan, self.session, file)
        if isinstance(planned, tuple):
            layout, name, incarnations = planned
            if (yield from self._copy(layout, name, incarnations)):
                yield from world.misfortune()
                yield from self._until_answered(meta.add, self.session, file, layout, name)
            yield from self._until_answered(meta.abandon, name)
        yield from self._until_answered(meta.give_back, self.session, file, claim[0].number)

    def _copy(self, layout: Layout, name: Name, incarnations: dict[str, int]) -> Steps:
        """Copies, makes the copy and *all* replicas that stay durable, and raises their epoch. None
        of them may have lost power since the plan: it may be the last one by now, and lack what the
        copy has."""
        world = self.world
        epoch = layout.epoch + 1
        source = world.chance.choice(layout.replicas)
        target = world.targets[name.target]
        copied = yield world.ask(self, target, target.copy, name, epoch, source, wait_s=COPY_S)
        if copied != Answer(OK, incarnations[source.target]):
            return False
        stay = layout.replicas
        if world.breaks("only the source of a copy is synced"):
            stay = (source,)
        if world.breaks("an addition without a sync of the source"):
            stay = ()
        for one in stay:
            at = world.targets[one.target]
            synced = yield world.ask(self, at, at.make_durable, one)
            if synced != Answer(OK, incarnations[one.target]):
                return False
        if world.breaks("an addition without a raised epoch"):
            return True
        yield from world.misfortune()
        raised = [
            world.ask(self, at, at.raise_epoch, one, epoch)
            for one in layout.replicas
            for at in [world.targets[one.target]]
        ]
        return all(reply == OK for reply in (yield all_of(raised)))
