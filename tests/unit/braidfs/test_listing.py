"""Both kinds of listers say the same of a folder: names, links, what vanishes, errors."""

import os
import threading
from contextlib import AbstractContextManager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braidfs.data.listing import Folder, Lister, Wish, new_lister, python_lister, telling_device
from tests.threads import running_beside

from .data_sets import KINDS, make_lister

NAMES = st.binary(min_size=1, max_size=6).filter(
    lambda name: not {0, ord("/")} & set(name) and name not in (b".", b"..")
)
SORTS = st.sampled_from(["file", "folder", "link", "fifo", "link to nothing", "link to a folder"])
ENDS = st.lists(st.binary(max_size=2).map(bytes.lower), max_size=3).map(tuple)


@pytest.fixture(params=KINDS)
def lister(request: pytest.FixtureRequest) -> Lister:
    return make_lister(request.param)


def numbers(packed: bytes) -> list[int]:
    return memoryview(packed).cast("Q").tolist()


def files_of(folder: Folder) -> list[bytes]:
    offsets = numbers(folder.offsets)
    return [folder.paths[a:b] for a, b in pairwise(offsets)]


def make(path: bytes, what: str, size: int) -> None:
    if what == "file":
        Path(os.fsdecode(path)).touch()
        os.truncate(path, size)
    elif what == "folder":
        os.mkdir(path)
    elif what == "fifo":
        os.mkfifo(path)
    else:
        target = {"link": b"/etc/passwd", "link to a folder": b"/"}.get(what, b"missing")
        os.symlink(target, path)


def test_the_native_one_is_used_where_it_is_there() -> None:
    found = new_lister()(b"/", b"", Wish())
    assert new_lister() is not python_lister and isinstance(found, Folder)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    entries=st.dictionaries(NAMES, st.tuples(SORTS, st.integers(0, 1 << 43)), max_size=12),
    prefix=st.binary(max_size=5),
    ends=ENDS,
)
def test_both_say_the_same(
    entries: dict[bytes, tuple[str, int]], prefix: bytes, ends: Any, tmp_path_factory: Any
) -> None:
    folder = os.fsencode(tmp_path_factory.mktemp("folder"))
    for name, (what, size) in entries.items():
        make(folder + b"/" + name, what, size)
    native, python = (make_lister(kind)(folder, prefix, Wish(ends)) for kind in KINDS)
    assert native == python
    wanted = sorted(
        name
        for name, (what, _) in entries.items()
        if what in ("file", "link") and (not ends or name.lower().endswith(ends))
    )
    assert files_of(native) == [prefix + name for name in wanted]
    for name, size, inode in zip(
        wanted, numbers(native.sizes), numbers(native.inodes), strict=True
    ):
        seen = os.stat(folder + b"/" + name)
        assert size == seen.st_size
        assert inode == (seen.st_ino if entries[name][0] == "file" else 0)
    folders = [name + b"/" for name, (what, _) in entries.items() if what == "folder"]
    assert native.folders == sorted(folders)
    assert native.places == [sum(one < name for one in wanted) for name in native.folders]
    assert native.inode == os.stat(folder).st_ino


def test_links_that_lead_nowhere_are_left_out(lister: Lister, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"four")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "through a file").symlink_to("file/below")
    (tmp_path / "right").symlink_to("file")
    found = lister(os.fsencode(tmp_path), b"", Wish())
    assert files_of(found) == [b"file", b"right"] and numbers(found.sizes) == [4, 4]


def test_a_folder_larger_than_a_buffer(lister: Lister, tmp_path: Path) -> None:
    """The system needs several calls to tell its names."""
    names = [f"{number:04}{'x' * 200}" for number in range(3000)]
    for name in names:
        (tmp_path / name).touch()
    assert files_of(lister(os.fsencode(tmp_path), b"", Wish())) == [
        os.fsencode(one) for one in names
    ]


def test_no_descriptor_is_left(lister: Lister, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(50):
        lister(os.fsencode(tmp_path), b"", Wish())
        for name in (b"/file", b"/missing"):
            with pytest.raises(OSError, match=os.fsdecode(name)):
                lister(os.fsencode(tmp_path) + name, b"", Wish())
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_errors(lister: Lister, tmp_path: Path) -> None:
    place = os.fsencode(tmp_path)
    with pytest.raises(FileNotFoundError):
        lister(place + b"/\xff", b"", Wish())
    with pytest.raises(OSError, match="too long"):
        lister(place + b"/x" * 3000, b"", Wish())
    with pytest.raises(ValueError, match=r"NUL|null"):
        lister(place + b"\0", b"", Wish())
    with pytest.raises(NotADirectoryError):
        lister(place + b"/../../../../../dev/null", b"", Wish())


def changing(folder: Path) -> AbstractContextManager[None]:
    """Files come and go in the folder, and become folders, during the block."""

    def change(is_over: threading.Event) -> None:
        number = 0
        while not is_over.is_set():
            path = folder / f"changing-{number % 20:02}"
            number += 1
            with suppress(OSError):
                path.touch()
                path.unlink()
                path.mkdir()
                path.rmdir()

    return running_beside(change)


def test_what_vanishes_is_left_out(lister: Lister, tmp_path: Path) -> None:
    stable = [b"stable-%03d" % number for number in range(100)]
    for name in stable:
        (tmp_path / os.fsdecode(name)).touch()
    with changing(tmp_path):
        for _ in range(200):
            found = files_of(lister(os.fsencode(tmp_path), b"", Wish()))
            assert [name for name in found if name.startswith(b"stable")] == stable
            assert found == sorted(found)


def test_a_folder_that_was_removed_is_empty_or_missing(lister: Lister, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    before = os.open(folder, os.O_RDONLY)
    folder.rmdir()
    try:
        found = lister(b"/proc/self/fd/%d" % before, b"", Wish())
        assert (found.paths, found.folders) == (b"", [])
    except FileNotFoundError:
        pass
    finally:
        os.close(before)


@pytest.mark.parametrize("ends", [("text",), [b".jpg"], (b".jpg", None)])
def test_wrong_ends_are_an_error(ends: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TypeError):
        make_lister("native")(os.fsencode(tmp_path), b"", Wish(ends))


def test_only_a_braidfs_tells_sizes_with_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = os.fsencode(tmp_path)
    assert telling_device(root) == 0 and telling_device(root + b"/missing") == 0
    device = tmp_path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    told = {
        f"36 35 {number} / /mnt rw,noatime master:1 shared:7 - fuse.braidfs host:/ rw": device,
        f"36 35 {number} / /mnt rw - fuse.braidfs host:/ rw": device,
        f"36 35 {number} / /mnt rw - fuse.other host:/ rw": 0,
        f"36 35 {number}1 / /mnt rw - fuse.braidfs host:/ rw": 0,
        f"36 35 {number} / /mnt rw - ": 0,
        "": 0,
    }
    for line, expected in told.items():
        monkeypatch.setattr(Path, "read_bytes", lambda _, line=line: f"x\n{line}\n".encode())
        assert telling_device(root) == expected
    assert make_lister("native")(root, b"", Wish((), device)) == python_lister(root, b"", Wish())
