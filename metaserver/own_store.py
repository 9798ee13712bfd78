"""The store in the state directory, which a copy from another metaserver may replace.

One of several metaservers reads its whole store before it opens it. A store that is damaged is
moved aside and kept (metaserver.state_directory); an empty one takes its place, which begins no
name space but waits for a copy from the active metaserver. A metaserver that is alone has no other
copy: it opens its store as it is, or ends with a sentence.
"""

import time
from typing import Final

import trio

from fscommon.errors import ConfigError
from fscommon.net.transport import Transport
from fscommon.observe.log import Log, RateLimit
from fscommon.observe.words import size
from metaserver.config import MetaserverConfig
from metaserver.copying import take_copy
from metaserver.last_seen import LastSeen, keep_seen
from metaserver.state_directory import STORE, set_aside, set_aside_before
from metaserver.store.journal import Head
from metaserver.store.journaled import has_names
from metaserver.store.lmdb import DamagedStoreError, LmdbStore
from metaserver.store.sound import damage_of
from metaserver.store.waist import StoreError

_TOLD_S: Final = 30.0


class OwnStore:
    """key, transport: to the metaserver that a copy comes from."""

    store: LmdbStore  # since `open` or `open_sound`

    def __init__(
        self, config: MetaserverConfig, log: Log, *, key: bytes, transport: Transport | None
    ) -> None:
        self._config = config
        self._log = log
        self._key = key
        self._transport = transport
        self._directory = config.state_directory

    # ---- of a metaserver that is alone ---------------------------------------------------------

    def open(self) -> LmdbStore:
        """Raises ConfigError, StoreError."""
        try:
            self.store = LmdbStore(self._directory / STORE, size_max=self._config.store_size_max)
        except OSError as error:
            raise ConfigError(f"state_directory {self._directory}: {error.strerror}") from error
        return self.store

    def check_begun(self) -> None:
        """Raises ConfigError if this is an empty store where a damaged one was."""
        if self.lost:
            raise ConfigError(
                f"{self.lost}, and this metaserver is alone, without a journal. Move that "
                "directory away to begin a new file system"
            )

    # ---- of one of several ---------------------------------------------------------------------

    async def open_sound(self) -> LmdbStore:
        """Reads the store, and opens it, or an empty one in its place. Raises ConfigError,
        StoreError."""
        place = self._directory / STORE
        try:
            damage = await trio.to_thread.run_sync(damage_of, place)
        except StoreError as error:
            damage = ""
            self._log.warning("the store could not be checked", error=error)
        if damage:
            self._set_aside(damage)
        return self._opened()

    def discard(self, damage: str) -> LmdbStore:
        """The store, which is open, is damaged. Returns an empty one in its place."""
        self.store.close()
        self._set_aside(damage)
        return self._opened()

    def _opened(self) -> LmdbStore:
        try:
            return self.open()
        except DamagedStoreError as error:  # reading alone did not show it
            self._set_aside(str(error))
            return self.open()

    def _set_aside(self, damage: str) -> None:
        try:
            kept = set_aside(self._directory)
        except OSError as error:
            raise ConfigError(f"the damaged store: {error.filename}: {error.strerror}") from error
        self._log.error(
            "the store is damaged: a copy is taken from the active metaserver",
            damage=damage,
            kept=kept,
        )

    async def copy(self, address: str) -> LmdbStore:
        """Takes a copy of the state from the active metaserver at the address. Raises
        UnreachableError, ForeignStateError, StoreError."""
        told = RateLimit(_TOLD_S)
        told.permit()  # a short copy is told of at its end alone

        def came(so_far: int, about: int) -> None:
            if told.permit() is not None:
                done = f"{size(so_far)} of about {size(about)}"
                self._log.info("taking a copy of the state", active=address, done=done)

        count = await take_copy(
            address,
            self.store,
            self._directory,
            key=self._key,
            transport=self._transport,
            came=came,
        )
        self.open()
        self._log.info("took a copy of the state", active=address, records=count)
        return self.store

    def saw(self, head: Head) -> None:
        """Keeps what the journal's head was just now."""
        keep_seen(self._directory, LastSeen(head, int(time.time())))

    def close(self) -> None:
        self.store.close()

    @property
    def lost(self) -> str:
        """Why the store is empty although there were names; "": it has some, or there were none."""
        kept = self.kept
        if not kept or has_names(self.store):
            return ""
        return f"the store was damaged, and is kept as {kept}"

    @property
    def kept(self) -> str:
        """Where a damaged store is kept aside; "" if there is none."""
        path = set_aside_before(self._directory)
        return "" if path is None else str(path)
