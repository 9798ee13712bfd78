"""Mounts, overlays and running programs inside a mount stay, whatever other clients do; only
changed names are looked up again.
"""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.nested import Nested, nested
from tests.cluster.process import wait_until

pytestmark = [pytest.mark.mount, pytest.mark.timeout(240)]

Work = Callable[[Path], object]
WORK: dict[str, Work] = {
    "create": lambda folder: (folder / "new").touch(),
    "mkdir": lambda folder: (folder / "new").mkdir(),
    "unlink": lambda folder: (folder / "file").unlink(),
    "rmdir": lambda folder: (folder / "empty").rmdir(),
    "rename": lambda folder: (folder / "file").rename(folder / "renamed"),
    "rename over": lambda folder: (folder / "file").rename(folder / "beside"),
    "link": lambda folder: (folder / "linked").hardlink_to(folder / "file"),
    "symlink": lambda folder: (folder / "new").symlink_to("file"),
    "chmod": lambda folder: (folder / "file").chmod(0o600),
    "write": lambda folder: (folder / "file").write_bytes(b"written"),
    "truncate": lambda folder: os.truncate(folder / "beside", 0),
}


@pytest.fixture
def stack(workdir: Path, localdir: Path) -> Iterator[Nested]:
    with nested(workdir / "nested", localdir / "nested") as made:
        yield made


@pytest.fixture
def there(cluster: Cluster, workdir: Path, lasting: Path) -> Path:
    """The same folder on the other mount."""
    return lasting / workdir.relative_to(cluster.mount_path)


def _look(folder: Path) -> dict[str, tuple[int, int, int]]:
    names = (*sorted(os.listdir(folder)), "new", "renamed", "linked")
    found = {}
    for name in names:
        try:
            seen = os.lstat(folder / name)
        except FileNotFoundError:
            continue
        found[name] = (seen.st_ino, seen.st_mode, seen.st_size)
    return found


def _busy(folder: Path) -> None:
    (folder / "empty").mkdir(parents=True)
    for name in ("file", "beside"):
        (folder / name).write_bytes(b"as it was")


def test_another_clients_work_elsewhere(workdir: Path, there: Path, stack: Nested) -> None:
    for what, work in WORK.items():
        folder = workdir / f"busy {what}"
        _busy(folder)
        _look(folder)
        work(there / folder.name)
        assert _look(folder) == _look(there / folder.name), what
        assert stack.faults() == [], what


def test_another_clients_work_beside(workdir: Path, there: Path, localdir: Path) -> None:
    """The other client changes the very directory that has mounts in it."""
    for number, what in enumerate(("create", "mkdir", "rename", "symlink")):
        with nested(workdir / f"nested {number}", localdir / f"nested {number}") as made:
            (made.folder / "renamed").touch()
            _look(made.folder)
            other = there / made.folder.name
            if what == "rename":
                (other / "renamed").rename(other / "new")
            else:
                WORK[what](other)
            assert os.path.lexists(made.folder / "new")
            assert (made.folder / "renamed").exists() == (what != "rename")
            assert made.faults() == [], what


def test_own_renames_into_a_directory_that_others_change(
    workdir: Path, there: Path, stack: Nested
) -> None:
    for name in ("from", "to"):
        (workdir / name).mkdir()
    for number in range(20):
        (workdir / "from" / "file").touch()
        _look(workdir / "to")
        (there / "to" / f"other {number}").touch()
        (workdir / "from" / "file").rename(workdir / "to" / "file")
        (there / "to" / "file").unlink()
        assert wait_until(lambda: not (workdir / "to" / "file").exists(), 1.0)
        assert stack.faults() == []


def test_both_work_in_one_directory(workdir: Path, there: Path, stack: Nested) -> None:
    """Each client holds the directory's lock while it waits for the other's lease."""
    folder = workdir / "shared"
    folder.mkdir()

    def make(place: Path, who: str) -> None:
        for number in range(150):
            (place / f"{who} {number}").touch()
            if number % 3 == 0:
                (place / f"{who} {number}").unlink()
            os.listdir(place)

    threads = [
        threading.Thread(target=make, args=(folder, "here")),
        threading.Thread(target=make, args=(there / "shared", "there")),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert _look(folder) == _look(there / "shared")
    assert len(os.listdir(folder)) == 200
    assert stack.faults() == []
