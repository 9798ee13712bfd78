"""What the metaserver answers to delegated changes: what failed is not as this client believed.

fsclient.fs.delegated_changes reports the changes. Touched by the client's trio thread only.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from fscommon.errors import FsError, Status, status_of
from fscommon.wire.births import Birth, ChangeBatch, Changed, Move, Removal, Setting

from .inodes import Inodes
from .ports import Lanes
from .unreported import inodes_gone

LOST_NAMED_MAX = 16  # of removals or moves that are lost together: logged by name

C = TypeVar("C", Birth, Removal, Setting, Move)
Outcomes = list[tuple[C, Status]]


class ChangeAnswers:
    def __init__(self, lanes: Lanes, inodes: Inodes, log: Callable[[str], None]) -> None:
        self._lanes = lanes
        self._inodes = inodes
        self._log = log

    def told(self, batch: ChangeBatch, reply: Changed) -> None:
        """The metaserver has answered the batch."""
        self._inodes.see_parents(reply.parents)
        for birth, status in _failures(batch.births, reply.errors):
            self._lost_birth(birth, FsError(status))
        removals = _failures(batch.removals, reply.removal_errors)
        moves = _outcomes(batch.moves, reply.move_errors)
        self._lost_removals(removals)
        self._finish_moves(moves)
        self._finish_settings(batch, _outcomes(batch.settings, reply.setting_errors))
        kept = {removal.ino for removal, _ in removals}
        self._forget_bytes(batch, kept | {move.replaced for move, _ in _failed(moves)})

    def lost(self, batch: ChangeBatch, error: FsError) -> None:
        """The whole batch failed."""
        for birth in batch.births:
            self._lost_birth(birth, error)
        self._lost_removals([(removal, error.status) for removal in batch.removals])
        self._finish_moves([(move, error.status) for move in batch.moves])
        self._finish_settings(batch, [(setting, error.status) for setting in batch.settings])

    def _forget_bytes(self, batch: ChangeBatch, kept: set[int]) -> None:
        """Written bytes of a removed file need not become durable."""
        for ino in inodes_gone(batch) - kept:
            if self._inodes.get(ino) is None:
                self._lanes.inodes.lost(ino)

    def _finish_moves(self, outcomes: Outcomes[Move]) -> None:
        """Finishes moves. A failed one changed no name: what says otherwise is dropped."""
        for move, status in outcomes:
            self._inodes.setting_told(move.ino, is_lost=status is not Status.OK)
        lost = _failed(outcomes)
        for move, _ in lost:
            self._inodes.returned(move.replaced)
            self._lanes.names.attributes_drop(move.replaced)
            self._lanes.names.attributes_drop(move.parent)
            for name in (move.name, move.new_name):
                self._lanes.names.entry_unsure(move.parent, name)
        self._log_lost(
            [
                f"renamed file '{_shown(move.name)}' (inode {move.ino}) in directory {move.parent} "
                f"did not become '{_shown(move.new_name)}': {status.name}"
                for move, status in lost
            ],
            "renamed files still have their old names",
        )

    def _finish_settings(self, batch: ChangeBatch, outcomes: Outcomes[Setting]) -> None:
        gone = inodes_gone(batch)
        for setting, status in outcomes:
            self._inodes.setting_told(setting.ino, is_lost=status is not Status.OK)
            if status is not Status.OK and setting.ino not in gone:
                self._log(
                    f"attributes that were set of inode {setting.ino} are lost: {status.name}"
                )

    def _lost_birth(self, birth: Birth, error: FsError) -> None:
        self._lanes.inodes.lost(birth.ino)
        self._log(f"new file '{_shown(birth.name)}' (inode {birth.ino}) is lost: {error}")

    def _lost_removals(self, lost: Outcomes[Removal]) -> None:
        """The names still exist: what says otherwise is dropped."""
        for removal, _ in lost:
            self._inodes.returned(removal.ino)
            self._lanes.names.entry_unsure(removal.parent, removal.name)
            self._lanes.names.attributes_drop(removal.ino)
            self._lanes.names.attributes_drop(removal.parent)
        self._log_lost(
            [
                f"removed file '{_shown(removal.name)}' (inode {removal.ino}) in directory "
                f"{removal.parent} still exists: {status.name}"
                for removal, status in lost
            ],
            "removed files still exist",
        )

    def _log_lost(self, messages: list[str], of_more: str) -> None:
        for message in messages[:LOST_NAMED_MAX]:
            self._log(message)
        if len(messages) > LOST_NAMED_MAX:
            self._log(f"{len(messages) - LOST_NAMED_MAX} more {of_more}")


def _outcomes(changes: Sequence[C], statuses: Sequence[int]) -> Outcomes[C]:
    """Pairs changes with their statuses. No statuses: all succeeded."""
    pairs = zip(changes, statuses or (0,) * len(changes), strict=False)
    return [(change, status_of(status)) for change, status in pairs]


def _failures(changes: Sequence[C], statuses: Sequence[int]) -> Outcomes[C]:
    return _failed(_outcomes(changes, statuses)) if statuses else []


def _failed(outcomes: Outcomes[C]) -> Outcomes[C]:
    return [(change, status) for change, status in outcomes if status is not Status.OK]


def _shown(name: bytes) -> str:
    return name.decode(errors="replace")
