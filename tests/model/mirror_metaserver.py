"""The metaserver of the model of mirrors: layouts, leases, sessions, what may be torn or lost.

`State` is what survives the metaserver's process; each handler changes it at once between two
waits. Requests may arrive twice or late: a handler looks at the state and never repeats an answer.
W: (session, file) is open for writing. D: it was closed, and its bytes are not known to be durable
on all replicas. Y: names that were dropped from a layout. C: planned copies. Z: names to delete.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.model.mirror_targets import NOT_READY, OK, TARGET_LEASE_S, Answer, Name
from tests.model.processes import Future, Process, Steps

if TYPE_CHECKING:
    from tests.model.mirror_world import MirrorWorld

SESSION_S: Final = 8.0  # a client that is silent for longer is evicted
TARGET_SILENT_S: Final = 4.0
CLAIM_WAIT_S: Final = 5.0
EVICTED: Final = "evicted"
BUSY: Final = "busy"
GONE: Final = "gone"  # what the request is about is no longer so
REFUSED: Final = "refused"  # nothing listens there: the process has ended
EXCLUSIVE: Final = "exclusive"
SHARED: Final = "shared"


class Layout(NamedTuple):
    """epoch: objects refuse writes of an earlier one once it was raised there."""

    file_id: int
    epoch: int
    replicas: tuple[Name, ...]


class Held(NamedTuple):
    mode: str
    number: int


class Planned(NamedTuple):
    """A copy that a session makes: added at this epoch, or given up at it."""

    session: int
    file: str
    epoch: int


@dataclass(slots=True)
class State:
    files: dict[str, Layout] = field(default_factory=dict)
    sessions: dict[int, bool] = field(default_factory=dict)  # False: it is being evicted
    ended: set[int] = field(default_factory=set)
    leases: dict[str, dict[int, Held]] = field(default_factory=dict)
    writing: dict[tuple[int, str], int] = field(default_factory=dict)  # W: the handle
    handles: dict[tuple[int, str], int] = field(default_factory=dict)  # the last one that closed
    closed: dict[tuple[int, str], int] = field(default_factory=dict)  # D
    dropped: dict[Name, str] = field(default_factory=dict)  # Y
    planned: dict[Name, "Planned"] = field(default_factory=dict)  # C
    doomed: set[Name] = field(default_factory=set)  # Z
    done: set[tuple[int, int]] = field(default_factory=set)  # requests that may not happen twice
    incarnations: dict[str, int] = field(default_factory=dict)
    last_number: int = 0

    def number(self) -> int:
        self.last_number += 1
        return self.last_number

    def is_torn(self, file: str) -> bool:
        """Whether bytes of the file may not be durable on all replicas."""
        return any(one == file for _, one in self.writing) or any(
            one == file for _, one in self.closed
        )


class Metaserver:
    name = "meta"

    def __init__(self, world: "MirrorWorld") -> None:
        self.world = world
        self.state = State()
        self.process = Process(world.loop, self.name)

    def start(self) -> None:
        now = self.world.loop.now
        self.process = Process(self.world.loop, self.name)
        self.registered: dict[str, Process] = {}
        self.lease_ends_s = dict.fromkeys(self.world.targets, now + TARGET_LEASE_S)
        self.heard_s = dict.fromkeys(self.state.sessions, now)
        self.target_heard_s: dict[str, float] = {}
        self.tombstoned: set[Name] = set()
        self.changed: dict[str, Future] = {}
        if self.world.breaks("the incarnation is not kept"):
            self.state.incarnations.clear()
        for session, is_live in self.state.sessions.items():
            if not is_live:
                self.process.spawn(self._evict(session))
        self.process.spawn(self._watch_sessions())
        self.process.spawn(self._clean_up())
        self.process.spawn(self._sync_closed())

    # ---- targets --------------------------------------------------------------------------

    def register(self, target: str, process: Process, incarnation: int) -> Steps:
        """A target that lost power answers for no file of W and D any more, unless it is the last
        one that has it."""
        yield 0.0
        state = self.state
        if incarnation > state.incarnations.get(target, incarnation):
            for file, layout in state.files.items():
                if state.is_torn(file) and len(layout.replicas) > 1:
                    self._remove(file, [one for one in layout.replicas if one.target == target])
        state.incarnations[target] = incarnation
        self.registered[target] = process
        self._answered(target)
        return set(state.ended | {one for one in state.sessions if not state.sessions[one]}), {
            name for name in state.dropped if name.target == target
        }

    def beat(self, target: str, process: Process, _incarnation: int) -> Steps:
        yield 0.0
        has_run_out = self.world.loop.now > self.lease_ends_s[target]
        if has_run_out and not self.world.breaks("a lease that has run out is renewed"):
            return NOT_READY  # what was dropped meanwhile may have been told to clients
        if self.registered.get(target) is not process:
            return NOT_READY
        self._answered(target)
        return OK

    def _answered(self, target: str) -> None:
        self.lease_ends_s[target] = self.world.loop.now + TARGET_LEASE_S
        self.target_heard_s[target] = self.world.loop.now

    def is_up(self, target: str) -> bool:
        heard_s = self.target_heard_s.get(target, -TARGET_SILENT_S)
        return target in self.registered and self.world.loop.now - heard_s < TARGET_SILENT_S

    # ---- layouts --------------------------------------------------------------------------

    def _change_layout(
        self, file: str, file_id: int, epoch: int, replicas: Iterable[Name], new_epoch: int
    ) -> bool:
        """The only way in which a layout changes. False: the file has another id or epoch by
        now."""
        now = self.state.files[file]
        if (now.file_id, now.epoch) != (file_id, epoch):
            return False
        self.state.files[file] = Layout(file_id, new_epoch, tuple(replicas))
        self.world.oracle.layout_changed(file)
        return True

    def _remove(self, file: str, names: Iterable[Name]) -> None:
        """Drops replicas from the layout; their names are refused from now on."""
        now = self.state.files[file]
        gone = [name for name in names if name in now.replicas]
        for name in gone:
            self.state.dropped[name] = file
        left = [name for name in now.replicas if name not in gone]
        self._change_layout(file, now.file_id, now.epoch, left, now.epoch)

    def _tombstone(self, name: Name) -> Steps:
        """Waits until no client gets an answer for this name any more: its target has said so, or
        it cannot answer."""
        world = self.world
        target = world.targets[name.target]
        while name not in self.tombstoned and world.loop.now <= self.lease_ends_s[name.target]:
            reply = yield world.ask(self, target, target.drop, name)
            if reply in (OK, REFUSED):
                self.tombstoned.add(name)
        return OK

    def _place(self, count: int, without: Iterable[str] = ()) -> list[str]:
        places = [name for name in self.world.targets if self.is_up(name) and name not in without]
        self.world.chance.shuffle(places)
        return places[:count]

    # ---- sessions and leases --------------------------------------------------------------

    def open_session(self) -> Steps:
        yield 0.0
        session = self.state.number()
        self.state.sessions[session] = True
        self.heard_s[session] = self.world.loop.now
        return session

    def renew(self, session: int) -> Steps:
        yield 0.0
        if not self.state.sessions.get(session, False):
            return EVICTED
        self.heard_s[session] = self.world.loop.now
        return OK

    def acquire(self, session: int, file: str, mode: str) -> Steps:
        """A lease, and the id that the file has now."""
        world = self.world
        until_s = world.loop.now + CLAIM_WAIT_S
        while world.loop.now < until_s:
            if not self.state.sessions.get(session, False):
                return EVICTED
            holders = self.state.leases.setdefault(file, {})
            others = {
                one: held
                for one, held in holders.items()
                if one != session and EXCLUSIVE in (mode, held.mode)
            }
            if world.breaks("an addition without a claim") and session in world.runner_sessions:
                others = {}
            if not others:
                own = holders.get(session)
                if own is not None and own.mode == EXCLUSIVE:
                    mode = EXCLUSIVE  # it may have pieces under way
                held = holders[session] = Held(mode, self.state.number())
                return held, self.state.files[file].file_id
            for one, held in others.items():
                world.recall(one, file, held.number)
            changed = self.changed.setdefault(file, Future())
            yield world.loop.either(changed, 0.5)
        return BUSY

    def give_back(self, session: int, file: str, number: int) -> Steps:
        yield 0.0
        held = self.state.leases.get(file, {}).get(session)
        if held is not None and held.number <= number:
            self._free(session, file)
        return OK

    def _free(self, session: int, file: str) -> None:
        held = self.state.leases[file].pop(session)
        if held.mode == EXCLUSIVE:
            self.world.oracle.freed(file)
        self.changed.pop(file, Future()).resolve()

    def holds(self, session: int, file: str, mode: str) -> bool:
        held = self.state.leases.get(file, {}).get(session)
        return held is not None and held.mode == mode and self.state.sessions.get(session, False)

    # ---- files ----------------------------------------------------------------------------

    def look(self, session: int, file: str) -> Steps:
        yield 0.0
        return self.state.files[file] if self.state.sessions.get(session, False) else EVICTED

    def open_to_write(self, session: int, file: str, handle: int) -> Steps:
        yield 0.0
        state = self.state
        if not state.sessions.get(session, False):
            return EVICTED
        if handle > state.handles.get((session, file), 0):
            state.writing[session, file] = handle
        return state.files[file]

    def close(self, session: int, file: str, handle: int, acked: dict[str, int]) -> Steps:
        """acked: in which incarnations the replicas have acknowledged what was written. Those that
        have another one by now lost it; the client still has it."""
        yield 0.0
        state = self.state
        if not state.sessions.get(session, False):
            return EVICTED
        places = {name.target for name in state.files[file].replicas}
        lost = {
            place: state.incarnations[place]
            for place, incarnation in acked.items()
            if place in places and state.incarnations.get(place, incarnation) > incarnation
        }
        if lost:
            return lost
        if state.writing.get((session, file)) == handle:
            del state.writing[session, file]
            state.handles[session, file] = handle
            state.closed[session, file] = handle
            self.world.oracle.close_accepted(session, file)
        return OK

    def synced(self, session: int, file: str, handle: int) -> Steps:
        """All replicas have made durable what was written through this handle."""
        yield 0.0
        if self.state.closed.get((session, file)) == handle:
            self.state.closed.pop((session, file), None)
        return OK

    def drop(self, session: int, file: str, seen: Layout, names: tuple[Name, ...]) -> Steps:
        """A client could not reach these replicas of the layout that it has seen. Answers with the
        present one, when nobody gets an answer from a replica that is not in it."""
        yield 0.0
        world = self.world
        if not self.state.sessions.get(session, False):
            return EVICTED
        now = self.state.files[file]
        was_done = all(name not in now.replicas for name in names)
        is_so = (now.file_id, now.epoch) == (seen.file_id, seen.epoch)
        stays_up = any(one not in names and self.is_up(one.target) for one in now.replicas)
        if world.breaks("the last replica is dropped"):
            stays_up = True
        if is_so and stays_up:
            self._remove(file, names)
        waits = not world.breaks("no wait for the tombstone")
        if was_done and world.breaks("a repeated DROP does not wait"):
            waits = False
        for name in names:
            if waits and name in self.state.dropped:
                yield from self._tombstone(name)
        world.oracle.told_dropped(name for name in names if name in self.state.dropped)
        return self.state.files[file]

    def truncate(self, session: int, file: str, request: int) -> Steps:
        """The file has no bytes any more: another id, and new objects."""
        yield 0.0
        state = self.state
        if (session, request) not in state.done:
            if not self.holds(session, file, EXCLUSIVE):
                return EVICTED if not state.sessions.get(session, False) else GONE
            places = self._place(self.world.copies)
            if not places:
                return BUSY
            state.done.add((session, request))
            self._replace(file, places)
        return state.files[file]

    def _replace(self, file: str, places: list[str]) -> None:
        state = self.state
        former = state.files.get(file)
        file_id = state.number()
        replicas = tuple(Name(file_id, place, state.number()) for place in places)
        state.files[file] = Layout(file_id, 0, replicas)
        self.world.oracle.replaced(file)
        if former is not None:
            state.doomed.update(former.replicas)
            state.doomed.update(name for name, of in state.dropped.items() if of == file)
            for key in [key for key in state.closed if key[1] == file]:
                del state.closed[key]

    def create(self, file: str, places: list[str]) -> None:
        self._replace(file, places)

    # ---- copies ---------------------------------------------------------------------------

    def plan(self, session: int, file: str) -> Steps:
        """Under a claim: what stays, where a further replica goes, and the incarnations of the
        targets that have the file. It is added with the next epoch, to which all replicas that stay
        are raised first."""
        yield 0.0
        state = self.state
        now = state.files[file]
        if len(now.replicas) >= self.world.copies or not self.holds(session, file, SHARED):
            return GONE
        places = self._place(1, {one.target for one in now.replicas})
        if not places:
            return BUSY
        for former in [name for name, one in state.planned.items() if one.file == file]:
            self._give_up(former)
        now = state.files[file]
        name = Name(now.file_id, places[0], state.number())
        state.planned[name] = Planned(session, file, now.epoch + 1)
        known = {one.target: state.incarnations.get(one.target, 0) for one in now.replicas}
        return now, name, known

    def add(self, session: int, file: str, seen: Layout, name: Name) -> Steps:
        """The copy is a replica from now on, if the claim was held all the time."""
        yield 0.0
        world, state = self.world, self.state
        now = state.files[file]
        if name in now.replicas:
            return OK
        is_claimed = self.holds(session, file, SHARED)
        if world.breaks("an addition without a claim"):
            is_claimed = True
        if world.breaks("an addition does not compare"):
            seen, is_claimed = now, True
        elif name not in state.planned:
            return GONE
        after = (*now.replicas, name)
        if not is_claimed or not self._change_layout(
            file, seen.file_id, seen.epoch, after, seen.epoch + 1
        ):
            return GONE
        state.planned.pop(name, None)
        state.doomed.discard(name)
        world.oracle.added(file, name)
        return OK

    def abandon(self, name: Name) -> Steps:
        yield 0.0
        if name in self.state.planned:
            self._give_up(name)
        return OK

    def _give_up(self, name: Name) -> None:
        """Some replicas may refuse the present epoch already: writers go on with the next one. No
        client has a view of that epoch without knowing all replicas."""
        planned = self.state.planned.pop(name)
        now = self.state.files[planned.file]
        self.state.doomed.add(name)
        if now.file_id == name.file_id and now.epoch < planned.epoch:
            self._change_layout(planned.file, now.file_id, now.epoch, now.replicas, planned.epoch)

    # ---- what goes on beside --------------------------------------------------------------

    def _watch_sessions(self) -> Steps:
        while True:
            yield 0.5
            for session, is_live in list(self.state.sessions.items()):
                if is_live and self.world.loop.now - self.heard_s.get(session, 0.0) > SESSION_S:
                    self.state.sessions[session] = False
                    self.process.spawn(self._evict(session))

    def _evict(self, session: int) -> Steps:
        """Fences the session at all targets, makes whole what it alone has written, and frees what
        it had."""
        world, state = self.world, self.state
        fenced: set[str] = set()
        if not world.breaks("no fence"):
            for target in world.targets.values():
                if (yield from self._fence(session, target.name)):
                    fenced.add(target.name)
        else:
            fenced = set(world.targets)
        for file in state.files:
            held = state.leases.get(file, {}).get(session)
            is_writer = held is not None and held.mode == EXCLUSIVE
            if is_writer and (session, file) in state.writing:
                yield from self._make_whole(session, file, fenced)
        for file in [one for writer, one in state.writing if writer == session]:
            del state.writing[session, file]
            state.closed[session, file] = state.number()
        for name in [name for name, one in state.planned.items() if one.session == session]:
            self._give_up(name)
        state.sessions.pop(session)
        state.ended.add(session)
        world.oracle.evicted(session)
        for file in [file for file, held_by in state.leases.items() if session in held_by]:
            self._free(session, file)

    def _fence(self, session: int, target: str) -> Steps:
        """True: the target has no request of the session any more. False: its lease ran out."""
        world = self.world
        while world.loop.now <= self.lease_ends_s[target]:
            at = world.targets[target]
            reply = yield world.ask(self, at, at.fence, session)
            if reply in (OK, REFUSED):
                return True
        return False

    def _make_whole(self, session: int, file: str, fenced: set[str]) -> Steps:
        """Keeps one replica: the former writer may have written to some of them only."""
        world = self.world
        if world.breaks("a dead writer's file is not made whole"):
            return
        while True:
            replicas = self.state.files[file].replicas
            keep = [one for one in replicas if self.is_up(one.target) and one.target in fenced]
            if keep:
                break
            for name in replicas:  # one that returns has been told who is fenced
                if self.is_up(name.target) and (yield from self._fence(session, name.target)):
                    fenced.add(name.target)
            yield 0.5
        others = [one for one in replicas if one != keep[0]]
        self._remove(file, others)
        for name in others:
            yield from self._tombstone(name)

    def _clean_up(self) -> Steps:
        while True:
            yield 2.0
            for name in sorted(self.state.doomed):
                target = self.world.targets[name.target]
                if (yield self.world.ask(self, target, target.delete, name)) == OK:
                    self.state.doomed.discard(name)
                    self.state.dropped.pop(name, None)
                    self.world.oracle.deleted(name)

    def _sync_closed(self) -> Steps:
        """Ends D of sessions that are no more."""
        while True:
            yield 2.0
            for (session, file), number in list(self.state.closed.items()):
                if session not in self.state.ended or not (yield from self._is_durable(file)):
                    continue
                if self.state.closed.get((session, file)) == number:
                    del self.state.closed[session, file]

    def _is_durable(self, file: str) -> Steps:
        world, state = self.world, self.state
        layout = state.files[file]
        for name in layout.replicas:
            target = world.targets[name.target]
            reply = yield world.ask(self, target, target.make_durable, name)
            if not isinstance(reply, Answer):
                return False
            if reply.incarnation != state.incarnations.get(name.target):
                return False
        return state.files[file] == layout
