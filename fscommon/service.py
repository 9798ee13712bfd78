"""The life of a server program: arguments, logs, metrics, readiness, signals, exit code.

A program gives run_service() an async main(service). SIGTERM and SIGINT set service.stopping; main
drains and returns (exit 0). A second signal, or a drain that exceeds its deadline, cancels main.
SIGHUP asks a program that can do so to read its configuration again. Under a supervisor that
watches (WatchdogSec= of systemd), the program reports that its event loop turns.

An expected failure to start (ConfigError, TransportError, ...) is one sentence on stderr and exit
1. Any other exception is a bug: it is logged with its traceback, exit 1.
"""

import argparse
import functools
import json
import os
import resource
import signal
import stat
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

import trio

from fscommon.config import load
from fscommon.config.describe import describe
from fscommon.errors import BraidError
from fscommon.net.address import parse_address
from fscommon.observe.endpoint import HttpCertificate
from fscommon.observe.log import Log, start_logging
from fscommon.observe.metrics import Metrics, MetricsEndpoint
from fscommon.supervisor import feed_watchdog, notify_supervisor
from fscommon.tasks import calm_collector, sole_exception

DRAIN_SECONDS_MAX: Final = 30.0


@dataclass(frozen=True, slots=True)
class Arguments:
    config: Path
    ready_fd: int  # -1: none
    check: bool  # load the configuration, print it as JSON, and end
    tool: bool = False  # do what the program's tool does, and end
    yes: bool = False  # the tool asks nothing


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """What every program's configuration has."""

    program: str
    log_level: str = "info"
    log_file: str = ""
    metrics_listen: str = ""
    http_certificate: HttpCertificate | None = None  # for the metrics endpoint; None: plain http
    ready_fd: int = -1
    config_file: Path = Path()


class Service:
    """What run_service() gives to main."""

    def __init__(self, settings: ServiceSettings, metrics: Metrics) -> None:
        self.metrics = metrics
        self.log = Log(settings.program)
        self.stopping = trio.Event()
        self.config_file = settings.config_file
        # Called at SIGHUP; None: the program cannot reload.
        self.reload: Callable[[], None] | None = None
        self._ready_fd = settings.ready_fd

    def ready(self) -> None:
        """Reports to the program's starter that it serves now. Called once."""
        self.metrics.up(True)
        self.log.info("ready", pid=os.getpid())
        fd, self._ready_fd = self._ready_fd, -1
        if fd >= 0:
            with os.fdopen(fd, "wb", buffering=0) as pipe:
                pipe.write(b"READY\n")
        notify_supervisor("READY=1")


Main = Callable[[Service], Awaitable[None]]


class CommonConfig(Protocol):
    """What every program's configuration has, for `run_program`."""

    @property
    def log_level(self) -> str: ...
    @property
    def log_file(self) -> str: ...
    @property
    def metrics_listen(self) -> str: ...
    def http_certificate(self) -> HttpCertificate | None: ...


C = TypeVar("C", bound=CommonConfig)


@dataclass(frozen=True, slots=True)
class Tool(Generic[C]):
    """What a program can do instead of serving. run: gets the configuration, and whether it asks
    nothing; returns what it has done, for people. Raises BraidError."""

    flag: str
    help: str
    run: Callable[[C, bool], str]


def parse_arguments(
    program: str, description: str, argv: Sequence[str] | None = None, tool: "Tool[C] | None" = None
) -> Arguments:
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument("--config", required=True, type=Path, help="TOML file")
    parser.add_argument("--ready-fd", type=int, default=-1, help="gets READY when serving")
    parser.add_argument("--check", action="store_true", help="print the configuration as JSON")
    if tool is not None:
        parser.add_argument(tool.flag, action="store_true", dest="tool", help=tool.help)
        parser.add_argument("--yes", action="store_true", help=f"{tool.flag} asks nothing")
    parsed = parser.parse_args(argv)
    if parsed.ready_fd >= 0 and not _is_pipe(parsed.ready_fd):
        parser.error(f"--ready-fd {parsed.ready_fd} is no open pipe: it gets READY when serving")
    if tool is None:
        return Arguments(parsed.config, parsed.ready_fd, parsed.check)
    if parsed.yes and not parsed.tool:
        parser.error(f"--yes is an answer to {tool.flag}")
    return Arguments(parsed.config, parsed.ready_fd, parsed.check, parsed.tool, parsed.yes)


def _is_pipe(fd: int) -> bool:
    """True for a pipe or a socket. A file that happens to have this number must not be
    written to."""
    try:
        mode = os.fstat(fd).st_mode
        return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
    except OSError:
        return False


def run_service(main: Main, settings: ServiceSettings) -> int:
    """Runs main until it returns or a signal ends it. Returns the exit code."""
    _raise_descriptor_limit()
    log = Log(settings.program)
    endpoint: MetricsEndpoint | None = None
    try:
        start_logging(settings.log_level, file=settings.log_file)
        metrics = Metrics(settings.program)
        if settings.metrics_listen:
            listen = parse_address(settings.metrics_listen)
            endpoint = MetricsEndpoint(metrics, listen.host, listen.port, settings.http_certificate)
        calm_collector()
        trio.run(_supervise, main, Service(settings, metrics), strict_exception_groups=True)
    except BaseException as error:
        return _report(log, settings.program, error)
    finally:
        if endpoint is not None:
            endpoint.stop()
    log.info("stopped")
    return 0


def run_program(
    program: str,
    description: str,
    config_class: type[C],
    main: Callable[[C, Service], Awaitable[None]],
    argv: Sequence[str] | None = None,
    tool: Tool[C] | None = None,
) -> int:
    """Runs a whole server from its arguments: loads its configuration and runs main, or the tool.
    Returns the exit code."""
    arguments = parse_arguments(program, description, argv, tool)
    try:
        config = load(config_class, arguments.config)
        if tool is not None and arguments.tool:
            print(tool.run(config, arguments.yes))  # noqa: T201 - its result
            return 0
    except BraidError as error:
        print(f"{program}: {error}", file=sys.stderr)  # noqa: T201 - logs are not set up yet
        return 1
    if arguments.check:
        print(json.dumps([asdict(key) for key in describe(config)]))  # noqa: T201 - its result
        return 0
    settings = ServiceSettings(
        program=program.removeprefix("braidfs-"),
        log_level=config.log_level,
        log_file=config.log_file,
        metrics_listen=config.metrics_listen,
        http_certificate=config.http_certificate(),
        ready_fd=arguments.ready_fd,
        config_file=arguments.config,
    )
    return run_service(functools.partial(main, config), settings)


def _raise_descriptor_limit() -> None:
    """Raises the limit of open files as far as allowed: for connections, and for the files of a
    storage server's objects."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _supervise(main: Main, service: Service) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_watch_signals, signals, service, nursery.cancel_scope)
            nursery.start_soon(feed_watchdog)
            await main(service)
            nursery.cancel_scope.cancel()


async def _watch_signals(
    signals: AsyncIterator[int], service: Service, scope: trio.CancelScope
) -> None:
    async for number in signals:
        if number == signal.SIGHUP:
            _reload(service)
            continue
        if service.stopping.is_set():
            service.log.warning("second signal: stopping at once", signal=number)
            scope.cancel()
            return
        service.log.info("stopping", signal=signal.Signals(number).name)
        notify_supervisor("STOPPING=1")
        service.stopping.set()
        scope.deadline = trio.current_time() + DRAIN_SECONDS_MAX


def _reload(service: Service) -> None:
    if service.reload is None:
        service.log.info("nothing to reload: a change of the configuration needs a restart")
    else:
        service.reload()


def _report(log: Log, program: str, error: BaseException) -> int:
    """Logs what ended the program. Returns its exit code."""
    if isinstance(error, BaseExceptionGroup):
        error = sole_exception(error) or error
    if isinstance(error, BraidError):
        log.error("failed", error=error)
        print(f"{program}: {error}", file=sys.stderr)  # noqa: T201 - for the one who started it
    elif isinstance(error, KeyboardInterrupt):
        return 130
    else:
        log.exception("unexpected error: this is a bug")
    return 1
