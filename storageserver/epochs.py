"""The newest map epoch that this server has heard of, which keeps metaservers of before out.

Map epochs rise, over all metaservers of a cluster, with each change of the map. A restore of the
names, and a journal that is begun anew, let them jump by 2^20 and more (metaserver.restore). So a
metaserver with a much lower epoch is one of before that still runs, or runs again. Its names are
former ones, and its commands could delete what files of today consist of: it is refused, and the
connections that it has are ended. What was heard is kept in STATE_DIRECTORY/map_epoch.
"""

import os
import socket
from pathlib import Path
from typing import Final

from fscommon.errors import ConfigError, ProtocolError
from fscommon.files import sync_directory
from fscommon.observe.log import Log

FORMER: Final = 1 << 19  # epochs below the newest one; a metaserver of today is closer
_KEEP_EACH: Final = 1 << 18  # a server that is started again may know so much less
_FILE: Final = "map_epoch"


class Epochs:
    def __init__(self, directory: Path, log: Log) -> None:
        self._path = directory / _FILE
        self._log = log
        self._newest = 0
        self._kept = 0
        self._connections: dict[int, tuple[int, int]] = {}  # descriptor → socket, epoch

    @property
    def newest(self) -> int:
        """Other storage servers take this server for one of the present cluster by it."""
        return self._newest

    def load(self) -> None:
        """Raises ConfigError."""
        try:
            self._newest = self._kept = int(self._path.read_text())
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot read {self._path}: {error}") from error

    def why_not(self, epoch: int) -> str:
        """Why a metaserver with this epoch is refused; "": it is not. 0: it does not say."""
        if not epoch or epoch + FORMER >= self._newest:
            return ""
        return (
            f"this metaserver has map epoch {epoch}, and the cluster had {self._newest}: it is one "
            "of before a restore or a recovery. If it is the right one nevertheless, stop this "
            f"storage server, remove {self._path} and start it again"
        )

    def heard(self, epoch: int) -> None:
        """Takes the epoch of a metaserver that this server follows. Raises ProtocolError if it is
        one of before."""
        why_not = self.why_not(epoch)
        if why_not:
            raise ProtocolError(why_not)
        self._newest = max(self._newest, epoch)
        if self._newest > self._kept + _KEEP_EACH:
            self._keep()
            self._end_former()

    def _keep(self) -> None:
        new = self._path.with_suffix(".new")
        try:
            with new.open("w") as file:
                file.write(f"{self._newest}\n")
                file.flush()
                os.fsync(file.fileno())
            new.rename(self._path)
            sync_directory(self._path.parent)
        except OSError as error:  # it is tried again with the next heartbeat
            self._log.warning("the map epoch could not be kept", path=self._path, error=error)
        else:
            self._kept = self._newest

    # ---- connections of metaservers ------------------------------------------------------------

    def connected(self, descriptor: int, epoch: int) -> None:
        """A metaserver has connected. Native code owns the descriptor, and may close it."""
        known = self._connections.items()
        self._connections = {fd: seen for fd, seen in known if _socket_of(fd) == seen[0]}
        self._connections[descriptor] = _socket_of(descriptor), epoch

    def _end_former(self) -> None:
        for descriptor, (inode, epoch) in self._connections.items():
            if self.why_not(epoch) and _shut_down(descriptor, inode):
                self._log.warning("ended a connection of a former metaserver", epoch=epoch)


def _socket_of(descriptor: int) -> int:
    """The inode of a socket; 0: there is none of this descriptor."""
    try:
        return os.fstat(descriptor).st_ino
    except OSError:
        return 0


def _shut_down(descriptor: int, inode: int) -> bool:
    """Ends what is said on a socket that other code owns, if it is still there. By a descriptor of
    its own it looks at what it shuts down: nobody else closes that one, or uses it again."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as mine:
            is_it = _socket_of(mine.fileno()) == inode
            if is_it:
                mine.shutdown(socket.SHUT_RDWR)
            return is_it
    except OSError:
        return False
