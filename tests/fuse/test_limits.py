"""Limits of what a tree may contain (docs/SEMANTICS.md)."""

import contextlib
import multiprocessing
import os
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.mount, pytest.mark.timeout(900)]

Sized = Callable[[int, int], int]
DEPTH = 1000  # the number of nested folders, in the long form
OPENERS = 8
WAIT_SECONDS = 300.0
LAST_BYTE = (16 << 40) - 1


def test_sparse_file_of_16_tib(workdir: Path) -> None:
    path = workdir / "sparse"
    with path.open("xb") as file:
        os.pwrite(file.fileno(), b"!", LAST_BYTE)
        os.pwrite(file.fileno(), b"?", 1 << 43)
    assert path.stat().st_size == LAST_BYTE + 1
    assert path.stat().st_blocks * 512 <= LAST_BYTE + 1
    with path.open("rb") as file:
        fd = file.fileno()
        assert os.pread(fd, 100, LAST_BYTE - 3) == b"\0\0\0!"
        assert os.pread(fd, 3, (1 << 43) - 1) == b"\0?\0"
        assert os.pread(fd, 5000, 7 << 40) == bytes(5000)
        assert (1 << 43) - (4 << 20) <= os.lseek(fd, 1 << 42, os.SEEK_DATA) <= 1 << 43
    os.truncate(path, 1 << 43)
    assert path.stat().st_size == 1 << 43
    os.truncate(path, LAST_BYTE)
    with path.open("rb") as file:
        assert os.pread(file.fileno(), 10, 1 << 43) == bytes(10)
    path.unlink()
    assert os.listdir(workdir) == []


def test_a_thousand_folders_deep(workdir: Path, sized: Sized) -> None:
    depth = sized(300, DEPTH)
    with contextlib.ExitStack() as opened:
        fd = os.open(workdir, os.O_RDONLY)
        opened.callback(os.close, fd)
        for _ in range(depth):
            os.mkdir("deeper", dir_fd=fd)
            fd = os.open("deeper", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
            opened.callback(os.close, fd)
        with open(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=fd), "wb") as file:
            file.write(b"deep")
        up = os.open("../" * (depth // 2), os.O_RDONLY, dir_fd=fd)
        opened.callback(os.close, up)
        bottom = os.open("deeper/" * (depth // 2) + "bottom", os.O_RDONLY, dir_fd=up)
        opened.callback(os.close, bottom)
        assert os.read(bottom, 10) == b"deep"
    words: list[str | Path] = ["find", workdir, "-name", "bottom", "-size", "4c"]
    found = subprocess.run(words, check=True, capture_output=True, text=True)
    assert found.stdout.count("/deeper") == depth
    subprocess.run(["rm", "-r", workdir / "deeper"], check=True)  # shutil.rmtree cannot
    assert os.listdir(workdir) == []


def test_many_hard_links(workdir: Path, sized: Sized) -> None:
    count = sized(500, 40_000)
    (workdir / "0").write_bytes(b"shared")
    for number in range(1, count):
        os.link(workdir / "0", workdir / f"{number}")
    assert (workdir / f"{count - 1}").stat().st_nlink == count
    assert len(os.listdir(workdir)) == count
    for number in range(count - 1):
        (workdir / f"{number}").unlink()
    assert (workdir / f"{count - 1}").stat().st_nlink == 1
    assert (workdir / f"{count - 1}").read_bytes() == b"shared"


def use_many(base: Path, count: int, wait: Callable[[float], object]) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    descriptors = [os.open(base / f"{n}", os.O_CREAT | os.O_RDWR) for n in range(count)]
    for number, fd in enumerate(descriptors):
        os.pwrite(fd, b"%d" % number, 0)
    wait(WAIT_SECONDS)
    for number, fd in enumerate(descriptors):
        assert os.pread(fd, 10, 0) == b"%d" % number
        assert os.fstat(fd).st_size == len(b"%d" % number)
    wait(WAIT_SECONDS)


def test_many_open_files(workdir: Path, sized: Sized) -> None:
    """Several processes open them, because the limit of descriptors may be lower for one. All are
    open at once."""
    count = sized(200, 12_500)
    context = multiprocessing.get_context("fork")
    all_open = context.Barrier(OPENERS)

    def use(base: Path) -> None:
        try:
            use_many(base, count, all_open.wait)
        except BaseException:
            all_open.abort()
            raise

    processes = []
    for number in range(OPENERS):
        (workdir / f"{number}").mkdir()
        processes.append(context.Process(target=use, args=(workdir / f"{number}",)))
        processes[-1].start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * OPENERS


@pytest.mark.parametrize(
    "names",
    [("Readme", "README", "readme"), ("\u00e9", "e\u0301"), ("\u212b", "\u00c5", "A\u030a")],
)
def test_names_that_look_alike(workdir: Path, names: tuple[str, ...]) -> None:
    """Other bytes are another name: names are compared neither by case nor by normal form."""
    for name in names:
        (workdir / name).write_text(name)
    assert sorted(os.listdir(workdir)) == sorted(names)
    for name in names:
        assert (workdir / name).read_text() == name
