"""braidfs quota: what trees, users and groups use, and their limits.

fsclient.cli.trees makes directories trees.
"""

import functools
import grp
import os
import pwd
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click
from rich.console import Console

from fscommon.errors import FsError, Status
from fscommon.layout.quota import NO_LIMITS, AccountId, Limits, QuotaKind
from fscommon.rpc.caller import Caller
from fscommon.wire.ops import Op
from fscommon.wire.quota import (
    QUOTA_ROWS_MAX,
    QuotaList,
    QuotaReport,
    QuotaRow,
    QuotaSet,
    QuotaTell,
    QuotaTold,
)

from .frame import Command, Group, Reach, json_option, reaching, show, warn
from .places import PATH_TEXT, Place, find_place, inspect_place
from .terminal import table
from .trees import account_row, assign_tree, make_tree, top_of
from .words import Age, Size, duration, number, size

R = TypeVar("R")
TELL_TIMEOUT_S = 120.0
_LIMITS = ("bytes_soft", "bytes_hard", "inodes_soft", "inodes_hard")


class LimitPair(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """HARD, SOFT:HARD or SOFT:, each a size or `none`. Converts to (soft, hard), 0 for none."""

    name = "limit"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        soft, colon, hard = str(value).rpartition(":")
        made = tuple(self._one(text, param, ctx) for text in (soft, hard))
        if colon and made[1] and made[0] > made[1]:
            self.fail(f"'{value}': the soft limit is above the hard one", param, ctx)
        return made[0], made[1]

    def _one(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if text in ("", "none", "0"):
            return 0
        sign, count = Size().convert(text, param, ctx)
        if sign or not count:
            self.fail(f"'{text}' is not a limit such as 10G, 8G:10G or none", param, ctx)
        return count


@click.group(cls=Group)
def quota() -> None:
    """Quotas: how much a directory tree, a user or a group may use."""


@dataclass(frozen=True, slots=True)
class Whose:
    """An account. shown: as the user wrote it. place: of a tree whose number is not found yet."""

    shown: str
    account: AccountId | None
    place: Place | None
    reach: Reach


def _whose(function: Callable[..., R]) -> Callable[..., R]:
    """Gives a verb --tree, --user and --group, and what they name as the argument `whose`."""

    @click.option("--tree", metavar="PATH", help="A directory and all that is below.")
    @click.option("--user", metavar="NAME", help="A user, by name or number.")
    @click.option("--group", metavar="NAME", help="A group, by name or number.")
    @reaching
    @functools.wraps(function)
    def wrapped(
        *args: Any,
        reach: Reach,
        tree: str | None,
        user: str | None,
        group: str | None,
        **kwargs: Any,
    ) -> R:
        shown = tree or user or group
        if shown is None or sum(one is not None for one in (tree, user, group)) != 1:
            raise click.UsageError("name one of --tree, --user and --group")
        place = find_place(tree, reach) if tree else None
        account = _account(user, group) if place is None else None
        return function(
            *args, whose=Whose(shown, account, place, place.reach if place else reach), **kwargs
        )

    return wrapped


def _account(user: str | None, group: str | None) -> AccountId:
    try:
        if user is not None:
            return QuotaKind.USER, int(user) if user.isdecimal() else pwd.getpwnam(user).pw_uid
        name = group or ""
        return QuotaKind.GROUP, int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    except KeyError:
        raise click.BadParameter(f"this host knows no {user or group}: give the number") from None


@quota.command(
    "set",
    cls=Command,
    help=f"""Limit bytes and number of inodes of a tree, a user or a group.

    Bytes are the sizes of files, and names and values of extended attributes.

    A limit is HARD, SOFT:HARD or SOFT:, such as 10G, 8G:10G or none; the others stay. Soft
    limits may be exceeded for the grace time. The first limit of a directory makes it a tree: all
    that is in it is counted, which takes a while for a large directory.

    {PATH_TEXT}""",
    examples=[
        ("braidfs quota set --tree /data/team-a --bytes 10T --inodes 5M", "A directory."),
        (
            "braidfs quota set --user alice --bytes 900G:1T --grace 7d",
            "A user, who may exceed 900 GiB for a week, and 1 TiB never.",
        ),
        ("braidfs quota set --group students --inodes none", "No limit on inodes any more."),
    ],
)
@_whose
@click.option(
    "--bytes",
    "bytes_limit",
    type=LimitPair(),
    help="Limit of the sizes of files and extended attributes.",
)
@click.option(
    "--inodes", "inodes_limit", type=LimitPair(), help="Limit of files, directories and links."
)
@click.option("--grace", type=Age(), help="How long soft limits may be exceeded.")
@json_option
def quota_set(
    whose: Whose,
    bytes_limit: tuple[int, int] | None,
    inodes_limit: tuple[int, int] | None,
    grace: tuple[str, float] | None,
    as_json: bool,
) -> None:
    if bytes_limit is None and inodes_limit is None and grace is None:
        raise click.UsageError("name a limit: --bytes, --inodes or --grace")
    reach = whose.reach

    async def work(caller: Caller) -> QuotaRow:
        account = whose.account
        if account is None:
            assert whose.place is not None
            account = await make_tree(caller, whose.place)
        old = (await account_row(caller, reach, account)).limits
        limits = Limits(
            *(bytes_limit or (old.bytes_soft, old.bytes_hard)),
            *(inodes_limit or (old.inodes_soft, old.inodes_hard)),
            int(grace[1]) if grace else old.grace_s,
        )
        await caller.call(Op.QUOTA_SET, QuotaSet(*account, limits), reach.timeout_s)
        await _tell(caller, account)
        return await account_row(caller, reach, account)

    _show([reach.ask(work)], as_json)


@quota.command(
    "remove",
    cls=Command,
    help=f"""Remove all limits of a tree, a user or a group.

    A directory is then no tree any more: what is in it counts for the tree above, if any.

    {PATH_TEXT}""",
    examples=[
        ("braidfs quota remove --tree /data/team-a", "No tree any more."),
        ("braidfs quota remove --user alice", "Without limits."),
    ],
)
@_whose
@json_option
def quota_remove(whose: Whose, as_json: bool) -> None:
    reach = whose.reach

    async def work(caller: Caller) -> None:
        if whose.account is not None:
            request = QuotaSet(*whose.account, NO_LIMITS)
            await caller.call(Op.QUOTA_SET, request, reach.timeout_s)
        elif whose.place is not None:
            top = await top_of(caller, whose.place)
            if top.attributes.tree == top.attributes.ino:
                request = QuotaSet(QuotaKind.TREE, top.attributes.ino, NO_LIMITS)
                await caller.call(Op.QUOTA_SET, request, reach.timeout_s)
            await _unmake_tree(caller, reach, top.attributes.ino)

    reach.ask(work)
    show({"removed": whose.shown}, as_json, lambda console: None)


@quota.command(
    "list",
    cls=Command,
    examples=[
        ("braidfs quota list", "Whoever has limits."),
        ("braidfs quota list --all", "What everybody uses, with limits or without."),
    ],
)
@click.option("--all", "everybody", is_flag=True, help="Also accounts without limits.")
@reaching
@json_option
def quota_list(reach: Reach, everybody: bool, as_json: bool) -> None:
    """List trees, users and groups: what they use, and their limits."""
    _show(reach.ask(lambda caller: _rows(caller, reach, only_limited=not everybody)), as_json)


@quota.command(
    "get",
    cls=Command,
    help=f"""Show the accounts for which PATH counts: its tree, its owner, its group.

    {PATH_TEXT}""",
    examples=[("braidfs quota get /data/team-a/run7", "Which quotas are charged for it.")],
)
@click.argument("path")
@reaching
@json_option
def quota_get(reach: Reach, path: str, as_json: bool) -> None:
    place = find_place(path, reach)

    async def work(caller: Caller) -> list[QuotaRow]:
        seen = (await inspect_place(caller, place)).attributes
        accounts: list[AccountId] = [(QuotaKind.TREE, seen.tree)] if seen.tree else []
        accounts += [(QuotaKind.USER, seen.uid), (QuotaKind.GROUP, seen.gid)]
        return [await account_row(caller, place.reach, account) for account in accounts]

    _show(place.reach.ask(work), as_json)


async def _unmake_tree(caller: Caller, reach: Reach, ino: int) -> None:
    try:
        await assign_tree(caller, reach, ino, 0)
    except FsError as error:
        if error.status is not Status.EBUSY:
            raise
        warn(f"it has no limits any more, and stays a tree: {str(error).partition(': ')[2]}")


# ---- asking -------------------------------------------------------------------------------------


async def _tell(caller: Caller, account: AccountId) -> None:
    """Has active clients learn the limits: first those that make files, then those that write them.
    Each step waits at most until a lease ends or its holder is evicted."""
    for names in (True, False):
        told = QuotaTold((), 0)
        while True:
            request = QuotaTell(*account, names, told.after, told.inos)
            reply = await caller.call(Op.QUOTA_TELL, request, TELL_TIMEOUT_S)
            assert isinstance(reply, QuotaTold)
            told = reply
            if not told.after and not told.inos:
                break


async def _rows(caller: Caller, reach: Reach, *, only_limited: bool) -> list[QuotaRow]:
    rows: list[QuotaRow] = []
    after: AccountId = (0, 0)
    while True:
        request = QuotaList(*after, only_limited, QUOTA_ROWS_MAX)
        reply = await caller.call(Op.QUOTA_LIST, request, reach.timeout_s)
        assert isinstance(reply, QuotaReport)
        rows += reply.rows
        if reply.end:
            return rows
        after = (reply.rows[-1].kind, reply.rows[-1].number)


# ---- showing ------------------------------------------------------------------------------------


def _show(rows: list[QuotaRow], as_json: bool) -> None:
    show([_as_json(row) for row in rows], as_json, lambda console: _print(console, rows))


def _as_json(row: QuotaRow) -> dict[str, Any]:
    limits = {name: getattr(row.limits, name) or None for name in _LIMITS}
    return {
        "kind": QuotaKind(row.kind).name.lower(),
        "number": row.number,
        "name": _name(row),
        "bytes": row.used_bytes,
        "inodes": row.used_inodes,
        **limits,
        "grace_s": row.limits.grace_s,
        "bytes_grace_left_s": None if row.bytes_left_s < 0 else row.bytes_left_s,
        "inodes_grace_left_s": None if row.inodes_left_s < 0 else row.inodes_left_s,
    }


def _name(row: QuotaRow) -> str:
    """The path of a tree, the name of a user or group as this host knows it."""
    try:
        if row.kind == QuotaKind.USER:
            return pwd.getpwuid(row.number).pw_name
        if row.kind == QuotaKind.GROUP:
            return grp.getgrgid(row.number).gr_name
    except KeyError:
        return str(row.number)
    if row.number == 1:
        return ":/"
    return ":/" + os.fsdecode(b"/".join(row.names)) if row.names else f"inode {row.number}"


def _print(console: Console, rows: list[QuotaRow]) -> None:
    cells = []
    for row in rows:
        limits = row.limits
        cells.append(
            (
                QuotaKind(row.kind).name.lower(),
                _name(row),
                size(row.used_bytes),
                _limit(limits.bytes_soft, size),
                _limit(limits.bytes_hard, size),
                number(row.used_inodes),
                _limit(limits.inodes_soft, number),
                _limit(limits.inodes_hard, number),
                _left(row),
            )
        )
    columns = ("kind", "name", "used", "soft", "hard", "inodes", "soft ", "hard ", "grace")
    console.print(table(columns, cells, right="used,soft,hard,inodes,soft ,hard "), markup=False)


def _limit(value: int, words: Any) -> str:
    return words(value) if value else "-"


def _left(row: QuotaRow) -> str:
    left = [one for one in (row.bytes_left_s, row.inodes_left_s) if one >= 0]
    if not left:
        return ""
    return f"{duration(min(left))} left" if min(left) else "over"
