"""Admits connections of clients and of the metaserver, and hands them to native code once they are
authenticated.

A client may connect for a session that opened a moment ago, before this server's session table has
it. Then a heartbeat is sent at once, and the connection waits for it for a short time. Native code
refuses the requests of a session that is unknown after that; a connection of a client with a key of
its own is not even accepted.

One task per connection that is being admitted.
"""

import os
from contextlib import suppress
from math import inf
from typing import Final

import trio

from fscommon.errors import ProtocolError, TransportError
from fscommon.native_ports import ChunkServer
from fscommon.net.rails import Rails, answer_offer, gid_of, receive_offer
from fscommon.net.serve import Peer, connections_max, too_many
from fscommon.net.stream import FrameStream
from fscommon.observe.log import Log
from fscommon.wire.hello import Hello
from fscommon.wire.rdma import RdmaAnswer, RdmaOffer
from storageserver.epochs import Epochs
from storageserver.membership import Membership
from storageserver.object_requests import ObjectRequests
from storageserver.tables import Tables

UNKNOWN_SESSION_WAIT_S: Final = 2.0
HEARTBEATS_TO_WAIT: Final = 2  # the first may have been under way before the session opened
_PURPOSES: Final = ("admin", "data", "rdma", "server")
OFFER_WAIT_S: Final = 10.0
LEAVING_WAIT_S: Final = 0.1  # the end of a connection of a client that left is read in this time
SHARE: Final = 0.25  # part of the descriptors; the others are for the files of objects
ROOM: Final = 1 / 16  # part of the allowed connections: when fewer are left, idle ones are closed
IDLE_MS: Final = 5000


class Connections:
    def __init__(
        self,
        native: ChunkServer,
        tables: Tables,
        membership: Membership,
        epochs: Epochs,
        objects: ObjectRequests,
        rails: Rails,
        log: Log,
    ) -> None:
        self._native = native
        self._tables = tables
        self._membership = membership
        self._epochs = epochs
        self._objects = objects
        self._rails = rails
        self._log = log
        self.count_max = connections_max(SHARE)
        self._room_made_at = -inf

    def why_not(self, hello: Hello) -> str:
        """Says why this peer, which proved itself, is not served; "": it is served. When
        connections become scarce, the ones idle longest are closed: a client makes another one when
        it needs it."""
        if hello.purpose == "server":  # the metaserver's own connection; it names its map epoch
            return self._epochs.why_not(hello.session)
        count = self._native.connection_count()
        room = max(1, int(self.count_max * ROOM))
        now = trio.current_time()
        if count > self.count_max - room and now - self._room_made_at > 1.0:
            self._room_made_at = now
            self._native.close_idle(room, IDLE_MS)
        return too_many(count) if count >= self.count_max else ""

    async def admit(self, peer: Peer, stream: FrameStream) -> None:
        """Admits one connection (on_connection of fscommon.net.serve). Raises ProtocolError,
        TransportError."""
        if peer.purpose not in _PURPOSES:
            raise ProtocolError(f"a storage server takes no connections for '{peer.purpose}'")
        if peer.purpose in ("data", "rdma"):
            # At once: the client's next connection may be here before this one is adopted.
            self._native.announce(peer.session, peer.connection, peer.previous)
        if peer.purpose == "rdma":
            try:
                await self._admit_rdma(peer, stream)
            except trio.TooSlowError:
                raise TransportError(f"RDMA was not agreed on in {OFFER_WAIT_S:g} s") from None
            return
        if peer.purpose == "server" and (why_not := self._epochs.why_not(peer.session)):
            raise ProtocolError(why_not)
        if peer.purpose == "admin":
            await self._objects.serve(stream)
            return
        if peer.purpose != "data" or await self._is_admitted(peer, stream):
            self._adopt(peer, stream)

    async def _admit_rdma(self, peer: Peer, stream: FrameStream) -> None:
        """Agrees on queue pairs. If that fails, the client gets the reason and connects by TCP."""
        with trio.fail_after(OFFER_WAIT_S):
            asked, offer = await receive_offer(stream)
            if stream.tls is not None:
                await answer_offer(stream, asked, RdmaAnswer(b"", "TLS is on, RDMA has none"))
                return
            if not offer.peer:
                await answer_offer(stream, asked, self._probe())
                return
            if not await self._is_admitted(peer, stream):
                return
            token, answer = self._agree(peer, offer)
            try:
                await answer_offer(stream, asked, answer)
            except BaseException:
                self._native.rdma_drop(token)
                raise
        if token:
            self._adopt(peer, stream, token)

    def _probe(self) -> RdmaAnswer:
        by = ", ".join(f"{rail.choice.port.name} {rail.choice.gid}" for rail in self._rails.rails)
        return RdmaAnswer(b"", "" if by else self._rails.reason, by)

    def _agree(self, peer: Peer, offer: RdmaOffer) -> tuple[int, RdmaAnswer]:
        """The token of a connected queue pair; 0 with the reason why there is none."""
        rail = self._rails.nearest(gid_of(offer.peer))
        if rail is None:
            return 0, RdmaAnswer(b"", self._rails.reason)
        token = 0
        try:
            token, local = self._native.rdma_offer(rail.number, peer.session, peer.previous)
            self._native.rdma_connect(token, offer.peer)
        except (OSError, ValueError) as error:
            self._native.rdma_drop(token)
            if isinstance(error, OSError):
                self._rails.failed(rail, error)
            return 0, RdmaAnswer(b"", f"{rail.choice.port.name}: {error}")
        return token, RdmaAnswer(local, by=f"{rail.choice.port.name} {rail.choice.gid}")

    async def _is_admitted(self, peer: Peer, stream: FrameStream) -> bool:
        """Waits for the peer's session. False: the client has closed the connection by itself, as
        one does that unmounts while it connects. Raises ProtocolError for a client with a key of
        its own whose session has ended: it may still know the session's secret."""
        await self._wait_for_session(peer.session)
        if not peer.key or self._tables.knows(peer.session):
            return True
        with trio.move_on_after(LEAVING_WAIT_S), suppress(TransportError):
            if await stream.receive_batch() == []:
                self._log.debug("client left", peer=peer.address, session=peer.session)
                return False
        raise ProtocolError(f"session {peer.session} of the key {peer.key:016x} is not known")

    async def _wait_for_session(self, session: int) -> None:
        with trio.move_on_after(UNKNOWN_SESSION_WAIT_S):
            for _ in range(HEARTBEATS_TO_WAIT):
                if self._tables.knows(session):
                    return
                refreshed = self._tables.refreshed
                self._membership.hurry()
                await refreshed.wait()

    def _adopt(self, peer: Peer, stream: FrameStream, rdma: int = 0) -> None:
        tls = stream.tls
        fd, early = stream.detach()
        if early:
            os.close(fd)
            self._native.rdma_drop(rdma)
            raise ProtocolError("bytes came before the handshake had ended")
        is_metaserver = peer.purpose == "server"
        if is_metaserver:
            self._epochs.connected(fd, peer.session)
        self._native.adopt(  # owns fd from here on, even when it refuses
            fd,
            purpose="data" if rdma else peer.purpose,
            session=0 if is_metaserver else peer.session,
            connection=peer.connection,
            previous=peer.previous,
            rdma=rdma,
            tls=tls,
        )
        self._log.debug(
            "connection adopted",
            peer=peer.address,
            node=peer.node,
            purpose=peer.purpose,
            session=peer.session,
            connection=peer.connection,
        )
