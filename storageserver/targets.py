"""The targets of this server: opens them, reports on them, and takes the ids they get.

An empty directory becomes a target once. After that a missing superblock is an error, because the
device is then most likely not mounted. A target that cannot be opened does not stop the others: it
is logged and left out of every report, which the metaserver takes for "down". It is tried again
when the configuration is read again. Native code owns the content of a target (native/src/store).
"""

import contextlib
import errno
import os
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Final

from fscommon.errors import ConfigError, ProtocolError
from fscommon.native_ports import ChunkServer, TargetRow
from fscommon.observe.log import Log
from fscommon.observe.metrics import Metrics
from fscommon.wire.admin import Traffic
from fscommon.wire.servers import DroppedNames, TargetReport
from storageserver.config import TargetConfig
from storageserver.state import NodeState, StateFile

_MAGIC: Final = b"BRAIDTGT"
_UUID_AT: Final = slice(32, 48)  # in the superblock (docs/INTERFACES.md, section 4)


_SECTOR: Final = 512  # of /sys/dev/block, whatever sector the device has
OBJECT_FILE_SIZE_MAX: Final = (1 << 44) - (1 << 19)  # slot B lies 8 TiB behind slot A


class Targets:
    """The targets. open_all() is called once, before native code starts; open_more() later. Both
    may block for a recovery, so call them in a thread, one at a time. A target opened later is
    reported after publish(), which the registering task calls."""

    def __init__(self, native: ChunkServer, log: Log, metrics: Metrics) -> None:
        self._native = native
        self._log = log
        self._metrics = metrics
        self._paths: list[Path] = []  # published
        self._opened: list[Path] = []  # in the order of native's indices
        self._worn: dict[int, int] = {}  # by target: as counted last

    def open_all(
        self, configs: Sequence[TargetConfig], state: NodeState, file: StateFile
    ) -> NodeState:
        """Opens all targets and publishes them. Returns the state with those that were opened.
        Raises ConfigError, the first one, when none can be opened."""
        state, refusals = self._open_each(configs, state, file)
        if refusals and not self._opened:
            raise refusals[0]
        self._tell(refusals)
        self.publish()
        return state

    def open_more(self, configs: Sequence[TargetConfig], state: NodeState, file: StateFile) -> int:
        """Opens the targets that are not open yet. Returns how many it opened. Raises ConfigError
        when the state cannot be stored."""
        before = len(self._opened)
        fresh = [config for config in configs if config.path not in self._opened]
        _, refusals = self._open_each(fresh, state, file)
        self._tell(refusals)
        return len(self._opened) - before

    def paths(self) -> set[Path]:
        """The paths of the open targets."""
        return set(self._opened)

    def path_of(self, target: int) -> Path | None:
        """Where the target lies; None: this server has no such target."""
        known = enumerate(self._paths)
        return next((p for i, p in known if self._native.target_info(i).target == target), None)

    def incarnation_of(self, target: int) -> int | None:
        """None: this server has no such target."""
        rows = (self._native.target_info(index) for index in range(len(self._paths)))
        return next((row.incarnation for row in rows if row.target == target), None)

    def part_used(self, target: int) -> float:
        """What part of the target's bytes is in use; 1.0: there is no such target."""
        rows = (self._native.target_info(index) for index in range(len(self._paths)))
        row = next((row for row in rows if row.target == target), None)
        return 1.0 if row is None or not row.bytes_total else 1 - row.bytes_free / row.bytes_total

    def publish(self) -> None:
        self._paths = list(self._opened)

    def _open_each(
        self, configs: Sequence[TargetConfig], state: NodeState, file: StateFile
    ) -> tuple[NodeState, list[ConfigError]]:
        refusals: list[ConfigError] = []
        for config in configs:
            try:
                self._open(config, state)
            except ConfigError as error:
                refusals.append(error)
                continue
            state = state.with_target(str(config.path))
            file.store(state)
        return state, refusals

    def _tell(self, refusals: Sequence[ConfigError]) -> None:
        for refusal in refusals:
            self._log.error("a target is not served; repair it and reload", error=refusal)
        self._metrics.gauge("braidfs_targets_unserved").set(len(refusals))

    def reports(self) -> tuple[TargetReport, ...]:
        rows = [self._native.target_info(index) for index in range(len(self._paths))]
        for path, row in zip(self._paths, rows, strict=True):
            if row.target:
                self._measure(row)
                self._measure_wear(path, row.target)
        return tuple(map(_report_of, rows))

    def traffic(self) -> Traffic:
        counters = self._native.counters()
        return Traffic(
            read_bytes=counters.get("read_bytes", 0),
            written_bytes=counters.get("written_bytes", 0),
            reads=counters.get("reads", 0),
            writes=counters.get("writes", 0),
        )

    def assign(self, ids: Sequence[int]) -> None:
        """Takes the ids that the metaserver gave, in the order of reports(). Raises ConfigError
        when they do not match."""
        if len(ids) != len(self._paths):
            raise ConfigError(f"the metaserver named {len(ids)} targets of {len(self._paths)}")
        for index, (path, target) in enumerate(zip(self._paths, ids, strict=True)):
            known = self._native.target_info(index).target
            if known not in (0, target):
                raise ConfigError(
                    f"target {path} is number {known}, but the metaserver knows it as {target}"
                )
            if known == 0:
                self._native.target_assign(index, target)
                self._log.info("target assigned", target=target, path=path)

    def retire(self, removed: Sequence[int]) -> None:
        """No client is served by targets that have left the cluster: nobody says any more which of
        their names were dropped."""
        for target in removed:
            self._native.target_retire(target)

    def drop_names(self, target: int, names: DroppedNames) -> None:
        """No client is served for these objects any more. Raises ProtocolError when they cannot be
        taken."""
        try:
            self._native.drop_names(target, names.file_ids, names.objects)
        except ValueError as error:
            raise ProtocolError(f"the names dropped at target {target}: {error}") from error

    def _open(self, config: TargetConfig, state: NodeState) -> None:
        stored = superblock_uuid(config.path)
        if stored is None and str(config.path) in state.targets:
            raise ConfigError(
                f"{config.path} was a target and holds no superblock now: is its device mounted? "
                f"Of a new disk, braidfs target add {config.path} --replaced makes a new target"
            )
        check_file_size(config.path)
        try:
            index = self._native.target_open(
                str(config.path),
                cluster=state.cluster,
                uuid=stored or uuid.uuid4().bytes,
                capacity_bytes=config.capacity_bytes,
                create=stored is None,
            )
        except (OSError, ValueError) as error:
            raise ConfigError(f"target {config.path} cannot be opened: {error}") from error
        self._opened.append(config.path)
        row = self._native.target_info(index)
        self._log.info(
            "target opened",
            path=config.path,
            target=row.target,
            uuid=row.uuid,
            incarnation=row.incarnation,
            created=stored is None,
            bytes_free=row.bytes_free,
        )

    def _measure(self, row: TargetRow) -> None:
        gauge = self._metrics.gauge
        gauge("braidfs_target_bytes", target=row.target).set(row.bytes_total)
        gauge("braidfs_target_bytes_free", target=row.target).set(row.bytes_free)
        gauge("braidfs_target_files", target=row.target).set(row.files_total)
        gauge("braidfs_target_files_free", target=row.target).set(row.files_free)
        gauge("braidfs_target_objects", target=row.target).set(row.objects)
        gauge("braidfs_target_errors", target=row.target).set(row.errors)

    def _measure_wear(self, path: Path, target: int) -> None:
        """Measures what the device was given to write. Only root can ask the device for the rest of
        its wear."""
        written = device_written_bytes(path)
        if written is not None:
            name = "braidfs_target_device_written_bytes_total"
            counter = self._metrics.counter(name, target=target)
            counter.inc(max(written - self._worn.get(target, 0), 0))
            self._worn[target] = written


def device_written_bytes(path: Path) -> int | None:
    """Bytes written to the device since the host started, by any program. None: the path is not on
    a device of its own, or is gone."""
    try:
        number = path.stat().st_dev
        figures = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat").read_text()
    except OSError:
        return None
    return int(figures.split()[6]) * _SECTOR


def check_file_size(path: Path) -> None:
    """Raises ConfigError where no file can be as long as the (sparse) files of objects."""
    with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=path) as file:
        try:
            os.ftruncate(file.fileno(), OBJECT_FILE_SIZE_MAX)
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise ConfigError(
                    f"target {path}: its file system cannot hold files of 16 TiB; ext4 needs "
                    "blocks of 4 KiB (mkfs.ext4 -b 4096), as it has them by default"
                ) from None


def superblock_uuid(path: Path) -> bytes | None:
    """The uuid in the target's superblock; None without a superblock. Native code verifies the
    rest. Raises ConfigError."""
    try:
        if not path.is_dir():
            raise ConfigError(f"the target {path} is not a directory: create it first")
        with (path / "superblock").open("rb") as file:
            head = file.read(_UUID_AT.stop)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"the target {path} cannot be read: {error.strerror}") from error
    if len(head) < _UUID_AT.stop or not head.startswith(_MAGIC):
        raise ConfigError(f"{path}/superblock is not that of a BraidFS target")
    return head[_UUID_AT]


def _report_of(row: TargetRow) -> TargetReport:
    return TargetReport(*(getattr(row, field.name) for field in fields(TargetReport)))
