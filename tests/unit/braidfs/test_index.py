"""Index: the order of any tree, damaged and forged files, and what processes hand each other."""

import os
import pickle
import signal
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braidfs.data import DamagedIndexError, Index, scan
from braidfs.data.__main__ import main
from braidfs.data.listing import Folder, Lister, Wish

from .data_sets import KINDS, make_lister, make_tree

NAMES = st.text("ab-./ \né.", min_size=1, max_size=4).filter(
    lambda name: "/" not in name and name not in (".", "..")
)
PATHS = st.lists(st.lists(NAMES, min_size=1, max_size=4).map(tuple), max_size=25)


def names(index: Index) -> list[bytes]:
    return [index.name(row) for row in range(len(index))]


@contextmanager
def scanned_by(lister: Lister) -> Iterator[None]:
    """Scans use this lister."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "new_lister", lambda: lister)
        yield


@pytest.fixture(params=KINDS)
def lister(request: pytest.FixtureRequest) -> Iterator[Lister]:
    """Both kinds of listers, which scans use."""
    found = make_lister(request.param)
    with scanned_by(found):
        yield found


@pytest.fixture
def index(tmp_path: Path) -> Index:
    make_tree(tmp_path / "tree", 12)
    return Index.scan(tmp_path / "tree")


def image_of(index: Index) -> bytearray:
    return bytearray(index._image)


def sealed(image: bytearray) -> bytes:
    """With a right checksum again, as somebody writes who forges an index."""
    struct.pack_into("<I", image, 12, zlib.crc32(image[16:]))
    return bytes(image)


def test_a_scan(index: Index, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    found = sorted(os.fsencode(path.relative_to(tree)) for path in tree.rglob("*.jpg"))
    assert names(index) == found and len(index) == 12
    for row in range(len(index)):
        path = Path(index.path(row))
        seen = path.stat()
        assert path == tree / os.fsdecode(index.name(row))
        assert (index.size(row), index.inodes[row]) == (seen.st_size, seen.st_ino)
        assert index.folder_inodes[index.folder(row)] == path.parent.stat().st_ino
        number = index.class_of(row)
        assert number is not None and index.classes[number] == path.relative_to(tree).parts[0]
    assert index.classes == ("a", "b", "c")
    assert index.root == str(tree) and index.root_inode == tree.stat().st_ino
    assert index.path(-1) == index.path(11)
    with pytest.raises(IndexError):
        index.path(12)
    assert "12 files" in repr(index)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(paths=PATHS)
def test_any_tree_is_sorted_by_path(paths: list[Any], tmp_path_factory: Any) -> None:
    root = tmp_path_factory.mktemp("tree")
    for parts in paths:
        path = root.joinpath(*parts)
        if not path.exists() and not any(one.is_file() for one in path.parents):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    walked = [Path(folder) / name for folder, _, files in os.walk(root) for name in files]
    expected = sorted(os.fsencode(path.relative_to(root)) for path in walked)
    for suffixes in ((), (".", "B")):
        images = set()
        for kind in KINDS:
            with scanned_by(make_lister(kind)):
                indexes = [Index.scan(root, suffixes, threads=threads) for threads in (1, 5)]
            images |= {bytes(image_of(index)) for index in indexes}
            wanted = [one for one in expected if not suffixes or one.endswith((b".", b"b"))]
            assert names(indexes[0]) == wanted
        assert len(images) == 1, "the same tree gives the same index, whoever lists it"
        folders = {path.relative_to(root).parts[0] for path in walked if path.parent != root}
        if not suffixes:
            sorted_folders = sorted(folders, key=lambda name: os.fsencode(name) + b"/")
            assert list(indexes[0].classes) == sorted_folders


def test_names_that_are_no_text(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/\xff\xfe"
    os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
    index = Index.scan(tmp_path)
    assert index.name(0) == b"\xff\xfe" and os.fsencode(index.path(0)) == name
    assert index.class_of(0) is None


def test_ends_of_names_in_any_case(tmp_path: Path) -> None:
    for name in ("a.jpg", "b.JPG", "c.png", "d.jpg.txt", "jpg"):
        (tmp_path / name).touch()
    assert names(Index.scan(tmp_path, (".jpg",))) == [b"a.jpg", b"b.JPG"]
    assert names(Index.scan(tmp_path, (".Png", ".txt"))) == [b"c.png", b"d.jpg.txt"]


def test_links(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(b"four")
    (tmp_path / "link").symlink_to("folder/file")
    (tmp_path / "loop").symlink_to(".")
    (tmp_path / "nowhere").symlink_to("missing")
    os.mkfifo(tmp_path / "fifo")
    index = Index.scan(tmp_path)
    assert names(index) == [b"folder/file", b"link"]
    assert index.size(1) == 4 and index.inodes[1] == 0


def test_an_empty_tree(tmp_path: Path) -> None:
    index = Index.scan(tmp_path)
    assert len(index) == 0 and index.classes == ()
    index.save(tmp_path / "index")
    assert len(Index.load(tmp_path / "index")) == 0


def test_a_very_deep_tree(tmp_path: Path) -> None:
    """It is deeper than Python's recursion goes."""
    depth = 1200
    folders = [os.fsencode(tmp_path) + b"/d" * number for number in range(1, depth + 1)]
    for folder in folders:
        os.mkdir(folder)
    file = folders[-1] + b"/file"
    os.close(os.open(file, os.O_CREAT | os.O_WRONLY))
    found = names(Index.scan(tmp_path))
    os.unlink(file)
    for folder in reversed(folders):  # what removes it afterwards is recursive too
        os.rmdir(folder)
    assert found == [b"d/" * depth + b"file"]


def test_folders_that_cannot_be_listed(tmp_path: Path, lister: Lister) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        Index.scan(tmp_path / "missing")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="file"):
        Index.scan(tmp_path / "file")
    with pytest.raises(ValueError, match=r"NUL|null"):
        Index.scan(f"{tmp_path}\0")
    make_tree(tmp_path, 12)

    def refused(error: Exception) -> Lister:
        def list_folder(folder: bytes, prefix: bytes, wish: Wish) -> Folder:
            if folder.endswith(b"/deep/"):
                raise error
            return lister(folder, prefix, wish)

        return list_folder

    with scanned_by(refused(PermissionError(13, "refused"))), pytest.raises(PermissionError):
        Index.scan(tmp_path)
    with scanned_by(refused(MemoryError())), pytest.raises(MemoryError):
        Index.scan(tmp_path)
    with scanned_by(refused(FileNotFoundError(2, "it was just removed"))):
        assert all(b"deep" not in name for name in names(Index.scan(tmp_path)))


def test_an_interrupted_scan_leaves_no_threads(tmp_path: Path, lister: Lister) -> None:
    make_tree(tmp_path, 12)
    before = threading.active_count()

    def list_folder(folder: bytes, prefix: bytes, wish: Wish) -> Folder:
        if folder.endswith(b"/a/"):
            os.kill(os.getpid(), signal.SIGINT)
        return lister(folder, prefix, wish)

    with scanned_by(list_folder), pytest.raises(KeyboardInterrupt):
        Index.scan(tmp_path, threads=7)
        time.sleep(10)  # until the signal is here
    assert threading.active_count() == before


def test_saved_and_loaded(index: Index, tmp_path: Path) -> None:
    index.save(tmp_path / "index")
    loaded = Index.load(tmp_path / "index")
    assert names(loaded) == names(index) and loaded.root == index.root
    assert [loaded.class_of(row) for row in range(12)] == [index.class_of(row) for row in range(12)]
    moved = Index.load(tmp_path / "index", root="/elsewhere")
    assert moved.path(0) == "/elsewhere/" + os.fsdecode(index.name(0))
    assert Index.load(tmp_path / "index", root="/").path(0)[0:2] != "//"
    with pytest.raises(FileNotFoundError):
        Index.load(tmp_path / "missing")


def test_a_save_that_fails_leaves_the_old_one(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    index.save(tmp_path / "out" / "index")
    before = (tmp_path / "out" / "index").read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "no space")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        Index.scan(tmp_path).save(tmp_path / "out" / "index")
    assert (tmp_path / "out" / "index").read_bytes() == before
    assert os.listdir(tmp_path / "out") == ["index"]


def test_handed_to_another_process(index: Index, tmp_path: Path) -> None:
    """An index without a file goes as its bytes; one with a file as its name."""
    assert names(pickle.loads(pickle.dumps(index))) == names(index)
    index.save(tmp_path / "index")
    moved = Index.load(tmp_path / "index", root="/elsewhere")
    for one in (index, moved):
        words = pickle.dumps(one)
        assert len(words) < 500
        again = pickle.loads(words)
        assert names(again) == names(index) and again.root == one.root
    Index.scan(tmp_path).save(tmp_path / "index")
    with pytest.raises(DamagedIndexError, match="another index"):
        pickle.loads(words)
    assert names(moved) == names(index), "the file that is mapped goes on to be there"


def test_every_damaged_byte_is_found(tmp_path: Path) -> None:
    make_tree(tmp_path / "tree", 5)
    index = Index.scan(tmp_path / "tree")
    image, file = image_of(index), tmp_path / "index"
    for at in range(len(image)):
        image[at] ^= 1 << at % 8
        file.write_bytes(image)
        with pytest.raises(DamagedIndexError):
            Index.load(file)
        image[at] ^= 1 << at % 8


def test_every_cut_is_found(tmp_path: Path) -> None:
    make_tree(tmp_path / "tree", 5)
    index = Index.scan(tmp_path / "tree")
    image, file = image_of(index), tmp_path / "index"
    for size in range(len(image)):
        file.write_bytes(image[:size])
        with pytest.raises(DamagedIndexError):
            Index.load(file)
        with pytest.raises(DamagedIndexError):
            Index(sealed(image[: max(size, 16)]))
    file.write_bytes(image + b"\0")
    with pytest.raises(DamagedIndexError, match="bytes of"):
        Index.load(file)


def test_what_is_no_index(tmp_path: Path, index: Index) -> None:
    with pytest.raises(DamagedIndexError, match="no regular file"):
        Index.load(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(DamagedIndexError, match="no regular file"):
        Index.load(tmp_path / "fifo")
    (tmp_path / "text").write_bytes(b"something else\n" * 30)
    with pytest.raises(DamagedIndexError, match="it is no index"):
        Index.load(tmp_path / "text")
    newer = image_of(index)
    struct.pack_into("<I", newer, 8, 2)
    with pytest.raises(DamagedIndexError, match="format 2"):
        Index(bytes(newer))


def used(index: Index) -> Iterator[object]:
    """All that programs read from an index."""
    for row in range(min(len(index), 50)):
        yield from (index.path(row), index.size(row), index.folder(row), index.class_of(row))
        name = index.name(row)
        assert name and not name.startswith(b"/") and b".." not in name.split(b"/")
        assert b"\0" not in name


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(changes=st.lists(st.tuples(st.integers(0), st.binary(min_size=1, max_size=8)), max_size=4))
def test_a_forged_file_is_an_error_or_harmless(index: Index, changes: Any) -> None:
    image = image_of(index)
    for at, content in changes:
        begin = 16 + at % (len(image) - 16)
        fits = content[: len(image) - begin]
        image[begin : begin + len(fits)] = fits
    with suppress(DamagedIndexError):
        list(used(Index(sealed(image))))


@pytest.mark.parametrize("path", [b"/etc/passwd", b"../passwd.x", b"a/../../pas", b"a\0bcdefghij"])
def test_paths_never_lead_out_of_the_root(tmp_path: Path, path: bytes) -> None:
    (tmp_path / ("x" * 11)).touch()
    image = image_of(Index.scan(tmp_path))
    at = image.index(b"x" * 11)
    image[at : at + 11] = path
    with pytest.raises(DamagedIndexError, match="out of the root"):
        Index(sealed(image)).path(0)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_tree(tmp_path / "tree", 12)
    (tmp_path / "tree" / "README").touch()
    words = ["index", str(tmp_path / "tree"), "-o", str(tmp_path / "out")]
    assert main([*words, "--suffix", ".jpg", "--threads", "2"]) == 0
    assert len(Index.load(tmp_path / "out")) == 12
    assert "12 files in 6 folders, 3 classes" in capsys.readouterr().out
    assert main(["index", str(tmp_path / "none"), "-o", str(tmp_path / "out")]) == 1
    assert "No such file" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*words, "--threads", "0"])
