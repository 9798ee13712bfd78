"""Which LEASE_* bits conflict, and what a holder must give up for a need: pure functions.

metaserver.leases.table acts on the results."""

from typing import Final

from fscommon.layout.attributes import (
    LEASE_DATA_EXCLUSIVE,
    LEASE_ENTRIES_EXCLUSIVE,
    LEASE_EXCLUSIVE_SHIFT,
    LEASE_META,
    LEASE_META_EXCLUSIVE,
    LEASE_SHARED_ALL,
)

# Exclusive META comes and goes with the other exclusive bit of its inode, be it file or directory.
WRITER_BITS: Final = LEASE_META_EXCLUSIVE | LEASE_DATA_EXCLUSIVE | LEASE_ENTRIES_EXCLUSIVE


def conflict(one: int, other: int) -> int:
    """Returns the facets, as shared bits, on which two sets of LEASE_* bits conflict."""
    shift = LEASE_EXCLUSIVE_SHIFT
    return ((one >> shift) & other | one & (other >> shift)) & LEASE_SHARED_ALL


def to_give_up(need: int, held: int) -> int:
    """Returns the LEASE_* bits that a holder of `held` must give up for `need`. 0: it must only
    report what it knows. -1: nothing is in the way."""
    facets = conflict(need, held)
    if not facets:
        return -1
    wanted_alone = (need >> LEASE_EXCLUSIVE_SHIFT) & facets
    if facets == LEASE_META and not wanted_alone:
        return 0
    flags = held & (wanted_alone | facets << LEASE_EXCLUSIVE_SHIFT)
    if flags & WRITER_BITS:
        flags |= held & WRITER_BITS
    return flags


def without_halves(flags: int) -> int:
    """Returns the flags without exclusive bits that have lost the bit that they come with."""
    exclusive = flags & WRITER_BITS
    is_whole = exclusive & LEASE_META_EXCLUSIVE and exclusive != LEASE_META_EXCLUSIVE
    return flags if is_whole else flags & ~WRITER_BITS
