"""Announced: what it tells the mount and when, and that it never stops a training."""

import logging
import os
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from braidfs.data import Announced, Files, Index, announced

from .data_sets import make_tree


class Telling:
    """Stands for the mount: notes what is announced to it, with how many rows were given out."""

    calls: list[tuple[list[Any], bool]] = []  # noqa: RUF012  # of the test that runs

    def __init__(self, directory: str) -> None:
        self.opened = directory

    def announce_numbers(self, files: Iterable[tuple[int, int]], *, more: bool) -> int:
        self.calls.append((list(files), more))
        return 1

    def announce(self, paths: Iterable[str], *, more: bool) -> int:
        self.calls.append((list(paths), more))
        return 1

    def close(self) -> None:
        self.calls.append(([], True))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[Any], bool]]:
    calls: list[tuple[list[Any], bool]] = []
    monkeypatch.setattr(Telling, "calls", calls)
    monkeypatch.setattr(announced, "Announcer", Telling)
    monkeypatch.setattr(announced, "_begun", set())
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    return calls


@pytest.fixture
def index(tmp_path: Path) -> Index:
    make_tree(tmp_path / "tree", 40)
    return Index.scan(tmp_path / "tree")


def numbers(index: Index, rows: Iterable[int]) -> list[tuple[int, int]]:
    paths = [Path(index.path(row)) for row in rows]
    return [(path.stat().st_ino, path.parent.stat().st_ino) for path in paths]


def test_windows_follow_each_other(index: Index, told: list[tuple[list[Any], bool]]) -> None:
    order = [*range(20, 40), *range(20)]
    sampler = Announced(order, Files(index), window=16)
    assert len(sampler) == 40
    given = []
    for row in sampler:
        given.append(row)
        if len(given) == 8:
            assert told == [(numbers(index, order[:16]), False)]
        if len(given) == 9:
            assert told[1:] == [(numbers(index, order[16:32]), True)]
    assert given == order
    assert told[2:] == [(numbers(index, order[32:]), True), ([], True)]


@pytest.mark.parametrize("window", [1, 2, 7, 39, 40, 41, 65536])
def test_everything_is_announced_once(
    index: Index, told: list[tuple[list[Any], bool]], window: int
) -> None:
    order = list(range(39, -1, -1))
    for epoch in range(2):
        assert list(Announced(order, index, window=window)) == order
        flat = [one for some, _ in told for one in some]
        assert flat == numbers(index, order) * (epoch + 1)


def test_other_ranks_of_a_node_add(
    index: Index, told: list[tuple[list[Any], bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    list(Announced([1], index))
    assert told[0][1] is True


def test_only_what_will_not_be_read_is_replaced(
    index: Index, told: list[tuple[list[Any], bool]]
) -> None:
    """Else the announcement of a rank that was faster would go, and that of another loader."""
    training, checking = Announced(range(40), index, window=8), Announced([1, 2], index)
    for row in training:
        if row == 20:
            assert list(checking) == [1, 2]
    assert list(training) == list(range(40))
    assert [more for files, more in told if files] == [False] + [True] * 10
    told.clear()
    for row in training:
        if row == 20:
            break
    assert list(checking) == [1, 2] and list(training) == list(range(40))
    assert [more for files, more in told if files] == [True] * 4 + [False] + [True] * 5


def test_a_copy_of_the_tree_is_announced_by_paths(
    index: Index, tmp_path: Path, told: list[tuple[list[Any], bool]]
) -> None:
    index.save(tmp_path / "index")
    (tmp_path / "copy").mkdir()
    moved = Index.load(tmp_path / "index", root=tmp_path / "copy")
    list(Announced([3, 1], moved))
    assert told[0] == ([moved.path(3), moved.path(1)], False)


def test_links_are_not_announced_by_numbers(
    tmp_path: Path, told: list[tuple[list[Any], bool]]
) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").touch()
    (tmp_path / "tree" / "link").symlink_to("file")
    index = Index.scan(tmp_path / "tree")
    assert list(Announced([1, 0], index)) == [1, 0]
    assert told[0] == (numbers(index, [0]), False)


def test_elsewhere_it_only_passes_the_order_on(
    index: Index, caplog: pytest.LogCaptureFixture
) -> None:
    """This file system is no BraidFS. One line says so, to those who look for it."""
    with caplog.at_level(logging.DEBUG, "braidfs"):
        assert list(Announced(range(40), index, window=4)) == list(range(40))
    assert [record.levelname for record in caplog.records] == ["DEBUG"]
    assert "are not announced" in caplog.text


@pytest.mark.parametrize("error", [OSError(95, "off"), ValueError("x"), LookupError("y")])
def test_errors_end_the_announcing_alone(
    index: Index,
    told: list[tuple[list[Any], bool]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    def fail(*_: Any, **__: Any) -> int:
        raise error

    monkeypatch.setattr(Telling, "announce_numbers", fail)
    with caplog.at_level(logging.DEBUG, "braidfs"):
        assert list(Announced(range(40), index, window=4)) == list(range(40))
    assert len(caplog.records) == 1 and told == [([], True)]


def test_rows_that_are_not_there_are_for_the_reader_to_refuse(
    index: Index, told: list[tuple[list[Any], bool]]
) -> None:
    assert list(Announced([1, 1000], index)) == [1, 1000]


class Seeded:
    """A sampler with a seed and an epoch, as DistributedSampler is one."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter([(number + self.epoch) % 40 for number in range(40)])


class Stateful(Seeded):
    """A sampler that knows where it is."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]

    def __iter__(self) -> Iterator[int]:
        whole = list(super().__iter__())
        while self.at < len(whole):
            self.at += 1
            yield whole[self.at - 1]
        self.at = 0


@pytest.mark.parametrize("kind", [Seeded, Stateful])
@pytest.mark.parametrize("taken", [0, 1, 17])
def test_a_pass_goes_on_where_it_was(
    index: Index, told: list[tuple[list[Any], bool]], kind: type[Seeded], taken: int
) -> None:
    """Also twice: after a restart, and one more."""
    sampler = Announced(kind(), index, window=8)
    sampler.set_epoch(2)
    whole = list(sampler)
    for _ in range(2):
        begun = iter(sampler)
        already = 40 - len(whole)
        for _ in range(taken):
            next(begun)
        state = sampler.state_dict()
        assert state["given"] == already + taken
        begun.close()  # type: ignore[attr-defined]  # of a generator
        sampler = Announced(kind(), index, window=8)
        sampler.set_epoch(2)
        sampler.load_state_dict(state)
        assert sampler.state_dict()["given"] == already + taken
        whole = whole[taken:]
        told.clear()
        begun = iter(sampler)
        if whole:
            assert next(begun) == whole[0]
            assert told[0][0] == numbers(index, whole[:8]), "what is behind is not announced"
        begun.close()  # type: ignore[attr-defined]
        sampler.load_state_dict(state)
    assert list(sampler) == whole


def test_a_wrong_window(index: Index) -> None:
    with pytest.raises(ValueError, match="window"):
        Announced([1], index, window=0)


def test_the_stand_in_is_like_the_real_one() -> None:
    from braidfs.announce import Announcer  # noqa: PLC0415

    for name in ("announce", "announce_numbers", "close"):
        assert callable(getattr(Announcer, name))
    assert os.environ.get("LOCAL_RANK", "0") == "0" and array("q").itemsize == 8
