"""mount.fuse.braidfs: the program that mount(8) runs for type fuse.braidfs
(docs/man/mount.fuse.braidfs.8).

    mount.fuse.braidfs SOURCE DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]

The exit code is one of mount(8). An error is one line on stderr of the command that was typed.
"""

import getopt
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from fscommon.config.mount_options import parse_mount_options
from fscommon.errors import BraidError, ConfigError

from ..daemon import EXIT_INTERRUPTED, EXIT_MOUNT, EXIT_OK, EXIT_SYSTEM, EXIT_USAGE
from ..source import parse_source
from .remount import is_remount, remount

_RELATIVE_FILE = re.compile(
    r"((?:^|,|^-\w*o)(?:key_file|config|log_file|tls_ca|tls_certificate|tls_key)=)([^/,][^,]*)"
)
USAGE = "usage: mount.fuse.braidfs HOST[:PORT][,HOST2...]:/SUBDIR DIR [-sfnv] [-o OPTIONS]"


@dataclass(frozen=True, slots=True)
class Request:
    source: str
    directory: str
    options: str
    is_fake: bool


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return _fail(EXIT_INTERRUPTED, "interrupted")


def _run(arguments: Sequence[str]) -> int:
    try:
        request = parse_arguments(arguments)
    except ConfigError as error:
        return _fail(EXIT_USAGE, str(error))
    if is_remount(request.options):
        return 0 if request.is_fake else remount(request.source, request.directory, request.options)
    return mount_source(request, foreground=False)


def parse_arguments(arguments: Sequence[str]) -> Request:
    """Parses the command line. Raises ConfigError. mount(8) puts the words first and the flags
    last; any order is accepted."""
    try:
        flags, words = getopt.gnu_getopt(list(arguments), "sfnvo:t:N:")
    except getopt.GetoptError as error:
        raise ConfigError(f"{error}; {USAGE}") from None
    if len(words) != 2:
        raise ConfigError(USAGE)
    options = ",".join(value for flag, value in flags if flag == "-o")
    is_fake = any(flag == "-f" for flag, _ in flags)
    return Request(words[0], words[1], options, is_fake)


def mount_source(request: Request, *, foreground: bool) -> int:
    """Mounts and returns the exit code. `braidfs mount` uses it, too."""
    sys.argv[1:] = [with_absolute_files(word) for word in sys.argv[1:]]
    try:
        source = parse_source(request.source)
        options = parse_mount_options(with_absolute_files(request.options))
    except ConfigError as error:
        return _fail(EXIT_USAGE, str(error))
    if request.is_fake:
        return EXIT_OK
    from ..config import config_of  # noqa: PLC0415 - usage errors need none of it
    from ..plan import Plan  # noqa: PLC0415
    from ..serve import is_next_process, mount, place_of, tell_system  # noqa: PLC0415

    directory, is_next = place_of(request.directory), is_next_process()
    try:
        plan = Plan(source, request.source, directory, options, config_of(options))
        return mount(plan, foreground=foreground)
    except BraidError as error:
        if is_next:
            tell_system(error)
        return _fail(EXIT_MOUNT, f"cannot mount {request.source}: {error}")
    except OSError as error:
        return _fail(EXIT_SYSTEM, f"cannot mount {request.source}: {error}")


def with_absolute_files(options: str) -> str:
    """Makes paths of files absolute: the process has another directory than the command, and so has
    the next one, which starts with the same command line if this one was killed."""
    return _RELATIVE_FILE.sub(lambda found: found[1] + os.path.abspath(found[2]), options)  # noqa: PTH100 - links stay


def _fail(exit_code: int, message: str) -> int:
    sys.stderr.write(f"braidfs: {message}\n")
    return exit_code
