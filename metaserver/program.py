"""braidfs-metaserver: the program. It is alone, or one of a group over a journal."""

import contextlib
import sys
from collections.abc import Sequence
from typing import Final

from fscommon.auth.key import load_key
from fscommon.errors import ConfigError
from fscommon.net.tls import transport_of
from fscommon.service import Service, run_program
from fscommon.tasks import open_tasks
from metaserver.config import MetaserverConfig
from metaserver.copying import take_copy
from metaserver.group import Group, Parts
from metaserver.server import Metaserver
from metaserver.state_directory import STORE, check_restored, held
from metaserver.store.journaled import forget_mark
from metaserver.store.journals.settings import open_journal
from metaserver.store.lmdb import LmdbStore

PROGRAM: Final = "braidfs-metaserver"


class _OwnStore:
    """The store in the state directory, which a copy from another metaserver may replace."""

    def __init__(self, config: MetaserverConfig, service: Service) -> None:
        """Raises ConfigError, StoreError."""
        self._config = config
        self._service = service
        self.store = self._opened()

    def reopen(self) -> None:
        """The store was closed, and another one lies in its place. Raises as the constructor."""
        self.store = self._opened()

    def _opened(self) -> LmdbStore:
        directory = self._config.state_directory
        try:
            return LmdbStore(
                directory / STORE,
                size_max=self._config.store_size_max,
                on_damage=lambda text: self._service.log.error(
                    "damaged metadata: its users get EIO", what=text
                ),
            )
        except OSError as error:
            raise ConfigError(f"state_directory {directory}: {error.strerror}") from error

    def close(self) -> None:
        self.store.close()


async def _alone(config: MetaserverConfig, service: Service, own: _OwnStore) -> None:
    forget_mark(own.store)
    metaserver = Metaserver(
        config,
        own.store,
        service.metrics,
        key=load_key(config.key_file),
        transport=transport_of(config.tls_settings(), service.log),
    )
    async with open_tasks() as tasks:
        address = await tasks.start(metaserver.run, service.stopping)
        service.log.info("serving", address=address)
        service.ready()


async def _in_a_group(config: MetaserverConfig, service: Service, own: _OwnStore) -> None:
    settings = config.journal_settings()
    assert settings is not None
    key = load_key(config.key_file)
    transport = transport_of(config.tls_settings(), service.log)

    async def copy(address: str) -> LmdbStore:
        directory = config.state_directory
        count = await take_copy(address, own.store, directory, key=key, transport=transport)
        own.reopen()
        service.log.info("took a copy of the state", active=address, records=count)
        return own.store

    parts = Parts(config, service, key, transport, lambda: open_journal(settings), copy)
    await Group(parts, own.store).run()


async def _main(config: MetaserverConfig, service: Service) -> None:
    with contextlib.ExitStack() as until_the_end:
        try:
            until_the_end.enter_context(held(config.state_directory))
        except OSError as error:
            raise ConfigError(
                f"state_directory {config.state_directory}: {error.strerror}"
            ) from error
        check_restored(config.state_directory)
        own = _OwnStore(config, service)
        until_the_end.callback(own.close)
        await (_in_a_group if config.journal else _alone)(config, service, own)


def main(argv: Sequence[str] | None = None) -> int:
    purpose = "Keep the namespace of a BraidFS cluster."
    return run_program(PROGRAM, purpose, MetaserverConfig, _main, argv)


if __name__ == "__main__":
    sys.exit(main())
