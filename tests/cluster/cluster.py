"""A cluster as one object: it is written down, started, mounted, broken on purpose and stopped.

Every call reads the state from the pid files and the mount table, so it does not matter which
process started which program: `./dev down` stops what `./dev up` started, and a test may kill a
server without telling either. The engine of the journal starts first, and then metaservers, because
the others register there.
"""

import contextlib
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tests.cluster import engines, mounts
from tests.cluster.mounts import HELPER_LINK
from tests.cluster.networks import Place
from tests.cluster.plan import HERE, ClusterPlan, ServerPlan, save, save_client_config
from tests.cluster.process import (
    READY_SECONDS_MAX,
    ProcessError,
    Program,
    is_gone,
    stop_pid,
    tail,
    wait_until,
    write_script,
)

BIN = Path(sys.prefix) / "bin"

Report = Callable[[str], None]


def _silent(_text: str) -> None:
    return None


def link_mount_helper(report: Report = _silent) -> None:
    """Links /sbin/mount.fuse.braidfs to this environment's helper, because mount(8) finds helpers
    only in /sbin."""
    script = BIN / "mount.fuse.braidfs"
    before = HELPER_LINK.readlink() if HELPER_LINK.is_symlink() else None
    if before == script:
        return
    if before is not None or HELPER_LINK.exists():
        whose = before or "another program"
        report(f"taking {HELPER_LINK} from {whose}: mount(8) begins {script} from now on")
    fresh = HELPER_LINK.with_name(f"{HELPER_LINK.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(script)
    fresh.replace(HELPER_LINK)


class Cluster:
    """The handle of one state directory."""

    def __init__(self, plan: ClusterPlan, report: Report = _silent) -> None:
        self.plan = plan
        self._report = report

    @property
    def mount_path(self) -> Path:
        return self.plan.mount

    def program(self, server: ServerPlan) -> Program:
        kind = "metaserver" if server in self.plan.metaservers else "storageserver"
        argv = (str(BIN / f"braidfs-{kind}"), "--config", str(self.plan.config_path(server)))
        return Program(server.name, argv, self.plan.state, server.place.enter)

    @property
    def metaserver(self) -> Program:
        return self.program(self.plan.metaserver)

    @property
    def metaservers(self) -> tuple[Program, ...]:
        return tuple(self.program(server) for server in self.plan.metaservers)

    @property
    def storageservers(self) -> tuple[Program, ...]:
        return tuple(self.program(server) for server in self.plan.storageservers)

    @property
    def programs(self) -> tuple[Program, ...]:
        return (*self.metaservers, *self.storageservers)

    @property
    def engine(self) -> engines.Engine | None:
        """That of the journal, if this cluster has one."""
        return engines.engine_of(self.plan)

    @property
    def client_pid_path(self) -> Path:
        return self.plan.state / "run" / "client.pid"

    def client_pid(self) -> int | None:
        return mounts.client_pid(self.plan.mount)

    def start_servers(self) -> None:
        save(self.plan)
        if engine := self.engine:
            if any(program.pid() is None for program in engine.programs):
                self._report(f"starting {', '.join(one.name for one in engine.programs)}")
            engine.start()
            self._begin_journal()
        for program in self.programs:
            self._start(program)

    def _start(self, program: Program) -> None:
        if program.pid() is None:
            self._report(f"starting {program.name}")
            program.start()

    def _begin_journal(self) -> None:
        """The first metaserver may have names already. So it writes the first entry before another
        one may claim the journal: a log that was begun without the names would be foreign to it."""

        def has_begun() -> bool:
            seen = engines.sighting(self.plan)
            return seen is not None and seen.head.index > 0

        if has_begun():
            return
        self._start(self.metaserver)
        if not wait_until(has_begun, READY_SECONDS_MAX):
            log = tail(self.metaserver.log_path)
            raise ProcessError(f"{self.metaserver.name} has not begun the journal:\n{log}")

    def stop_servers(self) -> None:
        """Stops storage servers first, so that their last messages reach the metaserver, and the
        engine of the journal last."""
        for program in (*self.storageservers, *reversed(self.metaservers)):
            if program.pid() is not None:
                self._report(f"stopping {program.name}")
            if not program.stop():
                self._report(f"{program.name} did not stop within 20 s: killed")
        if engine := self.engine:
            if any(program.pid() is not None for program in engine.programs):
                self._report(f"stopping {', '.join(one.name for one in engine.programs)}")
            engine.stop()

    def restart_servers(self) -> None:
        self.stop_servers()
        self.start_servers()

    def mount(self) -> None:
        link_mount_helper(self._report)
        if mounts.is_mounted(self.plan.mount):
            return
        self._report(f"mounting {self.plan.mount}")
        options, enter = self.plan.mount_options(), self.plan.client_place.enter
        pid = mounts.mount(self.plan.source(), self.plan.mount, options, enter=enter)
        words = (*enter, *mounts.mount_command(self.plan.source(), self.plan.mount, options))
        write_script(self.client_pid_path.with_suffix(".start"), f"exec {shlex.join(words)}\n")
        self.client_pid_path.write_text(f"{pid}\n")

    def unmount(self, *, lazy: bool = False) -> None:
        if mounts.is_mounted(self.plan.mount):
            mounts.unmount(self.plan.mount, lazy=lazy)
        self.client_pid_path.unlink(missing_ok=True)

    def remount(self) -> None:
        self.unmount()
        self.mount()

    def start(self) -> None:
        self.start_servers()
        self.mount()

    def stop(self) -> None:
        """Unmounts, lazily if the mount is busy or its client is dead, and stops every process."""
        pid = self.client_pid()
        with contextlib.suppress(mounts.MountError):
            self.unmount()
        if mounts.is_mounted(self.plan.mount):
            self._report(f"{self.plan.mount} is in use: unmounted lazily, its client stopped")
            self.unmount(lazy=True)
        if pid is not None and not wait_until(lambda: is_gone(pid), 2):
            mounts.end_keeper(pid)
            stop_pid(pid)
        self.client_pid_path.unlink(missing_ok=True)
        self.stop_servers()

    def running(self) -> dict[str, int]:
        """Name → pid of every running program, the client included."""
        engine = self.engine
        programs = (*(engine.programs if engine else ()), *self.programs)
        found = {program.name: program.pid() for program in programs}
        found["client"] = self.client_pid()
        return {name: pid for name, pid in found.items() if pid is not None}

    @contextlib.contextmanager
    def paused(self, *programs: Program) -> Iterator[None]:
        """SIGSTOP for the time of the block: for the kernel the programs live, for all peers they
        are dead."""
        for program in programs:
            program.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for program in programs:
                program.signal(signal.SIGCONT)

    @contextlib.contextmanager
    def second_client(
        self,
        mountpoint: Path,
        *,
        folder: str = "/",
        options: str = "",
        settings: Mapping[str, object] | None = None,
        place: Place = HERE,
    ) -> Iterator[Path]:
        """Mounts another client of the same cluster, and unmounts it at the end.

        Its log is client-NAME.log, named after its mount point. `settings`: more keys of its
        client.toml.
        """
        name = f"client-{mountpoint.name}"
        keys = {"log_file": f"{self.plan.state}/log/{name}.log", **(settings or {})}
        file = f"config={save_client_config(self.plan, name, keys)}"
        words = ",".join(filter(None, (self.plan.options(), file, options)))
        link_mount_helper()
        mounts.mount(self.plan.source(folder), mountpoint, words, enter=place.enter)
        try:
            yield mountpoint
        finally:
            if mounts.is_mounted(mountpoint):
                mounts.unmount(mountpoint)
