"""Data sets of many files: an index that workers share, batches in one call, and samplers that tell
the mount what will be read.

    from braidfs.data import Announced, Files, Index

    index = Index.scan("/data/train", suffixes=(".jpg",))
    files = Files(index, transform=decode)
    loader = DataLoader(files, batch_size=64, sampler=Announced(RandomSampler(files), files), ...)

Only tensors need torch, and only arrays need numpy: both are imported when they are first asked
for. Everything works on any POSIX file system. docs/train/data-sets.md has recipes.
"""

from typing import TYPE_CHECKING, Any

from .announced import Announced
from .files import Files
from .index import DamagedIndexError, Index
from .reading import Batch, Failure, FilesError, read_files

if TYPE_CHECKING:
    from .torch import StreamFiles

__all__ = [
    "Announced",
    "Batch",
    "DamagedIndexError",
    "Failure",
    "Files",
    "FilesError",
    "Index",
    "StreamFiles",
    "read_files",
]


def __getattr__(name: str) -> Any:
    """StreamFiles, which DataLoader knows by its base, a class of torch: so the first use of its
    name imports torch. Where there is none, it is the same without that base."""
    if name != "StreamFiles":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from .torch import StreamFiles as Stream  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from .streams import PlainStream as Stream  # type: ignore[assignment]  # noqa: PLC0415
    globals()[name] = Stream
    return Stream
