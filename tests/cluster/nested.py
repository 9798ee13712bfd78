"""What people put inside a mount, and how to check that it is still there: other mounts, an overlay
over one of its directories, and a program that runs from it and in it.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import copy

CONTENT = b"from the lower layer"


@dataclass(frozen=True)
class Nested:
    folder: Path  # it is on the mount
    merged: Path  # it belongs to the overlay, elsewhere
    program: subprocess.Popen[bytes]

    def faults(self) -> list[str]:
        """Descriptions of what has changed."""
        found = []
        if not (self.folder / "tmpfs" / "marker").exists():
            found.append("the tmpfs is gone")
        if not (self.folder / "bind" / "marker").exists():
            found.append("the bind mount is gone")
        if (self.folder / "file").read_bytes() != b"bound":
            found.append("the bind mount over a file is gone")
        try:
            if (self.merged / "deep" / "file").read_bytes() != CONTENT:
                found.append("the overlay shows other bytes")
        except OSError as error:
            found.append(f"the overlay: {error}")
        for what in ("exe", "cwd"):
            place = os.readlink(f"/proc/{self.program.pid}/{what}")
            if place != str(self.folder / what):
                found.append(f"{what} of a program is {place}")
        return found


def _mount(stack: ExitStack, *words: str | Path) -> None:
    subprocess.run(("mount", *words), check=True)
    stack.callback(subprocess.run, ("umount", "-l", words[-1]), check=False)


@contextmanager
def nested(folder: Path, elsewhere: Path) -> Iterator[Nested]:
    """Creates both folders. `folder` is on a mount, `elsewhere` on a local disk."""
    for place in (folder, elsewhere):
        place.mkdir(parents=True)
        for name in ("tmpfs", "bind", "cwd", "lower", "upper", "work", "merged"):
            (place / name).mkdir()
    (folder / "lower" / "deep").mkdir()
    (folder / "lower" / "deep" / "file").write_bytes(CONTENT)
    (folder / "file").touch()
    (elsewhere / "bind" / "marker").touch()
    (elsewhere / "file").write_bytes(b"bound")
    copy("/bin/sleep", folder / "exe")
    with ExitStack() as stack:
        _mount(stack, "-t", "tmpfs", "nested", folder / "tmpfs")
        (folder / "tmpfs" / "marker").touch()
        _mount(stack, "--bind", elsewhere / "bind", folder / "bind")
        _mount(stack, "--bind", elsewhere / "file", folder / "file")
        layers = f"lowerdir={folder}/lower,upperdir={elsewhere}/upper,workdir={elsewhere}/work"
        _mount(stack, "-t", "overlay", "nested", "-o", layers, elsewhere / "merged")
        program = subprocess.Popen((folder / "exe", "600"), cwd=folder / "cwd")
        stack.callback(program.wait)
        stack.callback(program.kill)
        yield Nested(folder, elsewhere / "merged", program)
