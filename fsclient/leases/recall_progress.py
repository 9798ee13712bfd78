"""How far the work on one recall is: a state machine that can be printed.

    waiting → masked → draining → forgotten → returned     exclusive leases
    waiting → masked → forgotten → returned                 shared leases, or nothing is held
    waiting → reporting size → returned                     only the size is demanded
    … → failed → returned                                   something was lost, or the client stops
    … → abandoned                                           the client stops before it gave up

No state is entered twice, so a history is short. Other events are marks on the state in which they
happened. Touched by the client's trio thread only. The work itself is in fsclient.leases.recalls.
"""

from enum import Enum, unique
from typing import Final

from fscommon.wire.leases import RecallItem


@unique
class RecallState(Enum):
    WAITING = "waiting"
    """Nothing is given up yet: the grant has not arrived, or lanes are to use the lease once, or
    another recall of the inode has its turn."""
    REPORTING_SIZE = "reporting size"
    """Everything is kept; the size that lanes know is being committed."""
    MASKED = "masked"
    """Grants of these leases in replies do not count any more. Lanes and the kernel are told."""
    DRAINING = "draining"
    """The same, and what only this client knows (bytes, sizes, names) is being written and
    reported. Reads and writes may go on; the pages that they leave are invalidated at the end."""
    FORGOTTEN = "forgotten"
    """Nothing is cached here any more, and everything is written. The kernel was told; if this is
    marked LATE, it is told as soon as the lock that it waits for is free."""
    FAILED = "failed"
    """Something could not be written or reported, or the client stops. The lease is returned in any
    case; the writer learns of it at fsync or close."""
    RETURNED = "returned"
    """The return was sent to the metaserver. This is an end."""
    ABANDONED = "abandoned"
    """The client stops before anything is given up. Nothing is returned. This is an end."""


@unique
class RecallMark(Enum):
    REPEATED = "repeated"
    """The metaserver sent it again, because the connection for recalls was lost."""
    RESTARTED = "metaserver restarted"
    SESSION_LOST = "session lost"
    LATE = "late"
    """The kernel did not forget in time."""


_WAITING, _REPORTING_SIZE, _MASKED = (
    RecallState.WAITING,
    RecallState.REPORTING_SIZE,
    RecallState.MASKED,
)
_DRAINING, _FORGOTTEN, _FAILED = RecallState.DRAINING, RecallState.FORGOTTEN, RecallState.FAILED
_RETURNED, _ABANDONED = RecallState.RETURNED, RecallState.ABANDONED
_NEXT: Final[dict[RecallState, frozenset[RecallState]]] = {
    _WAITING: frozenset({_MASKED, _REPORTING_SIZE, _ABANDONED}),
    _REPORTING_SIZE: frozenset({_RETURNED, _FAILED, _ABANDONED}),
    _MASKED: frozenset({_DRAINING, _FORGOTTEN, _FAILED}),
    _DRAINING: frozenset({_FORGOTTEN, _FAILED}),
    _FORGOTTEN: frozenset({_RETURNED}),
    _FAILED: frozenset({_RETURNED}),
    _RETURNED: frozenset(),
    _ABANDONED: frozenset(),
}


class WrongRecallStateError(AssertionError):
    """The work on a recall took steps in an order that does not exist."""


class RecallProgress:
    __slots__ = ("_marks", "_states", "item")

    def __init__(self, item: RecallItem) -> None:
        self.item = item
        self._states = [RecallState.WAITING]
        self._marks: list[tuple[RecallState, RecallMark]] = []

    @property
    def state(self) -> RecallState:
        return self._states[-1]

    @property
    def has_ended(self) -> bool:
        return not _NEXT[self._states[-1]]

    def enter(self, state: RecallState) -> None:
        if state not in _NEXT[self._states[-1]]:
            raise WrongRecallStateError(f"{self} cannot become {state.value}")
        self._states.append(state)

    def mark(self, mark: RecallMark) -> None:
        """Once for each state."""
        if (self.state, mark) not in self._marks:
            self._marks.append((self.state, mark))

    def history(self) -> str:
        """Every state that it was in, in order, each with its marks."""
        return " → ".join(map(self._describe, self._states))

    def __repr__(self) -> str:
        return f"recall {self.item.recall} of inode {self.item.ino}: {self.history()}"

    def _describe(self, state: RecallState) -> str:
        marks = [mark.value for at, mark in self._marks if at is state]
        return f"{state.value} ({', '.join(marks)})" if marks else state.value
