"""Layouts that are written and wants that are read, on the local disk, without torch."""

import errno
import os
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from braidfs.checkpoint import pieces
from braidfs.checkpoint.damage import DamagedFile
from braidfs.checkpoint.pieces import (
    Held,
    Inputs,
    Layout,
    cut,
    in_parallel,
    read_wants,
    write_layout,
    write_to,
)


def _random_layout(source: Random) -> tuple[Layout, bytes]:
    layout, content = Layout(), b""
    for _ in range(source.randrange(1, 40)):
        if source.random() < 0.3:
            layout.align()
            content += bytes(-len(content) % pieces.ALIGNMENT)
        part = source.randbytes(source.choice((0, 1, 17, 4096, 5000, 40_000)))
        assert layout.add(Held(part)) == len(content)
        content += part
    assert layout.size == len(content)
    return layout, content


@pytest.mark.parametrize("direct", [False, True])
def test_a_layout_is_written_as_it_is(tmp_path: Path, direct: bool) -> None:
    source = Random(1)
    for number in range(30):
        layout, content = _random_layout(source)
        piece = source.choice((4096, 12_288, 1 << 20))
        write_layout(tmp_path / "file", layout, threads=1 + number % 4, piece=piece, direct=direct)
        assert (tmp_path / "file").read_bytes() == content


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(fd: int, views: list[memoryview], offset: int) -> int:
        return os.pwrite(fd, bytes(views[0][: 1 + len(views[0]) // 3]), offset)

    monkeypatch.setattr(os, "pwritev", short)
    layout, content = _random_layout(Random(5))
    write_layout(tmp_path / "file", layout, threads=2, piece=8192, direct=False)
    assert (tmp_path / "file").read_bytes() == content


def test_a_layout_begins_where_it_is_told(tmp_path: Path) -> None:
    layout, content = _random_layout(Random(2))
    with (tmp_path / "file").open("w+b") as file:
        file.write(b"before")
        file.flush()
        write_to(file.fileno(), layout, threads=2, piece=4096, base=6)
    assert (tmp_path / "file").read_bytes() == b"before" + content


def test_many_small_parts_are_more_than_one_call(tmp_path: Path) -> None:
    layout = Layout()
    for number in range(5000):
        layout.add(Held(bytes([number % 251])))
    write_layout(tmp_path / "file", layout, threads=3, piece=1 << 20, direct=False)
    assert (tmp_path / "file").read_bytes() == bytes(n % 251 for n in range(5000))


def test_an_error_of_the_disk_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwritev", full)
    layout, _ = _random_layout(Random(3))
    with pytest.raises(OSError, match="No space left") as caught:
        write_layout(tmp_path / "file", layout, threads=2, piece=4096, direct=False)
    assert caught.value.filename == str(tmp_path / "file")


def test_wants_get_their_ranges_in_few_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Random(4)
    content = source.randbytes(300_000)
    (tmp_path / "file").write_bytes(content)
    counted = []
    real = os.preadv

    def preadv(fd: int, views: list[memoryview], offset: int) -> int:
        counted.append(offset)
        return real(fd, views, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    ranges = [(a, min(a + source.randrange(1, 9000), 300_000)) for a in range(0, 299_000, 10_000)]
    targets = {one: bytearray(one[1] - one[0]) for one in ranges}
    done: list[int] = []
    wants = [
        replace(want, done=lambda view: done.append(view.nbytes))
        for (a, _), target in reversed(targets.items())
        for want in cut("file", a, memoryview(target), 1 << 20)
    ]
    with Inputs(tmp_path) as inputs:
        read_wants(inputs, wants, threads=1, piece=100_000)
    assert all(bytes(targets[a, b]) == content[a:b] for a, b in ranges)
    assert sorted(done) == sorted(b - a for a, b in ranges) and len(counted) <= 4
    assert counted == sorted(counted)


def test_ranges_that_overlap_and_far_ones_have_reads_of_their_own(tmp_path: Path) -> None:
    content = Random(6).randbytes(4 << 20)
    (tmp_path / "file").write_bytes(content)
    places = [(0, 100), (50, 200), (50, 60), (3 << 20, (3 << 20) + 10), (0, 100)]
    targets = [bytearray(b - a) for a, b in places]
    wants = [
        one
        for (a, _), target in zip(places, targets, strict=True)
        for one in cut("file", a, memoryview(target), 4096)
    ]
    with Inputs(tmp_path) as inputs:
        read_wants(inputs, wants, threads=2, piece=8 << 20)
    assert [bytes(one) for one in targets] == [content[a:b] for a, b in places]


def test_a_short_file_is_told_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(100))
    target = bytearray(b"x" * 60)
    wants = [
        *cut("file", 0, memoryview(target), 4096),
        *cut("file", 90, memoryview(bytearray(20)), 99),
    ]
    with Inputs(tmp_path) as inputs, pytest.raises(DamagedFile, match="has 100 bytes, and should"):
        read_wants(inputs, wants, threads=1, piece=4096)
    assert target == b"x" * 60


def test_after_a_failure_no_other_job_begins() -> None:
    began = []

    def run(job: int) -> None:
        began.append(job)
        raise ValueError(job)

    for threads in (1, 4):
        began.clear()
        with pytest.raises(ValueError):
            in_parallel(run, range(1000), threads)
        assert len(began) <= threads
