"""What programs and the kernel counted: native counters by their metrics, bytes that went by lo."""

import re
import urllib.request
from pathlib import Path

from tests.cluster.plan import HOST


def native_counters(port: int) -> dict[str, int]:
    """braidfs_native of the program whose metrics are at this port."""
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=60) as reply:
        text = reply.read().decode()
    found = re.findall(r'^braidfs_native\w*\{.*?"(\w+)"\} ([0-9.e+]+)$', text, re.MULTILINE)
    return {name: int(float(value)) for name, value in found}


def loopback_bytes() -> int:
    """Bytes that TCP between the programs has cost: they all speak over lo. Soft-RoCE packets to an
    address of the same device never reach an interface."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name.strip() == "lo":
            return int(rest.split()[0])
    raise AssertionError("there is no lo")
