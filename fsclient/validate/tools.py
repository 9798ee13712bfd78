"""IOR and mdtest, if nodes have them: their command lines, and how their output is read. Pure.

Each node runs its own, with as many tasks as jobs if it has mpirun, else with one; all nodes at
once, as in every phase. Of their output only the lines are read that all their releases print.
"""

import re
from typing import Final

from .outcome import Measured
from .suites import BLOCK_BYTES, Amounts, Kind, Phase

LAUNCHER: Final = "mpirun"
_CHUNK_BYTES: Final = 1 << 20
_BLOCKS: Final = 4  # a file of IOR's easy pattern has so many times check_bytes
_SEED: Final = "27182"  # of IOR's data: the check makes the same data
_RATE: Final = {
    Kind.WRITE: re.compile(r"^Max Write:\s+([\d.]+) MiB/sec", re.M),
    Kind.READ: re.compile(r"^Max Read:\s+([\d.]+) MiB/sec", re.M),
}
_OPERATIONS: Final = {"create": "creation", "stat": "stat", "remove": "removal"}
_FLAGS: Final = {"create": "-C", "stat": "-T", "remove": "-r"}
_DAMAGE: Final = re.compile(r"incorrect data", re.I)


def _ior(pattern: str, kind: Kind, title: str, *, verifies: bool = False) -> Phase:
    needs = f"ior-{pattern}-write" if kind is Kind.READ else ""
    return Phase(f"ior-{pattern}-{kind}", title, kind, tool="ior", verifies=verifies, needs=needs)


def _mdtest(action: str, title: str) -> Phase:
    needs = "" if action == "create" else "mdtest-create"
    return Phase(f"mdtest-{action}", title, Kind.METADATA, tool="mdtest", needs=needs)


PHASES: Final = (
    _ior("easy", Kind.WRITE, "IOR writes a file of each task"),
    _ior("easy", Kind.READ, "IOR reads a file of each task"),
    _ior("hard", Kind.WRITE, "IOR writes one file of a node"),
    _ior("hard", Kind.READ, "IOR checks one file of a node", verifies=True),
    _mdtest("create", "mdtest creates files"),
    _mdtest("stat", "mdtest stats files"),
    _mdtest("remove", "mdtest removes files"),
)


def node_bytes(amounts: Amounts) -> int:
    """The most bytes that they store on one node."""
    return amounts.jobs * (_BLOCKS * amounts.check_bytes + amounts.blocks * BLOCK_BYTES)


def place(phase: Phase, own: str, peer: str) -> str:
    """The path of a phase's files: what is read and looked up belongs to another node."""
    reads = phase.kind is Kind.READ or phase.name == "mdtest-stat"
    return f"{peer if reads else own}/{phase.name.rpartition('-')[0]}"


def command(phase: Phase, where: str, amounts: Amounts, tasks: int) -> list[str]:
    words = [LAUNCHER, "-n", str(tasks)] if tasks > 1 else []
    if phase.tool == "mdtest":
        action = _FLAGS[phase.name.rpartition("-")[2]]
        return [*words, "mdtest", "-F", "-u", action, "-n", str(amounts.files), "-d", where]
    words += ["ior", "-a", "POSIX", "-k", "-G", _SEED, "-o", where]
    words += ["-w", "-e"] if phase.kind is Kind.WRITE else ["-r"]
    words += ["-R"] if phase.verifies else []
    if "easy" in phase.name:
        return [*words, "-F", "-t", str(_CHUNK_BYTES), "-b", str(_BLOCKS * amounts.check_bytes)]
    block = str(BLOCK_BYTES)
    return [*words, "-t", block, "-b", block, "-s", str(amounts.blocks)]


def is_damage(output: str) -> bool:
    return bool(_DAMAGE.search(output))


def measured(phase: Phase, output: str, amounts: Amounts, tasks: int) -> Measured:
    """Reads the output. Raises ValueError if it has no rate."""
    if phase.tool == "mdtest":
        count = amounts.files * tasks
        rate = _found(_rate_of_mdtest(phase), output)
        return Measured(operations=count, seconds=count / rate)
    size, each = _BLOCKS * amounts.check_bytes, _CHUNK_BYTES
    if "hard" in phase.name:
        size, each = amounts.blocks * BLOCK_BYTES, BLOCK_BYTES
    moved = size * tasks
    seconds = moved / (_found(_RATE[phase.kind], output) * (1 << 20))
    return Measured(bytes=moved, operations=moved // each, seconds=seconds)


def _rate_of_mdtest(phase: Phase) -> re.Pattern[str]:
    operation = _OPERATIONS[phase.name.rpartition("-")[2]]
    return re.compile(rf"^\s*File {operation}\s*:?\s+([\d.]+)", re.M)


def _found(rate: re.Pattern[str], output: str) -> float:
    match = rate.search(output)
    number = float(match[1]) if match else 0.0
    if number <= 0:
        raise ValueError(f"it printed no {rate.pattern.strip('^')}")
    return number
