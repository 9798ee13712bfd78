"""Configuration of the programs: TOML files and mount options."""

from fscommon.config.mount_options import MountOptions, parse_mount_options
from fscommon.config.toml import ByteSize, load, parse_size

__all__ = ["ByteSize", "MountOptions", "load", "parse_mount_options", "parse_size"]
