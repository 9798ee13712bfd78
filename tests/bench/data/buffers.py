"""Memory for reads and writes, which begins at a page."""

import os

from fsclient.validate.training.memory import pages
from tests.bench.data.amounts import MIB

__all__ = ["filled", "pages"]


def filled(size: int) -> memoryview:
    """`size` random bytes, which repeat from 1 MiB on."""
    memory, some = pages(size), os.urandom(min(size, MIB))
    for first in range(0, size, len(some)):
        count = min(len(some), size - first)
        memory[first : first + count] = some[:count]
    return memory
