"""A simulated cluster with mirrored files: the protocol that decides what a lost server costs.

One seed decides everything: which programs run, how long messages, workers and reconnects take,
which links are cut in which direction, which processes are killed or stand still, and which targets
lose power. `Oracle` knows what was promised and looks at every step; docs/decisions/0063-mirrors.md
numbers the invariants. `breaks` names a rule that is left out: tests see that it is missed.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Final

from tests.model.mirror_clients import Client, Runner
from tests.model.mirror_metaserver import BUSY, EXCLUSIVE, REFUSED, Metaserver
from tests.model.mirror_targets import BLOCKS, Name, Object, Target
from tests.model.processes import TIMED_OUT, Future, Loop, Process, Steps

FAULTS_S: Final = 40.0  # faults and programs end then
CALM_S: Final = 130.0
Host = Any  # it has a name and a process


class BrokenPromiseError(AssertionError):
    pass


class Truth:
    """What a block may be: values from `allowed` on; what fsync and close promised to keep.
    `holder`: the session that has the last value in its memory. `losses`: how often values may have
    been lost."""

    __slots__ = ("allowed", "closed", "holder", "losses", "safe", "values")

    def __init__(self) -> None:
        self.values = [0]
        self.allowed = self.closed = self.safe = self.holder = self.losses = 0


class Oracle:
    def __init__(self, world: "MirrorWorld") -> None:
        self._world = world
        self._blocks: dict[str, list[Truth]] = {}
        self._lost_power: dict[str, set[str]] = defaultdict(set)  # since the file was safe
        self._gone: set[Name] = set()
        self.counts: Counter[str] = Counter()

    # ---- what programs did ----------------------------------------------------------------

    def written(self, session: int, file: str, block: int, value: int) -> None:
        truth = self._blocks[file][block]
        truth.values.append(value)
        truth.holder = session
        truth.allowed = len(truth.values) - 1
        self.counts["writes"] += 1

    def losses(self, file: str, block: int) -> int:
        return self._blocks[file][block].losses

    def read(self, file: str, block: int, value: int, losses: int) -> None:
        """I9: the last write, or what a dead writer may have left; from then on that. losses: when
        the read began."""
        truth = self._blocks[file][block]
        self.counts["reads"] += 1
        if value not in truth.values[truth.allowed :]:
            raise BrokenPromiseError(
                f"I9: {file}[{block}] is {value}, not one of {truth.values[truth.allowed :]}"
            )
        if truth.allowed < len(truth.values) - 1 and losses == truth.losses:
            truth.values.append(value)
            truth.allowed = truth.closed = len(truth.values) - 1

    def fsynced(self, file: str) -> None:
        """I1: every replica of the layout has the bytes durably."""
        layout = self._world.meta.state.files[file]
        for number, truth in enumerate(self._blocks[file]):
            for name in layout.replicas:
                one = self._object(name)
                value = one.durable.get(number, 0) if one else 0
                if value not in truth.values[truth.allowed :]:
                    raise BrokenPromiseError(
                        f"I1: {name} has {value} durably, after fsync of {file}"
                    )
            truth.safe = truth.closed = truth.allowed
        self._lost_power[file].clear()
        self.counts["fsyncs"] += 1

    def close_accepted(self, session: int, file: str) -> None:
        """I2: all replicas hold what was written, but for those that lost power meanwhile. It is
        looked at when the metaserver accepts: all of them may lose power before the client hears of
        it, which still has the bytes then."""
        held = self._world.meta.state.leases.get(file, {}).get(session)
        if held is None or held.mode != EXCLUSIVE:
            return  # others may have the file
        for number, truth in enumerate(self._blocks[file]):
            for one in self._whole(file):
                value = one.blocks.get(number, 0)
                if value not in truth.values[truth.allowed :]:
                    raise BrokenPromiseError(f"I2: a replica has {value} at the close of {file}")

    def closed(self, file: str) -> None:
        """The client heard it in time."""
        for truth in self._blocks[file]:
            truth.closed = truth.allowed
        self.counts["closes"] += 1

    def let_go(self, session: int, file: str) -> None:
        """The client does not hold the bytes any more."""
        for truth in self._blocks[file]:
            if truth.holder == session:
                truth.holder = 0
        self._may_have_lost(file)

    # ---- what the metaserver did ----------------------------------------------------------

    def replaced(self, file: str) -> None:
        self._blocks[file] = [Truth() for _ in range(BLOCKS)]
        self._lost_power[file].clear()

    def layout_changed(self, file: str) -> None:
        if not self._world.meta.state.files[file].replicas:
            raise BrokenPromiseError(f"I3: {file} has no replica")
        self._may_have_lost(file)

    def added(self, file: str, name: Name) -> None:
        """I6, I7, I15: the copy is durable and equal, and all replicas refuse the former epoch."""
        layout = self._world.meta.state.files[file]
        holders = self._world.meta.state.leases.get(file, {})
        if any(held.mode == EXCLUSIVE for held in holders.values()):
            raise BrokenPromiseError(f"I6: {name} is added while a client may write")
        for other in layout.replicas:
            one = self._object(other)
            if one is None or one.durable_epoch < layout.epoch:
                raise BrokenPromiseError(
                    f"I15: {other} does not refuse epochs before {layout.epoch}"
                )
        self.counts["additions"] += 1
        self._look_equal(file)

    def told_dropped(self, names: Iterable[Name]) -> None:
        self._gone.update(names)

    def deleted(self, name: Name) -> None:
        """Its file has other names: who still asks for this one has no lease on it."""
        self._gone.discard(name)

    def admitted(self, op: str, name: Name) -> None:
        if name in self._gone:
            raise BrokenPromiseError(f"I5: {op} of {name}, which was dropped")

    def freed(self, file: str) -> None:
        """I4: the replicas are equal when nobody may write."""
        for truth in self._blocks[file]:
            truth.holder = 0
        self._look_equal(file)
        self._may_have_lost(file)

    def evicted(self, session: int) -> None:
        """What its programs wrote and did not close may be there or not."""
        for file, holders in self._world.meta.state.leases.items():
            held = holders.get(session)
            if held is not None and held.mode == EXCLUSIVE:
                for truth in self._blocks[file]:
                    truth.allowed = truth.closed
                    truth.holder = 0
                self._may_have_lost(file)
        self.counts["evictions"] += 1

    # ---- what happened to targets ---------------------------------------------------------

    def lost_power(self, target: str) -> None:
        for file in self._blocks:
            self._lost_power[file].add(target)
            self._may_have_lost(file)

    def _may_have_lost(self, file: str) -> None:
        """If every replica lost power, what was not synced may be lost, unless a client that lives
        has it."""
        if self._all_lost_power(file):
            for truth in self._blocks[file]:
                if truth.holder == 0:
                    truth.allowed = truth.closed = truth.safe
                    truth.losses += 1

    def _all_lost_power(self, file: str) -> bool:
        replicas = self._world.meta.state.files[file].replicas
        return all(name.target in self._lost_power[file] for name in replicas)

    # ---- replicas -------------------------------------------------------------------------

    def _object(self, name: Name) -> Object | None:
        return self._world.targets[name.target].objects.get(name)

    def _whole(self, file: str) -> list[Object]:
        """The replicas at targets that serve, and have lost nothing since."""
        world = self._world
        found = []
        for name in world.meta.state.files[file].replicas:
            target = world.targets[name.target]
            known = world.meta.state.incarnations.get(name.target)
            if target.process.is_alive and target.is_registered and known == target.incarnation:
                found.append(target.objects.get(name, Object()))
        return found

    def _look_equal(self, file: str) -> None:
        contents = [
            [one.blocks.get(block, 0) for block in range(BLOCKS)] for one in self._whole(file)
        ]
        if any(one != contents[0] for one in contents):
            raise BrokenPromiseError(f"I4: the replicas of {file} differ: {contents}")

    def at_the_end(self) -> None:
        """I4, I12, I16: all is whole again, and can be read."""
        world = self._world
        for file, layout in world.meta.state.files.items():
            if len(layout.replicas) != world.copies:
                raise BrokenPromiseError(
                    f"I12: {file} has {len(layout.replicas)} replicas at the end"
                )
            if len(self._whole(file)) != world.copies:
                raise BrokenPromiseError(f"I16: a replica of {file} does not serve at the end")
            self._look_equal(file)
            for number in range(BLOCKS):
                value = self._whole(file)[0].blocks.get(number, 0)
                self.read(file, number, value, self.losses(file, number))
            if world.meta.state.is_torn(file):
                raise BrokenPromiseError(f"{file} is still in W or D at the end")


class MirrorWorld:
    names = ("f", "g")

    def __init__(self, seed: int, *, targets: int = 3, copies: int = 2, broken: str = "") -> None:
        self.chance = random.Random(seed)
        self.loop = Loop(self.chance)
        self.copies = copies
        self.works_until_s = FAULTS_S
        self.no_answers = (TIMED_OUT, REFUSED, BUSY)
        self.runner_sessions: set[int] = set()
        self._broken = broken
        self._last_value = 0
        self._cuts: set[tuple[str, str]] = set()
        self.counts: Counter[str] = Counter()
        self.targets = {f"t{number}": Target(self, f"t{number}") for number in range(targets)}
        self.oracle = Oracle(self)
        self.meta = Metaserver(self)
        self.clients = [Client(self, f"c{number}") for number in range(2)]
        self.runner = Runner(self, "runner")
        self._nature = Process(self.loop, "nature")
        places = list(self.targets)
        for file in self.names:
            self.meta.create(file, self.chance.sample(places, copies))
        self.meta.start()
        for target in self.targets.values():
            target.start()
        for client in (*self.clients, self.runner):
            client.start()
        self._nature.spawn(self._faults())

    def breaks(self, rule: str) -> bool:
        return self._broken == rule

    def new_value(self) -> int:
        self._last_value += 1
        return self._last_value

    def run(self) -> None:
        self.loop.run_until(FAULTS_S + CALM_S)
        self.oracle.at_the_end()

    # ---- network --------------------------------------------------------------------------

    def ask(
        self, of: Host, to: Host, handler: Callable[..., Steps], *given: Any, wait_s: float = 2.0
    ) -> Future:
        """The answer of a handler of another host; TIMED_OUT, or REFUSED when no process is there.
        The handler may run without an answer, or long after the wait has ended."""
        answer = Future()

        def arrive() -> None:
            if not to.process.is_alive:
                self._carry(to.name, of.name, lambda: answer.resolve(REFUSED))
                return
            ended = to.process.spawn(handler(*given))
            ended.then(lambda value: self._carry(to.name, of.name, lambda: answer.resolve(value)))

        self._carry(of.name, to.name, arrive)
        if to is self.meta and self.loop.now < FAULTS_S and self.chance.random() < 0.02:
            late_s = 15.0 * self.chance.random()  # it was sent again over another connection
            self.loop.after(late_s, self._carry, of.name, to.name, arrive)
        return self.loop.either(answer, wait_s)

    def recall(self, session: int, file: str, number: int) -> None:
        for client in (*self.clients, self.runner):
            if client.session == session and client.process.is_alive:
                process = client.process

                def arrive(client: Client = client, process: Process = process) -> None:
                    if process.is_alive:
                        process.spawn(client.recall(file, number))

                self._carry(self.meta.name, client.name, arrive)

    def _carry(self, of: str, to: str, arrive: Callable[[], None]) -> None:
        chance = self.chance.random()
        delay_s = 0.02 * self.chance.random()
        if self.loop.now < FAULTS_S:
            if chance < 0.004:
                delay_s = 25.0 * self.chance.random()
            elif chance < 0.03:
                delay_s = 3.0 * self.chance.random()
        self.loop.after(delay_s, self._reach, of, to, arrive)

    def _reach(self, of: str, to: str, arrive: Callable[[], None]) -> None:
        if (of, to) not in self._cuts:
            arrive()
        elif self.chance.random() < 0.5:
            self.loop.after(1.0, self._reach, of, to, arrive)

    def work_s(self) -> float:
        """How long a worker takes."""
        chance = self.chance.random()
        if self.loop.now < FAULTS_S:
            if chance < 0.004:
                return 30.0 * self.chance.random()
            if chance < 0.03:
                return 3.0 * self.chance.random()
        return 0.01 * self.chance.random()

    def idle_s(self) -> float:
        """How long a client waits before it makes a closed file durable."""
        return self.chance.random() * (5.0 if self.loop.now < FAULTS_S else 0.1)

    # ---- faults ---------------------------------------------------------------------------

    def _faults(self) -> Steps:
        chance = self.chance
        acts = (
            self._kill_target,
            self._power_off,
            self._cut,
            self._pause,
            self._kill_client,
            self._kill_meta,
            self._kill_runner,
        )
        weights = [chance.choice((0, 1, 3)) for _ in acts]
        while self.loop.now < FAULTS_S:
            yield chance.random() * chance.choice((1.0, 4.0, 10.0))
            if any(weights):
                act = chance.choices(acts, weights)[0]
                self._nature.spawn(act())
        yield 20.0  # every fault has ended by itself
        self._cuts.clear()

    def misfortune(self) -> Steps:
        """At a step where it matters the next one may come late, and something happens about
        then."""
        chance = self.chance
        if self.loop.now < FAULTS_S and chance.random() < 0.1:
            act = chance.choice((self._power_off, self._power_off, self._kill_target))
            late_s = 10.0 * chance.random()
            self.loop.after(late_s * 1.5 * chance.random(), lambda: self._nature.spawn(act()))
            yield late_s

    def _kill_target(self) -> Steps:
        target = self.chance.choice(list(self.targets.values()))
        if target.process.is_alive:
            self.counts["killed targets"] += 1
            target.kill()
            yield self.chance.random() * self.chance.choice((1.0, 15.0))
            target.start()

    def _power_off(self) -> Steps:
        count = self.chance.choice((1, 1, len(self.targets) - 1, len(self.targets)))
        off = self.chance.sample(list(self.targets.values()), count)
        off = [target for target in off if target.process.is_alive]
        for target in off:
            self.counts["power losses"] += 1
            target.lose_power()
            self.oracle.lost_power(target.name)
        for target in off:
            yield self.chance.random() * self.chance.choice((1.0, 15.0))
            target.start()

    def _cut(self) -> Steps:
        hosts = [self.meta.name, *self.targets, *(one.name for one in self.clients)]
        one, other = self.chance.sample(hosts, 2)
        pairs = self.chance.choice(
            ([(one, other)], [(one, other), (other, one)], [(one, name) for name in hosts])
        )
        self.counts["cuts"] += 1
        self._cuts.update(pairs)
        yield self.chance.random() * self.chance.choice((3.0, 18.0))
        self._cuts.difference_update(pairs)

    def _pause(self) -> Steps:
        hosts: list[Host] = [self.meta, self.runner, *self.targets.values(), *self.clients]
        process = self.chance.choice(hosts).process
        seconds = self.chance.random() * self.chance.choice((3.0, 18.0))
        process.paused_until_s = max(process.paused_until_s, self.loop.now + seconds)
        self.counts["pauses"] += 1
        yield 0.0

    def _kill_client(self) -> Steps:
        yield 0.0
        client = self.chance.choice(self.clients)
        self.counts["killed clients"] += 1
        self.restart_client(client, client.process)

    def restart_client(self, client: Client, process: Process) -> None:
        """Ends it, if it is still that process, and starts another one with another session."""
        if client.process is process and process.is_alive:
            process.kill()
            self.loop.after(self.chance.random() * 5.0, client.start)

    def _kill_meta(self) -> Steps:
        if self.meta.process.is_alive:
            self.counts["killed metaservers"] += 1
            self.meta.process.kill()
            yield self.chance.random() * self.chance.choice((0.5, 8.0))
            self.meta.start()

    def _kill_runner(self) -> Steps:
        yield 0.0
        self.counts["killed runners"] += 1
        self.restart_client(self.runner, self.runner.process)
