"""Runs fio and reads its output."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SECONDS_MAX = 600


def fio(folder: Path, words: Sequence[str]) -> dict[str, Any]:
    """The sums of all jobs together, from fio's JSON."""
    # --directory applies to the names that come after it.
    line = [
        "fio",
        "--name=case",
        f"--directory={folder}",
        "--output-format=json",
        "--group_reporting",
        *words,
    ]
    done = subprocess.run(
        line, check=False, capture_output=True, text=True, timeout=SECONDS_MAX, cwd="/"
    )
    if done.returncode != 0:
        said = done.stderr.strip() or done.stdout[-300:]
        raise RuntimeError(f"{' '.join(line)}: {said}")
    found, _ = json.JSONDecoder().raw_decode(done.stdout[done.stdout.index("{") :])
    job: dict[str, Any] = found["jobs"][0]
    return job


def engine_words(engine: str, depth: int) -> tuple[str, ...]:
    """psync has one request in flight for each thread."""
    if engine == "psync":
        return ("--ioengine=psync", f"--numjobs={depth}", "--thread")
    return (f"--ioengine={engine}", f"--iodepth={depth}")


def timed_words(seconds: int) -> tuple[str, ...]:
    return ("--time_based", f"--runtime={seconds}", "--ramp_time=0.5")
