"""The one table of what BraidFS does otherwise than a local ext4, with the reason.

A case named here must end on BraidFS as `shows` says: the name of the errno that a call failed
with, or the first line of the assertion that did not hold. Anything else is a failure, success
too. Each reason stands in docs/SEMANTICS.md; `test_suite` compares them.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Difference:
    shows: str
    reason: str


DIFFERENCES: dict[str, Difference] = {}
