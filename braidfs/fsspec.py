"""`braid://` for programs that open files by fsspec: a local file system with mapped paths.

    fsspec.open("braid:///imagenet/a.jpg")          is open("/data/imagenet/a.jpg") on this node
    pandas.read_parquet("braid:///tables/2026")

A URL names the same file on all nodes, wherever BraidFS is mounted there (braidfs.path). Paths
without a scheme are used as they are, and all results are paths of this node: whoever has a path
needs no fsspec, which is slower. Beside the mapping two things differ from fsspec's local files:
many files (`cat`, `cat_ranges`) are read by several threads, and what is written in a transaction
waits beside its target, where a rename makes it visible at once, and not in /tmp.

The entry point `fsspec.specs` of the package makes this class known as `braid`.
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from fsspec.implementations.local import LocalFileOpener, LocalFileSystem
from fsspec.utils import stringify_path

from . import mounts
from .data import read_files

_THREADS: Final = min(8, 2 * (os.cpu_count() or 1))
_UNFINISHED: Final = ".braid-"  # how the names begin of files in transactions


class BraidFileSystem(LocalFileSystem):
    """Files on the mounts of BraidFS of this node, by URL or path. Its methods are those of
    fsspec's LocalFileSystem; a URL that no mount shows raises FileNotFoundError."""

    protocol = mounts.SCHEME

    @property
    def fsid(self) -> str:
        return mounts.SCHEME

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        """The path of this node; of a list, those of its entries."""
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        try:
            mapped = mounts.path(stringify_path(path))
        except LookupError as error:
            raise FileNotFoundError(str(error)) from error
        return super()._strip_protocol(mapped)

    def unstrip_protocol(self, name: str) -> str:
        """The URL of a path; what does not lie on BraidFS keeps a URL of a local file."""
        path = self._strip_protocol(name)
        try:
            return mounts.url(path)
        except LookupError:
            return f"file://{path}"

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, **options: Any) -> Any:
        if options.get("autocommit", True) or "w" not in mode:
            return super()._open(path, mode, block_size, **options)
        path = self._strip_protocol(path)
        if self.auto_mkdir:
            self.makedirs(self._parent(path), exist_ok=True)
        return _InTransaction(path, mode, fs=self, **options)

    def cat(
        self, path: Any, recursive: bool = False, on_error: str = "raise", **options: Any
    ) -> Any:
        """The content of one file, or {path: content} of several. on_error: "raise", "omit", or
        "return", which puts the exception in place of the content."""
        paths = self.expand_path(path, recursive=recursive, **options)
        several = len(paths) > 1 or isinstance(path, list) or paths[0] != self._strip_protocol(path)
        if not several:
            return self.cat_file(paths[0])
        files = [one for one in paths if not self.isdir(one)] if recursive else paths
        return _kept(dict(zip(files, _read(files), strict=True)), on_error)

    def cat_ranges(
        self,
        paths: Sequence[Any],
        starts: Any,
        ends: Any,
        max_gap: Any = None,
        on_error: str = "return",
        **_options: Any,
    ) -> list[Any]:
        """The bytes [start, end) of each path. starts, ends: lists, or one number for all; a
        negative one counts from the end of the file, None is its begin or end."""
        if max_gap is not None:
            raise NotImplementedError("max_gap is not supported: reads here are not merged")
        count = len(paths)
        wanted = zip(paths, _each(starts, count), _each(ends, count), strict=True)
        found = _by_threads(self._cat_range, list(wanted))
        if on_error != "return":
            _raise_first(found)
        return found

    def _cat_range(self, wanted: tuple[Any, int | None, int | None]) -> Any:
        """wanted: path, start and end. Returns the bytes, or the OSError of reading them."""
        try:
            return self.cat_file(*wanted)
        except OSError as error:
            return error

    def get_file(self, path1: Any, path2: Any, callback: Any = None, **options: Any) -> Any:
        return super().get_file(self._strip_protocol(path1), path2, callback, **options)

    def lexists(self, path: Any, **options: Any) -> bool:
        return bool(super().lexists(self._strip_protocol(path), **options))

    def chmod(self, path: Any, mode: int) -> None:
        super().chmod(self._strip_protocol(path), mode)


class _InTransaction(LocalFileOpener):
    """A file that is written beside its target, and renamed to it by commit()."""

    f: Any = None

    def _open(self) -> None:
        if self.f is None or self.f.closed:
            folder = Path(self.path).parent
            number, self.temp = tempfile.mkstemp(prefix=_UNFINISHED, dir=folder)
            self.f = os.fdopen(number, self.mode)


def _read(paths: Sequence[str]) -> list[Any]:
    """The content of each file, or the OSError of reading it."""
    batch = read_files(list(paths), errors="keep")
    read = [batch[place] for place in range(len(batch))]
    return [
        _read_one(path) if one is None else bytes(one)  # it is asked again for its exception
        for path, one in zip(paths, read, strict=True)
    ]


def _read_one(path: str) -> bytes | OSError:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        return error


def _by_threads(read: Callable[[Any], Any], wanted: Sequence[Any]) -> list[Any]:
    with ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(read, wanted))


def _kept(found: dict[str, Any], on_error: str) -> dict[str, Any]:
    """found: content or exception, by path. What on_error wants of that."""
    if on_error == "raise":
        _raise_first(found.values())
    if on_error == "return":
        return found
    return {path: one for path, one in found.items() if not isinstance(one, Exception)}


def _raise_first(found: Iterable[Any]) -> None:
    for one in found:
        if isinstance(one, Exception):
            raise one


def _each(bounds: Any, count: int) -> list[Any]:
    return bounds if isinstance(bounds, list) else [bounds] * count
