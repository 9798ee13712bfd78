"""braidfs target add: gives a storage server another directory, on its host, while it runs.

The server's configuration has its targets, so this file is extended. A SIGHUP makes a running
server open the target and register it, and from then on the metaserver puts new files on it.
Everything that can be checked from here is checked before anything is changed. If the server does
not serve the target in the end, its configuration is restored. docs/decisions/0028-new-targets.md.

A directory that was a target stands in the configuration already. The server remembers that, in
node.json of its state directory, and makes no new target there, as its device may only not be
mounted. --replaced makes the server forget it.
"""

import contextlib
import fcntl
import json
import os
import signal
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click
import trio
from rich.console import Console

from fscommon.errors import BraidError, ConfigError
from fscommon.files import sync_directory
from fscommon.net.address import parse_address
from fscommon.observe.status import target_json

from .cluster import ask_status, status_of
from .config import FOLDER, Loaded, load_any
from .frame import Command, Reach, json_option, reaching, run_trio, show
from .words import Size, size

_POLL_S: Final = 0.2
_LOCK: Final = struct.Struct("hhqqi4x")  # struct flock
_ORDINARY: Final = frozenset(("lost+found",))  # in a new file system


class NotServedError(BraidError):
    """The server did not accept the target."""


@dataclass(frozen=True, slots=True)
class _Wish:
    directory: Path
    capacity: int  # 0: the whole device
    config: Path
    wait_s: float
    is_replaced: bool  # it was a target, and has another device now

    def table(self) -> str:
        path = json.dumps(str(self.directory), ensure_ascii=False)
        capacity = f"capacity_bytes = {self.capacity}\n" if self.capacity else ""
        return f"\n[[targets]]\npath = {path}\n{capacity}"


@click.command(
    "add",
    cls=Command,
    examples=[
        ("braidfs target add /srv/braidfs/nvme3", "On the host of the storage server."),
        (
            "braidfs target add /srv/braidfs/nvme3 --capacity 1T --json",
            "At most this much of its device.",
        ),
        (
            "braidfs target add /srv/braidfs/nvme1 --replaced",
            "A new disk is mounted where that of a removed target was.",
        ),
    ],
)
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--config",
    "config",
    type=click.Path(path_type=Path),
    default=Path(FOLDER) / "storageserver.toml",
    show_default=True,
    metavar="FILE",
    help="The configuration of the storage server, to be extended.",
)
@click.option("--capacity", type=Size(), metavar="SIZE", help="Use only this much of the device.")
@click.option(
    "--shared-device", is_flag=True, help="Accept a device that has another target, or the system."
)
@click.option(
    "--replaced",
    "is_replaced",
    is_flag=True,
    help="DIRECTORY was a target of this server, which was removed, and has another disk now.",
)
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(0, 3600),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the server may take to serve the target.",
)
@reaching
@json_option
def target_add(
    reach: Reach,
    *,
    capacity: tuple[str, int] | None,
    shared_device: bool,
    as_json: bool,
    **wished: Any,
) -> None:
    """Give the storage server of this host another target, without a restart.

    DIRECTORY must be empty, on a device of its own (ext4 or XFS), and belong to the user of the
    server. New files use it as soon as all mounts know it; the command waits for that. Existing
    bytes stay where they are. If the server does not run, it serves the target when it starts. The
    sandbox of the unit requires DIRECTORY below /srv/braidfs, or in a ReadWritePaths= of its own.
    """
    wish = _wish(capacity=capacity[1] if capacity else 0, **wished)
    loaded = load_any(wish.config, "storageserver")
    pid = server_pid(Path(loaded.get("state_directory")))
    _check(wish, loaded, pid, shared_device=shared_device)
    if pid is None:
        _tell_server(wish, loaded)
        seen: dict[str, Any] = {"path": str(wish.directory), "state": "not served", "target": None}
    else:
        seen = _served(_reach_of(reach, loaded), wish, loaded, pid)
    show(seen, as_json, lambda console: _print(console, wish, seen))


def _wish(
    *, directory: Path, config: Path, capacity: int, wait_s: float, is_replaced: bool
) -> _Wish:
    return _Wish(directory.resolve(), capacity, config.resolve(), wait_s, is_replaced)


def server_pid(state_directory: Path) -> int | None:
    """The pid of the storage server with this state directory: the holder of its lock
    (storageserver.state). Raises ConfigError."""
    try:
        with (state_directory / "lock").open("rb+") as file:
            asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            answer = fcntl.fcntl(file, fcntl.F_GETLK, asked)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot look into {state_directory}: {error.strerror}") from error
    kind, _, _, _, pid = _LOCK.unpack(answer)
    return pid if kind != fcntl.F_UNLCK else None


# ---- before anything is changed --------------------------------------------------------------


def _check(wish: _Wish, loaded: Loaded, pid: int | None, *, shared_device: bool) -> None:
    """Checks the wish. Raises ConfigError, a sentence for each thing that is not safe."""
    path = wish.directory
    if not path.is_dir():
        raise ConfigError(f"{path} is not a directory: make it, and mount its device there")
    known = [Path(target["path"]) for target in loaded.get("targets")]
    if wish.is_replaced:
        _check_replaced(wish, known)
    elif path in known:
        raise ConfigError(
            f"{path} is a target of {wish.config} already; --replaced, if that target was removed "
            "and another disk is mounted there"
        )
    if (path / "superblock").exists():
        raise ConfigError(
            f"{path} was made a target already: to have this server serve what is in it, put it "
            f"into {wish.config} and reload the server"
        )
    if left := sorted({one.name for one in path.iterdir()} - _ORDINARY):
        raise ConfigError(f"{path} is not empty ({left[0]}): a target has a directory to itself")
    if not shared_device:
        _check_device(path, known)
    owner = _user_of(pid)
    if owner not in (None, 0, path.stat().st_uid):
        raise ConfigError(f"{path} does not belong to the server's user: chown {owner} {path}")


def _check_replaced(wish: _Wish, known: list[Path]) -> None:
    path = wish.directory
    if path not in known:
        raise ConfigError(f"{path} is no target of {wish.config}: leave out --replaced")
    if wish.capacity:
        raise ConfigError(f"--capacity: change capacity_bytes of {path} in {wish.config}")
    if (path / "superblock").exists():
        raise ConfigError(
            f"{path} still has the target that was made there: its disk was not replaced, or is "
            "not empty"
        )
    known.remove(path)


def _check_device(path: Path, known: list[Path]) -> None:
    device = path.stat().st_dev
    if device == Path("/").stat().st_dev:
        raise ConfigError(
            f"{path} is on the root file system: is its device mounted? "
            "--shared-device, if so meant"
        )
    for other in known:
        if other.is_dir() and other.stat().st_dev == device:
            raise ConfigError(
                f"{path} is on the device of the target {other}: it would bring neither room "
                "nor speed. --shared-device, if so meant"
            )


def _user_of(pid: int | None) -> int | None:
    try:
        return Path(f"/proc/{pid}").stat().st_uid if pid is not None else None
    except FileNotFoundError:
        return None


# ---- the configuration, and the running server -----------------------------------------------


def _tell_server(wish: _Wish, loaded: Loaded) -> Callable[[], None]:
    """Adds the target to the configuration, or has the server forget the former one. Returns what
    undoes it. Raises ConfigError."""
    path = _remembered(loaded) if wish.is_replaced else wish.config
    before = path.read_text()
    if wish.is_replaced:
        _replace(path, _without(path, before, wish.directory))
        return lambda: _replace(path, before)
    _put(path, before.rstrip("\n") + "\n" + wish.table())
    return lambda: _put(path, before)


def _remembered(loaded: Loaded) -> Path:
    return Path(loaded.get("state_directory")) / "node.json"


def _without(path: Path, text: str, directory: Path) -> str:
    """The state of the server without one of the targets that it remembers."""
    try:
        state = json.loads(text)
        state["targets"] = [one for one in state["targets"] if Path(one) != directory]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged: {error!r}") from error
    return json.dumps(state, indent=1) + "\n"


def _replace(path: Path, text: str) -> None:
    """Replaces a file, durably; owner and mode stay."""
    fresh = path.with_name(f"{path.name}.replaced")
    try:
        _write_like(path, fresh, text)
        fresh.replace(path)
        sync_directory(path.parent)
    finally:
        fresh.unlink(missing_ok=True)


def _write_like(old: Path, fresh: Path, text: str) -> None:
    attributes = old.stat()
    with fresh.open("w") as file:
        os.fchmod(file.fileno(), attributes.st_mode & 0o7777)
        os.fchown(file.fileno(), attributes.st_uid, attributes.st_gid)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _put(path: Path, text: str) -> None:
    """Replaces a configuration by one that the program can use; owner and mode stay."""
    fresh = path.with_name(f"{path.name}.new")
    try:
        _write_like(path, fresh, text)
        load_any(fresh, "storageserver")
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def _reach_of(reach: Reach, loaded: Loaded) -> Reach:
    """How to reach the metaservers of the server, unless others were named."""
    if reach.is_given:
        return reach
    addresses = tuple(parse_address(text) for text in loaded.get("metaservers"))
    return replace(reach, metaservers=addresses, key_file=Path(loaded.get("key_file")))


def _served(reach: Reach, wish: _Wish, loaded: Loaded, pid: int) -> dict[str, Any]:
    """Extends the configuration, reloads it, and waits for the target. Raises NotServedError."""
    known = {row.target for row in ask_status(reach).map.targets}
    undo = _tell_server(wish, loaded)
    os.kill(pid, signal.SIGHUP)
    name = str(loaded.get("name"))
    found: dict[str, Any] | None = run_trio(_wait_for_it, reach, known, name, wish.wait_s)
    if found is not None:
        return {"path": str(wish.directory), **found}
    undo()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGHUP)
    raise NotServedError(
        f"the storage server {name} (pid {pid}) does not serve {wish.directory}: its "
        f"log says why. {wish.config} is unchanged"
    )


async def _wait_for_it(
    reach: Reach, known: set[int], name: str, seconds: float
) -> dict[str, Any] | None:
    """The row of a new target of this server, once it is up, or as it is when the time is over;
    None: there is none."""
    found = None
    with trio.move_on_after(seconds):
        while True:
            reply = await reach.run(lambda caller: status_of(caller, reach))
            rows = [target_json(reply, row) for row in reply.map.targets if row.target not in known]
            found = next((row for row in rows if row["node_name"] == name), None)
            if found is not None and found["state"] != "joining":
                break
            await trio.sleep(_POLL_S)
    return found


def _print(console: Console, wish: _Wish, seen: dict[str, Any]) -> None:
    if seen["target"] is None:
        console.print(
            f"{wish.directory} is in {wish.config}; the storage server does not run, and serves it "
            "when it starts",
            soft_wrap=True,
        )
        return
    when = "new files use it"
    if seen["state"] == "joining":
        when += " once every mount knows it"
    console.print(
        f"target {seen['target']} of {seen['node_name']}: {size(seen['bytes_free'])} free, "
        f"{seen['state']}; {when}",
        soft_wrap=True,
    )
