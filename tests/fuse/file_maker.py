"""A process that makes files in a directory, two of three with bytes, until it is told to stop; a
log says line by line which were closed.

A process of its own, not a thread: its descriptors must not be inherited by servers that a test
starts meanwhile, since closing a copy of one, before exec, waits for the very server that starts.
"""

import os
import subprocess
import sys
from pathlib import Path


def content(name: str) -> bytes:
    return name.encode() if int(name) % 3 else b""


class FileMaker:
    def __init__(self, place: Path, log: Path) -> None:
        self._log = log
        self._stop = log.with_suffix(".stop")
        words = [sys.executable, __file__, str(place), str(log), str(self._stop)]
        self._process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)

    def names(self) -> list[str]:
        return self._log.read_text().split("\n")[:-1] if self._log.exists() else []

    def has(self, count: int) -> bool:
        assert self._process.poll() is None, self._process.communicate()[1]
        return len(self.names()) >= count

    def end(self) -> None:
        self._stop.touch()
        error = self._process.communicate(timeout=120)[1]
        assert self._process.returncode == 0, error

    def check(self, place: Path, others: int) -> None:
        """What is there is what was closed; others: how many files somebody else made."""
        made = self.names()
        found = os.listdir(place)
        assert set(made) <= set(found)
        assert len(found) == len(made) + others
        for name in made:
            assert (place / name).read_bytes() == content(name)


def work(place: Path, log: Path, stop: Path) -> None:
    count = 0
    with log.open("w", buffering=1) as said:
        while not stop.exists():
            with (place / f"{count}").open("xb") as file:
                file.write(content(f"{count}"))
            said.write(f"{count}\n")
            count += 1


if __name__ == "__main__":
    work(*map(Path, sys.argv[1:4]))
