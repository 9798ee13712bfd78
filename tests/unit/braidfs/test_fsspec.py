"""`braid://` by fsspec: mapped paths, many files at once, transactions beside their target."""

import pickle
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from braidfs import mounts
from tests.dev.extras import folder_of

pytestmark = pytest.mark.full  # fsspec is in no environment of ours: it is installed first


@pytest.fixture(scope="module")
def system() -> Iterator[Any]:
    """The class, with the fsspec of an environment of its own."""
    environment = folder_of("fsspec", ["fsspec>=2023.6"])
    (packages,) = environment.glob("lib/python3*/site-packages")
    sys.path.append(str(packages))
    yield import_module("braidfs.fsspec").BraidFileSystem
    sys.path.remove(str(packages))


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that passes for a mount of the whole cluster."""
    folder = tmp_path / "data"
    folder.mkdir()
    root = "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text(f"{root}30 20 0:40 / {folder} rw - fuse.braidfs meta1:/ rw\n")
    monkeypatch.setattr(mounts, "_MOUNTINFO", str(mountinfo))
    return folder


def test_urls_are_paths_of_this_node(system: Any, data: Path) -> None:
    files = system()
    files.makedirs("braid:///sets/a")
    files.pipe_file("braid:///sets/a/one", b"1")
    assert (data / "sets/a/one").read_bytes() == b"1"
    assert files.cat_file("braid:///sets/a/one") == files.cat(f"{data}/sets/a/one") == b"1"
    assert files.ls("braid:///sets/a", detail=False) == [f"{data}/sets/a/one"]
    assert files.find("braid:///") == [f"{data}/sets/a/one"]
    assert files.glob("braid:///sets/*/o*") == [f"{data}/sets/a/one"]
    assert files.unstrip_protocol(f"{data}/sets") == "braid:///sets"
    assert files.unstrip_protocol("/etc/passwd") == "file:///etc/passwd"
    assert files.lexists("braid:///sets/a/one") and not files.exists("braid:///sets/b")
    files.chmod("braid:///sets/a/one", 0o600)
    assert (data / "sets/a/one").stat().st_mode & 0o777 == 0o600
    files.get_file("braid:///sets/a/one", str(data / "copy"))
    assert (data / "copy").read_bytes() == b"1"
    files.mv("braid:///copy", "braid:///moved")
    files.rm("braid:///sets", recursive=True)
    assert [path.name for path in data.iterdir()] == ["moved"]


def test_fsspec_knows_it_by_its_name(system: Any, data: Path) -> None:
    fsspec = import_module("fsspec")
    fsspec.register_implementation("braid", system, clobber=True)
    with fsspec.open("braid:///text", "w") as file:
        file.write("hello")
    assert (data / "text").read_text() == "hello"
    files, path = fsspec.core.url_to_fs("braid:///text")
    assert path == str(data / "text") and isinstance(pickle.loads(pickle.dumps(files)), system)


def test_what_no_mount_shows_is_not_found(system: Any, data: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no mount of this node shows braid://meta7/x"):
        system().open("braid://meta7/x")
    assert data.is_dir()


def test_many_files_are_read_at_once(system: Any, data: Path) -> None:
    files = system()
    wanted = {f"{data}/{number}": b"%d" % number * 1000 for number in range(100)}
    for path, content in wanted.items():
        Path(path).write_bytes(content)
    urls = [f"braid:///{number}" for number in range(100)]
    assert files.cat(urls) == wanted
    assert files.cat("braid:///", recursive=True) == wanted
    (data / "0").unlink()
    with pytest.raises(FileNotFoundError):
        files.cat(urls)
    assert files.cat(urls, on_error="omit").keys() == wanted.keys() - {f"{data}/0"}
    kept = files.cat(urls, on_error="return")
    assert isinstance(kept.pop(f"{data}/0"), FileNotFoundError) and len(kept) == 99


def test_ranges(system: Any, data: Path) -> None:
    files = system()
    (data / "letters").write_bytes(b"abcdefgh")
    found = files.cat_ranges(
        ["braid:///letters"] * 3 + ["braid:///no"], [0, -3, 2, 0], [2, None, -1, 1]
    )
    assert found[:3] == [b"ab", b"fgh", b"cdefg"] and isinstance(found[3], FileNotFoundError)
    assert files.cat_ranges(["braid:///letters"] * 2, 1, 3) == [b"bc", b"bc"]
    with pytest.raises(FileNotFoundError):
        files.cat_ranges(["braid:///no"], 0, 1, on_error="raise")


def test_a_transaction_waits_beside_its_target(system: Any, data: Path) -> None:
    files = system()
    with files.transaction:
        with files.open("braid:///whole", "wb") as file:
            file.write(b"all of it")
        (waiting,) = data.iterdir()
        assert waiting.name.startswith(".braid-") and waiting.read_bytes() == b"all of it"
    assert [path.name for path in data.iterdir()] == ["whole"]
    assert (data / "whole").read_bytes() == b"all of it"


def test_a_transaction_that_fails_leaves_nothing(system: Any, data: Path) -> None:
    files = system()
    with pytest.raises(KeyError), files.transaction:
        with files.open("braid:///whole", "wb") as file:
            file.write(b"half")
        raise KeyError
    assert list(data.iterdir()) == []
