"""The table of leases against model clients: safety and liveness, in whatever order messages
arrive.

Each client follows docs/INTERFACES.md, section 7: it counts a lease from the time when its request
was sent, ignores grants that a recall has overtaken, and gives up leases late or never. Three
channels per client are delayed independently: requests, replies, recalls. After every step the
clients are compared: two never hold conflicting leases, and no op runs against a lease that another
client holds.
"""

import itertools
import random
from collections import deque
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fscommon.layout.attributes import (
    LEASE_CHILDREN,
    LEASE_DATA,
    LEASE_ENTRIES,
    LEASE_ENTRIES_EXCLUSIVE,
    LEASE_EXCLUSIVE_ALL,
    LEASE_EXCLUSIVE_SHIFT,
    LEASE_META,
    LEASE_META_EXCLUSIVE,
    LEASE_READER,
    LEASE_WRITER,
)
from fscommon.types import Ino, SessionId
from fscommon.wire.leases import RecallItem, ReturnItem
from metaserver.leases.bits import conflict
from metaserver.leases.holders import Claim, Need
from metaserver.leases.table import Leases
from metaserver.sessions import Session, Sessions

DURATION_S = 10.0
TIMEOUT_S = 12.0
FENCE_S = 3.0
LEASES_MAX = 3
INOS = [Ino(number) for number in range(1, 6)]
FILES, DIRECTORY = INOS[:3], INOS[4]  # they are the files of a page
READ, CHANGE = LEASE_META, LEASE_META_EXCLUSIVE
FOOTPRINTS = {  # each entry has the needed and the granted facets
    "stat": (READ, LEASE_META),
    "chmod": (CHANGE, LEASE_META),
    "open": (LEASE_META | LEASE_DATA, LEASE_META | LEASE_DATA),
    "write": (LEASE_WRITER, LEASE_WRITER),
    "list": (LEASE_ENTRIES, LEASE_META | LEASE_ENTRIES),
    "create": (LEASE_ENTRIES_EXCLUSIVE | LEASE_META_EXCLUSIVE, LEASE_META | LEASE_ENTRIES),
}


@dataclass
class Request:
    id: int
    kind: str
    needs: list[Need]
    sent_s: float
    items: tuple[ReturnItem, ...] = ()


@dataclass
class Reply:
    request: Request
    held: list[tuple[Ino, int]]
    excluded: tuple[RecallItem, ...] = ()


@dataclass
class Client:
    session: SessionId
    ids: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    requests: "deque[Request]" = field(default_factory=deque)
    replies: "deque[Reply]" = field(default_factory=deque)
    recalls: "deque[RecallItem]" = field(default_factory=deque)
    unanswered: dict[int, Request] = field(default_factory=dict)
    believed: dict[Ino, tuple[int, float]] = field(default_factory=dict)
    # They are facets and limits.
    ignored: dict[Ino, list[tuple[int, int]]] = field(default_factory=dict)
    is_dead: bool = False
    is_fenced: bool = False

    def send(
        self, kind: str, needs: list[Need], now_s: float, items: tuple[ReturnItem, ...] = ()
    ) -> None:
        request = Request(next(self.ids), kind, needs, now_s, items)
        if not items:
            self.unanswered[request.id] = request
        self.requests.append(request)

    def believes(self, ino: Ino, now_s: float) -> int:
        """The facets that the client may use: cached answers end with the clock, unwritten bytes
        only with the fence."""
        flags, until_s = self.believed.get(ino, (0, 0.0))
        if until_s > now_s:
            return flags
        return 0 if self.is_fenced else flags & LEASE_EXCLUSIVE_ALL

    def take_reply(self, reply: Reply, now_s: float) -> None:
        request = reply.request
        del self.unanswered[request.id]
        for ino, said in reply.held:
            flags = self.not_overtaken(ino, said, request.id)
            old, until_s = self.believed.get(ino, (0, 0.0))
            if until_s <= now_s:
                old &= LEASE_EXCLUSIVE_ALL
            if flags:
                # There is one time for all: facets that the reply does not name, because they are
                # being recalled, end no later.
                later_s = until_s if old & ~flags else request.sent_s + DURATION_S
                self.believed[ino] = (old | flags, later_s)
        if request.kind == "renew":
            recalled = {item.ino for item in reply.excluded}
            for ino, (flags, until_s) in list(self.believed.items()):
                if ino not in recalled and until_s > now_s:
                    self.believed[ino] = (flags, max(until_s, request.sent_s + DURATION_S))

    def not_overtaken(self, ino: Ino, said: int, request_id: int) -> int:
        """The part of a grant that no recall or return has overtaken."""
        gone = 0
        for facets, limit in self.ignored.get(ino, []):
            if request_id <= limit:
                gone |= facets | facets << LEASE_EXCLUSIVE_SHIFT
        flags = said & ~gone
        return flags if flags & LEASE_WRITER == LEASE_WRITER else flags & ~LEASE_EXCLUSIVE_ALL

    def give_up(self, item: RecallItem, now_s: float) -> None:
        ino = Ino(item.ino)
        self.forget(ino, item.flags, item.limit)
        self.send("return", [], now_s, (ReturnItem(ino, item.flags, item.recall),))

    def forget(self, ino: Ino, flags: int, limit: int) -> None:
        if flags:
            self.ignored.setdefault(ino, []).append((flags & 7 | flags >> 3, limit))
        have, until_s = self.believed.get(ino, (0, 0.0))
        have &= ~(flags | (flags & 7) << 3)
        if have & LEASE_WRITER != LEASE_WRITER:
            have &= ~(LEASE_WRITER & LEASE_EXCLUSIVE_ALL)
        self.believed[ino] = (have, until_s)


class LeaseWorld(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 100.0
        self.sessions = Sessions(version=1)
        self.leases = Leases(self.sessions, duration_s=DURATION_S, leases_max=LEASES_MAX)
        self.waiting: dict[Claim, tuple[Client, Request, float]] = {}
        self.fences: dict[SessionId, float] = {}
        self.clients: dict[SessionId, Client] = {}
        self.ghosts: list[Client] = []
        self.granted = 0
        self.paged = 0
        for number in (1, 2, 3):
            self.join(number)

    def join(self, number: int) -> None:
        session = SessionId(number)
        self.sessions.add(Session(session, "c", 0, self.now_s))
        self.clients[session] = Client(session)
        self.leases.connected(session)

    # ---- what can happen -------------------------------------------------------------------

    indices = st.integers(0, 2)

    def pick(self, index: int) -> Client:
        return list(self.clients.values())[index % len(self.clients)]

    @rule(
        index=indices,
        kind=st.sampled_from(sorted(FOOTPRINTS)),
        inos=st.lists(st.sampled_from(INOS), min_size=1, max_size=2, unique=True),
    )
    def ask(self, index: int, kind: str, inos: list[Ino]) -> None:
        client = self.pick(index)
        if not client.is_dead and len(client.unanswered) < 6:
            client.send(kind, [Need(ino, FOOTPRINTS[kind][0]) for ino in inos], self.now_s)

    @rule(index=indices)
    def ask_for_page(self, index: int) -> None:
        client = self.pick(index)
        if not client.is_dead and len(client.unanswered) < 6:
            client.send("page", [], self.now_s)

    @rule(index=indices)
    def give_directory_up(self, index: int) -> None:
        """The client does not give it up while a page of it is in flight."""
        client = self.pick(index)
        kinds = [request.kind for request in client.unanswered.values()]
        if client.is_dead or "page" in kinds:
            return
        items = [ReturnItem(ino, LEASE_READER) for ino in FILES]
        client.send("return", [], self.now_s, (*items, ReturnItem(DIRECTORY, LEASE_CHILDREN)))
        for ino in FILES:
            client.forget(ino, LEASE_READER, client.requests[-1].id)

    @rule(index=indices)
    def renew(self, index: int) -> None:
        client = self.pick(index)
        if not client.is_dead:
            client.send("renew", [], self.now_s)

    @rule(index=indices, ino=st.sampled_from(INOS))
    def return_unasked(self, index: int, ino: Ino) -> None:
        client = self.pick(index)
        flags = client.believed.get(ino, (0, 0.0))[0]
        if flags and not client.is_dead:
            client.send("return", [], self.now_s, (ReturnItem(ino, flags),))
            client.forget(ino, flags, client.requests[-1].id)

    @rule(index=indices, count=st.integers(1, 4))
    def requests_arrive(self, index: int, count: int) -> None:
        client = self.pick(index)
        for _ in range(min(count, len(client.requests))):
            self.serve(client, client.requests.popleft())

    @rule(index=indices, count=st.integers(1, 4))
    def replies_arrive(self, index: int, count: int) -> None:
        client = self.pick(index)
        for _ in range(min(count, len(client.replies))):
            reply = client.replies.popleft()
            if not client.is_dead:
                client.take_reply(reply, self.now_s)

    @rule(index=indices, count=st.integers(1, 4))
    def recalls_arrive(self, index: int, count: int) -> None:
        client = self.pick(index)
        for _ in range(min(count, len(client.recalls))):
            item = client.recalls.popleft()
            if client.is_dead:
                continue
            if item.granted_by in client.unanswered:
                client.recalls.append(item)  # its reply is in flight and comes first
            else:
                client.give_up(item, self.now_s)

    @rule(index=indices)
    def recall_connection_is_made_again(self, index: int) -> None:
        client = self.pick(index)
        if not client.is_dead:
            self.leases.disconnected(client.session)
            client.recalls.clear()
            self.leases.connected(client.session)

    @rule(seconds=st.sampled_from([0.01, 0.5, 2.0, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.tick()

    @precondition(lambda self: sum(c.is_dead for c in self.clients.values()) < 2)
    @rule(index=indices)
    def client_dies(self, index: int) -> None:
        self.pick(index).is_dead = True

    # ---- the metaserver --------------------------------------------------------------------

    def serve(self, client: Client, request: Request) -> None:
        session = self.sessions.get(client.session)
        if session is None:
            return
        session.renewed_s = self.now_s
        session.heard = max(session.heard, request.id)
        if request.items:
            self.leases.returned(client.session, request.items, self.now_s)
        elif request.kind == "renew":
            client.replies.append(Reply(request, [], self.leases.pending(client.session)))
        elif request.kind == "page":
            self.run_page(client, request)
        else:
            self.run_or_wait(client, request, None, self.now_s)
        self.settle()

    def run_page(self, client: Client, request: Request) -> None:
        session, leases = client.session, self.leases
        free = [i for i in FILES if leases.would_grant(session, i, LEASE_READER, self.now_s)]
        if free:
            leases.grant_children(session, DIRECTORY, free, request.id)
            self.paged += 1
        client.replies.append(Reply(request, [(ino, LEASE_READER) for ino in free]))

    def run_or_wait(
        self, client: Client, request: Request, claim: Claim | None, since_s: float
    ) -> None:
        wait = self.leases.admit(client.session, request.needs, self.now_s, claim)
        if wait is not None:
            self.waiting[wait] = (client, request, since_s)
            return
        self.check_runs(client, request, claim)
        held = [
            (
                need.ino,
                self.leases.grant(
                    client.session,
                    need.ino,
                    FOOTPRINTS[request.kind][1],
                    request.id,
                    self.now_s,
                    claim,
                    is_look=request.kind in ("stat", "list"),
                ),
            )
            for need in request.needs
        ]
        self.granted += any(flags for _, flags in held)
        client.replies.append(Reply(request, held))

    def settle(self) -> None:
        while self.leases.is_anyone_ready:
            for claim in self.leases.take_ready():
                if claim in self.waiting:
                    client, request, since_s = self.waiting.pop(claim)
                    self.run_or_wait(client, request, claim, since_s)
        for session, items in self.leases.unsent.items():
            self.clients[session].recalls.extend(items)
        self.leases.unsent.clear()

    def tick(self) -> None:
        for session, at_s in list(self.fences.items()):
            if at_s <= self.now_s:
                del self.fences[session]
                next(c for c in self.ghosts if c.session == session).is_fenced = True
                self.leases.fenced(session, self.now_s)
        late = set(self.leases.expire(self.now_s))
        late |= {s.id for s in self.sessions.expired(self.now_s, TIMEOUT_S)}
        for session in late:
            self.evict(self.clients.pop(session))
        self.settle()

    def evict(self, client: Client) -> None:
        self.leases.evict(client.session, [], self.now_s)
        self.sessions.remove(client.session)
        for claim, (owner, _, _) in list(self.waiting.items()):
            if owner is client:
                del self.waiting[claim]
                self.leases.cancel(claim)
        self.fences[client.session] = self.now_s + FENCE_S
        self.ghosts.append(client)
        self.join(max([*self.clients, client.session]) + 1)

    # ---- what must hold --------------------------------------------------------------------

    def check_runs(self, client: Client, request: Request, claim: Claim | None) -> None:
        """No op runs against a lease that another client holds, except a read after the holder
        answered."""
        told = claim.reported if claim else set()
        for other in self.everyone():
            for need in request.needs:
                if other is client or (need.ino, other.session) in told:
                    continue
                believed = other.believes(need.ino, self.now_s)
                assert not conflict(need.flags, believed), (request, other.session, believed)

    def everyone(self) -> list[Client]:
        return [*self.clients.values(), *self.ghosts]

    @invariant()
    def nobody_believes_what_conflicts(self) -> None:
        for one, other in itertools.combinations(self.everyone(), 2):
            for ino in one.believed.keys() & other.believed.keys():
                ours, theirs = one.believes(ino, self.now_s), other.believes(ino, self.now_s)
                assert not conflict(ours, theirs), (ino, one.session, ours, other.session, theirs)

    @invariant()
    def what_is_believed_is_in_the_table(self) -> None:
        for client in self.clients.values():
            for ino in client.believed:
                believed = client.believes(ino, self.now_s)
                held = self.leases.held(client.session, ino)
                if self.leases.children.covers(client.session, ino):
                    held |= LEASE_READER
                assert not believed & ~held

    @invariant()
    def nothing_waits_for_long(self) -> None:
        """Lease, eviction and fence bound every wait for one recall; an op may meet a few
        in a row."""
        for recall in self.leases._recalls.values():
            assert self.now_s - recall.began_s < DURATION_S + FENCE_S + 6.1

    @invariant()
    def leases_are_bounded(self) -> None:
        for session in self.clients:
            assert self.leases.sums(session)[0] <= LEASES_MAX + 64

    def teardown(self) -> None:
        """Every living client answers everything: no request is left waiting."""
        for _ in range(400):
            for index in range(len(self.clients)):
                self.requests_arrive(index, 9)
                self.replies_arrive(index, 9)
                self.recalls_arrive(index, 9)
            self.time_passes(0.5)
            for client in self.clients.values():
                if not client.is_dead:
                    client.send("renew", [], self.now_s)
            if not self.waiting and not self.leases.recalls_open:
                break
        assert not self.waiting and not self.leases.recalls_open
        assert not self.leases._claims and not self.leases._recalls


LeaseWorld.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestLeaseWorld = LeaseWorld.TestCase


def test_long_histories() -> None:
    """Random histories with many leases, recalls and evictions in each."""
    granted = answered = fenced = paged = 0
    for seed in range(12):
        chance = random.Random(seed)
        world = LeaseWorld()
        for _ in range(3000):
            _step(world, chance)
            world.nobody_believes_what_conflicts()
            world.what_is_believed_is_in_the_table()
            world.nothing_waits_for_long()
        world.teardown()
        granted += world.granted
        paged += world.paged
        answered += world.leases.counts["answered"]
        fenced += world.leases.counts["fenced"]
    is_rich = granted > 1000 and answered > 1000 and fenced > 10 and paged > 500
    assert is_rich, f"the histories are poor: {granted} {answered} {fenced} {paged}"


def _step(world: LeaseWorld, chance: random.Random) -> None:
    index = chance.randrange(3)
    action = chance.random()
    if action < 0.07:
        page = world.ask_for_page if action < 0.06 else world.give_directory_up
        page(index=index)
    elif action < 0.30:
        kind = chance.choice(sorted(FOOTPRINTS))
        world.ask(index=index, kind=kind, inos=chance.sample(INOS, chance.randint(1, 2)))
    elif action < 0.55:
        world.requests_arrive(index=index, count=chance.randint(1, 6))
    elif action < 0.72:
        world.replies_arrive(index=index, count=chance.randint(1, 6))
    elif action < 0.86:
        world.recalls_arrive(index=index, count=chance.randint(1, 6))
    elif action < 0.90:
        world.renew(index=index)
    elif action < 0.93:
        _lose(world, chance, index)
    elif action < 0.9997:
        world.time_passes(seconds=chance.choice([0.01, 0.02, 0.3]))
    elif sum(client.is_dead for client in world.clients.values()) < 2:
        world.client_dies(index=index)


def _lose(world: LeaseWorld, chance: random.Random, index: int) -> None:
    if chance.random() < 0.67:
        world.return_unasked(index=index, ino=chance.choice(INOS))
    else:
        world.recall_connection_is_made_again(index=index)
