"""braidfs-metaserver: the program. It is alone, or one of a group over a journal."""

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Final

from fscommon.auth.key import load_key
from fscommon.errors import ConfigError
from fscommon.net.tls import transport_of
from fscommon.service import Service, Tool, run_program
from fscommon.tasks import open_tasks
from metaserver.config import MetaserverConfig
from metaserver.group import Group, Parts
from metaserver.own_store import OwnStore
from metaserver.recovery import ask, recover
from metaserver.server import Metaserver
from metaserver.state_directory import check_restored, held
from metaserver.store.journaled import forget_mark
from metaserver.store.journals.settings import open_journal

PROGRAM: Final = "braidfs-metaserver"


def _own_store(config: MetaserverConfig, service: Service) -> OwnStore:
    """Raises ConfigError."""
    transport = transport_of(config.tls_settings(), service.log)
    return OwnStore(config, service.log, key=load_key(config.key_file), transport=transport)


async def _alone(config: MetaserverConfig, service: Service) -> None:
    own = _own_store(config, service)
    with closing(own.open()) as store:
        own.check_begun()
        forget_mark(store)
        metaserver = Metaserver(
            config,
            store,
            service.metrics,
            key=load_key(config.key_file),
            transport=transport_of(config.tls_settings(), service.log),
        )
        async with open_tasks() as tasks:
            address = await tasks.start(metaserver.run, service.stopping)
            service.log.info("serving", address=address)
            service.ready()


async def _in_a_group(config: MetaserverConfig, service: Service) -> None:
    settings = config.journal_settings()
    assert settings is not None
    own = _own_store(config, service)
    await own.open_sound()
    with closing(own):  # its store may be another one by then
        key = load_key(config.key_file)
        transport = transport_of(config.tls_settings(), service.log)
        parts = Parts(config, service, key, transport, lambda: open_journal(settings), own)
        await Group(parts, own.store).run()


async def _main(config: MetaserverConfig, service: Service) -> None:
    with ExitStack() as until_the_end:
        try:
            until_the_end.enter_context(held(config.state_directory))
        except OSError as error:
            raise ConfigError(
                f"state_directory {config.state_directory}: {error.strerror}"
            ) from error
        check_restored(config.state_directory)
        await (_in_a_group if config.journal else _alone)(config, service)


def _recover(config: MetaserverConfig, asks_nothing: bool) -> str:
    """Raises BraidError."""
    settings = config.journal_settings()
    if settings is None:
        raise ConfigError("without a `journal` in the configuration there is nothing to begin")

    def told(text: str) -> bool:
        print(text, file=sys.stderr)  # noqa: T201 - for the one who started it
        return True

    try:
        with closing(open_journal(settings)) as door:
            confirm = told if asks_nothing else ask
            return recover(config, door, confirm=confirm, now_s=int(time.time()))
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}") from error


RECOVER: Final = Tool(
    "--recover-from-local",
    "the engine of the journal is lost for good: begin the new, empty journal of the configuration "
    "from this metaserver's store, and end",
    _recover,
)


def main(argv: Sequence[str] | None = None) -> int:
    purpose = "Keep the namespace of a BraidFS cluster."
    return run_program(PROGRAM, purpose, MetaserverConfig, _main, argv, RECOVER)


if __name__ == "__main__":
    sys.exit(main())
