"""braidfs key: the cluster key, and keys for clients with fewer rights."""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import trio
from rich.console import Console

from fscommon.auth.key import (
    CLUSTER_KEY_ID,
    Credential,
    client_secret,
    create_client_key,
    create_key,
    load_credential,
    load_key,
)
from fscommon.errors import BraidError, ConfigError, FsError, Status, TransportError
from fscommon.layout.quota import NO_LIMITS, QuotaKind
from fscommon.observe.status import session_text
from fscommon.observe.visible import visible
from fscommon.rpc.caller import Caller
from fscommon.types import ROOT_INO
from fscommon.wire.keys import (
    KEY_READ_ONLY,
    KEY_ROWS_MAX,
    KEY_SQUASH_ROOT,
    NO_IDS,
    IdMap,
    KeyCreate,
    KeyCreated,
    KeyList,
    KeyReport,
    KeyRevoke,
    KeyRow,
)
from fscommon.wire.ops import Op

from .frame import KEY_FILE, Command, Group, Reach, json_option, reaching, show
from .ids import id_options, ids_as_json, ids_text, take_ids
from .places import PATH_TEXT, Place, find_place
from .terminal import table
from .trees import account_row, make_tree, top_of
from .words import Age, counted, duration, path_of

_POLL_S: Final = 0.1
_FLAGS: Final = {"read_only": KEY_READ_ONLY, "squash_root": KEY_SQUASH_ROOT}
_SECOND_NS: Final = 10**9


@click.group(cls=Group)
def key() -> None:
    """The cluster key, and keys for clients.

    A holder of the cluster key is trusted with everything. The key of a client is only for
    mounting: everything or one directory, to read or to write, until it is revoked.
    """


def fingerprint(secret: bytes) -> str:
    """Identifies a key without revealing it."""
    return hashlib.sha256(b"braidfs key fingerprint" + secret).hexdigest()[:16]


def _show_file(path: Path, as_json: bool) -> None:
    credential = load_credential(path)
    seen: dict[str, Any] = {"path": str(path), "fingerprint": fingerprint(credential.secret)}
    kind = "key"
    if credential.id != CLUSTER_KEY_ID:
        seen["id"] = session_text(credential.id)
        kind = f"client's key {seen['id']}, fingerprint"
    show(seen, as_json, lambda c: c.print(f"{path}: {kind} {seen['fingerprint']}", markup=False))


# ---- create -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Wanted:
    name: str
    place: Place | None
    flags: int
    expires_ns: int
    ids: IdMap


@key.command(
    "create",
    cls=Command,
    help=f"""Write a new random cluster key to PATH, or with --client a key for a client.

    The file is readable by its owner alone; one that exists is kept. A client's key is known to the
    metaserver; --tree makes the directory a tree, as for quotas, and keeps all else out of the
    client's reach. For --tree {PATH_TEXT}""",
    examples=[
        ("braidfs key create", f"A new cluster key in {KEY_FILE}."),
        ("braidfs key create ./cluster.key --json", "Elsewhere; prints its fingerprint."),
        (
            "braidfs key create gpu.key --client gpu-pool --tree /data/train --read-only",
            "For nodes that read one directory.",
        ),
        (
            "braidfs key create guest.key --client guest --tree :/guest --expires 30d",
            "To write below a directory, for a month.",
        ),
        (
            "braidfs key create lab.key --client lab --tree :/lab --squash-root",
            "For hosts whose root is not to be root here.",
        ),
        (
            "braidfs key create phys.key --client physics --map-uid 1000-1999:21000"
            " --map-gid 100:500",
            "For hosts with users of their own: 1000 there is 21000 here.",
        ),
        (
            "braidfs key create kiosk.key --client kiosk --tree :/kiosk --squash-all 5000:5000",
            "For hosts all of whose users are one.",
        ),
    ],
)
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path), default=KEY_FILE)
@click.option("--client", metavar="NAME", help="A key for a client, by this name.")
@click.option("--tree", metavar="DIR", help="Only for this directory and what is below it.")
@click.option("--read-only", is_flag=True, help="For reading only.")
@click.option(
    "--squash-root",
    is_flag=True,
    help="No user of the client is root: what its root "
    "makes belongs to nobody, and it may use what root owns like any other user.",
)
@id_options
@click.option("--expires", type=Age(), help="The key expires after this time.")
@reaching
@json_option
def key_create(
    path: Path,
    client: str | None,
    tree: str | None,
    expires: tuple[str, float] | None,
    reach: Reach,
    as_json: bool,
    **limits: Any,
) -> None:
    ids = take_ids(limits)
    if client is None:
        if tree or expires or any(limits.values()) or ids != NO_IDS:
            raise click.UsageError("options that limit a key need --client NAME")
        create_key(path)
        _show_file(path, as_json)
        return
    expires_ns = time.time_ns() + int(expires[1] * _SECOND_NS) if expires else 0
    place = find_place(tree, reach) if tree else None
    flags = sum(_FLAGS[name] for name, is_wanted in limits.items() if is_wanted)
    wanted = _Wanted(client, place, flags, expires_ns, ids)
    reach = place.reach if place else reach
    _check_free(path)
    row = reach.ask(lambda caller: _create(caller, reach, wanted, path))
    show(_as_json(row) | {"path": str(path)}, as_json, lambda c: _print_created(c, row, path))


def _check_free(path: Path) -> None:
    """Checks most of what can be wrong with the file, before the metaserver is asked."""
    if path.exists():
        raise ConfigError(f"cannot create the key file {path}: File exists")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"cannot create the key file {path}: there is no such directory")


async def _create(caller: Caller, reach: Reach, wanted: _Wanted, path: Path) -> KeyRow:
    root, path_of_root = int(ROOT_INO), path_of(())
    if wanted.place is not None and wanted.place.names:
        path_of_root = path_of(wanted.place.names)
        root = await _tree_for_key(caller, reach, wanted.place)
    request = KeyCreate(
        wanted.name, root, path_of_root, wanted.flags, wanted.expires_ns, wanted.ids
    )
    made: KeyCreated = await caller.call(Op.KEY_CREATE, request, reach.timeout_s)
    secret = client_secret(load_key(reach.key_file), made.cluster, made.id)
    try:
        create_client_key(path, Credential(made.id, secret))
    except BraidError:
        await caller.call(Op.KEY_REVOKE, KeyRevoke(made.id), reach.timeout_s)
        raise
    return next(row for row in await _rows(caller, reach) if row.id == made.id)


async def _tree_for_key(caller: Caller, reach: Reach, place: Place) -> int:
    """Makes the directory a tree, unless it counts for the quota of a tree above: a key must not
    take a part out of that."""
    attributes = (await top_of(caller, place)).attributes
    if attributes.tree not in (0, attributes.ino):
        outer = await account_row(caller, reach, (QuotaKind.TREE, attributes.tree))
        if outer.limits != NO_LIMITS:
            raise FsError(
                Status.EBUSY,
                f"{place.shown} counts for the quota of a directory above: give it one of its own "
                f"first (braidfs quota set --tree {place.shown})",
            )
    return (await make_tree(caller, place))[1]


def _print_created(console: Console, row: KeyRow, path: Path) -> None:
    ends = f", until {_utc(row.expires_ns)}" if row.expires_ns else ""
    console.print(
        f"{path}: key {session_text(row.id)} of client {row.name}: {_rights(row)} "
        f"{_tree(row)}{ends}{_ids(row)}",
        markup=False,
    )


def _ids(row: KeyRow) -> str:
    text = ids_text(row.ids)
    return f"; {text}" if text else ""


# ---- check, list, revoke ----------------------------------------------------------------------


@key.command(
    "check",
    cls=Command,
    examples=[
        ("braidfs key check", f"Is {KEY_FILE} sound?"),
        ("ssh stor1 braidfs key check", "The fingerprints of two hosts must agree."),
    ],
)
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path), default=KEY_FILE)
@json_option
def key_check(path: Path, as_json: bool) -> None:
    """Check a key file and print the fingerprint of the key, which does not reveal it."""
    _show_file(path, as_json)


@key.command(
    "list",
    cls=Command,
    examples=[
        ("braidfs key list", "The valid keys of clients."),
        ("braidfs key list --all --json", "Also revoked and expired ones."),
    ],
)
@click.option("--all", "everything", is_flag=True, help="Also keys that are no longer valid.")
@reaching
@json_option
def key_list(reach: Reach, everything: bool, as_json: bool) -> None:
    """List the keys of clients: what each permits, and how many mounts use it."""
    rows = reach.ask(lambda caller: _rows(caller, reach))
    rows = sorted(
        (row for row in rows if everything or _state(row) in ("good", "ending")),
        key=lambda row: row.created_ns,
    )
    show([_as_json(row) for row in rows], as_json, lambda console: _print_list(console, rows))


@key.command(
    "revoke",
    cls=Command,
    examples=[
        ("braidfs key revoke gpu-pool", "When this ends, its mounts are fenced."),
        ("braidfs key revoke 5f3a0c91d2e4b7a8 --yes", "By its id, without asking."),
    ],
)
@click.argument("which", metavar="NAME|ID")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@reaching
@json_option
def key_revoke(which: str, yes: bool, reach: Reach, as_json: bool) -> None:
    """Revoke a key for ever: its mounts are ended and fenced at every storage server.

    What these have not sent yet is lost, as if their hosts had failed; from now on they are refused
    with EACCES. The command ends when no storage server accepts anything of them any more.
    """
    row = _find(reach.ask(lambda caller: _rows(caller, reach)), which)
    if not yes and not as_json and row.sessions:
        mounts = counted(len(row.sessions), "mount")
        click.confirm(f"End {mounts} with the key {visible(row.name)}?", abort=True, err=True)
    reach.ask(lambda caller: _revoke(caller, reach, row.id))
    seen = {"revoked": session_text(row.id), "name": row.name, "mounts": len(row.sessions)}
    show(seen, as_json, lambda c: c.print(f"{row.name} revoked", markup=False))


def _find(rows: Sequence[KeyRow], which: str) -> KeyRow:
    by_id = [row for row in rows if session_text(row.id) == which.lower()]
    by_name = [row for row in rows if row.name == which and _state(row) == "good"]
    if not by_id and not by_name:
        raise click.BadParameter(f"there is no valid key '{which}': see braidfs key list")
    return (by_name or by_id)[0]


async def _revoke(caller: Caller, reach: Reach, key_id: int) -> None:
    """Revokes the key and waits until every session is fenced everywhere."""
    await caller.call(Op.KEY_REVOKE, KeyRevoke(key_id), reach.timeout_s)
    try:
        with trio.fail_after(reach.timeout_s):
            while await _is_used(caller, reach, key_id):  # noqa: ASYNC110 - another program
                await trio.sleep(_POLL_S)
    except trio.TooSlowError:
        raise TransportError(
            f"revoked, but a storage server has not fenced its mounts within {reach.timeout_s:g} s:"
            " see braidfs status"
        ) from None


async def _is_used(caller: Caller, reach: Reach, key_id: int) -> bool:
    request = KeyList(key_id - 1, 1)
    report: KeyReport = await caller.call(Op.KEY_LIST, request, reach.timeout_s)
    return any(row.id == key_id and (row.sessions or row.ending) for row in report.rows)


async def _rows(caller: Caller, reach: Reach) -> list[KeyRow]:
    rows: list[KeyRow] = []
    while True:
        request = KeyList(rows[-1].id if rows else 0, KEY_ROWS_MAX)
        report: KeyReport = await caller.call(Op.KEY_LIST, request, reach.timeout_s)
        rows += report.rows
        if report.end or not report.rows:
            return rows


# ---- showing ----------------------------------------------------------------------------------


def _state(row: KeyRow) -> str:
    if row.revoked_ns:
        return "ending" if row.sessions or row.ending else "revoked"
    return "expired" if 0 < row.expires_ns <= time.time_ns() else "good"


def _rights(row: KeyRow) -> str:
    rights = "reads" if row.flags & KEY_READ_ONLY else "reads and writes"
    if row.ids.everybody:
        return f"{rights}, all as one"
    mapped = ", ids mapped" if row.ids != NO_IDS else ""
    return f"{rights}, no root{mapped}" if row.flags & KEY_SQUASH_ROOT else rights + mapped


def _tree(row: KeyRow) -> str:
    if row.root == ROOT_INO:
        return path_of(())
    return path_of(row.names) if row.names else f"{row.path} (gone)"


def _utc(time_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(time_ns // _SECOND_NS))


def _as_json(row: KeyRow) -> dict[str, Any]:
    return {
        "id": session_text(row.id),
        "client": row.name,
        "tree": _tree(row),
        "read_only": bool(row.flags & KEY_READ_ONLY),
        "squash_root": bool(row.flags & KEY_SQUASH_ROOT),
        **ids_as_json(row.ids),
        "state": _state(row),
        "created_ns": row.created_ns,
        "expires_ns": row.expires_ns or None,
        "revoked_ns": row.revoked_ns or None,
        "sessions": [session_text(session) for session in row.sessions],
    }


def _print_list(console: Console, rows: Sequence[KeyRow]) -> None:
    cells = [
        (
            session_text(row.id),
            row.name,
            _tree(row),
            _rights(row),
            _state(row),
            str(len(row.sessions)),
            _left(row),
        )
        for row in rows
    ]
    columns = ("id", "client", "tree", "rights", "state", "mounts", "expires")
    console.print(table(columns, cells, right="mounts"), markup=False)
    for row in rows:
        if row.ids != NO_IDS:
            console.print(f"{row.name}: {ids_text(row.ids)}", markup=False)


def _left(row: KeyRow) -> str:
    left_s = (row.expires_ns - time.time_ns()) / _SECOND_NS
    return f"in {duration(left_s)}" if left_s > 0 else ""
