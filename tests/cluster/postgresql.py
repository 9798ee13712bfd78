"""A PostgreSQL server of Debian's package, for one test or cluster: in a folder of its own, on
loopback.

It accepts nothing but its password. PostgreSQL refuses to run as root, so root runs it as the user
`postgres` that the package makes. It is stopped by its pid, or killed with all its processes, as a
host is that loses power without losing its page cache.
"""

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from metaserver.store.journals.postgresql import PostgresqlJournal
from tests.cluster.certificates import Certificates
from tests.cluster.networks import Place
from tests.cluster.plan import HERE
from tests.cluster.ports import free_port
from tests.cluster.process import (
    READY_SECONDS_MAX,
    STOP_SECONDS_MAX,
    ProcessError,
    Program,
    is_gone,
    reap,
    stop_pid,
    tail,
    wait_until,
)

USER = "postgres"
_SETTINGS = "test.conf"
_INCLUDE = f"include '{_SETTINGS}'\n"
Settings = Mapping[str, str]


def _binaries() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=_release)
    if not found:
        raise ProcessError("PostgreSQL is not installed: apt-get install postgresql")
    return found[-1].parent


def _release(program: Path) -> int:
    return int(program.parts[-3])


def _as_user() -> tuple[str, ...]:
    """Words in front of a command that run it as a user who is not root."""
    return ("setpriv", "--reuid", USER, "--regid", USER, "--init-groups") if _is_root() else ()


def _is_root() -> bool:
    return os.geteuid() == 0


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _has_ended(pid: int) -> bool:
    """Also a process that begins or ends has an empty command line; but PostgreSQL does not start
    while a process has the pid of the server before."""
    reap(pid)
    return not Path(f"/proc/{pid}").exists()


def _wait_for_end(pid: int, children: Sequence[int] = ()) -> None:
    # The children of a server that was killed are reaped by whoever adopts them, at some time.
    if not wait_until(lambda: _has_ended(pid) and all(map(is_gone, children)), STOP_SECONDS_MAX):
        raise ProcessError(f"PostgreSQL (pid {pid}) does not end")


@dataclass
class PostgresqlServer:
    """settings: of postgresql.conf, as they are at the next start. state: the folder of pid file
    and log, if it is not `folder`. place: where it runs."""

    folder: Path
    port: int
    password: str
    settings: dict[str, str] = field(default_factory=dict)
    state: Path | None = None
    place: Place = HERE

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def password_file(self) -> Path:
        return self.folder / "password"

    @property
    def program(self) -> Program:
        argv = (str(_binaries() / "postgres"), "-D", str(self.data))
        enter = (*self.place.enter, *_as_user())
        return Program("postgresql", argv, self.state or self.folder, enter)

    @property
    def is_created(self) -> bool:
        """Whether `create` has ended."""
        try:
            return _INCLUDE in (self.data / "postgresql.conf").read_text()
        except FileNotFoundError:
            return False

    def _prepare(self) -> None:
        self.password_file.touch(mode=0o600)
        self.password_file.write_text(self.password)
        self.give(self.folder)
        self.give(self.password_file)
        self._check_way()

    def _check_way(self) -> None:
        """Raises ProcessError if the server's user may not go to the folder."""
        words = (*_as_user(), "test", "-w", str(self.folder))
        if subprocess.run(words, check=False, cwd="/").returncode:
            raise ProcessError(
                f"PostgreSQL runs as the user {USER}, who may not use {self.folder}: choose a"
                f" folder below one that every user may enter"
            )

    def create(self) -> None:
        self._prepare()
        self.run(
            *("initdb", "-D", str(self.data), "-U", USER, "--pwfile", str(self.password_file)),
            *("-A", "scram-sha-256", "-E", "UTF8", "--locale", "C", "--no-sync"),
        )
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(_INCLUDE)
        with (self.data / "pg_hba.conf").open("a") as file:
            file.write("host all all samenet scram-sha-256\n")

    def run(self, program: str, *words: str) -> str:
        """Runs one of PostgreSQL's programs, and returns what it said. Raises ProcessError."""
        done = subprocess.run(
            [*self.place.enter, *_as_user(), str(_binaries() / program), *words],
            check=False,
            capture_output=True,
            text=True,
            cwd="/",
            env=os.environ | {"PGPASSWORD": self.password},
        )
        if done.returncode:
            raise ProcessError(f"{program} failed: {done.stderr}")
        return done.stdout

    def give(self, path: Path) -> None:
        """Makes the server's user the owner."""
        if _is_root():
            user = pwd.getpwnam(USER)
            os.chown(path, user.pw_uid, user.pw_gid)

    def _write_settings(self) -> None:
        settings = {
            "port": str(self.port),
            "listen_addresses": self.place.address,
            "unix_socket_directories": "",
        } | self.settings
        path = self.data / _SETTINGS
        path.write_text("".join(f"{name} = '{value}'\n" for name, value in settings.items()))
        self.give(path)

    def start(self) -> None:
        self._write_settings()
        program = self.program
        pid = program.start(ready=False)

        def is_ready() -> bool:
            if _has_ended(pid):
                raise ProcessError(f"PostgreSQL has ended:\n{tail(program.log_path)}")
            with contextlib.suppress(ProcessError):
                self.run("pg_isready", "-q", "-h", self.place.address, "-p", str(self.port))
                return True
            return False

        if not wait_until(is_ready, READY_SECONDS_MAX):
            raise ProcessError(f"PostgreSQL is not ready:\n{tail(program.log_path)}")

    @property
    def pid(self) -> int:
        pid = self.program.pid()
        if pid is None:
            raise ProcessError("PostgreSQL is not running")
        return pid

    def stop(self) -> None:
        """Ends it without a wait for its clients."""
        pid = self.pid
        stop_pid(pid, signal.SIGINT)
        _wait_for_end(pid)

    def signal_all(self, sign: signal.Signals) -> None:
        """Signals the server and its processes, of which each connection has one."""
        for pid in (self.pid, *_children(self.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)

    def kill(self) -> None:
        """Kills the server with all its processes."""
        pid = self.pid
        os.kill(pid, signal.SIGSTOP)  # so that it starts no more of them
        children = _children(pid)
        for one in (*children, pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        _wait_for_end(pid, children)

    def url(self, **words: str) -> str:
        return f"postgresql://{USER}@{self.place.address}:{self.port}/{USER}" + query(words)

    def journal(self, *, name: str = "braidfs", timeout_s: float = 10.0) -> PostgresqlJournal:
        return PostgresqlJournal(
            self.url(), name=name, timeout_s=timeout_s, password_file=self.password_file
        )

    def sql(self, statement: str) -> str:
        """Runs a statement as an administrator; columns of its answer are separated by |."""
        words = (f"dbname={USER}", "-h", self.place.address, "-p", str(self.port), "-U", USER)
        return self.run("psql", "-qAt", "-v", "ON_ERROR_STOP=1", "-c", statement, *words).strip()

    def follow(self, primary: "PostgresqlServer") -> None:
        """Creates this server as a standby of another one that has the same password."""
        self._prepare()
        self.run(
            *("pg_basebackup", "-D", str(self.data), "-R", "--no-sync", "-c", "fast"),
            *("-h", primary.place.address, "-p", str(primary.port), "-U", USER),
        )

    def promote(self) -> None:
        self.run("pg_ctl", "promote", "-D", str(self.data))

    def use_tls(self, certificates: Certificates) -> None:
        """From the next start on."""
        for name in ("server.crt", "server.key"):
            copy = self.folder / name
            shutil.copy2(certificates.folder / name, copy)
            copy.chmod(0o600)
            self.give(copy)
        self.settings |= {
            "ssl": "on",
            "ssl_cert_file": str(self.folder / "server.crt"),
            "ssl_key_file": str(self.folder / "server.key"),
        }


def query(words: Settings) -> str:
    return "?" + "&".join(f"{name}={value}" for name, value in words.items()) if words else ""


@contextlib.contextmanager
def new_server(
    settings: Settings | None = None, password: str | None = None, place: Place = HERE
) -> Iterator[PostgresqlServer]:
    """A server that is not created yet; it is removed at the end."""
    # It is not in a folder of the test, because its user may not go there.
    with tempfile.TemporaryDirectory(prefix="braidfs-postgresql-") as folder:
        password = password or secrets.token_hex(8)
        server = PostgresqlServer(
            Path(folder), free_port(), password, dict(settings or {}), place=place
        )
        try:
            yield server
        finally:
            with contextlib.suppress(ProcessError):
                server.kill()


@contextlib.contextmanager
def started_server(
    settings: Settings | None = None, password: str | None = None, place: Place = HERE
) -> Iterator[PostgresqlServer]:
    with new_server(settings, password, place) as server:
        server.create()
        server.start()
        yield server
