"""Running the commands of which `./dev` consists, with progress on the terminal.

A step's output goes to .build/log/NAME.log; the terminal shows its name at once and, while it takes
longer than two seconds, the elapsed time and its last line. A failed step prints the end of its
log. Commands whose output is their result (pytest, fio) write to the terminal instead.
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / ".build"
console = Console(stderr=True, highlight=False)

SHOW_SECONDS = 2.0
PLAIN_SHOW_SECONDS = 15.0  # without a terminal, a line is printed from time to time
FAILURE_LINES = 40


class StepError(Exception):
    """A step ended with another exit code than 0; the message says which and shows its end."""


def tool(name: str) -> str:
    """The path of a program of this virtual environment."""
    return str(Path(sys.prefix) / "bin" / name)


def quiet_step(
    text: str,
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path = ROOT,
) -> Path:
    """Runs a command whose output matters only when it fails; returns its log."""
    log = BUILD / "log" / f"{''.join(c if c.isalnum() else '-' for c in text)}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            env={**os.environ, **(environment or {})},
        )
    started = time.monotonic()
    try:
        _watch(process, text, log)
    except BaseException:
        process.terminate()
        process.wait()
        raise
    seconds = time.monotonic() - started
    if process.returncode != 0:
        lines = log.read_text(errors="replace").splitlines()[-FAILURE_LINES:]
        raise StepError("\n".join([*lines, f"{text}: exit {process.returncode}; all of it: {log}"]))
    console.print(
        f"[green]✓[/] {text}" + (f" ({seconds:.0f} s)" if seconds >= SHOW_SECONDS else "")
    )
    return log


def _watch(process: "subprocess.Popen[bytes]", text: str, log: Path) -> None:
    started = shown = time.monotonic()
    if not console.is_terminal:
        while not _ended(process, 0.05):
            now = time.monotonic()
            if now - shown > PLAIN_SHOW_SECONDS:
                shown = now
                console.print(f"  {text}: {now - started:.0f} s: {_last_line(log)}", markup=False)
        return
    with console.status(text) as status:
        while not _ended(process, 0.2):
            passed = time.monotonic() - started
            if passed > SHOW_SECONDS:
                status.update(f"{text}: {passed:.0f} s: {_last_line(log)}"[: console.width - 4])


def _ended(process: "subprocess.Popen[bytes]", seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _last_line(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 400))
        lines = file.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def open_step(command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> int:
    """Runs a command on this terminal and returns its exit code."""
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **(environment or {})}, check=False
    ).returncode
