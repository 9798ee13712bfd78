"""braidfs target: the devices that store the bytes."""

import click
from rich.console import Console

from fscommon.observe.status import target_json
from fscommon.wire.admin import TargetSet
from fscommon.wire.messages import StatusReply
from fscommon.wire.ops import Op

from .cluster import ask_status
from .frame import EXIT_DONE, Command, Group, Reach, json_option, reaching, show
from .target_add import target_add
from .target_leave import target_drain, target_remove
from .terminal import table
from .words import bar, number, size


@click.group(cls=Group)
def target() -> None:
    """Targets: one is one directory on one device of a storage server."""


target.add_command(target_add)
target.add_command(target_drain)
target.add_command(target_remove)


@target.command(
    "list",
    cls=Command,
    examples=[
        ("braidfs target list", "All targets."),
        ("braidfs target list --state full", "Targets without room."),
        ("braidfs target list --node stor2 --json", "The targets of one server, for programs."),
    ],
)
@click.option(
    "--state",
    type=click.Choice(["up", "down", "full", "draining", "joining", "lost"]),
    help="Only these.",
)
@click.option("--node", "node", metavar="NAME", help="Only targets of this storage server.")
@reaching
@json_option
def target_list(reach: Reach, state: str | None, node: str | None, as_json: bool) -> None:
    """List the targets: where and how full they are, and how many objects and errors they have."""
    reply = ask_status(reach)
    if node is not None and all(one.name != node for one in reply.nodes):
        raise click.BadParameter(f"there is no storage server {node}: see braidfs node list")
    found = [
        row
        for row in (target_json(reply, entry) for entry in reply.map.targets)
        if state in (None, row["state"]) and node in (None, row["node_name"])
    ]
    show(found, as_json, lambda console: _print_targets(console, reply, found))


def _print_targets(console: Console, reply: StatusReply, found: list[dict[str, object]]) -> None:
    rows = []
    for row in found:
        total, free = int(str(row["bytes_total"])), int(str(row["bytes_free"]))
        used = 1 - free / total if total else 0.0
        rows.append(
            (
                str(row["target"]),
                str(row["node_name"]),
                str(row["address"]),
                _state(row),
                f"{bar(used, 12)} {used:>4.0%}",
                size(free),
                size(total),
                number(int(str(row["objects"]))),
                str(row["errors"]),
            )
        )
    columns = ("target", "server", "address", "state", "used", "free", "size", "objects", "errors")
    console.print(table(columns, rows, right="target,free,size,objects,errors"))


def _state(row: dict[str, object]) -> str:
    """The state, and how far its job is: how much was moved away, or made again."""
    share = row["share_done"]
    return f"{row['state']} {share:.0%}" if isinstance(share, float) else str(row["state"])


@target.command(
    "set-state",
    cls=Command,
    examples=[
        ("braidfs target set-state draining 3", "No new files on a device that is slow or worn."),
        ("braidfs find :/ --target 3 --type f", "Which files are on it."),
        ("braidfs target set-state up 3 4", "They get new files again."),
    ],
)
@click.argument("state", type=click.Choice(["draining", "up"]))
@click.argument(
    "targets", nargs=-1, required=True, type=click.IntRange(1, 2**32 - 1), metavar="TARGET..."
)
@reaching
@json_option
def target_set_state(reach: Reach, state: str, targets: tuple[int, ...], as_json: bool) -> int:
    """Set whether targets get new files.

    A target that is draining gets none. What is on it is read and written as usual, and stays:
    braidfs target drain also moves it to other targets, and "up" ends that. The state is kept over
    restarts. Draining is refused if no other target could take new files. The cluster itself finds
    the other states, down and full. Mounts learn of a change within seconds.
    """
    reach.call(Op.TARGET_SET, TargetSet(tuple(dict.fromkeys(targets)), state == "draining"))
    reply = ask_status(reach)
    rows = [target_json(reply, row) for row in reply.map.targets if row.target in targets]
    show(rows, as_json, lambda console: _print_targets(console, reply, rows))
    return EXIT_DONE
