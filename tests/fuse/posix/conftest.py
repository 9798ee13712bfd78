"""The file systems under test, a folder for each case, and the rule of expected differences.

`d` is the argument of every case: a new folder. It exists on ext4 (an image that is mounted here)
and on the mount of the cluster that all tests share. A case that `differences` names must end on
BraidFS exactly as it says there; when the case ends as on ext4, its entry must be removed.
"""

import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import STATES
from tests.fuse.posix.calls import errno_name
from tests.fuse.posix.context import Folder, Place
from tests.fuse.posix.differences import DIFFERENCES, Difference
from tests.fuse.posix.mutated_cluster import mutated_cluster, wanted

IMAGE_SIZE = 8 << 30  # the image is sparse
_NUMBERS = itertools.count(1)


def _mount(*words: object) -> None:
    subprocess.run(["mount", *map(str, words)], check=True, capture_output=True, timeout=60)


@contextmanager
def _ext4() -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("needs root: mounts an ext4 image")
    STATES.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="ext4-", dir=STATES))
    folder.chmod(0o755)
    image, root = folder / "image", folder / "mnt"
    root.mkdir()
    with image.open("wb") as file:
        file.truncate(IMAGE_SIZE)
    command = ["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1,lazy_journal_init=1", str(image)]
    subprocess.run(command, check=True, timeout=60)
    _mount("-o", "loop", image, root)
    try:
        yield root
    finally:
        subprocess.run(["umount", str(root)], check=True, timeout=60)
        shutil.rmtree(folder)


@contextmanager
def _place(name: str, root: Path) -> Iterator[Place]:
    base = root / "posix"
    base.mkdir()
    for folder in (base / "busy", base / "source" / "folder" / "inner"):
        folder.mkdir(parents=True)
    (base / "source" / "file").write_bytes(b"content")
    (base / "source" / "link").symlink_to("file")
    os.mkfifo(base / "source" / "fifo")
    local = Path(tempfile.mkdtemp(prefix="posix-", dir=STATES))
    local.chmod(0o755)
    for folder in (local / "readonly", local / "elsewhere"):
        folder.mkdir()
    _mount("--bind", base / "source", local / "readonly")
    _mount("-o", "remount,bind,ro", local / "readonly")
    _mount("--bind", local / "elsewhere", base / "busy")
    try:
        yield Place(
            name, base, str(local / "readonly"), str(base / "busy"), str(local / "elsewhere")
        )
    finally:
        for mounted in (local / "readonly", base / "busy"):
            subprocess.run(["umount", str(mounted)], check=True, timeout=60)
        shutil.rmtree(local)


@pytest.fixture(scope="package", params=["ext4", pytest.param("braidfs", marks=pytest.mark.mount)])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """It ends after the last case of this folder, because mounts inside it keep the cluster's mount
    busy."""
    if request.param == "ext4":
        with _ext4() as root, _place("ext4", root) as place:
            yield place
        return
    mutant = wanted()
    if mutant is None:
        with _place("braidfs", request.getfixturevalue("shared_cluster").mount_path) as place:
            yield place
        return
    with mutated_cluster(mutant) as root, _place("braidfs", root) as place:
        yield place


@pytest.fixture
def d(place: Place) -> Iterator[Folder]:
    """Files that a case leaves behind are removed with the file system; removing them here would
    double the time."""
    before = os.umask(0o022)
    folder = Folder(place, f"{place.root}/case-{next(_NUMBERS)}")
    os.mkdir(folder.path, 0o755)
    yield folder
    folder.close()
    os.umask(before)


def case_key(item: pytest.Function) -> tuple[str, str]:
    """The name of the case without its file system: with the id of its row, and without."""
    name = f"{item.path.stem}::{item.originalname}"
    rows = item.callspec.id.split("-", 1)[1:] if hasattr(item, "callspec") else []
    return name + "".join(f"[{row}]" for row in rows), name


def _difference(item: pytest.Function) -> Difference | None:
    callspec = getattr(item, "callspec", None)
    if callspec is None or callspec.params.get("place") != "braidfs":
        return None
    row, whole = case_key(item)
    return DIFFERENCES.get(row) or DIFFERENCES.get(whole)


def _shown(error: Exception) -> str:
    """How a case ended, in a few words."""
    if isinstance(error, OSError) and error.errno is not None:
        return errno_name(error)
    return str(error).split("\n", 1)[0]


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    difference = _difference(pyfuncitem)
    if difference is None:
        return (yield)
    try:
        yield
    except Exception as error:
        if _shown(error) == difference.shows:
            return True
        raise
    pytest.fail("this case ends as on ext4 now: take it out of differences.py")
