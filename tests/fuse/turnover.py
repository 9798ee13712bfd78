"""A process that creates files in a directory, some with bytes, until it is told to stop.

It may remove most of them a little later, or create them under other names first. A log has one
line for each answered operation: +NAME, -NAME.

It is a process of its own, not a thread, because servers that a test starts meanwhile must not
inherit its descriptors: closing a copy of one, before exec, waits for the very server that is being
started.
"""

import os
import subprocess
import sys
from pathlib import Path


def content(name: str) -> bytes:
    return name.encode() if int(name) % 3 else b""


class Turnover:
    """`what`: "remove", "keep" or "rename" (which takes some of the old names)."""

    def __init__(self, place: Path, log: Path, what: str) -> None:
        place.mkdir(exist_ok=True)
        self.place = place
        self._log = log
        self._stop = log.with_suffix(".stop")
        words: list[str | Path] = [sys.executable, __file__, place, log, self._stop, what]
        self._process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)

    def lines(self) -> list[str]:
        return self._log.read_text().split("\n")[:-1] if self._log.exists() else []

    def has(self, count: int) -> bool:
        assert self._process.poll() is None, self._process.communicate()[1]
        return len(self.lines()) >= count

    def end(self) -> None:
        self._stop.touch()
        error = self._process.communicate(timeout=120)[1]
        assert self._process.returncode == 0, error

    def check(self, place: Path, others: int = 0) -> None:
        """Checks that exactly the answered files exist; `others`: how many files another program
        created."""
        lines = self.lines()
        made, gone = ({line[1:] for line in lines if line[0] == sign} for sign in "+-")
        found = set(os.listdir(place))
        assert made - gone <= found
        assert not gone & found
        assert len(found) == len(made - gone) + others
        for name in made - gone:
            assert (place / name).read_bytes() == content(name)


def work(place: Path, log: Path, stop: Path, what: str) -> None:
    count = 0
    with log.open("w", buffering=1) as said:
        while not stop.exists():
            path = place / (f"{count}.new" if what == "rename" else f"{count}")
            with path.open("xb") as file:
                file.write(content(f"{count}"))
            if what == "rename":
                if count > 20 and count % 4:  # it is renamed over an old one
                    path.rename(place / f"{count - 20}")
                    said.write(f"-{count - 20}\n")
                    path = place / f"{count - 20}"
                path.rename(place / f"{count}")
            said.write(f"+{count}\n")
            if what == "remove" and count > 20 and count % 4:
                (place / f"{count - 20}").unlink()
                said.write(f"-{count - 20}\n")
            count += 1


if __name__ == "__main__":
    where, log, stop = map(Path, sys.argv[1:4])
    work(where, log, stop, sys.argv[4])
