"""braidfs-storageserver: the composition root, and the order of start and stop.

Start: learn the cluster (first run only), open the targets, start native code, listen, register;
the program is ready when it is registered. Connections that arrive earlier are authenticated and
wait in native code, which serves nothing before it has the session table (rule 15). Stop: accept no
more connections; then native code finishes its requests, makes everything durable and marks its
targets clean. SIGHUP: targets that were added to the configuration are opened and registered with
the others.
"""

import contextlib
import functools
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import trio

from fscommon.auth.handshake import KeyRing
from fscommon.auth.key import load_key
from fscommon.config import load
from fscommon.errors import ConfigError
from fscommon.native import make_chunk_server
from fscommon.native_ports import ChunkServer
from fscommon.net.address import STORAGESERVER_PORT, Address, parse_address
from fscommon.net.rails import Rails
from fscommon.net.serve import AcceptLimits, serve
from fscommon.net.tls import transport_of, watch_certificate
from fscommon.net.transport import Transport
from fscommon.service import Service, run_program
from storageserver.care import Care
from storageserver.config import StorageServerConfig, buffer_bytes_max
from storageserver.connections import Connections
from storageserver.copying import Copying
from storageserver.damage import Damage
from storageserver.epochs import Epochs
from storageserver.events import NativeEvents
from storageserver.listing import Listing
from storageserver.membership import Membership, Metaservers
from storageserver.object_requests import ObjectRequests
from storageserver.scrubbing import Scrubbing
from storageserver.sources import Credentials, Sources
from storageserver.state import NodeState, StateFile
from storageserver.tables import Tables
from storageserver.targets import Targets

PROGRAM: Final = "braidfs-storageserver"
STOP_DEADLINE_MS: Final = 20_000
RAILS_REFRESH_S: Final = 5.0


class StorageServer:
    """One run of the program. `native` and `transport` are given, so that tests can run all
    of it."""

    def __init__(
        self,
        config: StorageServerConfig,
        native: ChunkServer,
        service: Service,
        transport: Transport | None = None,
    ) -> None:
        self._config = config
        self._native = native
        self._service = service
        self._transport = transport or transport_of(
            config.tls_settings(), service.log, is_local=config.transport != "tcp"
        )
        self._key = load_key(config.key_file)
        self._file = StateFile(config.state_directory)
        metaservers = Metaservers(
            config.metaserver_addresses(), self._key, config.name, config.domain, self._transport
        )
        log, metrics = service.log, service.metrics
        self._epochs = Epochs(config.state_directory, log)
        damage = Damage()
        self._membership = Membership(
            metaservers, self._file, self._epochs, damage, log=log, metrics=metrics
        )
        self._targets = Targets(native, log, metrics)
        self._tables = Tables(native, self._targets)
        self._rails = Rails(native, config.rdma(), log)
        own = Credentials(config.name, self._key, self._transport)
        self._sources, care = Sources(own, self._epochs), Care(native.has_clients)
        copying = Copying(native, self._targets, self._sources, care)
        scrubbing = Scrubbing(native, self._targets, self._sources, care, metrics)
        self._connections = Connections(
            native,
            self._tables,
            self._membership,
            self._epochs,
            ObjectRequests(Listing(self._targets.path_of), copying, scrubbing),
            self._rails,
            log,
        )
        self._events = NativeEvents(native, damage, log, metrics)
        self._opening = trio.Lock()  # native code opens, starts and stops, one at a time
        self._reloads, self._reloaded = trio.open_memory_channel[None](1)

    async def run(self) -> None:
        """Serve until the service stops."""
        self._service.log.info("starting", io_engine=self._native.io_engine())
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._cancel_when_stopping, nursery.cancel_scope)
                nursery.start_soon(self._events.run)
                nursery.start_soon(self._sources.run)
                nursery.start_soon(watch_certificate, self._transport, self._service.metrics)
                state = await self._open_targets()
                self._service.reload = self._reload
                nursery.start_soon(self._open_what_is_new)
                self._native.start()
                self._open_rails()
                nursery.start_soon(self._watch_rails)
                try:
                    await self._serve(state)
                finally:
                    with trio.CancelScope(shield=True):
                        await self._opening.acquire()
                        await trio.to_thread.run_sync(self._native.stop, STOP_DEADLINE_MS)
                    self._events.drain()
        finally:
            self._file.release()

    async def _cancel_when_stopping(self, scope: trio.CancelScope) -> None:
        await self._service.stopping.wait()
        scope.cancel()

    def _open_rails(self) -> None:
        self._rails.refresh()
        if self._rails.required and not self._rails.rails:
            raise ConfigError(f"transport is rdma, but: {self._rails.reason}")

    async def _watch_rails(self) -> None:
        """Opens ports that came up or came back; connections made after that use them."""
        while True:
            await trio.sleep(RAILS_REFRESH_S)
            self._rails.refresh()

    async def _open_targets(self) -> NodeState:
        state = self._file.load()
        self._file.hold()
        self._epochs.load()
        if not state.cluster:
            state = await self._membership.join(state, self._advertised(self._listen()))
        return await trio.to_thread.run_sync(
            self._targets.open_all, self._config.targets, state, self._file
        )

    def _reload(self) -> None:
        """Called at SIGHUP; a call while one already waits counts as the same."""
        with contextlib.suppress(trio.WouldBlock):
            self._reloads.send_nowait(None)

    async def _open_what_is_new(self) -> None:
        async for _ in self._reloaded:
            try:
                await self._read_again()
            except ConfigError as error:
                self._service.log.error("the configuration was not read again", error=error)

    async def _read_again(self) -> None:
        config = load(StorageServerConfig, self._service.config_file)
        async with self._opening:
            count = await trio.to_thread.run_sync(
                self._targets.open_more, config.targets, self._file.load(), self._file
            )
        gone = self._targets.paths() - {target.path for target in config.targets}
        if gone or replace(config, targets=self._config.targets) != self._config:
            self._service.log.warning(
                "some changes need a restart: without one, only new targets are taken"
            )
        self._service.log.info("configuration read again", targets_opened=count)
        if count:
            self._membership.register_again()

    async def _serve(self, state: NodeState) -> None:
        async with trio.open_nursery() as nursery:
            listening: Address = await nursery.start(
                functools.partial(
                    serve,
                    self._listen(),
                    key=KeyRing(self._key, self._tables.client_key),
                    on_connection=self._connections.admit,
                    limits=AcceptLimits(why_not=self._connections.why_not),
                    log=self._service.log,
                    transport=self._transport,
                )
            )
            address = self._advertised(listening)
            self._service.log.info("listening", address=listening, advertised=address)
            nursery.start_soon(self._membership.run, state, address, self._targets, self._tables)
            await self._membership.wait_registered()
            self._service.ready()

    def _listen(self) -> Address:
        return self._config.listen_address()

    def _advertised(self, listening: Address) -> str:
        if self._config.advertise:
            return str(parse_address(self._config.advertise, port_default=STORAGESERVER_PORT))
        return str(listening)


async def _main(config: StorageServerConfig, service: Service) -> None:
    try:
        native = make_chunk_server(
            lane_count=config.lanes,
            io=config.io_engine,
            busy_poll_us=config.busy_poll_us,
            target_count=len(config.targets),
            fetched_bytes_max=config.fetched_bytes_max(),
            buffer_bytes_max=buffer_bytes_max(),
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"the native data plane cannot start: {error}") from error
    service.metrics.collect_native(native.counters)
    await StorageServer(config, native, service).run()


def main(argv: Sequence[str] | None = None) -> int:
    purpose = "Keep and serve the objects of BraidFS targets."
    return run_program(PROGRAM, purpose, StorageServerConfig, _main, argv)


if __name__ == "__main__":
    sys.exit(main())
