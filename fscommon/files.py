"""Files that must outlive a power cut."""

import os
from pathlib import Path


def sync_directory(path: Path) -> None:
    """Makes the names in the directory durable: what was made, renamed or removed there. Raises
    OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
