"""What the key of a mount permits: which directory, to read or to write, and the secret by which
its session proves itself at storage servers.

The cluster key permits everything, and the directory is looked up name by name. For a key of the
client's own the metaserver is asked: nothing above the directory of such a key can be looked up
(docs/decisions/0020-client-keys.md). Touched by the client's trio thread only.
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
    """meta: of the session; set before any other method is called."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential
        self.meta: MetaClient | None = None
        self.is_read_only = False
        self.is_checked_there = False  # the metaserver checks permissions: all users are one
        self.knows_users = False  # permissions depend on the user who calls
        self._data_key = b""
        self._session = 0  # the session of the secret

    def renew(self, credential: Credential) -> None:
        """Uses another key from now on."""
        self._credential = credential
        self._session = 0

    async def know(self) -> None:
        """Learns what the key permits, for a mount that another process has made."""
        if self.is_own:
            await self._ask()

    @property
    def is_own(self) -> bool:
        """Whether the key is the client's own, not the cluster's."""
        return self._credential.id != CLUSTER_KEY_ID

    async def find_root(self, path: tuple[bytes, ...], *, sealed: bool) -> Attributes:
        """Finds the directory to be mounted. Raises ConfigError if it does not exist, is not
        permitted by this key, or is not sealed as it should be."""
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
        """The secret by which this session proves itself at storage servers."""
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
        assert self.meta is not None, "set when the session is open"
        return self.meta


def _no_directory(path: tuple[bytes, ...], name: bytes) -> ConfigError:
    shown = b"/".join(path).decode(errors="replace")
    missing = name.decode(errors="replace")
    return ConfigError(f"the file system has no directory /{shown} ('{missing}' is not there)")
