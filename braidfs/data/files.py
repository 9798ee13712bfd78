"""A data set of whole files, of which a DataLoader reads each batch in one call.

DataLoader asks a data set that has `__getitems__` for all items of a batch at once: that is the
only place where a worker, which is one thread, can read several files at a time.
"""

from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

from .index import Index
from .reading import Errors, read_files


class Files:
    """The files of an index, by their rows. It can be handed to workers that are started in any
    way, and has no open file."""

    def __init__(
        self,
        index: Index,
        transform: Callable[[Any, int], Any] | None = None,
        *,
        tensors: bool = True,
        threads: int = 0,
        errors: Errors = "raise",
    ) -> None:
        """transform: makes an item of a file's bytes and its row. tensors: bytes come as a tensor
        of uint8, which shares its memory with those of its batch; False: as a memoryview, which
        workers cannot hand over, so the transform must make something else of it.

        threads, errors: as for read_files(); with "keep" a file that could not be read is None in
        place of its bytes."""
        self.index = index
        self.transform = transform
        self._tensors = tensors
        self._threads = threads
        self._errors: Errors = errors

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, row: SupportsIndex) -> Any:
        """One item. Raises FilesError if its file cannot be read, IndexError for no row."""
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[SupportsIndex]) -> list[Any]:
        """The items of these rows, whose files are read in one call. Raises FilesError with all
        files that cannot be read."""
        numbers = [self.index.row(row) for row in rows]
        # What a transform makes goes to the trainer, not the bytes: they lie in memory that is used
        # again. Should it hand over the bytes themselves, torch copies their batch, once.
        shared = None if self.transform is None else False
        batch = read_files(
            self.index, numbers, threads=self._threads, errors=self._errors, shared=shared
        )
        items: list[Any] = batch.tensors() if self._tensors else list(batch)
        if self.transform is None:
            return items
        return [self.transform(item, row) for item, row in zip(items, numbers, strict=True)]
