"""Finds what a cluster's programs logged and no test declared: warnings, errors, and lines in no
log format.

A test of the mount fails when a program logs a warning or worse that the test did not expect. This
makes visible a retry that succeeds in the end, a lost byte, or a bug that was caught. A test
declares expected lines with `pytest.mark.expects_log(PATTERN, ...)`. Where it breaks things on
purpose it uses `pytest.mark.expects_warnings`: then every warning is expected, but an error is not.
Lines that only say that something took long (SLOWNESS: all of it recovers by itself) are no failure
on a loaded machine; pytest's summary shows them. A program may log the effects of a test a moment
later, so the test's marks also cover the test after it, and every test that ends within
LATE_SECONDS.
"""

import re
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_LINE = re.compile(r"^time=\S+ level=(\w+) ")
_QUIET = {"debug", "info", "notice"}
_SLOWNESS = re.compile(
    r"was silent for \d|no answer for too long|within [\d.]+ s\b|handshake too slow"
    r"|storage server is down"
)
_LINES_MAX = 20  # the number of lines that are shown
LATE_SECONDS = 10.0


class SlowMachine(UserWarning):
    """A program waited longer for another one than it should."""


@dataclass(frozen=True, slots=True)
class Expected:
    patterns: tuple[str, ...] = ()
    any_warning: bool = False

    def covers(self, line: str) -> bool:
        found = _LINE.match(line)
        level = found.group(1) if found else "none"
        if level in _QUIET or (level == "warning" and self.any_warning):
            return True
        return any(re.search(pattern, line) for pattern in self.patterns)


def _says_slow(line: str) -> bool:
    return "level=warning " in line and _SLOWNESS.search(line) is not None


@dataclass(slots=True)
class LogReader:
    """Reads each log below a folder from where it stopped before."""

    folder: Path
    _offsets: dict[Path, int] = field(default_factory=dict)
    # with the time at which each test ended
    _before: list[tuple[float, Expected]] = field(default_factory=list)

    def unexpected(self, expected: Expected) -> list[str]:
        lines: list[str] = []
        now = time.monotonic()
        known = [*self._before, (now, expected)]
        self._before = [one for one in known if one[0] > now - LATE_SECONDS or one is known[-1]]
        for path in sorted(self.folder.glob("*.log")):
            for line in self._new_lines(path):
                if not line or any(one.covers(line) for _, one in known):
                    continue
                if _says_slow(line):
                    warnings.warn(f"{path.name}: {line}", SlowMachine, stacklevel=2)
                else:
                    lines.append(f"{path.name}: {line}")
        return lines

    def _new_lines(self, path: Path) -> list[str]:
        offset = self._offsets.get(path, 0)
        with path.open("rb") as file:
            file.seek(offset)
            fresh = file.read()
        whole = fresh[: fresh.rfind(b"\n") + 1]  # the rest of the last line comes later
        self._offsets[path] = offset + len(whole)
        return whole.decode(errors="replace").splitlines()


def complaint(lines: Sequence[str]) -> str:
    shown = "\n".join(lines[:_LINES_MAX])
    more = f"\n... and {len(lines) - _LINES_MAX} more" if len(lines) > _LINES_MAX else ""
    return f"logged, and not declared by pytest.mark.expects_log:\n{shown}{more}"
