"""Complete directories: this client knows every name of them, as it made them and nobody else has
changed them.

A new directory is complete, because it is empty. After each change of its own the client learns the
directory's data_version, which rises by one with every name that is added or removed. As long as it
is exactly one more than before, nobody else has changed the directory, and it stays complete. Then
lanes answer LOOKUP of any name that was never put (native/src/names/dentry_table.h), but only while
an ENTRIES lease on the directory lasts or, without leases, while the metaserver promises that there
is no other session (FLAG_SOLE, SOLE_LEASE_S): a new name of another client is never missed. A
CREATE always asks the metaserver. A name is unsure from before its request is sent until the reply
has come. Pure; touched by the client's trio thread only.
"""

from collections import OrderedDict
from collections.abc import Callable

from fscommon.layout.attributes import ATTRIBUTES_SIZE, LEASE_ENTRIES, Attributes, unpack_attributes
from fscommon.wire.messages import RENAME_EXCHANGE

from ..leases.holder import Leases
from .ports import Lanes
from .stamps import Stamps

DIRECTORIES_MAX = 4096
CHANGES_MAX = 1 << 16


class CompleteDirectories:
    def __init__(
        self,
        lanes: Lanes,
        leases: Leases,
        clock: Callable[[], float],
        sole_until: Callable[[], float],
        believe_s: float,
    ) -> None:
        """believe_s: how long at most a directory stays complete without leases; 0: never."""
        self._lanes = lanes
        self._leases = leases
        self._changes = Stamps(CHANGES_MAX)
        self._clock = clock
        self._sole_until = sole_until
        self._believe_s = believe_s
        self._versions: OrderedDict[int, int] = OrderedDict()

    def now(self) -> float:
        """The value of `asked_at` below: the time before the request was sent (rule 11)."""
        return self._clock()

    def made(self, record: bytes, asked_at: float) -> None:
        """This client made the directory with this attribute record."""
        attributes = unpack_attributes(record)
        if self._leases.is_on:
            if self._leases.holds(attributes.ino, LEASE_ENTRIES):
                self._lanes.names.entries_complete(attributes.ino, 0)
            return
        if not self._believe_s:
            return
        if len(self._versions) >= DIRECTORIES_MAX:
            self._drop(next(iter(self._versions)))
        self._versions[attributes.ino] = attributes.data_version
        self._lanes.names.entries_complete(attributes.ino, self._left_ms(asked_at))

    def entering(self, parent: int, name: bytes) -> None:
        """A request is about to be sent that may change name in parent."""
        self._lanes.names.entry_unsure(parent, name)
        self.noted(parent)

    def moving(self, old: tuple[int, bytes], new: tuple[int, bytes], flags: int) -> bool:
        """A RENAME of one name (in a directory) to another is about to be sent. False: the kernel
        will cache a name that it moves along, and nothing here remembers to recall it."""
        self.entering(*old)
        self.entering(*new)
        kept = self._lanes.names.entry_moves(*old, *new)
        if flags & RENAME_EXCHANGE:
            kept = self._lanes.names.entry_moves(*new, *old) and kept
        return kept

    def noted(self, parent: int) -> None:
        """This client changed names in parent."""
        self._changes.note(parent)

    def state(self, parent: int) -> int:
        """A number that differs after every change of this client in parent: a reply to a request
        from before a change must not be used after it."""
        return self._changes.of(parent)

    def changed(self, records: bytes, asked_at: float) -> None:
        """After a change of this client, directories have these attribute records."""
        for start in range(0, len(records), ATTRIBUTES_SIZE):
            self._changed(unpack_attributes(records[start : start + ATTRIBUTES_SIZE]), asked_at)

    def _changed(self, attributes: Attributes, asked_at: float) -> None:
        self.noted(attributes.ino)
        known = self._versions.get(attributes.ino)
        if known is None:
            return
        if attributes.data_version != known + 1:
            self._drop(attributes.ino)
            return
        self._versions[attributes.ino] = attributes.data_version
        self._lanes.names.entries_extend(attributes.ino, self._left_ms(asked_at))

    def clear(self) -> None:
        """The session was lost: nothing is known any more."""
        self._versions.clear()
        self._lanes.names.leases_clear()

    def _left_ms(self, asked_at: float) -> int:
        left_s = min(asked_at + self._believe_s, self._sole_until()) - self._clock()
        return max(0, int(left_s * 1000))

    def _drop(self, ino: int) -> None:
        del self._versions[ino]
        self._lanes.names.entries_drop(ino)
