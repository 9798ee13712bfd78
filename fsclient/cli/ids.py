"""Options of `braidfs key create` that say which users and groups a client's are in the cluster."""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from fscommon.wire.keys import IdMap, IdRange

_RANGE: Final = re.compile(r"(\d{1,10})(?:-(\d{1,10}))?:(\d{1,10})(?:-(\d{1,10}))?")
_PAIR: Final = re.compile(r"(\d{1,10}):(\d{1,10})")


class Ids(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """1000:21000, 1000-1999:21000, 1000-1999:21000-21999."""

    name = "ids"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> IdRange:
        if isinstance(value, IdRange):
            return value
        found = _RANGE.fullmatch(str(value))
        if not found:
            self.fail(
                f"'{value}' is not a number or range of the client's, a colon, and the cluster's "
                "first: 1000:21000 or 1000-1999:21000",
                param,
                ctx,
            )
        client, cluster = int(found[1]), int(found[3])
        count = int(found[2] or client) - client + 1
        if count < 1:
            self.fail(f"'{value}': the range ends before it begins", param, ctx)
        if found[4] and int(found[4]) - cluster + 1 != count:
            self.fail(f"'{value}': the ranges have different lengths", param, ctx)
        return IdRange(client, cluster, count)


class Pair(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A user and a group of the cluster."""

    name = "uid:gid"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        found = _PAIR.fullmatch(str(value))
        if not found:
            self.fail(f"'{value}' is not UID:GID, such as 5000:5000", param, ctx)
        return int(found[1]), int(found[2])


def id_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--squash-all",
            type=Pair(),
            metavar="UID:GID",
            help="Everybody of the client "
            "is this user with this group; permissions are checked by the metaserver.",
        ),
        click.option(
            "--map-gid",
            type=Ids(),
            multiple=True,
            metavar="FROM[-TO]:FIRST",
            help="The same for groups. Without it these are as they are.",
        ),
        click.option(
            "--map-uid",
            type=Ids(),
            multiple=True,
            metavar="FROM[-TO]:FIRST",
            help="Users FROM to TO of the client are those from FIRST on here; may be "
            "given often. Whoever is in no such range, root too, is nobody.",
        ),
    ):
        command = option(command)
    return command


def take_ids(limits: dict[str, Any]) -> IdMap:
    """Takes these options out of all options."""
    everybody = limits.pop("squash_all") or ()
    return IdMap(limits.pop("map_uid"), limits.pop("map_gid"), everybody)


def ids_as_json(ids: IdMap) -> dict[str, Any]:
    return {
        "map_uid": [row.text for row in ids.uids],
        "map_gid": [row.text for row in ids.gids],
        "squash_all": ":".join(map(str, ids.everybody)) or None,
    }


def ids_text(ids: IdMap) -> str:
    if ids.everybody:
        return "everybody is {}:{}".format(*ids.everybody)
    kinds: tuple[tuple[str, Sequence[IdRange]], ...] = (("users", ids.uids), ("groups", ids.gids))
    return "; ".join(
        f"{kind} {', '.join(row.text for row in ranges)}" for kind, ranges in kinds if ranges
    )
