"""A world in which the code of checkpoints runs: one seed decides every order, fault and power cut.

Each process of the world is a thread, and only one runs at a time: before each call to the disk it
waits until the seed chooses it. The disk is one in memory, or a real directory; then there are no
power cuts. `run_world(seed)` plays ranks of one or two attempts, a remover, `tidy`, readers, kills,
and a full disk, and judges what everybody sees: at each call, after a power cut, and at the end.
"""

import errno
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from braidfs.checkpoint import CheckpointError, Checkpoints, Step, StepLost
from braidfs.checkpoint.calls import Calls
from braidfs.checkpoint.manifest import decode_manifest
from braidfs.checkpoint.names import read_visible

from .checkpoint_disk import MemoryDisk

COMMAND = '.venv/bin/python -c "from tests.model.checkpoint_world import run_world; {}({})"'
TURNS_MAX = 60_000


class Killed(BaseException):
    """The process has ended; nothing that it calls afterwards has an effect."""


class Process:
    def __init__(self, name: str) -> None:
        self.name, self.is_killed = name, False


class Actor:
    def __init__(self, process: Process, work: Callable[[], None]) -> None:
        self.process, self.wake = process, 0.0
        self.may_run, self.is_over = threading.Semaphore(0), False
        self.thread = threading.Thread(target=work, daemon=True)


class RealDirectory(Calls):
    """A directory of this machine, with what the world needs beside the calls."""

    def empty(self, path: Path) -> None:
        path.write_bytes(b"")

    def fill(self, path: Path, content: bytes) -> None:
        with path.open("r+b") as file:
            file.write(content)


@dataclass
class World:
    seed: int
    root: Path
    disk: Any = None
    time: float = 1000.0
    power_cut_at: int | None = None
    is_cut_at_report: bool = False  # the power is cut soon after the first report of a step
    full: range = range(0)  # turns in which the disk has no space
    kills: dict[int, str] = field(default_factory=dict)
    actors: list[Actor] = field(default_factory=list)
    reported: set[int] = field(default_factory=set)
    removals: set[int] = field(default_factory=set)
    outcomes: dict[str, object] = field(default_factory=dict)
    failures: list[BaseException] = field(default_factory=list)
    turns: int = 0
    pauses: float = 0.0  # how often the one that is chosen does not run for a while

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self._main, self._local = threading.Semaphore(0), threading.local()
        self.disk = self.disk or MemoryDisk(lambda: self.time)

    def start(self, process: Process, work: Callable[[], None]) -> None:
        actor = Actor(process, lambda: self._run(actor, work))
        self.actors.append(actor)
        actor.thread.start()

    def turn(self, process: Process) -> None:
        """Gives the turn away, and returns when the seed chooses this actor again."""
        actor: Actor = self._local.actor
        self._main.release()
        actor.may_run.acquire()
        if process.is_killed:
            raise Killed

    def sleep(self, process: Process, seconds: float) -> None:
        self._local.actor.wake = self.time + seconds
        self.turn(process)

    def play(self) -> None:
        """Until everybody has ended, or the power is cut."""
        while ready := [actor for actor in self.actors if not actor.is_over]:
            self.turns += 1
            assert self.turns < TURNS_MAX, "the world does not end"
            awake = [actor for actor in ready if actor.wake <= self.time]
            if not awake:
                self.time = min(actor.wake for actor in ready)
                continue
            self.time += 0.0005
            self._kill(self.kills.get(self.turns))
            if self.turns == self.power_cut_at:
                return self._cut_power()
            chosen = self.chance.choice(awake)
            if self.chance.random() < self.pauses:
                chosen.wake = self.time + self.chance.random() * 0.2
                continue
            self._step(chosen)
            if self.failures:
                failure = self.failures[0]
                self._end()
                raise failure
            self.judge()
        return None

    def judge(self) -> None:
        """Every visible step is whole, and of one attempt."""
        names = self.disk.names(self.root) if self.disk.exists(self.root) else []
        for step in filter(None, map(read_visible, names)):
            place = next(self.root / name for name in names if read_visible(name) == step)
            manifest = decode_manifest(self.disk.read(place / "checkpoint.json"))
            assert {file.part for file in manifest.files} == set(range(manifest.parts))
            for file in manifest.files:
                wanted = content_of(step, manifest.attempt, file.part)
                assert self.disk.read(place / file.name) == wanted, f"{place.name}: {file.name}"
                assert file.size == len(wanted)

    def _run(self, actor: Actor, work: Callable[[], None]) -> None:
        self._local.actor = actor
        actor.may_run.acquire()
        try:
            if not actor.process.is_killed:
                work()
        except Killed:
            pass
        except BaseException as error:
            self.failures.append(error)
        actor.is_over = True
        self._main.release()

    def _step(self, actor: Actor) -> None:
        actor.may_run.release()
        self._main.acquire()

    def _kill(self, name: str | None) -> None:
        for actor in self.actors:
            if actor.process.name == name:
                actor.process.is_killed = True
                actor.wake = 0.0

    def _end(self) -> None:
        for actor in self.actors:
            actor.process.is_killed = True
        for actor in self.actors:
            while not actor.is_over:
                self._step(actor)

    def _cut_power(self) -> None:
        self._end()
        self.disk.cut_power(self.chance)
        self.judge()
        there = set(map(read_visible, self.disk.names(self.root)))
        assert self.reported - self.removals <= there, "a step that was reported is gone"


class _File:
    def __init__(self, calls: "WorldCalls", path: Path) -> None:
        self._calls, self._path, self._content = calls, path, b""

    def write(self, content: bytes) -> int:
        self._calls.checked(self._path)
        self._content += content
        self._calls.world.disk.fill(self._path, self._content)
        return len(content)

    def close(self) -> None:
        return

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *_: object) -> None:
        return


class WorldCalls(Calls):
    """The calls of one process: each waits for its turn."""

    def __init__(self, world: World, process: Process) -> None:
        self.world, self.process = world, process

    def checked(self, path: Path) -> None:
        """One turn, and an error where the disk is full now."""
        self.world.turn(self.process)
        if self.world.turns in self.world.full:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    def open_new(self, path: Path, mode: str = "wb") -> Any:
        self.checked(path)
        self.world.disk.empty(path)
        return _File(self, path)

    def make_directory(self, path: Path) -> bool:
        self.checked(path)
        return bool(self.world.disk.make_directory(path))

    def create(self, path: Path, content: bytes) -> None:
        self.world.turn(self.process)
        self.world.disk.create(path, b"")
        self.checked(path)
        self.world.disk.fill(path, content)

    def create_synced(self, path: Path, content: bytes) -> None:
        self.create(path, content)
        self.sync_file(path)

    def lock(self, path: Path, *, exclusive: bool) -> Any:
        self.world.turn(self.process)
        if isinstance(self.world.disk, RealDirectory):
            return self.world.disk.lock(path, exclusive=exclusive)
        opened = self.world.disk.find(path)  # open(2) and flock(2) are two calls
        self.world.turn(self.process)
        return self.world.disk.lock_node(opened, exclusive=exclusive)

    def remove_tree(self, path: Path) -> None:
        """Entry by entry."""
        try:
            for name in self.names(path):
                below = path / name
                try:
                    self.names(below)
                except (OSError, AttributeError):
                    self._quietly(below)
                else:
                    self.remove_tree(below)
            self.world.turn(self.process)
            _rmdir(self.world.disk, path)
        except FileNotFoundError:
            return

    def _quietly(self, path: Path) -> None:
        try:
            self.unlink(path)
        except FileNotFoundError:
            return

    def each(self, work: Callable[[Any], object], items: Sequence[Any]) -> list[object]:
        return [work(one) for one in items]

    def later(self, work: Callable[[], None], *, must_end: bool = False) -> Callable[[], None]:
        self.world.start(self.process, work)
        return lambda: None

    def unique(self) -> str:
        return f"{self.world.chance.getrandbits(48):012x}"

    def now(self) -> float:
        return self.world.time

    def monotonic(self) -> float:
        return self.world.time

    def sleep(self, seconds: float) -> None:
        self.world.sleep(self.process, seconds)


def _rmdir(disk: Any, path: Path) -> None:
    if isinstance(disk, RealDirectory):
        path.rmdir()
    elif not disk.names(path):
        disk.unlink(path)


def _passed_on(name: str) -> Callable[..., Any]:
    def call(self: WorldCalls, *arguments: Any, **options: Any) -> Any:
        self.world.turn(self.process)
        return getattr(self.world.disk, name)(*arguments, **options)

    return call


for _name in (
    *("names", "matching", "exists", "size", "modified", "read", "sync_file", "sync_directory"),
    *("rename", "link_name", "unlink"),
):
    setattr(WorldCalls, _name, _passed_on(_name))


def content_of(step: int, attempt: str, part: int) -> bytes:
    return f"{step}/{attempt}/{part}".encode()


@dataclass(frozen=True)
class Story:
    """What the seed has chosen."""

    parts: int
    attempts: tuple[str, ...]
    steps: tuple[int, ...]
    keep: int
    has_tidy: bool
    has_remover: bool


def run_world(seed: int, directory: Path | None = None) -> World:
    """Plays one world. A failed one prints the command that repeats it."""
    try:
        return _run_world(seed, directory)
    except BaseException:
        print("again:", COMMAND.format("run_world", seed))
        raise


def _run_world(seed: int, directory: Path | None) -> World:
    world = World(seed, directory or Path("/run"), RealDirectory() if directory else None)
    chance = world.chance
    story = Story(
        parts=chance.choice((1, 2, 3, 4)),
        attempts=("a", "b")[: chance.choice((1, 1, 2))],
        steps=(10, 20, 30)[: chance.choice((1, 2, 3))],
        keep=chance.choice((0, 1, 2)),
        has_tidy=chance.random() < 0.3,
        has_remover=chance.random() < 0.3,
    )
    world.pauses = chance.choice((0.0, 0.02, 0.1))
    if chance.random() < 0.5 and directory is None:
        world.power_cut_at = chance.randrange(20, 400)
    elif directory is None:
        world.is_cut_at_report = chance.random() < 0.4
    if chance.random() < 0.2:
        start = chance.randrange(200)
        world.full = range(start, start + chance.randrange(1, 40))
    for _ in range(chance.choice((0, 0, 1, 2))):
        rank = f"{chance.choice(story.attempts)}{chance.randrange(story.parts)}"
        world.kills[chance.randrange(5, 300)] = chance.choice((rank, rank, "remover", "tidy"))
    _start(world, story)
    if directory is None:
        world.disk.make_directory(world.root)
        world.disk.sync_directory(Path("/"))
    world.play()
    if world.power_cut_at is None or world.turns < world.power_cut_at:
        _judge_the_end(world, story)
    return world


def _start(world: World, story: Story) -> None:
    for attempt in story.attempts:
        for part in range(story.parts):
            process = Process(f"{attempt}{part}")
            world.start(process, lambda p=process, a=attempt, n=part: _rank(world, story, p, a, n))  # type: ignore[misc]
    for number in range(2):
        process = Process(f"reader{number}")
        world.start(process, lambda p=process: _reader(world, p))  # type: ignore[misc]
    if story.has_tidy:
        process = Process("tidy")
        world.start(process, lambda p=process: _tidy(world, p))  # type: ignore[misc]
    if story.has_remover:
        process = Process("remover")
        world.start(process, lambda p=process: _remover(world, p))  # type: ignore[misc]


def _rank(world: World, story: Story, process: Process, attempt: str, part: int) -> None:
    calls = WorldCalls(world, process)
    checkpoints = Checkpoints(world.root, keep=story.keep, calls=calls)
    for step in story.steps:
        if story.keep:
            # A newer step may push out any older one as soon as it is visible.
            world.removals.update(one for one in story.steps if one < max(story.steps))
        outcome = _save(checkpoints, (step, part, story.parts, attempt))
        world.outcomes[f"{process.name}/{step}"] = outcome
        if isinstance(outcome, Step):
            assert outcome.attempt == attempt
            world.reported.add(step)
            if world.is_cut_at_report and world.power_cut_at is None:
                world.power_cut_at = world.turns + world.chance.randrange(1, 8)
        if isinstance(outcome, StepLost):
            there = world.disk.exists(world.root / f"step-{step:09d}")
            is_excused = story.has_tidy or story.has_remover or bool(story.keep)
            assert is_excused and (not there or len(story.attempts) > 1), "it is visible"


def _save(checkpoints: Checkpoints, what: tuple[int, int, int, str]) -> object:
    step, part, parts, attempt = what
    try:
        with checkpoints.begin(step, part, parts, attempt) as c, c.file(f"{part}.pt") as file:
            file.write(content_of(step, attempt, part))
        return c.wait(timeout=30)
    except (CheckpointError, OSError) as error:
        if isinstance(error, OSError):
            assert error.errno in (errno.ENOSPC, errno.ENOENT), error
        return error


def _reader(world: World, process: Process) -> None:
    calls = WorldCalls(world, process)
    checkpoints = Checkpoints(world.root, calls=calls)
    for _ in range(6):
        calls.sleep(world.chance.random() * 0.02)
        try:
            with checkpoints.reading() as path:
                manifest = decode_manifest(calls.read(path / "checkpoint.json"))
                for file in manifest.files:
                    wanted = content_of(manifest.step, manifest.attempt, file.part)
                    try:
                        assert calls.read(path / file.name) == wanted
                    except FileNotFoundError as error:
                        raise AssertionError("a step went away under its reader") from error
        except StepLost:
            continue


def _tidy(world: World, process: Process) -> None:
    calls = WorldCalls(world, process)
    for _ in range(4):
        calls.sleep(world.chance.random() * 0.05)
        Checkpoints(world.root, calls=calls).tidy(age=0.0)


def _remover(world: World, process: Process) -> None:
    calls = WorldCalls(world, process)
    checkpoints = Checkpoints(world.root, calls=calls)
    for _ in range(6):
        calls.sleep(world.chance.random() * 0.02)
        for step in checkpoints.steps():
            world.removals.add(step.number)
            try:
                checkpoints.remove(step.number)
            except StepLost:
                continue


def _judge_the_end(world: World, story: Story) -> None:
    """Nobody was killed, no disk was full, nobody removed: so every rank has its step."""
    is_quiet = not world.kills and not world.full and len(story.attempts) == 1
    if is_quiet and not story.has_tidy and not story.has_remover:
        bad = {name: one for name, one in world.outcomes.items() if not isinstance(one, Step)}
        if story.keep:  # a slow rank may find its step removed, or pushed out by newer ones
            bad = {name: one for name, one in bad.items() if not isinstance(one, StepLost)}
        assert bad == {}, "a rank has no step"
    there = {read_visible(name) for name in world.disk.names(world.root)}
    assert world.reported - world.removals <= there, "a step that was reported is gone"
