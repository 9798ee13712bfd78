"""What a storage server remembers between runs: STATE_DIRECTORY/node.json.

The file holds the server's uuid and id, the cluster that it joined, and the paths that are targets.
A remembered path without a superblock is a device that is not mounted, never a place for a new
target. The file is written by rename and fsync; a file that does not parse is refused, not
replaced. While the server runs it holds a POSIX lock on STATE_DIRECTORY/lock, through which others
find its pid (fcntl F_GETLK).
"""

import fcntl
import json
import os
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final

from fscommon.errors import ConfigError
from fscommon.files import sync_directory

_FILE: Final = "node.json"
LOCK_FILE: Final = "lock"
_UUID_SIZE: Final = 16


@dataclass(frozen=True, slots=True)
class NodeState:
    uuid: bytes
    node: int = 0  # 0: the metaserver has not assigned an id yet
    cluster: bytes = b""  # b"": never joined a cluster
    targets: tuple[str, ...] = ()  # paths that hold a superblock

    def joined(self, node: int, cluster: bytes) -> "NodeState":
        return replace(self, node=node, cluster=cluster)

    def with_target(self, path: str) -> "NodeState":
        return self if path in self.targets else replace(self, targets=(*self.targets, path))


class StateFile:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / _FILE
        self._lock: IO[bytes] | None = None

    def hold(self) -> None:
        """Locks the state directory until release(). Raises ConfigError: another process has it."""
        path = self._directory / LOCK_FILE
        try:
            self._lock = path.open("ab")
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another storage server has {self._directory}") from None
        except OSError as error:
            raise ConfigError(f"cannot lock {path}: {error.strerror}") from error

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()

    def load(self) -> NodeState:
        """The stored state. At the first start a new one is made and stored. Raises ConfigError."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            text = self._path.read_text()
        except FileNotFoundError:
            state = NodeState(uuid.uuid4().bytes)
            self.store(state)
            return state
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {self._path}: {error}") from error
        return self._parse(text)

    def store(self, state: NodeState) -> None:
        """Stores the state, which is durable when this returns. Raises ConfigError."""
        fields = {
            "uuid": state.uuid.hex(),
            "node": state.node,
            "cluster": state.cluster.hex(),
            "targets": list(state.targets),
        }
        new = self._path.with_suffix(".new")
        try:
            with new.open("w") as file:
                file.write(json.dumps(fields, indent=1) + "\n")
                file.flush()
                os.fsync(file.fileno())
            new.rename(self._path)
            sync_directory(self._directory)
        except OSError as error:
            raise ConfigError(f"cannot write {self._path}: {error.strerror}") from error

    def _parse(self, text: str) -> NodeState:
        try:
            state = _from_json(json.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{self._path} is damaged: {error!r}") from error
        if len(state.uuid) != _UUID_SIZE or len(state.cluster) not in (0, _UUID_SIZE):
            raise ConfigError(f"{self._path} is damaged: a uuid has {_UUID_SIZE} bytes")
        return state


def _from_json(fields: Any) -> NodeState:
    return NodeState(
        uuid=bytes.fromhex(fields["uuid"]),
        node=int(fields["node"]),
        cluster=bytes.fromhex(fields["cluster"]),
        targets=tuple(str(path) for path in fields["targets"]),
    )
