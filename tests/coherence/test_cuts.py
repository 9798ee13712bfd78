"""Two and four clients in network namespaces of their own, whose links are cut and restored while
they work and while servers are killed; their history is judged.

A cut that is shorter than the session only costs time: no operation fails. A client that was cut
off for longer is evicted and fenced; it gets EIO for what it had written and not synced, and goes
on with a new session. Packets are dropped: neither end is notified that the other is unreachable.
"""

import errno
import multiprocessing
import os
import random
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self

import pytest

from tests.cluster.mounts import kill_client
from tests.cluster.networks import Cut
from tests.cluster.process import Program
from tests.coherence import histories
from tests.coherence.conftest import LinkedMaker
from tests.coherence.histories import Manner
from tests.coherence.judging import MODELS, judge, make_chance, make_scripts, record_and_judge
from tests.coherence.links import META, STORES, LinkCutter, Linked, client_name, directions
from tests.model.file_models import Append, Release, TryLock
from tests.model.linearizability import NEVER, UNKNOWN, Operation

pytestmark = [
    pytest.mark.mount,
    pytest.mark.timeout(1200),
    pytest.mark.expects_warnings,
    pytest.mark.expects_log("the session was lost", "written bytes were lost", "is lost: "),
]

Sized = Callable[[int, int], int]
PACE_S = {"names": 0.004, "appends": 0.03, "locks": 0.004, "counter": 0.02}
COUNT_MAX = 20_000  # the most operations of one client
STEP_SECONDS_MAX = 60.0
SESSION_S = 3.0  # the session timeout of clients that are to be evicted
# The number of lock owners that got locks for sessions whose clients never received the grant.
GHOSTS = 100
LONG_SESSION_S = 30.0


# ---- cuts that are longer than the session -------------------------------------------------------


class Holdings:
    """What a client has when it is cut off.

    It has a file with bytes that no other client has seen, one that is synced, and two directories
    delegated to it, so that it answers changes of their names alone; it changes one of them while
    it is cut off. They are open in a process of its own: other processes that the test starts would
    inherit the descriptors, and would wait for the client to close them.
    """

    def __init__(self, base: Path, other: Path) -> None:
        self._base = base
        self._other = other
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=self._serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def do(self, step: str) -> None:
        """The step is open, write, or check."""
        self._pipe.send(step)
        assert self._pipe.poll(STEP_SECONDS_MAX), f"'{step}' does not come to an end"
        assert (said := self._pipe.recv()) == "done", said

    def _serve(self, pipe: Connection) -> None:
        while (step := pipe.recv()) != "end":
            try:
                getattr(self, f"_{step}")()
                pipe.send("done")
            except BaseException:
                pipe.send(f"{step}: {traceback.format_exc()}")
        os._exit(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Closes its files, so that the mount can end."""
        self._pipe.send("end")
        self._process.join(STEP_SECONDS_MAX)

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_CREAT
        self._dirty = os.open(self._base / "dirty", flags)
        self._clean = os.open(self._base / "clean", flags)
        for fd in (self._dirty, self._clean):
            os.write(fd, b"kept")
            os.fsync(fd)
        self._folders = [self._make_folder(name) for name in ("changed", "unchanged")]

    def _make_folder(self, name: str) -> int:
        folder = self._base / name
        folder.mkdir()
        for number in range(100):
            (folder / f"{number}").touch()
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(fd)
        return fd

    def _write(self) -> None:
        os.pwrite(self._dirty, b"LOST", 4)
        (self._base / "changed" / "LOST").touch()
        (self._base / "changed" / "7").unlink()

    def _check(self) -> None:
        """After the cut: EIO for the file that lost bytes, once, and for no other."""
        with pytest.raises(OSError) as caught:
            os.fsync(self._dirty)
        assert caught.value.errno == errno.EIO
        os.fsync(self._dirty)
        os.fsync(self._clean)
        self._check_folders()
        assert os.pread(self._clean, 10, 0) == b"kept"
        os.pwrite(self._clean, b"new!", 0)
        os.close(self._clean)
        assert (self._other / "clean").read_bytes() == b"new!"
        os.close(self._dirty)
        for base in (self._other, self._base):
            assert (base / "dirty").read_bytes() == b"kept"
        with (self._base / "dirty").open("r+b") as file:
            file.write(b"more")
            os.fsync(file.fileno())
        assert (self._other / "dirty").read_bytes() == b"more"

    def _check_folders(self) -> None:
        changed, unchanged = self._folders
        os.fsync(unchanged)
        for base in (self._other, self._base):
            assert sorted(os.listdir(base / "changed")) == sorted(os.listdir(unchanged))
        with pytest.raises(OSError) as caught:
            os.fsync(changed)
        assert caught.value.errno == errno.EIO
        os.fsync(changed)
        (self._base / "changed" / "new").touch()
        os.fsync(changed)
        assert (self._other / "changed" / "new").exists()


def test_two_clients_and_a_cut_that_is_too_long(linked: LinkedMaker) -> None:
    two = linked(2, SESSION_S)
    bases, cutter = two.folder("names"), LinkCutter(two)
    ways = directions(client_name(2))
    with Holdings(*reversed(two.folder("holdings"))) as holdings:

        def meanwhile() -> None:
            time.sleep(0.3)
            cutter.cut(ways["to it"], 0.5)
            time.sleep(0.3)
            holdings.do("open")
            cutter.cut_until_evicted(2, ways["both"], lambda: holdings.do("write"))
            time.sleep(0.5)

        scripts = make_scripts("names", make_chance(), 2, COUNT_MAX)
        manner = Manner(PACE_S["names"], is_careful=True, to_the_end=False)
        history = record_and_judge(bases, scripts, MODELS["names"], meanwhile, manner)
        holdings.do("check")
    assert all(cutter.lost), "a cut cost no packet"
    print(f"{len(history)} operations, of which {_unknown(history)} nobody knows the outcome of")


def test_others_see_zeros_of_a_lost_append_at_most(linked: LinkedMaker, full: bool) -> None:
    """A client gives up a file while its storage servers are dead, and is cut off before they are
    back: what others see of the bytes that it could not send is their length."""
    two = linked(2, SESSION_S)
    one, other = (base / "log" for base in two.folder("lost"))
    before = b"." * (1 << 20)  # too long for the inode's record
    with one.open("ab", buffering=0) as file:
        file.write(before)
        os.fsync(file)
    with ThreadPoolExecutor(2) as threads:
        for server in two.cluster.storageservers:
            server.kill()
        lost = threads.submit(_append, one, b"lost")
        time.sleep(0.3)
        kept = threads.submit(_append, other, b"kept")
        time.sleep(0.5)  # the first client is asked to give up the file
        LinkCutter(two).cut_until_evicted(
            1, directions(client_name(1))["both"], lambda: _start(two)
        )
        assert kept.result(STEP_SECONDS_MAX) == 0
        assert lost.result(STEP_SECONDS_MAX) == errno.EIO
    assert other.read_bytes() in (before + b"kept", before + bytes(4) + b"kept")
    assert one.read_bytes() == other.read_bytes()
    if not full:
        # Its unmount would wait 45 s, until TCP repeats what was lost on a connection that was cut.
        pid = two.cluster.client_pid()
        assert pid is not None
        kill_client(pid)


def _append(path: Path, octets: bytes) -> int:
    """0 or the errno of the write, or of the fsync behind it."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, octets)
        os.fsync(fd)
    except OSError as error:
        return error.errno or -1
    finally:
        os.close(fd)
    return 0


def _start(linked: Linked) -> None:
    for server in linked.cluster.storageservers:
        server.start()


def _unknown(history: list[Operation]) -> int:
    return sum(one.result is UNKNOWN for one in history)


@pytest.mark.full
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("kind", ["names", "appends", "locks"])
def test_clients_that_are_cut_off_again_and_again(
    linked: LinkedMaker, kind: str, count: int
) -> None:
    """Each client in turn is cut off in every direction; twice a storage server is killed
    meanwhile.

    The counter under a lock is left out: a client whose session ended has lost its locks, and
    programs that held them are not notified (docs/SEMANTICS.md).
    """
    several = linked(count, SESSION_S)
    bases = several.folder(kind)
    cutter = LinkCutter(several)
    freed: list[Operation] = []
    rounds = [way for way in ("both", "from it", "to it") for _ in range(2)]

    def meanwhile() -> None:
        for number, way in enumerate(rounds):
            victim = number % count + 1
            freed.extend(_freed_locks(victim - 1))
            if number % 3 == 2:
                _kill_and_restart(several.cluster.storageservers[number % 2], 0.5)
            cuts = directions(client_name(victim))[way]
            cutter.cut_until_evicted(victim, cuts)
            time.sleep(2.0)

    scripts = make_scripts(kind, make_chance(), count, COUNT_MAX)
    manner = Manner(PACE_S[kind], is_careful=True, to_the_end=False)
    history = histories.record(bases, scripts, meanwhile, manner)
    extra = {"locks": freed, "appends": _zeros(history)}
    judge([*history, *extra.get(kind, [])], MODELS[kind])
    assert len(cutter.lost) == len(rounds) and all(cutter.lost)
    for client in range(count):  # each client went on with its new session
        own = [one for one in history if one.client == client]
        assert any(one.result is not UNKNOWN for one in own[-20:]), f"client {client + 1} is stuck"
    print(f"{len(history)} operations, {_unknown(history)} of unknown outcome")


def _zeros(history: list[Operation]) -> list[Operation]:
    """Instead of each append that may be lost there may be zeros (docs/SEMANTICS.md)."""
    return [
        replace(one, argument=Append(one.argument.file, bytes(len(one.argument.record))))
        for one in history
        if one.result is UNKNOWN and isinstance(one.argument, Append)
    ]


def _freed_locks(client: int) -> list[Operation]:
    """All locks of this client may be free from now on, whenever it is evicted.

    A request in flight may have got a lock for the session that ends: then no session can have it,
    not even the client's next one, until the storage servers have fenced the former one
    (docs/SEMANTICS.md).
    """
    ghost = GHOSTS + client
    acts = [
        act
        for file in (f"lock{number}" for number in range(3))
        for act in (Release(file, client), TryLock(file, ghost), Release(file, ghost))
    ]
    now = time.monotonic()
    return [Operation(client, now, NEVER, act, UNKNOWN) for act in acts]


def _kill_and_restart(program: Program, dead_s: float, *, ready: bool = True) -> None:
    program.kill()
    time.sleep(dead_s)
    program.start(ready=ready)


# ---- short cuts ----------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("kind", list(MODELS))
def test_short_cuts_and_killed_servers(linked: LinkedMaker, kind: str, count: int) -> None:
    """No operation fails and no client is evicted: each cut is shorter than a session lasts."""
    several = linked(count, LONG_SESSION_S)
    bases = several.folder(kind)
    cutter = LinkCutter(several)
    chance = make_chance()
    kills: list[str] = []

    def meanwhile() -> None:
        servers = [several.cluster.metaserver, *several.cluster.storageservers]
        for number, cuts in enumerate(_short_cuts(count, chance)):
            if number % 3 == 1:
                victim = servers[len(kills) % len(servers)]
                kills.append(victim.name)
                several.network.cut(*cuts)
                _kill_and_restart(victim, 0.3, ready=False)  # the victim may be cut off itself
            cutter.cut(cuts, chance.uniform(0.2, 2.5))
            time.sleep(chance.uniform(0.5, 3.0))

    scripts = make_scripts(kind, chance, count, COUNT_MAX)
    manner = Manner(PACE_S[kind], to_the_end=False)
    history = record_and_judge(bases, scripts, MODELS[kind], meanwhile, manner)
    assert several.evictions() == 0
    # Operations on names use no storage server.
    assert len(kills) >= 3 and sum(map(bool, cutter.lost)) >= 4
    print(f"{len(history)} operations, {len(cutter.lost)} cuts, killed: {', '.join(kills)}")


def _short_cuts(count: int, chance: random.Random) -> list[tuple[Cut, ...]]:
    """Cuts of each client from all others, in each direction; then from one server; then servers
    from each other."""
    cuts: list[tuple[Cut, ...]] = []
    for number in range(1, count + 1):
        name = client_name(number)
        cuts += directions(name).values()
        cuts += [(Cut(name, server),) for server in (META, *STORES)]
        cuts += [(Cut(server, name),) for server in (META, *STORES)]
    cuts += [(Cut(META, store), Cut(store, META)) for store in STORES]
    chance.shuffle(cuts)
    return cuts[:14]
