"""Connections of clients and of the metaserver, handed to native once they are authenticated.

A session that opened a moment ago may reach this server before its table does: then a heartbeat
is sent at once and the connection waits for it, briefly. Native refuses what is unknown after that.
"""

import os
from typing import Final

import trio

from fscommon.errors import ProtocolError
from fscommon.native import ChunkServer
from fscommon.net.serve import Peer
from fscommon.net.stream import FrameStream
from fscommon.observe.log import Log
from storageserver.membership import Membership
from storageserver.tables import Tables

UNKNOWN_SESSION_WAIT_S: Final = 2.0
HEARTBEATS_TO_WAIT: Final = 2  # the first may have been on its way before the session opened
_PURPOSES: Final = ("data", "server")


class Connections:
    def __init__(
        self, native: ChunkServer, tables: Tables, membership: Membership, log: Log
    ) -> None:
        self._native = native
        self._tables = tables
        self._membership = membership
        self._log = log

    async def admit(self, peer: Peer, stream: FrameStream) -> None:
        """on_connection of fscommon.net.serve."""
        if peer.purpose not in _PURPOSES:
            raise ProtocolError(f"a storage server takes no connections for '{peer.purpose}'")
        if peer.purpose == "data":
            await self._wait_for_session(peer.session)
        self._adopt(peer, stream)

    async def _wait_for_session(self, session: int) -> None:
        with trio.move_on_after(UNKNOWN_SESSION_WAIT_S):
            for _ in range(HEARTBEATS_TO_WAIT):
                if self._tables.knows(session):
                    return
                refreshed = self._tables.refreshed
                self._membership.hurry()
                await refreshed.wait()

    def _adopt(self, peer: Peer, stream: FrameStream) -> None:
        fd, early = stream.detach()
        if early:
            os.close(fd)
            raise ProtocolError("bytes came before the handshake had ended")
        self._native.adopt(  # owns fd from here on, also when it refuses
            fd,
            purpose=peer.purpose,
            session=peer.session,
            connection=peer.connection,
            previous=peer.previous,
        )
        self._log.debug(
            "connection adopted", peer=peer.address, node=peer.node, purpose=peer.purpose,
            session=peer.session, connection=peer.connection,
        )  # fmt: skip
