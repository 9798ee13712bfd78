"""Changes of names and attributes that lanes made and that are not reported yet, and the batches
that report them. fsclient.fs.delegated_changes decides which are sent when."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Final, NamedTuple

from fscommon.layout.attributes import LEASE_WRITER, with_lease
from fscommon.layout.layout import with_inline
from fscommon.native_ports import CreationRow, MoveRow, RemovalRow, SettingRow
from fscommon.wire.births import Birth, ChangeBatch, Move, Removal, Setting
from fscommon.wire.messages import COMMIT_MTIME, COMMIT_SIZE

from .ports import Written


class RawRemoval(NamedTuple):
    """A name that lanes removed. record: the attributes of ino afterwards."""

    parent: int
    name: bytes
    ino: int
    time_ns: int
    record: bytes


class RawMove(NamedTuple):
    """A name that lanes changed. record: the attributes of ino afterwards, without what was written
    but not committed; replaced_record: those of the inode that had the new name, if any (0)."""

    parent: int
    name: bytes
    new_name: bytes
    ino: int
    replaced: int
    time_ns: int
    record: bytes
    replaced_record: bytes


# The rows of native have fields of the same names.
_birth_fields: Final = attrgetter(*(field.name for field in fields(Birth)))
_setting_fields: Final = attrgetter(*(field.name for field in fields(Setting)))
_removal_fields: Final = attrgetter(*RawRemoval._fields)
_move_fields: Final = attrgetter(*RawMove._fields)


@dataclass(slots=True)
class Newborn:
    """A new file that is not reported yet. is_whole: with its bytes. proof: the capability of its
    slot, if the metaserver wants to see it."""

    birth: Birth
    is_whole: bool = False
    proof: bytes = b""

    @property
    def parent(self) -> int:
        return self.birth.parent

    def write(self, written: Written, inline: bytes) -> bytes:
        """Sets size and time. inline: all bytes of the file, if its record is to hold them. Returns
        the attribute record as the metaserver will have it, without the quota tree."""
        size, mtime_ns, flags = written
        was = self.birth
        self.is_whole = bool(inline)
        self.birth = replace(
            with_bytes(was, inline),
            changes=was.changes + 1,
            size=max(was.size, size) if flags & COMMIT_SIZE else was.size,
            mtime_ns=mtime_ns if flags & COMMIT_MTIME else was.mtime_ns or was.time_ns,
        )
        return with_lease(self.birth.record(), 0, LEASE_WRITER)


def with_bytes(birth: Birth, inline: bytes) -> Birth:
    """The birth with these bytes; unchanged for b""."""
    return replace(birth, layout=with_inline(birth.layout, inline)) if inline else birth


def birth_of(row: CreationRow) -> Birth:
    return Birth(*_birth_fields(row))


def setting_of(row: SettingRow) -> Setting:
    return Setting(*_setting_fields(row))


def removal_of(row: RemovalRow) -> RawRemoval:
    return RawRemoval._make(_removal_fields(row))


def move_of(row: MoveRow) -> RawMove:
    return RawMove._make(_move_fields(row))


Unreported = Newborn | RawRemoval | Setting | RawMove


def batch_of(changes: Sequence[Unreported]) -> ChangeBatch:
    births: list[Birth] = []
    proofs: list[bytes] = []
    removals: list[Removal] = []
    settings: list[Setting] = []
    moves: list[Move] = []
    for change in changes:
        if isinstance(change, Newborn):
            births.append(change.birth)
            proofs.append(change.proof)
        elif isinstance(change, RawRemoval):
            removals.append(
                Removal(change.parent, change.name, change.ino, change.time_ns, len(births))
            )
        elif isinstance(change, RawMove):
            moves.append(Move(*change[:6], after=len(births) + len(removals)))
        else:
            settings.append(change)
    return ChangeBatch(
        tuple(births),
        tuple(removals),
        tuple(settings),
        tuple(moves),
        tuple(proofs) if any(proofs) else (),
    )


def told_count(batch: ChangeBatch) -> int:
    """How many changes of the batch count among those that are not answered."""
    return len(batch.removals) + len(batch.settings) + len(batch.moves)


def inodes_gone(batch: ChangeBatch) -> set[int]:
    """The inodes that lost a name by the batch."""
    gone = {removal.ino for removal in batch.removals}
    return gone | {move.replaced for move in batch.moves if move.replaced}
