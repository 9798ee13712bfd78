"""The inodes that a request names, for ops that share this (metaserver.ops.row, `names`)."""

from collections.abc import Iterable
from typing import Any


def no_inodes(request: Any) -> Iterable[int]:
    return ()


def its_ino(request: Any) -> Iterable[int]:
    return (request.ino,)


def its_ino_if_any(request: Any) -> Iterable[int]:
    return (request.ino,) if request.ino else ()


def its_parent(request: Any) -> Iterable[int]:
    return (request.parent,)
