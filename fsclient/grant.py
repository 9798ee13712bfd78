"""What the key of a mount is good for: which directory, to read or to write, and the secret that
its session proves itself with at storage servers.

With the cluster key that is everything, and the directory is looked up name by name. A key of the
client's own is asked about at the metaserver: what is above the directory that such a key is for
cannot be looked at (docs/decisions/0020-client-keys.md). Touched by the client's trio thread only.
"""

import stat

from fscommon.auth.key import CLUSTER_KEY_ID, Credential
from fscommon.errors import ConfigError, FsError, Status, TransportError
from fscommon.layout.attributes import INODE_IMMUTABLE, Attributes, unpack_attributes
from fscommon.types import ROOT_INO
from fscommon.wire.keys import (
    KEY_MAPS_IDS,
    KEY_READ_ONLY,
    KEY_SQUASH_ALL,
    KEY_SQUASH_ROOT,
    MountRoot,
    SessionGrant,
)
from fscommon.wire.messages import Empty, Entry, GetAttr, Lookup
from fscommon.wire.ops import Op

from .meta.client import MetaClient


class Grant:
    """meta: of the session, put here before anything is asked."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential
        self.meta: MetaClient | None = None
        self.is_read_only = False
        self.is_checked_there = False  # permissions are, as all of this client are one user
        self.knows_users = False  # what may be done depends on who of the client asks
        self._data_key = b""
        self._session = 0  # that it is of

    def renew(self, credential: Credential) -> None:
        """Another key from now on."""
        self._credential = credential
        self._session = 0

    async def know(self) -> None:
        """What the key is good for, of a mount that another process has made."""
        if self.is_own:
            await self._ask()

    @property
    def is_own(self) -> bool:
        """The key is the client's own, not the cluster's."""
        return self._credential.id != CLUSTER_KEY_ID

    async def find_root(self, path: tuple[bytes, ...], *, sealed: bool) -> Attributes:
        """The directory to be mounted. Raises ConfigError: it is not there, or not for this key, or
        not sealed as it should be."""
        if self.is_own:
            await self._ask()
        try:
            attributes = await (self._root_of_key(path) if self.is_own else self._walk(path))
        except FsError as error:
            if error.status is Status.EACCES:
                raise ConfigError(error.message) from None
            if error.status in (Status.ENOENT, Status.ENOTDIR):
                raise _no_directory(path, path[-1]) from None
            raise
        if not stat.S_ISDIR(attributes.mode):
            raise _no_directory(path, path[-1])
        if sealed and not attributes.flags & INODE_IMMUTABLE:
            raise ConfigError(
                "the mount option 'sealed' is for sealed trees: braidfs seal PATH on another mount"
            )
        return attributes

    async def _walk(self, path: tuple[bytes, ...]) -> Attributes:
        meta = self._asked()
        reply = await meta.call(Op.GETATTR, GetAttr(ROOT_INO), Entry)
        for name in path:
            parent = unpack_attributes(reply.attributes).ino
            try:
                reply = await meta.call(Op.LOOKUP, Lookup(parent, name), Entry)
            except FsError as error:
                if error.status in (Status.ENOENT, Status.ENOTDIR):
                    raise _no_directory(path, name) from None
                raise
        return unpack_attributes(reply.attributes)

    async def _root_of_key(self, path: tuple[bytes, ...]) -> Attributes:
        reply = await self._asked().call(Op.MOUNT_ROOT, MountRoot(path), Entry)
        return unpack_attributes(reply.attributes)

    async def data_key(self, session: int) -> bytes:
        """What this session proves itself with at storage servers."""
        if not self.is_own:
            return self._credential.secret
        if self._session != session:
            await self._ask()
        if self._session != session:
            raise TransportError("the session ended meanwhile")
        return self._data_key

    async def _ask(self) -> None:
        meta = self._asked()
        session = meta.number
        try:
            grant = await meta.call(Op.SESSION_GRANT, Empty(), SessionGrant)
        except FsError as error:
            raise TransportError(f"the metaserver does not say what the key is for: {error}") from (
                error
            )
        if session == meta.number:
            self._session, self._data_key = session, grant.data_key
            self.is_read_only = bool(grant.flags & KEY_READ_ONLY)
            self.is_checked_there = bool(grant.flags & KEY_SQUASH_ALL)
            of_users = KEY_SQUASH_ALL | KEY_SQUASH_ROOT | KEY_MAPS_IDS
            self.knows_users = bool(grant.flags & of_users)

    def _asked(self) -> MetaClient:
        assert self.meta is not None, "put there when the session is open"
        return self.meta


def _no_directory(path: tuple[bytes, ...], name: bytes) -> ConfigError:
    shown = b"/".join(path).decode(errors="replace")
    missing = name.decode(errors="replace")
    return ConfigError(f"the file system has no directory /{shown} ('{missing}' is not there)")
