"""What is measured (rows), what it should reach (bars), and whether it does. The module is pure.

A bar compares the median of BraidFS with a reference: the median of another system in the same row
or in a named one, the best of the peers, another row of BraidFS itself, or 1 (a plain value).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

BRAID = "braidfs"
LOCAL = "ext4"
NULL = "nullfs"

Medians = Mapping[tuple[str, str], float]  # the key is (row, system)


class Than(StrEnum):
    LOCAL = LOCAL
    NULL = NULL
    PEERS = "the best peer"
    ITSELF = BRAID
    VALUE = "value"


@dataclass(frozen=True, slots=True)
class Bar:
    """At least (at_most: at most) factor times the reference. `row`: that of the reference, if it
    is another one."""

    than: Than
    factor: float
    at_most: bool = False
    row: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `lacking`: why BraidFS cannot run it yet."""

    name: str
    unit: str
    bars: tuple[Bar, ...] = ()
    less_is_better: bool = False
    lacking: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`met`: None when there was nothing to compare with."""

    text: str
    met: bool | None


def judge(row: Row, medians: Medians, peers: Sequence[str]) -> list[Verdict]:
    """Bars that compare with peers count only in a run with peers."""
    bars = [bar for bar in row.bars if peers or bar.than is not Than.PEERS]
    if row.lacking:
        return [Verdict(f"{_wanted(bar)}: {row.lacking}", False) for bar in bars]
    return [_verdict(row, bar, medians, peers) for bar in bars]


def _verdict(row: Row, bar: Bar, medians: Medians, peers: Sequence[str]) -> Verdict:
    mine = medians.get((row.name, BRAID))
    if mine is None:
        return Verdict(f"{_wanted(bar)}: not measured", None)
    name, reference = _reference(row, bar, medians, peers)
    if reference is None:
        return Verdict(f"{_wanted(bar)}: {name} was not measured", None)
    got = mine / reference if reference else float("inf")
    met = got <= bar.factor if bar.at_most else got >= bar.factor
    said = f"{got:.3g}" if bar.than is Than.VALUE else f"{got:.3g} of {name}"
    return Verdict(f"{said}, {_least(bar)}", met)


def _wanted(bar: Bar) -> str:
    where = "" if bar.than is Than.VALUE else f" of {bar.than}"
    return f"{_least(bar)}{where}"


def _least(bar: Bar) -> str:
    return f"{'at most' if bar.at_most else 'at least'} {bar.factor:g}"


def _reference(
    row: Row, bar: Bar, medians: Medians, peers: Sequence[str]
) -> tuple[str, float | None]:
    name = bar.row or row.name
    if bar.than is Than.VALUE:
        return "", 1.0
    if bar.than is not Than.PEERS:
        other = f'"{bar.row}"' if bar.than is Than.ITSELF else str(bar.than)
        return other, medians.get((name, str(bar.than)))
    found = [peer for peer in peers if (name, peer) in medians]
    if not found:
        return "a peer", None
    best = (min if row.less_is_better else max)(found, key=lambda peer: medians[name, peer])
    return best, medians[name, best]
