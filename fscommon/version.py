"""The version of the installed distribution."""

from importlib import metadata
from typing import Final

DISTRIBUTION: Final = "braidfs-server"


def program_version() -> str:
    """The version; 'unknown' where the programs were neither installed nor built by ./dev."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"
