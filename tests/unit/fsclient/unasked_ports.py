"""Ports of native whose every method fails: a fake extends one by the methods that its tests use.

A fake must have all methods of a port to be one for mypy, which compares their types.
"""

from typing import NoReturn

from fscommon.native_ports import EventRow, NativeTls, OfferRow, UpcallRow


def _unasked() -> NoReturn:
    raise AssertionError("no test here should use this method of native")


class UnaskedCluster:
    def rdma_connect(self, token: int, peer: bytes) -> None:
        _unasked()

    def rdma_drop(self, token: int) -> None:
        _unasked()

    def rdma_close(self, rail: int) -> None:
        _unasked()

    def rdma_check(self) -> list[int]:
        _unasked()

    def node_put(self, node: int) -> None:
        _unasked()

    def target_put(self, target: int, node: int) -> None:
        _unasked()

    def target_state(self, target: int, up: bool) -> None:
        _unasked()

    def connection_put(
        self, lane: int, node: int, fd: int, rdma: int = 0, tls: NativeTls | None = None
    ) -> None:
        _unasked()

    def connection_failed(self, lane: int, node: int) -> None:
        _unasked()

    def rdma_open(self, device: str, port: int, gid_index: int, memory_mib: int) -> int:
        _unasked()

    def rdma_offer(self, rail: int, lane: int) -> OfferRow:
        _unasked()

    def session_put(self, session: int) -> None:
        _unasked()


class UnaskedIo:
    def cache_open(
        self, directory: str, bytes_max: int, cluster: bytes, passthrough: bool = False
    ) -> None:
        _unasked()

    def prefetch(self, bytes_max: int, fills_pages: bool) -> None:
        _unasked()

    def announce(self, inos: bytes, replaces: bool) -> int:
        _unasked()

    def drain(self, token: int, ino: int, sync: bool, commit: bool) -> None:
        _unasked()

    def barrier(self, token: int) -> None:
        _unasked()

    def punch(self, token: int, ino: int, begin: int, end: int) -> None:
        _unasked()

    def seek(self, token: int, ino: int, start: int, hole: bool) -> None:
        _unasked()

    def copy(
        self,
        token: int,
        source: int,
        source_begin: int,
        sink: int,
        sink_begin: int,
        length: int,
        only_reach: bool,
    ) -> None:
        _unasked()

    def upcall(self, slot: int) -> UpcallRow:
        _unasked()

    def answer(self, slot: int, error: int, body: bytes) -> None:
        _unasked()

    def events_fd(self) -> int:
        _unasked()

    def reap(self, count_max: int) -> list[EventRow]:
        _unasked()

    def memory_rest(self, piece_bytes: int, read_bytes: int, short: bool) -> None:
        _unasked()

    def commit_done(self, token: int, status: int, attributes: bytes) -> None:
        _unasked()

    def cut_done(
        self,
        ino: int,
        number: int,
        status: int,
        attributes: bytes,
        layout: bytes,
        capability: bytes,
    ) -> None:
        _unasked()

    def cuts_pause(self, ino: int, paused: bool) -> int:
        _unasked()
