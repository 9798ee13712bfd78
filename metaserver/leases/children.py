"""Directory grants: META and DATA leases on many files that a session holds by their directory
(rule 16).

A page of OPEN_AHEAD adds no lease for each of its files to the table. It adds LEASE_CHILDREN on
their directory, and here one bit for each file and session. A bit stands for LEASE_META |
LEASE_DATA, and for "this session may have the file open for reading". As soon as anybody changes
the file, its bits become leases of their own, which are recalled like all others
(docs/decisions/0022-directory-grants.md).

A file has one place, in the directory where it was granted last. The places of a directory are
given once; all of them are free again when the last session gives the directory up. Each file costs
about 130 bytes, and one bit for each session. Pure; only the event loop's thread calls.
"""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from fscommon.types import Ino, SessionId

_PLACES_MAX: Final = 1 << 21  # of all directories together: some 270 MB
_PLACE_BITS: Final = 32
_PLACE: Final = (1 << _PLACE_BITS) - 1


@dataclass(slots=True)
class _Holder:
    bits: bytearray = field(default_factory=bytearray)
    granted_by: int = 0  # the newest request for a page


@dataclass(slots=True)
class _Directory:
    number: int
    inos: "array[int]" = field(default_factory=lambda: array("Q"))  # by place
    holders: dict[SessionId, _Holder] = field(default_factory=dict)


class Children:
    def __init__(self) -> None:
        self._by_ino: dict[Ino, _Directory] = {}
        self._by_number: dict[int, _Directory] = {}
        self._places: dict[Ino, int] = {}  # for each file: directory and place, packed
        self._numbers = 0
        self._used = 0  # places of all directories, also those of files that are gone

    @property
    def room(self) -> int:
        """How many more files may be granted."""
        return _PLACES_MAX - self._used

    def grant(
        self, session: SessionId, directory: Ino, inos: Iterable[Ino], request_id: int
    ) -> None:
        """Grants the session these files of the directory."""
        there = self._by_ino.get(directory)
        if there is None:
            self._numbers += 1
            there = _Directory(self._numbers)
            self._by_ino[directory] = self._by_number[there.number] = there
        holder = there.holders.setdefault(session, _Holder())
        holder.granted_by = request_id
        for ino in inos:
            place = self._place_in(there, ino)
            if place >= 8 * len(holder.bits):
                holder.bits.extend(bytes(place // 8 + 1 - len(holder.bits)))
            holder.bits[place // 8] |= 1 << place % 8

    def covers(self, session: SessionId, ino: Ino) -> bool:
        """Whether the session holds META and DATA of ino by its directory."""
        found = self._find(ino)
        if found is None:
            return False
        there, place = found
        return _is_set(there.holders.get(session), place)

    def is_covered_elsewhere(self, session: SessionId, ino: Ino) -> bool:
        found = self._find(ino)
        if found is None:
            return False
        there, place = found
        return any(_is_set(h, place) for other, h in there.holders.items() if other != session)

    def take(self, ino: Ino, but: SessionId | None = None) -> list[tuple[SessionId, int]]:
        """Takes the bits of the file from all sessions but that one. Returns who had them, each
        with the request that granted them."""
        found = self._find(ino)
        if found is None:
            return []
        there, place = found
        taken = []
        for session, holder in there.holders.items():
            if session != but and _is_set(holder, place):
                _clear(holder, place)
                taken.append((session, holder.granted_by))
        if but is None:
            del self._places[ino]
        return taken

    def leave(self, session: SessionId, directory: Ino) -> None:
        """The session gives up all files that it holds by this directory."""
        there = self._by_ino.get(directory)
        if there is None or there.holders.pop(session, None) is None or there.holders:
            return
        del self._by_ino[directory], self._by_number[there.number]
        self._used -= len(there.inos)
        for place, ino in enumerate(there.inos):
            if self._places.get(Ino(ino)) == there.number << _PLACE_BITS | place:
                del self._places[Ino(ino)]

    def __len__(self) -> int:
        """The number of files that a session holds, or held, by a directory that is granted."""
        return len(self._places)

    def _find(self, ino: Ino) -> tuple[_Directory, int] | None:
        packed = self._places.get(ino)
        if packed is None:
            return None
        return self._by_number[packed >> _PLACE_BITS], packed & _PLACE

    def _place_in(self, there: _Directory, ino: Ino) -> int:
        packed = self._places.get(ino)
        if packed is not None and packed >> _PLACE_BITS == there.number:
            return packed & _PLACE
        # A file that was renamed from another directory has no bits there: the rename took them.
        place = len(there.inos)
        there.inos.append(ino)
        self._used += 1
        self._places[ino] = there.number << _PLACE_BITS | place
        return place


def _is_set(holder: _Holder | None, place: int) -> bool:
    if holder is None or place >= 8 * len(holder.bits):
        return False
    return bool(holder.bits[place // 8] >> place % 8 & 1)


def _clear(holder: _Holder, place: int) -> None:
    holder.bits[place // 8] &= ~(1 << place % 8)
