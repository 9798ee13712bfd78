"""What every verb of `braidfs` shares: its command class, its way to the cluster, its exit code.

A verb is a plain function under a `Command`, which adds examples and exit codes to --help and to
the man page. It gets a `Reach` (which metaserver, which key) and prints its results with `show`:
text for people, or --json for programs. Every error that BraidFS raises on purpose becomes one line
on stderr that says what to do, and an exit code of the table below; nothing else is caught.
"""

import functools
import io
import json
import math
import os
import pwd
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

import click
import trio
from rich.console import Console

from fscommon.auth.handshake import HelloFields
from fscommon.auth.key import load_key
from fscommon.config import load
from fscommon.config.tls import AUTHORITY_FILE, NO_TLS, OFF, TlsSettings
from fscommon.errors import (
    AuthenticationError,
    BraidError,
    ConfigError,
    FsError,
    ProtocolError,
    RefusedError,
    Status,
    TransportError,
)
from fscommon.net.address import Address, parse_address
from fscommon.net.tls import transport_of
from fscommon.observe.visible import visible_lines
from fscommon.rpc.caller import Caller, open_caller
from fscommon.tasks import sole_exception

from ..daemon import EXIT_INTERRUPTED
from .terminal import terminal

EXIT_DONE: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNHEALTHY: Final = 3
EXIT_UNREACHABLE: Final = 4
EXITS: Final = {
    EXIT_DONE: "done",
    EXIT_FAILED: "it failed: the reason is one line on the standard error stream",
    EXIT_USAGE: "wrong arguments, or a configuration file that cannot be used",
    EXIT_UNREACHABLE: "no metaserver could be reached",
    EXIT_INTERRUPTED: "interrupted",
}

CONFIG_FILE: Final = "/etc/braidfs/admin.toml"
KEY_FILE: Final = "/etc/braidfs/cluster.key"
METASERVER: Final = "127.0.0.1:7400"
_ANSWER_S: Final = 10.0

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class UnreachableError(BraidError):
    """No metaserver of the list answered."""


@dataclass(frozen=True, slots=True)
class Example:
    words: str  # the command line
    text: str  # what it does


class Command(click.Command):
    """A verb with examples, and with exit codes of its own beside the common ones."""

    def __init__(
        self,
        *args: Any,
        examples: Sequence[tuple[str, str]] = (),
        exits: Mapping[int, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(Example(*example) for example in examples)
        self.exits = dict(sorted({**EXITS, **(exits or {})}.items()))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write_text(f"# {example.text}")
                formatter.write_text(f"$ {example.words}")
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), text) for code, text in self.exits.items()])


class Group(click.Group):
    """Verbs that belong together. The help has the whole first sentence of each."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, _first_sentence(command)) for name, command in sorted(self.commands.items())]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _first_sentence(command: click.Command) -> str:
    return command.get_short_help_str(limit=1000)


# ---- reaching the cluster --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AdminConfig:
    """The keys of /etc/braidfs/admin.toml."""

    metaservers: tuple[str, ...] = (METASERVER,)
    key_file: Path = Path(KEY_FILE)
    tls: str = OFF
    tls_ca: Path = AUTHORITY_FILE

    def __post_init__(self) -> None:
        self.tls_settings()

    def tls_settings(self) -> TlsSettings:
        """The settings for TLS. Raises ValueError."""
        return TlsSettings(self.tls, self.tls_ca)


@dataclass(frozen=True, slots=True)
class Reach:
    """Which cluster to reach, with which key, and how long a server may take to answer."""

    metaservers: tuple[Address, ...]
    key_file: Path
    timeout_s: float
    tls: TlsSettings = NO_TLS
    is_given: bool = False  # the metaservers were named on the command line

    def open_caller(
        self, address: Address | str, hello: HelloFields
    ) -> AbstractAsyncContextManager[Caller]:
        """Opens a connection to a server, proved by the cluster key."""
        return open_caller(
            address,
            key=load_key(self.key_file),
            hello=hello,
            timeout_s=self.timeout_s,
            transport=transport_of(self.tls),
        )

    async def run(self, work: Callable[[Caller], Awaitable[T]]) -> T:
        """Does the work on a connection to the first metaserver that accepts one."""
        failures = []
        is_refused = False
        for address in self.metaservers:
            hello = HelloFields("admin", _who())
            try:
                async with self.open_caller(address, hello) as caller:
                    return await work(caller)
            except RefusedError as error:
                is_refused = True
                failures.append(f"{address}: {error.__cause__ or error}")
            except TransportError as error:
                failures.append(str(error))
        raise UnreachableError(
            f"no metaserver answered: {'; '.join(failures)}. "
            + (
                "Name all metaservers in --metaserver: one of them is active, or soon will be"
                if is_refused
                else "Is braidfs-metaserver running there, and is --metaserver right?"
            )
        )

    def ask(self, work: Callable[[Caller], Awaitable[T]]) -> T:
        """Like run(), for a plain function."""
        found: T = run_trio(self.run, work)
        return found

    def call(self, op: Any, message: Any) -> Any:
        """Sends one request and returns its reply."""
        return self.ask(lambda caller: caller.call(op, message, self.timeout_s))


def _who() -> str:
    """The user of this command, for the audit log of the metaserver."""
    try:
        user = os.environ.get("SUDO_USER") or pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def run_trio(function: Callable[..., Awaitable[T]], *args: Any) -> T:
    try:
        return trio.run(function, *args, strict_exception_groups=True)
    except BaseExceptionGroup as group:
        raise (sole_exception(group) or group) from None


def reaching(function: Callable[P, R]) -> Callable[..., R]:
    """Gives a verb -s, -k and --timeout, and their values as the argument `reach`."""
    return _reaching(
        click.option(
            "--timeout",
            type=click.FloatRange(0.1, 3600),
            default=_ANSWER_S,
            show_default=True,
            metavar="SECONDS",
            help="How long a server may take to answer.",
        )(function)
    )


def reaching_and_waiting(function: Callable[..., R]) -> Callable[..., R]:
    """Gives a verb -s and -k as the argument `reach`, and --wait and --timeout as `wait_s`: None
    without --wait."""

    @functools.wraps(function)
    def waiting(*args: Any, wait: bool, wait_s: float | None, **kwargs: Any) -> R:
        if wait_s is not None and not wait:
            raise click.UsageError("--timeout says how long --wait waits: add --wait")
        return function(*args, wait_s=(wait_s or math.inf) if wait else None, **kwargs)

    seconds = click.option(
        "--timeout",
        "wait_s",
        type=click.FloatRange(0.1),
        metavar="SECONDS",
        help="With --wait: give up after so long, with exit code 1. What was begun goes on.",
    )
    wait = click.option("--wait", is_flag=True, help="Return at the end, and show how far it is.")
    return _reaching(wait(seconds(waiting)))


def _reaching(function: Callable[..., R]) -> Callable[..., R]:
    @click.option(
        "-s",
        "--metaserver",
        envvar="BRAIDFS_METASERVER",
        metavar="HOST[:PORT],...",
        help=f"Metaservers, tried in turn. [env BRAIDFS_METASERVER; then {CONFIG_FILE}; "
        f"then {METASERVER}]",
    )
    @click.option(
        "-k",
        "--key-file",
        envvar="BRAIDFS_KEY_FILE",
        metavar="FILE",
        type=click.Path(),
        help=f"The cluster key. [env BRAIDFS_KEY_FILE; then {CONFIG_FILE}; then {KEY_FILE}]",
    )
    @functools.wraps(function)
    def wrapped(
        *args: Any,
        metaserver: str | None,
        key_file: str | None,
        timeout: float = _ANSWER_S,
        **kwargs: Any,
    ) -> R:
        reach = make_reach(metaserver, key_file, timeout)
        return function(*args, reach=reach, **kwargs)

    return wrapped


def make_reach(metaserver: str | None, key_file: str | None, timeout_s: float) -> Reach:
    path = Path(os.environ.get("BRAIDFS_ADMIN_CONFIG", CONFIG_FILE))
    config = load(AdminConfig, path) if path.exists() else AdminConfig()
    texts = metaserver.split(",") if metaserver else config.metaservers
    return Reach(
        metaservers=tuple(parse_address(text) for text in texts),
        key_file=Path(key_file) if key_file else config.key_file,
        timeout_s=timeout_s,
        tls=config.tls_settings(),
        is_given=metaserver is not None,
    )


# ---- saying what was found -------------------------------------------------------------------


def json_option(function: Callable[P, R]) -> Callable[P, R]:
    return click.option("--json", "as_json", is_flag=True, help="For programs: JSON, no tables.")(
        function
    )


def show_json(found: Any) -> None:
    sys.stdout.write(json.dumps(found, indent=2) + "\n")


def show(found: Any, as_json: bool, people: Callable[[Console], None]) -> None:
    """Prints the result. found: what --json prints; people() prints the same for people."""
    if as_json:
        show_json(found)
        return
    people(terminal())


def warn(text: str) -> None:
    sys.stderr.write(f"braidfs: {visible_lines(text)}\n")


# ---- the end of a command --------------------------------------------------------------------


def run_cli(cli: click.Command, arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    try:
        code = cli.main(args=arguments, prog_name="braidfs", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else EXIT_DONE
    except click.exceptions.Exit as end:
        return int(end.exit_code)
    except (click.Abort, KeyboardInterrupt):
        warn("interrupted")
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        said = io.StringIO()
        error.show(said)  # it may have what was typed, which may be a name
        sys.stderr.write(visible_lines(said.getvalue()))
        return EXIT_USAGE if isinstance(error, click.UsageError) else EXIT_FAILED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except (BraidError, OSError) as error:
        warn(sentence(error))
        return _code_of(error)


def _code_of(error: Exception) -> int:
    if isinstance(error, UnreachableError):
        return EXIT_UNREACHABLE
    return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED


def sentence(error: Exception) -> str:
    """What an error means to the user who typed the command."""
    if isinstance(error, FsError):
        what = error.sentence
        return f"{what} (a recovery is running: try again soon)" if _passes(error) else what
    if isinstance(error, AuthenticationError):
        return f"{error}: take the key file of this cluster with --key-file"
    if isinstance(error, ProtocolError):
        return f"{error}: is the metaserver of another version?"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _passes(error: FsError) -> bool:
    return error.status is Status.NOT_READY
