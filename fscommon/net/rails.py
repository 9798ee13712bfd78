"""The rails of one program: RDMA ports that native code has opened, and agreements over them.

refresh() finds and opens what the configuration allows. It is called again and again, so that a
port that came up later, or came back, is used, and a port whose device or address is gone is
closed: what used it fails, and is done over another way.

Both ends agree on a connection over the authenticated TCP connection that stays beside it. The
client offers a queue pair (Op.RDMA). The server answers with its own, on the rail nearest to the
client's address, or with the reason why it has none. One task.
"""

import errno
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from fscommon.errors import ProtocolError, TransportError
from fscommon.machine import memory_bytes
from fscommon.net.rdma import Choice, Gid, NoRdmaError, Port, Wishes, choose, find_ports, why_none
from fscommon.net.stream import FrameStream
from fscommon.observe.log import Log
from fscommon.wire.codec import decode, encode
from fscommon.wire.frame import Frame, encode_frame
from fscommon.wire.header import FLAG_REPLY
from fscommon.wire.ops import Op
from fscommon.wire.rdma import RdmaAnswer, RdmaOffer

TRANSPORTS: Final = ("auto", "rdma", "tcp")
MEMORY_MIB_MIN: Final = 32
MEMORY_MIB_MAX: Final = 1 << 16
MEMORY_PART: Final = 8  # a port takes at most this part of the memory that this process may have


class NativeRdma(Protocol):
    """The RDMA methods that the native code of clients and of servers share."""

    def rdma_open(self, device: str, port: int, gid_index: int, memory_mib: int, /) -> int: ...
    def rdma_connect(self, token: int, peer: bytes, /) -> None: ...
    def rdma_drop(self, token: int, /) -> None: ...
    def rdma_close(self, rail: int, /) -> None: ...
    def rdma_check(self) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class RdmaSettings:
    transport: str = "auto"
    wishes: Wishes = field(default_factory=Wishes)
    memory_mib: int = 256

    def __post_init__(self) -> None:
        if self.transport not in TRANSPORTS:
            raise ValueError(f"transport is one of {', '.join(TRANSPORTS)}, not '{self.transport}'")
        if not MEMORY_MIB_MIN <= self.memory_mib <= MEMORY_MIB_MAX:
            raise ValueError(f"rdma_memory_mib is from {MEMORY_MIB_MIN} to {MEMORY_MIB_MAX}")
        for subnet in self.wishes.subnets:
            try:
                ipaddress.ip_network(subnet)
            except ValueError as error:
                raise ValueError(f"rdma_subnets: {error}") from error

    def port_memory_mib(self) -> int:
        """Memory to be registered, and so pinned, on each port, in MiB; less where a control group
        allows little."""
        bounded = min(self.memory_mib, memory_bytes() // MEMORY_PART >> 20)
        return max(bounded, MEMORY_MIB_MIN)


@dataclass(frozen=True, slots=True)
class Rail:
    number: int  # its number in native code
    choice: Choice

    @property
    def gid(self) -> bytes:
        assert self.choice.gid is not None
        return self.choice.gid.address.packed

    def is_there(self, ports: Sequence[Port]) -> bool:
        """True when one of these ports has it. A port that is down for a while has no GIDs, and
        counts as there."""
        mine, gid = self.choice.port, self.choice.gid
        same = [one for one in ports if one.name == mine.name and not one.fault]
        return any(not one.is_active or gid in one.gids for one in same)


class Rails:
    """The open rails. `rails` is empty when RDMA cannot be used; `reason` says why, or why some
    ports are not used. One task."""

    def __init__(self, native: NativeRdma, settings: RdmaSettings, log: Log) -> None:
        self._native = native
        self._settings = settings
        self._log = log
        self._open: dict[tuple[str, Gid], Rail] = {}
        self._said = ""
        self.rails: list[Rail] = []
        self.reason = (
            "transport=tcp" if settings.transport == "tcp" else "the ports were not examined yet"
        )

    @property
    def required(self) -> bool:
        return self._settings.transport == "rdma"

    @property
    def wanted(self) -> bool:
        return self._settings.transport != "tcp"

    def refresh(self) -> None:
        """Finds the ports, and opens what is new. Never raises."""
        if self._settings.transport == "tcp":
            return
        ports: list[Port] = []
        try:
            ports = find_ports()
            self._close_gone(ports)
            choices = choose(ports, self._settings.wishes)
            usable = [one for one in choices if one.gid is not None]
            if not usable:
                raise NoRdmaError(why_none(choices) or "there is no RDMA device")
            self._open_all(usable)
        except NoRdmaError as error:
            self._close_gone(ports)
            self.rails = []
            self.reason = str(error)
        self._say()

    def _close_gone(self, ports: Sequence[Port]) -> None:
        failed = self._native.rdma_check()
        for key, rail in list(self._open.items()):
            if rail.number in failed or not rail.is_there(ports):
                del self._open[key]
                self._native.rdma_close(rail.number)

    def _open_all(self, usable: Sequence[Choice]) -> None:
        """Opens each port; one that cannot be opened does not affect the others."""
        opened: list[Rail] = []
        refused: list[str] = []
        for one in usable:
            try:
                opened.append(self._opened(one))
            except NoRdmaError as error:
                refused.append(str(error))
        self.rails = opened
        self.reason = "; ".join(refused)

    def failed(self, rail: Rail, error: OSError) -> None:
        """Closes a rail whose device is gone; the next refresh() opens it again."""
        if error.errno not in (errno.EIO, errno.ENODEV):
            return
        self._open = {key: one for key, one in self._open.items() if one is not rail}
        self.rails = [one for one in self.rails if one is not rail]
        self._native.rdma_close(rail.number)

    def nearest(self, gid: bytes) -> Rail | None:
        """The rail whose address has the longest prefix in common with this GID."""
        return max(self.rails, key=lambda rail: _common_bits(rail.gid, gid), default=None)

    def of_lane(self, lane: int) -> Rail | None:
        """The rail of a lane: lanes use all rails in turn."""
        return self.rails[lane % len(self.rails)] if self.rails else None

    def _opened(self, choice: Choice) -> Rail:
        assert choice.gid is not None
        key = (choice.port.name, choice.gid)
        if key not in self._open:
            where = (choice.port.device, choice.port.number, choice.gid.index)
            try:
                number = self._native.rdma_open(*where, self._settings.port_memory_mib())
            except OSError as error:
                raise NoRdmaError(f"{choice.port.name}: {error.strerror}") from error
            self._open[key] = Rail(number, choice)
        return self._open[key]

    def _say(self) -> None:
        names = ", ".join(f"{rail.choice.port.name} {rail.choice.gid}" for rail in self.rails)
        text = f"RDMA by {names}" if names else f"no RDMA: {self.reason}"
        if names and self.reason:
            text += f"; not by {self.reason}"
        if text != self._said:
            self._said = text
            self._log.info(text)


def _common_bits(left: bytes, right: bytes) -> int:
    different = int.from_bytes(left) ^ int.from_bytes(right)
    return 128 - different.bit_length()


def gid_of(peer: bytes) -> bytes:
    """The GID in native code's description of a queue pair (native/src/rdma/verbs.h, struct Peer).
    Raises ProtocolError."""
    if len(peer) != PEER_SIZE:
        raise ProtocolError(f"a queue pair is described by {PEER_SIZE} bytes")
    return peer[GID_OFFSET : GID_OFFSET + 16]


PEER_SIZE: Final = 40
GID_OFFSET: Final = 16


async def ask(stream: FrameStream, offer: RdmaOffer) -> RdmaAnswer:
    """The client's half: returns the answer, which has a reason and no queue pair when there is
    none for this client. Raises ProtocolError, TransportError."""
    await stream.send(encode_frame(Op.RDMA, request_id=3, body=encode(offer)))
    frames = await stream.receive_batch()
    if not frames:
        raise TransportError("the server closed the connection instead of answering")
    if len(frames) != 1 or frames[0].header.op != Op.RDMA or frames[0].header.flags != FLAG_REPLY:
        raise ProtocolError("the answer to an offer of RDMA is something else")
    return decode(RdmaAnswer, frames[0].body)


async def agree(stream: FrameStream, offer: RdmaOffer) -> RdmaAnswer:
    """As ask(), but raises TransportError when there is no RDMA for this client."""
    answer = await ask(stream, offer)
    if answer.reason:
        raise TransportError(f"the server has no RDMA for us: {answer.reason}")
    return answer


async def receive_offer(stream: FrameStream) -> tuple[Frame, RdmaOffer]:
    """The server's half: returns the client's offer. Raises ProtocolError."""
    frames = await stream.receive_batch()
    if len(frames) != 1 or frames[0].header.op != Op.RDMA or frames[0].header.flags != 0:
        raise ProtocolError("a connection for RDMA begins with an offer")
    return frames[0], decode(RdmaOffer, frames[0].body)


async def answer_offer(stream: FrameStream, asked: Frame, answer: RdmaAnswer) -> None:
    request_id = asked.header.request_id
    await stream.send(
        encode_frame(Op.RDMA, flags=FLAG_REPLY, request_id=request_id, body=encode(answer))
    )
