"""Both ends of a metadata connection as Python would have it, by TCP or by pyverbs: what one costs.

    metadata_ends serve --listen ADDRESS [--device rxe0]
    metadata_ends run ADDRESS [--device rxe0] --count N

Frames of the metadata path go over fscommon.net.stream either way: small requests and answers, one
at a time. Below it is fscommon.net.tcp, or what RDMA would be: SEND and RECV on a reliable queue
pair, pyverbs' objects kept and reused, trio waiting for the completion channel. This other half is
here to be counted alone (docs/decisions/0012-metadata-by-tcp.md). Prints the CPU time of the
requests as JSON.
"""

import argparse
import contextlib
import ctypes
import importlib
import json
import mmap
import os
import socket
import struct
import sys
import time
from types import SimpleNamespace
from typing import Any

import trio

from fscommon.net.rdma import Wishes, choose, find_ports
from fscommon.net.stream import FrameStream
from fscommon.net.tcp import TcpStream
from fscommon.wire.frame import FrameParser, encode_frame
from fscommon.wire.header import FLAG_REPLY
from fscommon.wire.ops import Op

PORT = 17_077
MODULES = ("addr", "cq", "device", "enums", "mr", "pd", "qp", "wr")
REQUEST, ANSWER = b"q" * 60, b"a" * 180
SLOTS = 8
SLOT_SIZE = 4096
SIGNAL_EVERY = 32
WARM_UP = 20
_GREETING = struct.Struct("<II16s")  # it has queue pair, first packet number and GID


class VerbsStream:
    """A ByteStream by SEND and RECV. One send is outstanding at a time, as one request is."""

    peer_address = "the other end"
    tls = None

    def __init__(self, device: str, sock: socket.socket) -> None:
        self._gid = next(one.gid for one in choose(find_ports(), Wishes((device,))) if one.gid)
        modules = {name: importlib.import_module(f"pyverbs.{name}") for name in MODULES}
        self._verbs: Any = SimpleNamespace(**modules)  # find_ports() has found the package
        self._open(device)
        self._connect(sock)

    def _open(self, device: str) -> None:
        verbs, e = self._verbs, self._verbs.enums
        self._context = verbs.device.Context(name=device)
        before = _events()
        self._channel = verbs.cq.CompChannel(self._context)
        (self._fd,) = _events() - before  # version 44 does not show the channel's descriptor
        os.set_blocking(self._fd, False)
        self._queue = verbs.cq.CQ(self._context, 4 * SIGNAL_EVERY, None, self._channel, 0)
        domain = verbs.pd.PD(self._context)
        self._memory = mmap.mmap(-1, (SLOTS + 1) * SLOT_SIZE)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._region = verbs.mr.MR(
            domain, len(self._memory), e.IBV_ACCESS_LOCAL_WRITE, address=self._address
        )
        room = verbs.qp.QPCap(max_send_wr=2 * SIGNAL_EVERY, max_recv_wr=SLOTS)
        wanted = verbs.qp.QPInitAttr(
            qp_type=e.IBV_QPT_RC, scq=self._queue, rcq=self._queue, cap=room, sq_sig_all=0
        )
        self._pair = verbs.qp.QP(domain, wanted, verbs.qp.QPAttr(port_num=1))
        self._receives = [
            verbs.wr.RecvWR(wr_id=slot, num_sge=1, sg=[self._place(slot, SLOT_SIZE)])
            for slot in range(SLOTS)
        ]
        for receive in self._receives:
            self._pair.post_recv(receive)
        # They map a length to a silent and a signalled one.
        self._sends: dict[int, tuple[Any, Any]] = {}
        self._sent = 0
        self._queue.req_notify()

    def _place(self, slot: int, length: int) -> Any:
        address = self._address + slot * SLOT_SIZE
        return self._verbs.wr.SGE(address, length, self._region.lkey)

    def _send_of(self, length: int) -> Any:
        """A send request that is kept: the data to which it points is copied when the request is
        made."""
        if length not in self._sends:
            place, signalled = self._place(SLOTS, length), self._verbs.enums.IBV_SEND_SIGNALED
            make = self._verbs.wr.SendWR
            self._sends[length] = (
                make(wr_id=SLOTS, num_sge=1, sg=[place], send_flags=0),
                make(wr_id=SLOTS, num_sge=1, sg=[place], send_flags=signalled),
            )
        self._sent += 1
        return self._sends[length][self._sent % SIGNAL_EVERY == 0]

    def _connect(self, sock: socket.socket) -> None:
        verbs, chosen = self._verbs, self._gid
        sock.sendall(_GREETING.pack(self._pair.qp_num, 0, chosen.address.packed))
        number, sequence, gid = _GREETING.unpack(_exactly(sock, _GREETING.size))
        words = ":".join(gid[at : at + 2].hex() for at in range(0, 16, 2))
        route = verbs.addr.GlobalRoute(
            dgid=verbs.addr.GID(words), sgid_index=chosen.index, hop_limit=64
        )
        wanted = verbs.qp.QPAttr(port_num=1)
        wanted.dest_qp_num, wanted.rq_psn, wanted.sq_psn = number, sequence, 0
        wanted.path_mtu, wanted.timeout, wanted.retry_cnt, wanted.rnr_retry = 3, 14, 7, 7
        wanted.max_rd_atomic = wanted.max_dest_rd_atomic = 1
        wanted.min_rnr_timer = 12
        wanted.ah_attr = verbs.addr.AHAttr(gr=route, is_global=1, port_num=1)
        self._pair.to_rts(wanted)
        sock.sendall(b"!")
        assert _exactly(sock, 1) == b"!"

    async def send(self, outgoing: bytes) -> None:
        at = SLOTS * SLOT_SIZE
        self._memory[at : at + len(outgoing)] = outgoing
        self._pair.post_send(self._send_of(len(outgoing)))

    async def receive(self) -> bytes:
        """The bytes of the next message; completions of sends are skipped."""
        while True:
            count, done = self._queue.poll(1)
            if count == 0:
                await self._event()
                continue
            assert done[0].status == 0, done[0]
            slot = done[0].wr_id
            if slot < SLOTS:
                at = slot * SLOT_SIZE
                received = self._memory[at : at + done[0].byte_len]
                self._pair.post_recv(self._receives[slot])
                return received

    async def _event(self) -> None:
        await trio.lowlevel.wait_readable(self._fd)
        self._channel.get_cq_event(self._queue)
        self._queue.ack_events(1)
        self._queue.req_notify()

    def detach(self) -> int:
        raise NotImplementedError

    async def aclose(self) -> None:
        return None


def _events() -> set[int]:
    """Descriptors of channels for verbs events. (One of the list belongs to the listing itself.)"""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            if "infinibandevent" in os.readlink(f"/proc/self/fd/{fd}"):
                found.add(int(fd))
    return found


def _exactly(sock: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = sock.recv(size - len(found))
        assert piece, "the other end is gone"
        found += piece
    return found


def _frames(device: str, sock: socket.socket) -> FrameStream:
    if device:
        return FrameStream(VerbsStream(device, sock), FrameParser())
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return FrameStream(TcpStream(sock, "peer"), FrameParser())


async def _ask(stream: FrameStream, count: int) -> None:
    for number in range(1, count + 1):
        await stream.send(encode_frame(Op.PING, request_id=number, body=REQUEST))
        (frame,) = await stream.receive_batch()
        assert frame.header.request_id == number and frame.body == ANSWER


async def _answer(stream: FrameStream, count: int) -> None:
    for _ in range(count):
        (frame,) = await stream.receive_batch()
        number = frame.header.request_id
        await stream.send(encode_frame(Op.PING, flags=FLAG_REPLY, request_id=number, body=ANSWER))


async def _timed(stream: FrameStream, is_client: bool, count: int) -> int:
    act = _ask if is_client else _answer
    await act(stream, WARM_UP)
    before = time.process_time_ns()
    await act(stream, count)
    return time.process_time_ns() - before


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("serve", "run"))
    parser.add_argument("address")
    parser.add_argument("--device", default="")
    parser.add_argument("--count", type=int, required=True)
    asked = parser.parse_args(words)
    if asked.what == "serve":
        with socket.create_server((asked.address, PORT)) as listener:
            print("ready", flush=True)
            sock, _ = listener.accept()
    else:
        sock = socket.create_connection((asked.address, PORT))
    cpu = trio.run(_timed, _frames(asked.device, sock), asked.what == "run", asked.count)
    print(json.dumps({f"{'client' if asked.what == 'run' else 'server'}_cpu_ns": cpu}))


if __name__ == "__main__":
    main(sys.argv[1:])
