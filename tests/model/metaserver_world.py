"""A simulated world: real client session cores, a real engine, and a store that survives kills.

Only the network, the clock and the disk are simulated. One seed decides everything. The oracle
knows of each name whether it must exist: the result of an answered operation counts from its answer
until the next operation on that name is sent; overlapping operations make a name uncertain. Clients
are killed, too, alone or together with the metaserver; another process continues their session
(docs/decisions/0034-survival.md). Operations of such a client that were answered and are not
durable are then uncertain, and so are its unanswered ones.
"""

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fsclient.meta.core import Phase, SessionCore
from fsclient.meta.hooks import Hooks
from fsclient.meta.pending import NEVER
from fscommon.errors import FsError
from fscommon.layout.attributes import unpack_attributes
from fscommon.wire.codec import decode, encode
from fscommon.wire.frame import Frame
from fscommon.wire.header import FLAG_REPLAY
from fscommon.wire.messages import (
    BODIES,
    SET_MODE,
    SET_SIZE,
    Close,
    Create,
    Entry,
    Link,
    Lookup,
    MkDir,
    Opened,
    Rename,
    Replay,
    RmDir,
    SetAttr,
    SetXattr,
    Symlink,
    Unlink,
)
from fscommon.wire.ops import Op
from fscommon.wire.trash import TrashSet
from metaserver.connection import Connection
from metaserver.namespace.entries import find_dentry
from metaserver.namespace.inode import find
from metaserver.sessions import SYSTEM_SESSION
from metaserver.store.memory import MemoryStore
from metaserver.transaction import Transaction
from tests.unit.metaserver.bench import ROOT, USER, Bench, Client, parse

NAMES = [b"%d" % i for i in range(12)]
Place = tuple[int, bytes]


@dataclass
class Oracle:
    """What must be the case. None: absent; a number: that inode; not in `known`: uncertain."""

    known: dict[Any, int | None] = field(default_factory=dict)
    version: Counter[Any] = field(default_factory=Counter)
    pending: Counter[Any] = field(default_factory=Counter)

    def sent(self, keys: list[Any]) -> dict[Any, int]:
        """An operation on these keys is sent; returns what `answered` needs."""
        alone = {key: not self.pending[key] for key in keys}
        for key in keys:
            self.known.pop(key, None)
            self.version[key] += 1
            self.pending[key] += 1
        return {key: self.version[key] if alone[key] else -1 for key in keys}

    def answered(self, ticket: dict[Any, int], outcome: dict[Any, int | None]) -> None:
        for key, version in ticket.items():
            self.pending[key] -= 1
            alone = self.version[key] == version and not self.pending[key]
            if alone and key in outcome:
                self.known[key] = outcome[key]

    def orphaned(self, ticket: dict[Any, int]) -> None:
        """The client is dead: the operation may have been executed, or will never be."""
        for key in ticket:
            self.pending[key] -= 1
        self.doubt(ticket)

    def doubt(self, keys: Iterable[Any]) -> None:
        for key in keys:
            self.known.pop(key, None)
            self.version[key] += 1


class SimulatedClient:
    def __init__(self, world: "World", index: int) -> None:
        self.world = world
        self.opens: set[int] = set()
        self.doubtful: set[int] = set()  # these were created by a process that was killed
        self.home = ROOT
        self.evictions = 0
        self.name = f"client{index}"
        self.core = self._new_core()
        self.connection: Connection | None = None
        self.inbound = b""
        self.tickets: list[dict[Any, int]] = []  # they belong to operations that are not answered
        # They map request ids to the keys of the operations.
        self.answered: dict[int, list[Any]] = {}
        # They map session and id to what was sent.
        self.bodies: dict[tuple[int, int], tuple[int, bytes]] = {}

    def _new_core(self) -> SessionCore:
        hooks = Hooks(
            opens=lambda: tuple(self.opens),
            ready=lambda: None,
            evicted=self._evicted,
            orphaned=self._orphaned,
            log=self.world.log.append,
        )
        return SessionCore(self.name, hooks)

    def _evicted(self, session: int) -> None:
        self.evictions += 1

    def _orphaned(self, op: Op, body: bytes) -> None:
        """A replayed CREATE opened the file again: closes it unless it is open here."""
        if op is Op.CREATE:
            ino = unpack_attributes(decode(Opened, body).attributes).ino
            if ino not in self.opens:
                self.core.submit(Op.CLOSE, encode(Close((ino,))), None, NEVER, oneway=True)

    def connect(self) -> None:
        self.disconnect()
        self.connection = Connection("meta", lambda: None, lambda: None)
        self.inbound = b""
        self.core.connected()

    def disconnect(self) -> None:
        if self.connection is not None:
            self.world.bench.engine.closed(self.connection)
            self.connection = None
            self.core.lost()

    def die(self) -> None:
        """SIGKILL: another process has the session and the open files, and nothing else."""
        self.disconnect()
        oracle = self.world.oracle
        for ticket in self.tickets:
            oracle.orphaned(ticket)
        self.tickets.clear()
        for mutation in self.core.journal.in_order():
            oracle.doubt(self.answered.get(mutation.request_id, ()))
            if mutation.op is Op.CREATE:
                made = unpack_attributes(decode(Opened, mutation.reply).attributes)
                self.doubtful.add(made.ino)
        self.answered.clear()
        session = self.core.session
        self.core = self._new_core()
        self.core.resume(session, 0, 1, 0)

    def send(self) -> None:
        """The core's output reaches the engine."""
        if self.connection is None:
            return
        now = self.world.now()
        self.core.tick(now)
        for frame in parse(self.core.take_output(now)):
            self._check_id(frame)
            self.world.bench.engine.handle(self.connection, frame, self.world.bench.time())

    def _check_id(self, frame: Frame) -> None:
        """An id of a session belongs to one request, whichever process was killed."""
        header = frame.header
        if not header.request_id:
            return
        body = decode(Replay, frame.body).request if header.flags & FLAG_REPLAY else frame.body
        sent = self.bodies.setdefault((self.core.session, header.request_id), (header.op, body))
        assert sent == (header.op, body), f"id {header.request_id} was that of another request"

    def receive(self, count: int) -> None:
        """The first replies that the engine gave so far reach the core."""
        if self.connection is None:
            return
        taken = self.connection.outbox[:count]
        del self.connection.outbox[:count]
        for frame in parse(b"".join(taken)):
            self.core.received(frame, self.world.now())

    @property
    def is_idle(self) -> bool:
        return self.core.phase is Phase.READY and self.core.waiting_count == 0


class World:
    def __init__(self, seed: int, clients: int = 3, *, has_trash: bool = False) -> None:
        self.random = random.Random(seed)
        self.store = MemoryStore()
        self.bench = Bench(self.store)
        self.log: list[str] = []
        self.oracle = Oracle()
        self.directories = [ROOT]
        self.crashes = 0
        self.deaths = 0  # it counts deaths of clients
        self.answers: Counter[str] = Counter()
        self.replayed: Counter[str] = Counter()
        self.unique = 0
        self.clients = [SimulatedClient(self, index) for index in range(clients)]
        self.quiesce()
        for client in self.clients:
            self._make_home(client)
        self.quiesce()
        self.bench.settle()
        if has_trash:
            admin = Client(self.bench, self.bench.connect("admin"))
            admin.call(Op.TRASH_SET, TrashSet(ROOT, True, 3600))
        self.quiesce()

    def _make_home(self, client: SimulatedClient) -> None:
        def made(error: FsError | None, body: bytes) -> None:
            assert error is None
            client.home = unpack_attributes(decode(Entry, body).attributes).ino

        name = b"home%d" % self.clients.index(client)
        client.core.submit(Op.MKDIR, encode(MkDir(ROOT, name, 0o755, USER)), made, NEVER)

    def now(self) -> float:
        self.bench.now_s += 0.001
        return self.bench.now_s

    # ---- what can happen ------------------------------------------------------------------

    def step(self) -> None:
        client = self.random.choice(self.clients)
        action = self.random.random()
        if action < 0.50:
            self.submit(client)
            client.send()
        elif action < 0.88:
            client.receive(self.random.randint(1, 4))
        elif action < 0.91:
            self.bench.commit()
        elif action < 0.945:
            client.connect()
        elif action < 0.955:
            self.kill(client)
        else:
            self.crash()

    def kill(self, client: SimulatedClient) -> None:
        """Kills a client, half of the time with others, and the metaserver."""
        self.deaths += 1
        client.die()
        if self.random.random() < 0.5:
            for other in self.random.sample(self.clients, self.random.randint(0, 2)):
                other.die()
            if self.random.random() < 0.5:
                self.store.commit(self.bench.engine.freeze())
            self.restart()
            self.quiesce()
            self.verify()
        client.connect()

    def crash(self) -> None:
        """kill -9 of the metaserver, half of the time between a commit and its replies."""
        if self.random.random() < 0.5:
            self.store.commit(self.bench.engine.freeze())
        self.restart()
        if self.random.random() < 0.3:  # it is killed again, in the middle of the recovery
            for client in self.clients:
                client.connect()
            for _ in range(self.random.randint(0, 12)):
                client = self.random.choice(self.clients)
                client.send()
                client.receive(2)
                if self.random.random() < 0.2:
                    self.bench.commit()
            self.restart()
        self.quiesce()
        self.verify()

    def restart(self) -> None:
        self.crashes += 1
        self.replayed.update(self.bench.engine.replays)
        for client in self.clients:
            client.disconnect()
        now_ns, now_s = self.bench.now_ns, self.bench.now_s
        self.bench = Bench(self.store, targets=0)
        self.bench.now_ns, self.bench.now_s = max(now_ns, self.bench.now_ns), now_s

    def quiesce(self) -> None:
        """Delivers all messages until no client waits."""
        for _ in range(1000):
            for client in self.clients:
                if client.connection is None:
                    client.connect()
                client.send()
                client.receive(1 << 20)
            self.bench.finish_truncates()
            self.bench.now_s += 0.2
            if all(client.is_idle for client in self.clients):
                return
        states = [(c.core.phase, c.core.waiting_count) for c in self.clients]
        raise AssertionError(f"the world never came to rest: {states}")

    # ---- operations -----------------------------------------------------------------------

    def place(self, client: SimulatedClient) -> Place:
        """A directory, mostly the client's own: every reply would wait for a commit if directories
        were shared more."""
        if self.random.random() < 0.85:
            return client.home, self.random.choice(NAMES)
        return self.random.choice(self.directories), self.random.choice(NAMES)

    def known_ino(self, client: SimulatedClient) -> int | None:
        own = self.random.random() < 0.85
        inos = [
            ino
            for key, ino in self.oracle.known.items()
            if ino is not None and isinstance(key[0], int) and (not own or key[0] == client.home)
        ]
        return self.random.choice(inos) if inos else None

    def submit(self, client: SimulatedClient) -> None:
        kinds = [
            self.create,
            self.create,
            self.mkdir,
            self.symlink,
            self.unlink,
            self.unlink,
            self.rename,
            self.link,
            self.chmod,
            self.resize,
            self.set_xattr,
            self.lookup,
            self.close,
            self.rmdir,
        ]
        self.random.choice(kinds)(client)

    def ask(
        self, client: SimulatedClient, op: Op, message: Any, keys: list[Any], outcome: Any
    ) -> None:
        ticket = self.oracle.sent(keys)

        def deliver(error: FsError | None, body: bytes) -> None:
            client.tickets.remove(ticket)
            client.answered[pending.request_id] = keys
            self.answers[op.name if error is None else f"{op.name} {error.status.name}"] += 1
            if error is not None:
                self.oracle.answered(ticket, {})
                return
            self.oracle.answered(ticket, outcome(decode(BODIES[op][1], body)))

        client.tickets.append(ticket)
        pending = client.core.submit(op, encode(message), deliver, NEVER)

    def create(self, client: SimulatedClient) -> None:
        place = self.place(client)

        def outcome(reply: Any) -> dict[Any, int | None]:
            ino = unpack_attributes(reply.attributes).ino
            client.opens.add(ino)
            return {place: ino}

        self.ask(client, Op.CREATE, Create(*place, 0o644, True, True, USER), [place], outcome)

    def mkdir(self, client: SimulatedClient) -> None:
        place = self.place(client)

        def outcome(reply: Any) -> dict[Any, int | None]:
            ino = unpack_attributes(reply.attributes).ino
            self.directories = [*self.directories[-5:], ROOT, ino]
            return {place: ino}

        self.ask(client, Op.MKDIR, MkDir(*place, 0o755, USER), [place], outcome)

    def symlink(self, client: SimulatedClient) -> None:
        place = self.place(client)
        self.ask(
            client,
            Op.SYMLINK,
            Symlink(*place, b"to", USER),
            [place],
            lambda reply: {place: unpack_attributes(reply.attributes).ino},
        )

    def unlink(self, client: SimulatedClient) -> None:
        place = self.place(client)
        self.ask(client, Op.UNLINK, Unlink(*place), [place], lambda reply: {place: None})

    def rmdir(self, client: SimulatedClient) -> None:
        place = self.place(client)
        self.ask(client, Op.RMDIR, RmDir(*place), [place], lambda reply: {place: None})

    def rename(self, client: SimulatedClient) -> None:
        old, new = self.place(client), self.place(client)
        keys: list[Any] = [old] if old == new else [old, new]

        def outcome(reply: Any) -> dict[Any, int | None]:
            ino = unpack_attributes(reply.attributes).ino
            if not reply.replaced and unpack_attributes(reply.attributes).nlink > 1:
                return {}  # they may be two names of one file: nothing was done
            return {old: None, new: ino} if old != new else {}

        self.ask(client, Op.RENAME, Rename(*old, *new, 0), keys, outcome)

    def link(self, client: SimulatedClient) -> None:
        place = self.place(client)
        ino = self.known_ino(client)
        if ino is None:
            return
        self.ask(
            client,
            Op.LINK,
            Link(ino, *place),
            [place],
            lambda reply: {place: unpack_attributes(reply.attributes).ino},
        )

    def chmod(self, client: SimulatedClient) -> None:
        self._set(client, SET_MODE, "mode", lambda attributes: attributes.mode & 0o777)

    def resize(self, client: SimulatedClient) -> None:
        self._set(client, SET_SIZE, "size", lambda attributes: attributes.size)

    def _set(self, client: SimulatedClient, valid: int, what: str, value: Any) -> None:
        ino = self.known_ino(client)
        if ino is None:
            return
        size = self.random.choice([0, 5, 3 << 20, self.random.randint(1, 1 << 30)])
        message = SetAttr(ino, valid, self.random.randrange(0o1000), 0, 0, size, 0, 0, 0, 0, 0)
        key = (what, ino)
        self.ask(
            client,
            Op.SETATTR,
            message,
            [key],
            lambda reply: {key: value(unpack_attributes(reply.attributes))},
        )

    def set_xattr(self, client: SimulatedClient) -> None:
        ino = self.known_ino(client)
        if ino is not None:
            message = SetXattr(ino, b"user.%d" % self.random.randrange(3), b"v", 0)
            self.ask(client, Op.SETXATTR, message, [], lambda reply: {})

    def lookup(self, client: SimulatedClient) -> None:
        place = self.place(client)
        expected = self.oracle.known.get(place, -1)
        version = self.oracle.version[place]

        def outcome(reply: Any) -> dict[Any, int | None]:
            if self.oracle.version[place] == version and expected != -1:
                assert unpack_attributes(reply.attributes).ino == expected
            return {}

        self.ask(client, Op.LOOKUP, Lookup(*place), [], outcome)

    def close(self, client: SimulatedClient) -> None:
        if client.opens:
            ino = self.random.choice(sorted(client.opens))
            client.opens.discard(ino)
            client.core.submit(Op.CLOSE, encode(Close((ino,))), None, NEVER, oneway=True)

    # ---- what must hold ---------------------------------------------------------------------

    def verify(self) -> None:
        """No client waits: every certain answer is in the store, and the store is consistent."""
        assert self.bench.faults() == []
        assert all(client.evictions == 0 for client in self.clients)
        self.check_answers()
        assert not [line for line in self.log if "failed" in line], self.log

    def check_answers(self) -> None:
        """What clients were answered for certain is in the store, and what they have open."""
        tx = Transaction(self.bench.engine._overlay, SYSTEM_SESSION)
        for key, expected in self.oracle.known.items():
            if key[0] in ("mode", "size"):
                inode = find(tx, key[1])
                if inode is not None:
                    attributes = inode.attributes
                    got = attributes.mode & 0o777 if key[0] == "mode" else attributes.size
                    assert got == expected, (key, got, expected)
                continue
            dentry = find_dentry(tx, *key)
            assert (dentry.ino if dentry else None) == expected, (key, dentry, expected)
        for client in self.clients:
            for ino in client.opens - client.doubtful:
                assert find(tx, ino) is not None, f"inode {ino} is open but gone"
