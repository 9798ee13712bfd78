"""Directories of which this client knows every name: those it made itself and alone has changed.

A new directory is complete: it is empty. After each change of its own the client learns the
directory's data_version, which rises by one with every name that comes or goes: as long as it is
exactly one more than before, nobody else has changed the directory, and it is complete still. Then
native lanes answer LOOKUP of any name that was never put in (native/src/fuse/complete_table.h), but
only while the metaserver's word holds that there is no other session (FLAG_SOLE, SOLE_LEASE_S): a
second mount waits until it has run out, so another client's new name is never missed. (Directory
leases will give the same to many clients.) A CREATE always asks the metaserver. A name counts as
there from before its request leaves, whatever becomes of it.
Pure; touched by the client's trio thread only.
"""

from collections import OrderedDict
from collections.abc import Callable

from fscommon.layout.attributes import ATTRIBUTES_SIZE, Attributes, unpack_attributes

from .ports import Lanes

DIRECTORIES_MAX = 4096


class CompleteDirectories:
    def __init__(
        self, lanes: Lanes, clock: Callable[[], float], sole_until: Callable[[], float],
        believe_s: float,
    ) -> None:  # fmt: skip
        """believe_s: the longest that a proof is believed; 0 switches all of this off."""
        self._lanes = lanes
        self._clock = clock
        self._sole_until = sole_until
        self._believe_s = believe_s
        self._versions: OrderedDict[int, int] = OrderedDict()

    def now(self) -> float:
        """What `asked_at` below is to be: the time before the request left (rule 11)."""
        return self._clock()

    def made(self, record: bytes, asked_at: float) -> None:
        """This client made the directory of this attribute record."""
        if not self._believe_s:
            return
        attributes = unpack_attributes(record)
        if len(self._versions) >= DIRECTORIES_MAX:
            self._drop(next(iter(self._versions)))
        self._versions[attributes.ino] = attributes.data_version
        self._lanes.complete_put(attributes.ino, self._left_ms(asked_at))

    def entering(self, parent: int, name: bytes) -> None:
        """A request leaves that may put name into parent."""
        if parent in self._versions:
            self._lanes.complete_add(parent, name)

    def changed(self, records: bytes, asked_at: float) -> None:
        """A change of this client's left directories with these attribute records."""
        for start in range(0, len(records), ATTRIBUTES_SIZE):
            self._changed(unpack_attributes(records[start : start + ATTRIBUTES_SIZE]), asked_at)

    def _changed(self, attributes: Attributes, asked_at: float) -> None:
        known = self._versions.get(attributes.ino)
        if known is None:
            return
        if attributes.data_version != known + 1:
            self._drop(attributes.ino)
            return
        self._versions[attributes.ino] = attributes.data_version
        self._lanes.complete_extend(attributes.ino, self._left_ms(asked_at))

    def clear(self) -> None:
        """The session was lost: nothing is known any more."""
        self._versions.clear()
        self._lanes.complete_clear()

    def _left_ms(self, asked_at: float) -> int:
        left_s = min(asked_at + self._believe_s, self._sole_until()) - self._clock()
        return max(0, int(left_s * 1000))

    def _drop(self, ino: int) -> None:
        del self._versions[ino]
        self._lanes.complete_drop(ino)
