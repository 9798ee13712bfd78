"""Claims of files: shared DATA leases of the metaserver itself. They recall a file's writer, and go
when somebody is to write (docs/decisions/0063-mirrors.md)."""

from typing import Final

import trio

from fscommon.layout.attributes import LEASE_DATA
from fscommon.types import Ino, SessionId
from fscommon.wire.leases import ReturnItem
from metaserver.background import Background
from metaserver.leases.holders import Need

CLAIM_S: Final = 5.0  # a claim waits so long for the file's writer
_LOOK_S: Final = 0.1


class Claims:
    """Of one session of the metaserver's own, whose claims are not in the way of another one's."""

    def __init__(self, background: Background, session: SessionId) -> None:
        self._engine = background.engine
        self._committer = background.committer
        self._now = background.clock
        self._session = session

    async def take(self, ino: Ino) -> str:
        """Returns why the file cannot be claimed; "": it is."""
        leases = self._engine.services.leases
        leases.connected(self._session)
        needs = [Need(ino, LEASE_DATA)]
        claim = leases.admit(self._session, needs, self._now().now_s)
        with trio.move_on_after(CLAIM_S):
            while claim is not None:
                self._engine.leases_changed(self._now())
                await trio.sleep(_LOOK_S)
                if not claim.waits:
                    claim = leases.admit(self._session, needs, self._now().now_s, claim)
        if claim is not None:
            leases.cancel(claim)
            return "it is being written"
        given = leases.grant(self._session, ino, LEASE_DATA, 0, self._now().now_s)
        return "" if given & LEASE_DATA else "its lease is contended"

    def give_back(self, ino: Ino) -> None:
        """Also if the file was not claimed, or the claim is gone by now."""
        item = ReturnItem(ino, LEASE_DATA)
        self._engine.services.leases.returned(self._session, [item], self._now().now_s)
        self._engine.leases_changed(self._now())
        self._committer.changed()
