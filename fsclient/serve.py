"""The process of one mount: it starts in the foreground or the background, mounts anew or takes
over a mount from another process, and ends with an exit code, a next process, or an error.

The parts of the mount and their order are in fsclient.mount.
"""

import os
import sys
from dataclasses import asdict, replace
from typing import TextIO, cast

import trio

from fscommon.auth.key import Credential, load_credential
from fscommon.config.mount_options import FORMER_WORDS, MountOptions
from fscommon.errors import BraidError
from fscommon.net.tls import transport_of
from fscommon.observe.log import Log, start_logging
from fscommon.tasks import calm_collector, sole_exception

from . import fd_store, handover, kernel
from .config import lines_for
from .daemon import (
    EXIT_INTERRUPTED,
    EXIT_MOUNT,
    EXIT_OK,
    EXIT_SYSTEM,
    ForegroundReporter,
    Reporter,
    run_in_background,
)
from .handover import Handed
from .mount import MountedClient
from .plan import Plan
from .syslog_stream import SyslogStream


def place_of(directory: str) -> str:
    """The absolute path of a directory, without links. For a mount that this process takes over it
    is used as written: nobody serves that mount yet, so nothing may access it."""
    fd_store.claim(handover.VERSION)
    return directory if handover.is_taking() else os.path.realpath(directory)


def is_next_process() -> bool:
    """Whether this process takes over a mount from another one."""
    return handover.is_taking()


def tell_system(error: BraidError) -> None:
    """Logs why this process cannot take over a mount: no terminal shows it."""
    start_logging("info", stream=cast(TextIO, SyslogStream("braidfs")))
    Log("mount").error("the next process of a mount cannot begin", error=error)


def mount(plan: Plan, *, foreground: bool) -> int:
    """Mounts and serves; returns the exit code, in the background once the mount serves.

    Raises ConfigError for errors that can be seen before anything is started.
    """
    if handover.is_check():
        load_credential(plan.options.key_file)
        transport_of(plan.config.tls_settings())
        sys.stdout.write(f"{handover.VERSION}\n")
        return EXIT_OK
    handed = handover.taken()
    if handed is not None:
        return _go_on(plan, handed)
    transport_of(plan.config.tls_settings())
    kernel.check_device()
    kernel.check_mountpoint(plan.mountpoint)
    credential = load_credential(plan.options.key_file)
    if not foreground:
        return run_in_background(
            lambda reporter: _run(plan, credential, reporter, True), plan.mountpoint
        )
    own = ForegroundReporter()
    _run(plan, credential, own, False)
    return own.exit_code


def _go_on(plan: Plan, handed: Handed) -> int:
    plan = replace(plan, mountpoint=handed.mountpoint)
    if plan.options.sealed:  # the kernel has no handles: these were for READs
        handed = replace(handed, files=replace(handed.files, handles=()))
    reporter = ForegroundReporter()
    _run(plan, load_credential(plan.options.key_file), reporter, handed.in_background, handed)
    return reporter.exit_code


def _run(
    plan: Plan,
    credential: Credential,
    reporter: Reporter,
    in_background: bool,
    handed: Handed | None = None,
) -> None:
    """One mount from start to end; failures before READY go to the reporter. When the mount is
    handed over, this process becomes another program and does not return, or leaves the mount to
    the supervisor."""
    log = Log("mount")
    try:
        config = plan.config
        to_syslog = in_background and not config.log_file
        stream = cast(TextIO, SyslogStream("braidfs")) if to_syslog else None
        start_logging(config.log_level, file=config.log_file, stream=stream)
        _tell_former_words(log, plan.options)
        calm_collector()
        client = MountedClient(plan, credential, handed)
        trio.run(client.run, reporter, strict_exception_groups=True)
        if client.successor is not None:
            left = handover.named(client.successor, handed, in_background=in_background)
            if client.is_left:
                reporter.leaves()
                return fd_store.leave(asdict(left), handover.VERSION)
            handover.become(left)
    except BaseException as error:
        cause = (sole_exception(error) if isinstance(error, BaseExceptionGroup) else None) or error
        if isinstance(cause, BraidError):
            log.error("the mount failed", error=cause)
            reporter.failed(EXIT_MOUNT, f"braidfs: {_sentence(plan, cause)}")
        elif isinstance(cause, KeyboardInterrupt):
            log.info("interrupted")
            reporter.failed(EXIT_INTERRUPTED, "braidfs: interrupted")
        else:
            log.exception("unexpected error: this is a bug")
            reporter.failed(EXIT_SYSTEM, f"braidfs: internal error: {cause!r}")


def _tell_former_words(log: Log, options: MountOptions) -> None:
    if options.former_words:
        words = dict.fromkeys(options.former_words)
        instead = "; ".join(f"{word}: {FORMER_WORDS[word]}" for word in words)
        log.warning("mount options of former releases do nothing any more", instead=instead)
    if options.moved_words:
        log.warning(
            "mount options of former releases override the client's file: write it there instead",
            file=options.config,
            write="; ".join(lines_for(options)),
        )


def _sentence(plan: Plan, error: BraidError) -> str:
    return f"cannot mount {plan.source_text}: {error}"
