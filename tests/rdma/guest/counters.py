"""What the kernel has counted: bytes that went by lo."""

from pathlib import Path


def loopback_bytes() -> int:
    """How many bytes TCP between the programs has cost: they all use lo. Soft-RoCE packets to an
    address of the same device never reach an interface."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name.strip() == "lo":
            return int(rest.split()[0])
    raise AssertionError("there is no lo")
